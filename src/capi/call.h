// What the functions of fwpkm.h share: handles, and the way from exceptions to codes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "base/error.h"
#include "capi/fwpkm.h"
#include "session/open.h"
#include "session/session.h"

struct fwpkm_model {
  std::shared_ptr<const fwpkm::OpenModel> open;
};

struct fwpkm_session {
  std::shared_ptr<const fwpkm::OpenModel> open;
  std::map<std::string, std::string> about;  // for its file
  fwpkm::Session session;
};

namespace fwpkm::capi {

// An error whose code is known where it is found.
struct Failure {
  fwpkm_status status;
  std::string message;
};

// Keeps the message for fwpkm_last_error; -> status.
fwpkm_status failed(fwpkm_status status, const char* message) noexcept;

// A call of the function called `name`.
class Call {
 public:
  explicit Call(const char* name) : name_(name) {}

  template <typename... Args>
  void check(bool ok, fwpkm_status status, fmt::format_string<Args...> format,
             Args&&... args) const {
    if (!ok) {
      throw Failure{
          status, fmt::format("[{}] {}", name_, fmt::format(format, std::forward<Args>(args)...))};
    }
  }
  template <typename T>
  T& given(T* pointer, const char* what) const {
    check(pointer != nullptr, FWPKM_ERROR_ARGUMENT, "{} is NULL", what);
    return *pointer;
  }
  // The convention of buffers: `write` is called if there is a buffer and it is large enough.
  // `end` is what the capacity needs in addition, for the zero of texts.
  template <typename T, typename F>
  void fill(T* buffer, size_t capacity, size_t* count, size_t needed, F write,
            size_t end = 0) const {
    given(count, end > 0 ? "length" : "count");
    check(buffer != nullptr || capacity == 0, FWPKM_ERROR_ARGUMENT,
          "the buffer is NULL, but its capacity is {}", capacity);
    *count = needed;
    if (buffer == nullptr) {
      return;
    }
    check(needed + end <= capacity, FWPKM_ERROR_SIZE, "the buffer holds {}, but {} are needed",
          capacity, needed + end);
    write();
  }
  void fill_text(char* text, size_t capacity, size_t* length, const std::string& from) const {
    fill(
        text, capacity, length, from.size(),
        [&] {
          from.copy(text, from.size());
          text[from.size()] = '\0';
        },
        1);
  }

  const Tokenizer& tokenizer(const OpenModel& open) const {
    check(open.tokenizer != nullptr, FWPKM_ERROR_STATE,
          "{} does not say which tokenizer it was trained with; name one in fwpkm_model_open",
          open.folder.string());
    return *open.tokenizer;
  }
  // A text of the caller's, which must be UTF-8.
  std::string_view text(const char* text, size_t bytes) const;

 private:
  const char* name_;
};

// Calls the body; no exception leaves. `error` is the code of the library's own errors, which say
// what is wrong but not of what kind it is.
template <typename F>
fwpkm_status guarded(const char* name, fwpkm_status error, F body) noexcept {
  try {
    body(Call(name));
    return FWPKM_OK;
  } catch (const Failure& e) {
    return failed(e.status, e.message.c_str());
  } catch (const OutOfMemory& e) {
    return failed(FWPKM_ERROR_MEMORY, e.what());
  } catch (const Error& e) {
    return failed(error, e.what());
  } catch (const std::bad_alloc&) {
    return failed(FWPKM_ERROR_MEMORY, "[memory] out of memory");
  } catch (const std::filesystem::filesystem_error& e) {
    return failed(FWPKM_ERROR_FILE, e.what());
  } catch (const std::exception& e) {
    return failed(FWPKM_ERROR_INTERNAL, e.what());
  } catch (...) {
    return failed(FWPKM_ERROR_INTERNAL, "[capi] an exception of an unknown type");
  }
}

}  // namespace fwpkm::capi
