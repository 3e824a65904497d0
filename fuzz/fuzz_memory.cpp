// Memory: loading a file, using what was loaded, and saving it again.
//
// First byte:
//   1  repair the lengths (safetensors_bytes.h)
//   2  repair the fingerprint of the settings and the checksum of the contents
//   4  the rest is no file but settings and contents, from which a file is made whose sums and
//      lengths agree: for what lies behind all those
#include <cmath>
#include <vector>

#include "base/hash.h"
#include "base/parallel.h"
#include "fuzz.h"
#include "memory_api/memory.h"
#include "safetensors_bytes.h"
#include "tensor/safetensors.h"

namespace fwpkm::fuzz {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr uint8_t kLengths = 1, kSums = 2, kMade = 4;
constexpr const char* kSettings[] = {"key_dim",    "value_dim", "n_subkeys",   "topk", "score",
                                     "value_step", "key_scale", "addr_weight", "seed"};
constexpr const char* kTensors[] = {"keys", "rows", "slots"};  // in the order of the checksum

// The sums that memory_api/memory_file.cpp expects: of "name=value" lines, and of the contents.
void repair_sums(Metadata& metadata, const std::string contents[3], size_t rows) {
  std::string settings;
  for (const char* key : kSettings) {
    settings += fmt::format("{}={}\n", key, metadata[key]);
  }
  metadata["fingerprint"] = hash_hex(settings);
  uint64_t sum = hash_bytes(contents[0].data(), contents[0].size(), 1);
  const size_t row = rows == 0 ? 0 : contents[1].size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    sum = hash_bytes(contents[1].data() + i * row, row, sum);
  }
  sum = hash_bytes(contents[2].data(), contents[2].size(), sum);
  metadata["checksum"] = fmt::format("{:016x}", sum);
}

// The same file with other sums, where it has what a memory has.
void rewrite_with_sums(const std::filesystem::path& path) {
  const auto file = accepted([&] { return SafeTensors::open(path); });
  std::string contents[3];
  for (int i = 0; i < 3; ++i) {
    if (!file || !file->has(kTensors[i])) {
      return;
    }
    const auto bytes = file->data(kTensors[i]);
    contents[i].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Metadata metadata = file->metadata();
  repair_sums(metadata, contents, file->info("slots").count());
  SafeTensorsWriter writer(path);
  for (const auto& [key, value] : metadata) {
    writer.set_metadata(key, value);
  }
  for (const SafeTensors::Info& tensor : file->tensors()) {
    writer.declare(tensor.name, tensor.dtype, tensor.shape);
  }
  for (const SafeTensors::Info& tensor : file->tensors()) {
    writer.append_raw(tensor.name, file->data(tensor.name));
  }
  writer.commit();
}

// A small memory of any kind, whose numbers and slots are the input's bytes.
void make_file(const std::filesystem::path& path, Input& in) {
  constexpr const char* kSteps[] = {"rewrite", "slots", "paper", "0.5"};
  constexpr const char* kWeights[] = {"0", "1", "0.001", "1000000"};
  const int64_t half = 1 + in.byte() % 8, value_dim = 1 + in.byte() % 16;
  const int64_t n = 1 + in.byte() % 24, rows = in.byte() % 16;
  const uint8_t kinds = in.byte();
  Metadata metadata = {{"format", "fwpkm memory 1"},
                       {"key_dim", std::to_string(2 * half)},
                       {"value_dim", std::to_string(value_dim)},
                       {"n_subkeys", std::to_string(n)},
                       {"topk", std::to_string(1 + in.byte() % n)},
                       {"score", kinds & 1 ? "dot" : "distance"},
                       {"value_step", kSteps[kinds >> 1 & 3]},
                       {"key_scale", kinds & 8 ? "1" : "0.25"},
                       {"addr_weight", kWeights[kinds >> 4 & 3]},
                       {"seed", std::to_string(in.word())}};
  std::string contents[3];
  const int64_t shapes[3][2] = {{2 * n, half}, {rows, value_dim}, {rows, 1}};
  int32_t slot = -1;
  for (int64_t i = 0; i < rows; ++i) {  // mostly in order; a step of 0 is an error
    slot += in.byte();
    contents[2].append(reinterpret_cast<const char*>(&slot), sizeof slot);
  }
  for (int i = 0; i < 2; ++i) {
    const auto size = static_cast<size_t>(shapes[i][0] * shapes[i][1]) * sizeof(float);
    contents[i] = in.text(size);
    contents[i].resize(size, 'a');
  }
  repair_sums(metadata, contents, static_cast<size_t>(rows));
  SafeTensorsWriter writer(path);
  for (const auto& [key, value] : metadata) {
    writer.set_metadata(key, value);
  }
  for (int i = 0; i < 3; ++i) {
    writer.declare(kTensors[i], i == 2 ? DType::kI32 : DType::kF32,
                   i == 2 ? std::vector{rows} : std::vector{shapes[i][0], shapes[i][1]});
  }
  for (int i = 0; i < 3; ++i) {
    writer.append_raw(kTensors[i], std::as_bytes(std::span(contents[i])));
  }
  writer.commit();
}

bool same_bytes(const std::filesystem::path& a, const std::filesystem::path& b) {
  const MappedFile first(a), second(b);
  return std::ranges::equal(first.bytes(), second.bytes());
}

void use(Memory& memory) {
  const Memory::Settings& s = memory.settings();
  const auto key_dim = static_cast<size_t>(s.key_dim), value_dim = static_cast<size_t>(s.value_dim);
  check(memory.rows() <= memory.slots() && memory.bytes() > 0, "a memory has slots for its rows");
  // What a write costs grows with these two; large ones are the caller's wish, not a bad file.
  if (s.topk * s.value_dim > 1 << 16) {
    return;
  }
  std::vector<float> keys(3 * key_dim), values(3 * value_dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<float>(i % 7) - 3;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 5) / 4;
  }
  memory.read(keys);
  memory.write(keys, values);
  const Memory::Reading reading = memory.read_with_slots(keys);
  for (const int32_t slot : reading.slots) {
    check(slot >= 0 && slot < memory.slots(), "what is read is a slot");
  }
}

void target(Input in) {
  static const bool once = (set_threads(1), true);
  check(once, "threads are set");
  const uint8_t mode = in.byte();
  std::filesystem::path path = scratch() / "input.safetensors";
  if (mode & kMade) {
    make_file(path, in);
  } else {
    scratch().write("input.safetensors", mode & kLengths ? repair_lengths(in.rest()) : in.rest());
    if (mode & kSums) {
      rewrite_with_sums(path);
    }
  }
  auto memory = accepted([&] { return Memory::load(path); });
  if (!memory) {
    return;
  }
  const std::filesystem::path first = scratch() / "first", second = scratch() / "second";
  memory->save(first);
  const Memory again = Memory::load(first, memory->settings());
  again.save(second);
  check(same_bytes(first, second), "a memory that is saved and loaded is the same");
  use(*memory);
}

}  // namespace
}  // namespace fwpkm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fwpkm::fuzz::run(data, size, fwpkm::fuzz::target);
}
