// SafeTensors: the header, every way to read a tensor, and writing the same again.
//
// First byte: 1 = repair the lengths (safetensors_bytes.h), 2 = write what was read and compare.
// The format has no checksum.
#include <cmath>
#include <vector>

#include "fuzz.h"
#include "safetensors_bytes.h"
#include "tensor/safetensors.h"

namespace fwpkm::fuzz {
namespace {

template <typename T>
bool same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

void read_in_all_ways(const SafeTensors& file, const SafeTensors::Info& tensor) {
  const size_t count = tensor.count();
  std::vector<float> floats(count);
  std::vector<double> doubles(count);
  std::vector<int64_t> integers(count);
  const std::span<const std::byte> bytes = file.data(tensor.name);
  check(bytes.size() == count * dtype_size(tensor.dtype), "a tensor has the bytes of its elements");
  check(refused([&] { file.read(tensor.name, doubles.data(), count + 1); }),
        "the count is checked");
  if (refused([&] { file.read(tensor.name, doubles.data(), count); })) {
    check(tensor.dtype == DType::kBool, "only BOOL has values that are refused");
    return;
  }
  file.read(tensor.name, floats.data(), count);
  for (size_t i = 0; i < count; ++i) {
    check(same(floats[i], static_cast<float>(doubles[i])) || tensor.dtype == DType::kI64,
          "floats are the doubles, rounded");
  }
  const bool no_integers = refused([&] { file.read_as_i64(tensor.name, integers.data(), count); });
  check(no_integers == is_float(tensor.dtype), "integers are read as integers");
  for (size_t i = 0; i < count && !no_integers; ++i) {
    check(static_cast<double>(integers[i]) == doubles[i], "doubles are the integers, rounded");
  }
}

void write_and_compare(const SafeTensors& file) {
  const std::filesystem::path path = scratch() / "copy.safetensors";
  SafeTensorsWriter writer(path);
  for (const auto& [key, value] : file.metadata()) {
    writer.set_metadata(key, value);
  }
  for (const SafeTensors::Info& tensor : file.tensors()) {
    writer.declare(tensor.name, tensor.dtype, tensor.shape);
  }
  for (const SafeTensors::Info& tensor : file.tensors()) {
    writer.append_raw(tensor.name, file.data(tensor.name));
  }
  writer.commit();
  const SafeTensors copy = SafeTensors::open(path);
  check(copy.metadata() == file.metadata() && copy.names() == file.names(),
        "a copy has the same metadata and names");
  for (const SafeTensors::Info& tensor : file.tensors()) {
    const SafeTensors::Info& other = copy.info(tensor.name);
    const auto a = file.data(tensor.name), b = copy.data(tensor.name);
    check(other.dtype == tensor.dtype && other.shape == tensor.shape &&
              std::equal(a.begin(), a.end(), b.begin(), b.end()),
          "a copy has the same tensors");
  }
}

void target(Input in) {
  const uint8_t mode = in.byte();
  const std::string bytes = mode & 1 ? repair_lengths(in.rest()) : in.rest();
  const std::filesystem::path path = scratch().write("input.safetensors", bytes);
  const auto file = accepted([&] { return SafeTensors::open(path); });
  if (!file) {
    return;
  }
  for (const SafeTensors::Info& tensor : file->tensors()) {
    check(file->has(tensor.name) && &file->info(tensor.name) == &tensor, "a name finds its tensor");
    read_in_all_ways(*file, tensor);
  }
  check(file->has("?") || refused([&] { file->data("?"); }), "a missing tensor is an error");
  if (mode & 2) {
    write_and_compare(*file);
  }
}

}  // namespace
}  // namespace fwpkm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fwpkm::fuzz::run(data, size, fwpkm::fuzz::target);
}
