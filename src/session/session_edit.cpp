// Looking into sessions: who wrote what, what differs, and taking it back.
#include <algorithm>
#include <cmath>
#include <span>

#include "session/session.h"

namespace fwpkm {
namespace {

// Tokens in which a write and a text must agree to be taken for the same.
constexpr int kAgree = 4;

// Numbers of a row that lies in a table or over it.
std::vector<double> numbers(const void* row, const View& table) {
  return to_host(View("row", const_cast<void*>(row), table.dtype, table.device, {table.dim(1)}));
}

double length(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = a[i] - (b.empty() ? 0 : b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

}  // namespace

void Session::check_layer(int layer) const {
  require(layer >= 0 && layer < model_->config().layers, "session", "layer {} is outside 0..{}",
          layer, model_->config().layers - 1);
}

void Session::check_slot(int layer, int32_t slot) const {
  check_layer(layer);
  const ModelConfig& config = model_->config();
  require(config.has_fwpkm(layer), "session", "layer {} has no memory; memories are in layers {}",
          layer, fmt::join(config.fwpkm.layers, ", "));
  require(slot >= 0 && slot < config.fwpkm.slots(), "session", "slot {} is outside 0..{}", slot,
          config.fwpkm.slots() - 1);
}

SlotHistory Session::history(int layer, int32_t slot) const {
  check_slot(layer, slot);
  const Overlay& rows = now_.history[static_cast<size_t>(layer)];
  return rows.owners() > 0 ? SlotHistory::at(rows.find(0, slot)) : SlotHistory();
}

std::vector<int32_t> Session::written(int layer) const {
  std::vector<int32_t> slots;
  check_layer(layer);
  const auto& fast = now_.state.layers[static_cast<size_t>(layer)].fast;
  if (!fast.empty() && fast[0].overlay.owners() > 0) {
    fast[0].overlay.for_numbers(0, [&](int32_t slot, int32_t) { slots.push_back(slot); });
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
      const SlotHistory history = SlotHistory::at(row);
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
  check_slot(layer, slot);
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
  for (const int l : config.fwpkm.layers) {
    const std::string name = fmt::format("model.layers.{}.fwpkm.", l);
    const View& table = before.model_->parameters().at(name + "values").view();
    const FastStream& a = before.now_.state.layers[static_cast<size_t>(l)].fast[0];
    const FastStream& b = after.now_.state.layers[static_cast<size_t>(l)].fast[0];
    const std::vector<int32_t> had = before.written(l), has = after.written(l);
    std::vector<int32_t> either;
    std::set_union(had.begin(), had.end(), has.begin(), has.end(), std::back_inserter(either));
    for (const int32_t slot : either) {
      const void* base = table.slice(0, slot, slot + 1).data;
      const std::byte* row_a = a.overlay.find(0, slot);
      const std::byte* row_b = b.overlay.find(0, slot);
      if (row_a == row_b) {  // forks share rows that neither has changed
        continue;
      }
      const std::vector<double> from = numbers(row_a != nullptr ? row_a : base, table);
      const std::vector<double> to = numbers(row_b != nullptr ? row_b : base, table);
      if (row_a != nullptr && row_b != nullptr && from == to) {
        continue;
      }
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
    const View& base = before.model_->parameters().at(name + "keys").view();
    const View& keys_a = a.keys ? a.keys.view() : base;
    const View& keys_b = b.keys ? b.keys.view() : base;
    if (keys_a.data != keys_b.data) {
      const std::vector<double> x = to_host(keys_a), y = to_host(keys_b);
      const auto width = static_cast<size_t>(base.dim(1));
      for (size_t at = 0; at < x.size(); at += width) {
        const double way = length(std::span(y).subspan(at, width), std::span(x).subspan(at, width));
        keys.moved += way != 0 ? 1 : 0;
        keys.furthest = std::max(keys.furthest, way);
      }
    }
    result.keys.push_back(keys);
  }
  return result;
}

}  // namespace fwpkm
