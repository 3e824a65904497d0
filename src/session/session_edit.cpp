// Looking into sessions: who wrote what, what differs, and taking it back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "session/session.h"

namespace fwpkm {
namespace {

// Tokens in which a write and a text must agree to be taken for the same.
constexpr int kAgree = 4;

int64_t element_bytes(const View& view) {
  return static_cast<int64_t>(dtype_size(view.dtype));
}

std::vector<double> numbers(const std::byte* data, DType dtype, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF64) {
      std::memcpy(&values[i], data + i * sizeof(double), sizeof(double));
    } else {
      float value = 0;
      std::memcpy(&value, data + i * sizeof(float), sizeof(float));
      values[i] = value;
    }
  }
  return values;
}

double length(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = a[i] - (b.empty() ? 0 : b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

}  // namespace

SlotHistory Session::history(int layer, int32_t slot) const {
  check_layer(layer);
  SlotHistory history;
  const Overlay& rows = now_.history[static_cast<size_t>(layer)];
  require(model_->config().has_fwpkm(layer) && slot >= 0 && slot < model_->config().fwpkm.slots(),
          "session", "layer {} has no slot {}", layer, slot);
  if (rows.owners() > 0) {
    if (const std::byte* row = rows.find(0, slot)) {
      std::memcpy(&history, row, sizeof(history));
    }
  }
  return history;
}

std::vector<int32_t> Session::written(int layer) const {
  std::vector<int32_t> slots;
  check_layer(layer);
  const auto& fast = now_.state.layers[static_cast<size_t>(layer)].fast;
  if (!fast.empty() && fast[0].overlay.owners() > 0) {
    fast[0].overlay.for_each(0, [&](int32_t slot, const std::byte*) { slots.push_back(slot); });
  }
  return slots;
}

std::vector<std::pair<int, int32_t>> Session::written_by(
    std::span<const std::vector<int32_t>> spellings) const {
  std::vector<std::pair<int, int32_t>> found;
  for (size_t l = 0; l < now_.history.size(); ++l) {
    if (now_.history[l].owners() == 0) {
      continue;
    }
    now_.history[l].for_each(0, [&](int32_t slot, const std::byte* row) {
      SlotHistory history;
      std::memcpy(&history, row, sizeof(history));
      for (const SlotWrite& write : history.kept()) {
        for (const std::vector<int32_t>& text : spellings) {
          if (write.stands_in(text, kAgree)) {
            found.emplace_back(static_cast<int>(l), slot);
            return;
          }
        }
      }
    });
  }
  return found;
}

bool Session::queued_from(std::span<const std::vector<int32_t>> spellings) const {
  const int64_t waiting = std::min<int64_t>(queued(), static_cast<int64_t>(now_.tokens.size()));
  const std::span<const int32_t> queue(now_.tokens.data() + now_.tokens.size() - waiting,
                                       static_cast<size_t>(waiting));
  for (const std::vector<int32_t>& text : spellings) {
    // Any run of kAgree tokens (or all of a shorter text) that stands in the queue.
    const auto least = std::min<size_t>(kAgree, text.size());
    for (size_t i = 0; least > 0 && i + least <= text.size(); ++i) {
      if (std::search(queue.begin(), queue.end(), text.begin() + static_cast<ptrdiff_t>(i),
                      text.begin() + static_cast<ptrdiff_t>(i + least)) != queue.end()) {
        return true;
      }
    }
  }
  return false;
}

bool Session::forget(int layer, int32_t slot) {
  const ModelConfig& config = model_->config();
  require(layer >= 0 && layer < config.layers && config.has_fwpkm(layer), "session",
          "layer {} has no memory; memories are in layers {}", layer,
          fmt::join(config.fwpkm.layers, ", "));
  require(slot >= 0 && slot < config.fwpkm.slots(), "session", "slot {} is outside 0..{}", slot,
          config.fwpkm.slots() - 1);
  const auto at = static_cast<size_t>(layer);
  const bool was = now_.state.layers[at].fast[0].overlay.erase(0, slot);
  if (now_.history[at].owners() > 0) {
    now_.history[at].erase(0, slot);
  }
  return was;
}

SessionDiff Session::diff(const Session& before, const Session& after) {
  require(before.model_ == after.model_, "session",
          "the two sessions are of different models and cannot be compared");
  const ModelConfig& config = before.model_->config();
  SessionDiff result;
  for (int l = 0; l < config.layers; ++l) {
    if (!config.has_fwpkm(l)) {
      continue;
    }
    const std::string name = fmt::format("model.layers.{}.fwpkm.", l);
    const View& table = before.model_->parameters().at(name + "values").view();
    const View& base_keys = before.model_->parameters().at(name + "keys").view();
    const FastStream& a = before.now_.state.layers[static_cast<size_t>(l)].fast[0];
    const FastStream& b = after.now_.state.layers[static_cast<size_t>(l)].fast[0];
    const bool one_arena = a.overlay.arena() == b.overlay.arena();
    const int64_t width = a.overlay.width();
    const auto row_of = [&](const std::byte* row, int32_t slot) {
      const auto* base =
          static_cast<const std::byte*>(table.data) + slot * width * element_bytes(table);
      return numbers(row != nullptr ? row : base, table.dtype, width);
    };
    std::vector<int32_t> slots = before.written(l);
    const std::vector<int32_t> more = after.written(l);
    std::vector<int32_t> both;
    std::set_union(slots.begin(), slots.end(), more.begin(), more.end(), std::back_inserter(both));
    for (const int32_t slot : both) {
      const std::byte* row_a = a.overlay.find(0, slot);
      const std::byte* row_b = b.overlay.find(0, slot);
      if (row_a != nullptr && row_b != nullptr &&
          ((one_arena && row_a == row_b) ||
           std::memcmp(row_a, row_b, a.overlay.row_bytes()) == 0)) {
        continue;
      }
      const std::vector<double> from = row_of(row_a, slot), to = row_of(row_b, slot);
      SlotChange change;
      change.layer = l;
      change.slot = slot;
      change.change = length(to, from);
      change.base = length(from, {});
      change.written = row_b != nullptr;
      change.before = before.history(l, slot);
      change.after = after.history(l, slot);
      result.slots.push_back(change);
    }
    SessionDiff::Keys keys;
    keys.layer = l;
    const View& keys_a = a.keys ? a.keys.view() : base_keys;
    const View& keys_b = b.keys ? b.keys.view() : base_keys;
    const int64_t half = base_keys.dim(1);
    for (int64_t k = 0; k < base_keys.dim(0) && keys_a.data != keys_b.data; ++k) {
      const int64_t at = k * half * element_bytes(base_keys);
      const auto* x = static_cast<const std::byte*>(keys_a.data) + at;
      const auto* y = static_cast<const std::byte*>(keys_b.data) + at;
      if (std::memcmp(x, y, static_cast<size_t>(half * element_bytes(base_keys))) != 0) {
        ++keys.moved;
        keys.furthest = std::max(keys.furthest, length(numbers(y, base_keys.dtype, half),
                                                       numbers(x, base_keys.dtype, half)));
      }
    }
    result.keys.push_back(keys);
  }
  return result;
}

}  // namespace fwpkm
