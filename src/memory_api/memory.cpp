#include "memory_api/memory.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/random.h"
#include "memory_api/memory_state.h"
#include "ops/fwpkm/written.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "memory";
constexpr int64_t kPiece = 1024;  // keys that are read at once

FwpkmSettings op_settings(const Memory::Settings& s) {
  FwpkmSettings op;
  op.heads = 1;
  op.topk = static_cast<int32_t>(s.topk);
  op.n_subkeys = static_cast<int32_t>(s.n_subkeys);
  op.lookahead = 0;
  op.shared = true;
  op.dot = s.score == Memory::Score::kDot;
  op.addr_weight = s.addr_weight;
  switch (s.value_step.kind) {
    case Memory::Step::Kind::kRewrite:
      op.rewrite = true;
      break;
    case Memory::Step::Kind::kSlots:
      op.step = static_cast<double>(s.topk);
      break;
    case Memory::Step::Kind::kPaper:
      op.step = 1;
      break;
    case Memory::Step::Kind::kNumber:
      op.step = s.value_step.number;
      break;
  }
  return op;
}

// How many vectors of `width` numbers there are; all must be finite.
int64_t count_vectors(std::span<const float> numbers, int64_t width, const char* name) {
  const auto size = static_cast<int64_t>(numbers.size());
  require(size % width == 0, kTag, "{} numbers are not whole {} of {}", size, name, width);
  const auto bad =
      std::find_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
  require(bad == numbers.end(), kTag, "number {} of vector {} of {} is {}",
          (bad - numbers.begin()) % width, (bad - numbers.begin()) / width, name,
          bad == numbers.end() ? 0.0f : *bad);
  return size / width;
}

Tensor view_of(const char* name, const float* data, const Shape& shape) {
  return Tensor::constant(
      View(name, const_cast<float*>(data), DType::kF32, DeviceKind::kCpu, shape));
}

}  // namespace

void check_settings(const Memory::Settings& s) {
  constexpr int64_t kWidest = 1 << 20;
  require(s.key_dim >= 2 && s.key_dim % 2 == 0 && s.key_dim <= kWidest, kTag,
          "key_dim={} is not an even number from 2 to {}", s.key_dim, kWidest);
  require(s.value_dim >= 1 && s.value_dim <= kWidest, kTag, "value_dim={} is not from 1 to {}",
          s.value_dim, kWidest);
  require(s.n_subkeys >= 1 && s.n_subkeys <= 46340, kTag,
          "n_subkeys={} is not from 1 to 46340, whose square is the most slots there can be",
          s.n_subkeys);
  require(s.topk >= 1 && s.topk <= s.n_subkeys, kTag, "topk={} is not from 1 to n_subkeys={}",
          s.topk, s.n_subkeys);
  require(s.key_scale > 0 && s.key_scale <= 1e6, kTag, "key_scale={} is not above 0 and up to 1e6",
          s.key_scale);
  require(s.addr_weight >= 0 && s.addr_weight <= 1e6, kTag, "addr_weight={} is not from 0 to 1e6",
          s.addr_weight);
  require(s.value_step.kind != Memory::Step::Kind::kNumber ||
              (s.value_step.number > 0 && s.value_step.number <= 1e6),
          kTag, "value_step={} is not above 0 and up to 1e6", s.value_step.number);
}

Memory::State::State(const Settings& s)
    : settings(s),
      zeros(static_cast<size_t>(s.value_dim)),
      overlay(1, s.n_subkeys, s.value_dim, Device::cpu()) {}

Memory::State::State(const State& other)
    : settings(other.settings), keys(other.keys), zeros(other.zeros), overlay(other.overlay) {}

void Memory::State::draw_keys() {
  const int64_t half = settings.key_dim / 2;
  keys.resize(static_cast<size_t>(2 * settings.n_subkeys * half));
  const Random random(settings.seed, 1);
  std::vector<double> drawn(static_cast<size_t>(half));
  for (int64_t key = 0; key < 2 * settings.n_subkeys; ++key) {
    double squares = 0;
    for (int64_t i = 0; i < half; ++i) {
      drawn[static_cast<size_t>(i)] = random.normal_at(static_cast<uint64_t>(key * half + i));
      squares += drawn[static_cast<size_t>(i)] * drawn[static_cast<size_t>(i)];
    }
    const double scale = settings.key_scale * std::sqrt(static_cast<double>(half) / squares);
    for (int64_t i = 0; i < half; ++i) {
      keys[static_cast<size_t>(key * half + i)] =
          static_cast<float>(scale * drawn[static_cast<size_t>(i)]);
    }
  }
}

FwpkmResult Memory::State::call(Run& run, const float* q, const float* v, const float* g,
                                int64_t count) const {
  const Settings& s = settings;
  FwpkmSettings op = op_settings(s);
  op.chunk = count;
  op.write = v != nullptr;
  // No table: every slot that nobody wrote is the same row of zeros.
  View base("values", const_cast<float*>(zeros.data()), DType::kF32, DeviceKind::kCpu,
            {s.n_subkeys * s.n_subkeys, s.value_dim});
  base.strides[0] = 0;
  return fwpkm_memory(run, view_of("keys", q, {1, count, s.key_dim}),
                      v == nullptr ? Tensor() : view_of("values", v, {1, count, s.value_dim}),
                      g == nullptr ? Tensor() : view_of("strengths", g, {1, count}),
                      view_of("sub-keys", keys.data(), {2 * s.n_subkeys, s.key_dim / 2}),
                      Tensor::constant(base), op, overlay.views());
}

Memory::Memory(const Settings& settings) {
  check_settings(settings);
  state_ = std::make_unique<State>(settings);
  state_->draw_keys();
}

Memory::~Memory() = default;
Memory::Memory(const Memory& other) : state_(std::make_unique<State>(*other.state_)) {}
Memory& Memory::operator=(const Memory& other) {
  if (this != &other) {
    state_ = std::make_unique<State>(*other.state_);
  }
  return *this;
}
Memory::Memory(Memory&& other) noexcept = default;
Memory& Memory::operator=(Memory&& other) noexcept = default;

const Memory::Settings& Memory::settings() const {
  return state_->settings;
}

void Memory::write(std::span<const float> keys, std::span<const float> values,
                   std::span<const float> strengths) {
  const Settings& s = state_->settings;
  const int64_t count = count_vectors(keys, s.key_dim, "keys");
  const int64_t targets = count_vectors(values, s.value_dim, "values");
  require(targets == count, kTag, "there are {} keys, but {} values", count, targets);
  require(strengths.empty() || static_cast<int64_t>(strengths.size()) == count, kTag,
          "there are {} keys, but {} strengths", count, strengths.size());
  for (size_t i = 0; i < strengths.size(); ++i) {
    require(strengths[i] >= 0 && strengths[i] <= 1, kTag, "strength {} is {}, not from 0 to 1", i,
            strengths[i]);
  }
  if (count == 0) {
    return;
  }
  const PoolSet::Loan pool(state_->pools);
  Run run(*pool);
  const FwpkmResult r = state_->call(run, keys.data(), values.data(),
                                     strengths.empty() ? nullptr : strengths.data(), count);
  for_written(r, [&](int64_t, int32_t slot, const std::byte* row, size_t) {
    state_->overlay.put(0, slot, row);
  });
  if (s.addr_weight != 0) {
    std::copy_n(r.keys.view().ptr<float>(), state_->keys.size(), state_->keys.data());
  }
}

void Memory::State::read(std::span<const float> from, float* to, Reading* more) const {
  const int64_t count = count_vectors(from, settings.key_dim, "keys");
  const PoolSet::Loan pool(pools);
  Run run(*pool);
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t part = std::min(kPiece, count - at);
    const FwpkmResult r = call(run, from.data() + at * settings.key_dim, nullptr, nullptr, part);
    std::copy_n(r.output.view().ptr<float>(), part * settings.value_dim,
                to + at * settings.value_dim);
    if (more != nullptr) {
      std::copy_n(r.slots.view().ptr<int32_t>(), part * settings.topk,
                  more->slots.data() + at * settings.topk);
      std::copy_n(r.weights.view().ptr<float>(), part * settings.topk,
                  more->weights.data() + at * settings.topk);
    }
  }
}

std::vector<float> Memory::read(std::span<const float> keys) const {
  const size_t count = keys.size() / static_cast<size_t>(settings().key_dim);
  std::vector<float> values(count * static_cast<size_t>(settings().value_dim));
  state_->read(keys, values.data(), nullptr);
  return values;
}

void Memory::read(std::span<const float> keys, std::span<float> values) const {
  const size_t count = keys.size() / static_cast<size_t>(settings().key_dim);
  const size_t room = count * static_cast<size_t>(settings().value_dim);
  require(values.size() == room, kTag, "{} keys find {} numbers, but there is room for {}", count,
          room, values.size());
  state_->read(keys, values.data(), nullptr);
}

Memory::Reading Memory::read_with_slots(std::span<const float> keys) const {
  const size_t count = keys.size() / static_cast<size_t>(settings().key_dim);
  const size_t reads = count * static_cast<size_t>(settings().topk);
  Reading reading;
  reading.values.resize(count * static_cast<size_t>(settings().value_dim));
  reading.slots.resize(reads);
  reading.weights.resize(reads);
  state_->read(keys, reading.values.data(), &reading);
  return reading;
}

void Memory::clear() {
  auto fresh = std::make_unique<State>(state_->settings);
  fresh->draw_keys();
  state_ = std::move(fresh);
}

int64_t Memory::slots() const {
  return settings().n_subkeys * settings().n_subkeys;
}
int64_t Memory::rows() const {
  return state_->overlay.rows();
}
size_t Memory::bytes() const {
  return state_->overlay.bytes() + state_->keys.size() * sizeof(float);
}

}  // namespace fwpkm
