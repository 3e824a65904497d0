// Reading and writing safetensors files: a length, a JSON header, and the tensors' bytes.
// docs/files.md tells what is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"
#include "tensor/safetensors_header.h"

namespace fwpkm {

// A file open for reading. It is mapped, not loaded; const calls may come from many threads.
class SafeTensors {
 public:
  using Info = TensorInfo;

  // Checks the whole header; what the calls below hand out can be trusted. `huge_pages` as in
  // MappedFile.
  static SafeTensors open(const std::filesystem::path& path, bool huge_pages = false);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // In the order of their data in the file.
  const std::vector<Info>& tensors() const { return header_.tensors; }
  std::vector<std::string> names() const;

  bool has(std::string_view name) const { return index_.contains(name); }
  // A missing tensor is an error that names the nearest one there is; so in all calls below.
  const Info& info(std::string_view name) const;
  // The tensor's bytes as they are in the file, with no alignment promised.
  std::span<const std::byte> data(std::string_view name) const;

  // Converting reads of a whole tensor; `count` must be its number of elements. Any dtype can be
  // read as floating point (rounded to nearest where it does not fit), integers and BOOL also as
  // integers. A BOOL that is neither 0 nor 1 is an error.
  void read(std::string_view name, float* out, size_t count) const;
  void read(std::string_view name, double* out, size_t count) const;
  void read_as_i64(std::string_view name, int64_t* out, size_t count) const;

 private:
  SafeTensors(std::filesystem::path path, MappedFile file);
  template <typename T>
  void read_elements(std::string_view name, T* out, size_t count) const;

  std::filesystem::path path_;
  MappedFile file_;
  SafeTensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Where the data of files we write begins is a multiple of this, a cache line.
inline constexpr size_t kDataAlignment = 64;

// Writes a file front to back: declare every tensor, append their data in the same order, commit.
// The target appears only on commit, whole; see AtomicFile. The same calls give the same bytes.
// Tensors lie in the order declared, without gaps: to keep each aligned to its element, declare
// those of wider types first. After an error from
// append() or commit() the writer is of no use.
class SafeTensorsWriter {
 public:
  explicit SafeTensorsWriter(std::filesystem::path path);

  void set_metadata(std::string key, std::string value);
  void declare(std::string name, DType dtype, std::vector<int64_t> shape);

  // The next elements of a tensor, which must be the first one not yet complete. Floating-point
  // values are rounded to the declared type, to nearest even; integers must fit it.
  void append(std::string_view name, std::span<const float> values);
  void append(std::string_view name, std::span<const double> values);
  void append(std::string_view name, std::span<const int64_t> values);
  // Whole elements that are in the declared type already.
  void append_raw(std::string_view name, std::span<const std::byte> bytes);

  // Errors if data is missing.
  void commit();

 private:
  void start();
  // Where `count` elements for `name` go; null when there is nothing to do.
  const TensorInfo* place(std::string_view name, size_t count);
  void put(std::span<const std::byte> bytes);
  template <typename T>
  void append_converted(std::string_view name, std::span<const T> values);

  std::filesystem::path path_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  uint64_t declared_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  size_t current_ = 0;  // the first tensor not yet complete
  std::optional<AtomicFile> file_;
  bool failed_ = false;
};

}  // namespace fwpkm
