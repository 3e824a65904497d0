// Non-owning views of tensors: what every kernel takes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace fwpkm {

// Where a tensor lives and whose kernels work on it. The reference device is plain scalar code on
// the host, in double: slow, readable, and the yardstick for the others.
enum class DeviceKind : uint8_t { kReference, kCpu, kCuda };
inline constexpr int kDeviceKinds = 3;
const char* device_name(DeviceKind kind);

inline constexpr int kMaxRank = 5;

struct Shape {
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list);
  explicit Shape(std::span<const int64_t> list);

  int64_t operator[](int i) const { return dims[i]; }
  int64_t size() const;
  bool operator==(const Shape& other) const;
  // "[2, 3, 4]"
  std::string str() const;
  // Its dimensions, as files of tensors want them.
  std::vector<int64_t> list() const { return {dims.begin(), dims.begin() + rank}; }
  // With one more dimension in front.
  Shape batched(int64_t count) const;
};

// A named window on memory that somebody else owns. An empty view (data == nullptr) stands for an
// optional tensor that is not there.
struct View {
  const char* name = "";
  void* data = nullptr;
  DType dtype = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  Shape shape;
  std::array<int64_t, kMaxRank> strides{};  // in elements

  View() = default;
  // A contiguous view, row-major.
  View(const char* name, void* data, DType dtype, DeviceKind device, const Shape& shape);

  explicit operator bool() const { return data != nullptr; }
  int rank() const { return shape.rank; }
  // Extent of a dimension; negative counts from the end.
  int64_t dim(int i) const { return shape.dims[i < 0 ? i + shape.rank : i]; }
  int64_t stride(int i) const { return strides[i < 0 ? i + shape.rank : i]; }
  int64_t size() const { return data == nullptr ? 0 : shape.size(); }
  int64_t bytes() const { return size() * static_cast<int64_t>(dtype_size(dtype)); }
  // Product of all dimensions but the last.
  int64_t rows() const;
  bool contiguous() const;

  // Elements begin..end of one dimension.
  View slice(int dimension, int64_t begin, int64_t end) const;
  // The same elements in another shape; this view must be contiguous.
  View reshape(const Shape& other) const;
  // Splits the last dimension (stride 1) into [count, width]; works on strided views too.
  View split_last(int64_t count, int64_t width) const;

  template <typename T>
  T* ptr() const;
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};

template <typename T>
T* View::ptr() const {
  require(data == nullptr || dtype == DTypeOf<std::remove_const_t<T>>::value, "tensor",
          "{} holds {}, but {} was asked for", name, dtype_name(dtype),
          dtype_name(DTypeOf<std::remove_const_t<T>>::value));
  return static_cast<T*>(data);
}

}  // namespace fwpkm
