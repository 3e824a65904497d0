// Memories as files: settings in the metadata, sub-keys, and the rows that were written.
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/machine.h"
#include "memory_api/memory_state.h"
#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "memory";
constexpr const char* kFormat = "fwpkm memory 1";

using Fields = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kScores[] = {"distance", "dot"};
constexpr const char* kSteps[] = {"rewrite", "slots", "paper", "number"};

// In the order in which they are compared and told.
Fields fields(const Memory::Settings& s) {
  const Memory::Step& step = s.value_step;
  return {{"key_dim", fmt::format("{}", s.key_dim)},
          {"value_dim", fmt::format("{}", s.value_dim)},
          {"n_subkeys", fmt::format("{}", s.n_subkeys)},
          {"topk", fmt::format("{}", s.topk)},
          {"score", kScores[static_cast<int>(s.score)]},
          {"value_step", step.kind == Memory::Step::Kind::kNumber
                             ? fmt::format("{}", step.number)
                             : kSteps[static_cast<int>(step.kind)]},
          {"key_scale", fmt::format("{}", s.key_scale)},
          {"addr_weight", fmt::format("{}", s.addr_weight)},
          {"seed", fmt::format("{}", s.seed)}};
}

std::string fingerprint(const Memory::Settings& s) {
  std::string text;
  for (const auto& [key, value] : fields(s)) {
    text += fmt::format("{}={}\n", key, value);
  }
  return hash_hex(text);
}

class Hash {
 public:
  void add(const void* data, size_t bytes) { hash_ = hash_bytes(data, bytes, hash_); }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 1;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(SafeTensors::open(path)) {
    require(text("format") == kFormat, kTag, "{} is not a memory: its format is '{}', not '{}'",
            name(), text("format"), kFormat);
  }

  Memory::Settings settings() const {
    Memory::Settings s;
    s.key_dim = number<int64_t>("key_dim");
    s.value_dim = number<int64_t>("value_dim");
    s.n_subkeys = number<int64_t>("n_subkeys");
    s.topk = number<int64_t>("topk");
    s.score = text("score") == kScores[1] ? Memory::Score::kDot : Memory::Score::kDistance;
    const std::string step = text("value_step");
    s.value_step = step == "rewrite" ? Memory::Step::rewrite()
                   : step == "slots" ? Memory::Step::slots()
                   : step == "paper" ? Memory::Step::paper()
                                     : Memory::Step::of(number<double>("value_step"));
    s.key_scale = number<double>("key_scale");
    s.addr_weight = number<double>("addr_weight");
    s.seed = number<uint64_t>("seed");
    for (const auto& [key, value] : fields(s)) {  // as they were written, and nothing else
      require(text(key) == value, kTag, "{} is damaged: {} cannot be '{}'", name(), key, text(key));
    }
    require(text("fingerprint") == fingerprint(s), kTag,
            "{} is damaged: its settings do not belong to its fingerprint", name());
    check_settings(s);
    return s;
  }

  // The bytes of a tensor, which must have this type and shape; a dimension of -1 may be anything.
  std::span<const std::byte> tensor(const char* tensor, DType dtype,
                                    std::vector<int64_t> shape) const {
    const SafeTensors::Info& info = file_.info(tensor);
    bool fits = info.dtype == dtype && info.shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) {
      fits = shape[i] < 0 || shape[i] == info.shape[i];
    }
    require(fits, kTag, "{} is damaged: '{}' is {} [{}], not {} [{}]", name(), tensor,
            dtype_name(info.dtype), fmt::join(info.shape, ", "), dtype_name(dtype),
            fmt::join(shape, ", "));
    return file_.data(tensor);
  }

  std::string text(const std::string& key) const {
    const auto it = file_.metadata().find(key);
    return it == file_.metadata().end() ? "" : it->second;
  }
  std::string name() const { return file_.path().string(); }

 private:
  template <typename T>
  T number(const std::string& key) const {
    const std::string value = text(key);
    T result{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    require(error == std::errc() && end == value.data() + value.size(), kTag,
            "{} is damaged: {}='{}' is not a number", name(), key, value);
    return result;
  }

  SafeTensors file_;
};

}  // namespace

void Memory::save(const std::filesystem::path& path) const {
  const State& state = *state_;
  std::vector<int32_t> slots;
  slots.reserve(static_cast<size_t>(rows()));
  Hash hash;
  const auto row_bytes = static_cast<size_t>(state.settings.value_dim) * sizeof(float);
  const std::span<const std::byte> keys = std::as_bytes(std::span(state.keys));
  hash.add(keys.data(), keys.size());
  state.overlay.for_each(0, [&](int32_t slot, const std::byte* row) {
    slots.push_back(slot);
    hash.add(row, row_bytes);
  });
  hash.add(slots.data(), slots.size() * sizeof(int32_t));

  SafeTensorsWriter writer(path);
  writer.set_metadata("format", kFormat);
  for (const auto& [key, value] : fields(state.settings)) {
    writer.set_metadata(key, value);
  }
  writer.set_metadata("fingerprint", fingerprint(state.settings));
  writer.set_metadata("checksum", hash.hex());
  writer.declare("keys", DType::kF32, {2 * state.settings.n_subkeys, state.settings.key_dim / 2});
  writer.declare("slots", DType::kI32, {rows()});
  writer.declare("rows", DType::kF32, {rows(), state.settings.value_dim});
  writer.append_raw("keys", keys);
  writer.append_raw("slots", std::as_bytes(std::span(slots)));
  state.overlay.for_each(0, [&](int32_t, const std::byte* row) {
    writer.append_raw("rows", {row, row_bytes});
  });
  writer.commit();
}

Memory Memory::load(const std::filesystem::path& path) {
  const Reader file(path);
  const Settings s = file.settings();
  const auto keys = file.tensor("keys", DType::kF32, {2 * s.n_subkeys, s.key_dim / 2});
  const auto slot_bytes = file.tensor("slots", DType::kI32, {-1});
  const auto count = static_cast<int64_t>(slot_bytes.size() / sizeof(int32_t));
  const auto rows = file.tensor("rows", DType::kF32, {count, s.value_dim});

  Hash hash;
  hash.add(keys.data(), keys.size());
  const size_t row_bytes = static_cast<size_t>(s.value_dim) * sizeof(float);
  for (size_t at = 0; at < rows.size(); at += row_bytes) {
    hash.add(rows.data() + at, row_bytes);
  }
  hash.add(slot_bytes.data(), slot_bytes.size());
  require(hash.hex() == file.text("checksum"), kTag,
          "{} is damaged: its contents do not belong to its checksum", file.name());
  std::vector<int32_t> slots(static_cast<size_t>(count));
  if (count > 0) {
    std::memcpy(slots.data(), slot_bytes.data(), slot_bytes.size());
  }
  int64_t before = -1, pages = 0;
  for (const int32_t slot : slots) {
    require(slot > before && slot < s.n_subkeys * s.n_subkeys, kTag,
            "{} is damaged: slot {} of {} comes after slot {}", file.name(), slot,
            s.n_subkeys * s.n_subkeys, before);
    pages += before < 0 || slot / s.n_subkeys != before / s.n_subkeys ? 1 : 0;
    before = slot;
  }
  // The index has a page of n numbers wherever a row was written: far more than the file, if a few
  // rows are scattered over a huge table.
  const int64_t index = pages * s.n_subkeys * static_cast<int64_t>(sizeof(int32_t));
  const int64_t free = available_memory();
  require(free == 0 || index < free, kTag,
          "{} has {} rows scattered over {} slots, whose index takes {:.1f} GiB, but {:.1f} GiB of "
          "memory are free",
          file.name(), count, s.n_subkeys * s.n_subkeys, static_cast<double>(index) / (1 << 30),
          static_cast<double>(free) / (1 << 30));

  Memory memory(s);
  State& state = *memory.state_;
  std::memcpy(state.keys.data(), keys.data(), keys.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    state.overlay.put(0, slots[i], rows.data() + i * row_bytes);
  }
  return memory;
}

Memory Memory::load(const std::filesystem::path& path, const Settings& expected) {
  Memory memory = load(path);
  const Fields wanted = fields(expected), got = fields(memory.settings());
  for (size_t i = 0; i < wanted.size(); ++i) {
    require(wanted[i] == got[i], kTag, "{} is a memory with {}={}, not {}", path.string(),
            got[i].first, got[i].second, wanted[i].second);
  }
  return memory;
}

}  // namespace fwpkm
