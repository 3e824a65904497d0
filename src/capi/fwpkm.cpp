// Models and text.
#include "capi/fwpkm.h"

#include <algorithm>

#include "capi/call.h"
#include "text/utf8.h"
#include "train/run_folder.h"

namespace fwpkm::capi {
namespace {

thread_local std::string t_message;
thread_local const char* t_last = "";

}  // namespace

fwpkm_status failed(fwpkm_status status, const char* message) noexcept {
  try {
    t_message = message;
    t_last = t_message.c_str();
  } catch (...) {  // no memory for the message
    t_last = "[memory] out of memory";
  }
  return status;
}

std::string_view Call::text(const char* text, size_t bytes) const {
  check(text != nullptr || bytes == 0, FWPKM_ERROR_ARGUMENT, "text is NULL");
  const std::string_view view(text, bytes);
  const size_t bad = utf8_error(view);
  check(bad == view.npos, FWPKM_ERROR_ARGUMENT, "the text is not UTF-8 at byte {}", bad);
  return view;
}

}  // namespace fwpkm::capi

using fwpkm::capi::Call;
using fwpkm::capi::guarded;

const char* fwpkm_version() {
  return FWPKM_VERSION;
}

const char* fwpkm_last_error() {
  return fwpkm::capi::t_last;
}

fwpkm_status fwpkm_model_open(const char* folder, const char* device, const char* tokenizer,
                              fwpkm_model** model) {
  if (model != nullptr) {
    *model = nullptr;
  }
  return guarded(__func__, FWPKM_ERROR_FILE, [&](const Call& call) {
    call.given(folder, "folder");
    call.given(model, "model");
    fwpkm::Device on = fwpkm::Device::cpu();
    try {
      on = fwpkm::Device::parse(device == nullptr ? "cpu" : device);
    } catch (const fwpkm::Error& e) {
      throw fwpkm::capi::Failure{FWPKM_ERROR_ARGUMENT, e.what()};
    }
    auto open = std::make_shared<const fwpkm::OpenModel>(
        fwpkm::open_model(fwpkm::find_model(folder), on, tokenizer == nullptr ? "" : tokenizer));
    *model = new fwpkm_model{std::move(open)};
  });
}

void fwpkm_model_close(fwpkm_model* model) {
  delete model;
}

fwpkm_status fwpkm_model_vocab_size(const fwpkm_model* model, int32_t* size) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const auto& config = call.given(model, "model").open->model->config();
    call.given(size, "size") = static_cast<int32_t>(config.vocab_size);
  });
}

fwpkm_status fwpkm_model_name(const fwpkm_model* model, char* text, size_t capacity,
                              size_t* length) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    call.fill_text(text, capacity, length, call.given(model, "model").open->model->config().name);
  });
}

fwpkm_status fwpkm_model_fingerprint(const fwpkm_model* model, char* text, size_t capacity,
                                     size_t* length) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    call.fill_text(text, capacity, length,
                   call.given(model, "model").open->model->fingerprint().hex());
  });
}

fwpkm_status fwpkm_model_memory_layers(const fwpkm_model* model, int32_t* layers, size_t capacity,
                                       size_t* count) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    auto list = call.given(model, "model").open->model->config().fwpkm.layers;
    std::sort(list.begin(), list.end());
    call.fill(layers, capacity, count, list.size(),
              [&] { std::copy(list.begin(), list.end(), layers); });
  });
}

fwpkm_status fwpkm_model_slots(const fwpkm_model* model, int64_t* slots) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const auto& config = call.given(model, "model").open->model->config();
    call.given(slots, "slots") = config.has_any_fwpkm() ? config.fwpkm.slots() : 0;
  });
}

fwpkm_status fwpkm_model_end_of_text(const fwpkm_model* model, int32_t* token) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const fwpkm::OpenModel& open = *call.given(model, "model").open;
    call.given(token, "token") = call.tokenizer(open).end_of_text();
  });
}

fwpkm_status fwpkm_model_encode(const fwpkm_model* model, const char* text, size_t bytes,
                                int continues, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    const fwpkm::OpenModel& open = *call.given(model, "model").open;
    const auto list = call.tokenizer(open).encode(call.text(text, bytes), continues != 0);
    call.fill(tokens, capacity, count, list.size(),
              [&] { std::copy(list.begin(), list.end(), tokens); });
  });
}

fwpkm_status fwpkm_model_decode(const fwpkm_model* model, const int32_t* tokens, size_t token_count,
                                char* text, size_t capacity, size_t* length) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    const fwpkm::OpenModel& open = *call.given(model, "model").open;
    call.check(tokens != nullptr || token_count == 0, FWPKM_ERROR_ARGUMENT, "tokens is NULL");
    call.fill_text(text, capacity, length, call.tokenizer(open).decode({tokens, token_count}));
  });
}
