#include "tensor/view.h"

#include <algorithm>

namespace fwpkm {

const char* device_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kReference:
      return "reference";
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "?";
}

Shape::Shape(std::initializer_list<int64_t> list)
    : Shape(std::span<const int64_t>(list.begin(), list.size())) {}

Shape::Shape(std::span<const int64_t> list) {
  require(list.size() <= kMaxRank, "tensor", "rank {} exceeds {}", list.size(), kMaxRank);
  rank = static_cast<int>(list.size());
  std::copy(list.begin(), list.end(), dims.begin());
}

int64_t Shape::size() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) {
    n *= dims[i];
  }
  return n;
}

bool Shape::operator==(const Shape& other) const {
  return rank == other.rank && std::equal(dims.begin(), dims.begin() + rank, other.dims.begin());
}

Shape Shape::batched(int64_t count) const {
  std::vector<int64_t> all = list();
  all.insert(all.begin(), count);
  return Shape(std::span<const int64_t>(all));
}

std::string Shape::str() const {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.begin() + rank, ", "));
}

View::View(const char* name, void* data, DType dtype, DeviceKind device, const Shape& shape)
    : name(name), data(data), dtype(dtype), device(device), shape(shape) {
  int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape.dims[i];
  }
}

int64_t View::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < shape.rank; ++i) {
    n *= shape.dims[i];
  }
  return n;
}

bool View::contiguous() const {
  int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.dims[i] != 1 && strides[i] != step) {
      return false;
    }
    step *= shape.dims[i];
  }
  return true;
}

View View::slice(int dimension, int64_t begin, int64_t end) const {
  const int d = dimension < 0 ? dimension + rank() : dimension;
  require(d >= 0 && d < rank() && 0 <= begin && begin <= end && end <= shape.dims[d], "tensor",
          "slice {}..{} of dimension {} does not fit {} {}", begin, end, d, name, shape.str());
  View v = *this;
  v.shape.dims[d] = end - begin;
  v.data = static_cast<char*>(data) + begin * strides[d] * static_cast<int64_t>(dtype_size(dtype));
  return v;
}

View View::reshape(const Shape& other) const {
  require(contiguous() && other.size() == shape.size(), "tensor", "{} {} cannot be viewed as {}",
          name, shape.str(), other.str());
  return View(name, data, dtype, device, other);
}

View View::split_last(int64_t count, int64_t width) const {
  require(rank() > 0 && rank() < kMaxRank && dim(-1) == count * width && stride(-1) == 1, "tensor",
          "the last dimension of {} {} cannot be split into {} x {}", name, shape.str(), count,
          width);
  View v = *this;
  v.shape.rank = rank() + 1;
  v.shape.dims[rank() - 1] = count;
  v.strides[rank() - 1] = width;
  v.shape.dims[rank()] = width;
  v.strides[rank()] = 1;
  return v;
}

}  // namespace fwpkm
