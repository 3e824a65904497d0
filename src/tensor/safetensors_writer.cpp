#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "safetensors";
constexpr size_t kBlockElements = 8192;

// As a JSON string. Text that is not UTF-8 is refused.
std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    std::string shown = text.substr(0, 96);
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
    fail(kTag, "'{}' is not valid UTF-8, as names and metadata must be", shown);
  }
}

}  // namespace

SafeTensorsWriter::SafeTensorsWriter(std::filesystem::path path) : path_(std::move(path)) {}

void SafeTensorsWriter::set_metadata(std::string key, std::string value) {
  require(!file_, kTag, "{}: metadata must be set before the first append", path_.string());
  json_string(key);
  json_string(value);
  metadata_[std::move(key)] = std::move(value);
}

void SafeTensorsWriter::declare(std::string name, DType dtype, std::vector<int64_t> shape) {
  require(!file_, kTag, "{}: tensor {} must be declared before the first append", path_.string(),
          shown_name(name));
  json_string(name);
  require(name != kMetadataKey, kTag, "{}: {} is reserved; choose another name for the tensor",
          path_.string(), kMetadataKey);
  require(!index_.contains(name), kTag, "{}: tensor {} is declared twice", path_.string(),
          shown_name(name));
  uint64_t bytes = 0;
  require(shape.size() <= kMaxFileRank && checked_bytes(shape, dtype, &bytes) &&
              bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - declared_bytes_,
          kTag,
          "{}: tensor {} cannot have the shape [{}]; dimensions must be non-negative, at most {}, "
          "and fit the address space",
          path_.string(), shown_name(name), fmt::join(shape, ", "), kMaxFileRank);
  TensorInfo info;
  info.name = name;
  info.dtype = dtype;
  info.shape = std::move(shape);
  info.begin = declared_bytes_;
  info.end = declared_bytes_ += bytes;
  index_.emplace(std::move(name), tensors_.size());
  tensors_.push_back(std::move(info));
}

void SafeTensorsWriter::start() {
  if (file_) {
    return;
  }
  std::string text = "{";
  const auto separate = [&] { text += text.size() > 1 ? "," : ""; };
  if (!metadata_.empty()) {
    text += fmt::format("\"{}\":{{", kMetadataKey);
    const char* comma = "";
    for (const auto& [key, value] : metadata_) {
      text +=
          fmt::format("{}{}:{}", std::exchange(comma, ","), json_string(key), json_string(value));
    }
    text += "}";
  }
  for (const TensorInfo& tensor : tensors_) {
    separate();
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json_string(tensor.name), dtype_name(tensor.dtype),
                        fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  text += "}";
  const size_t data_begin = sizeof(uint64_t) + text.size();
  text.append((kDataAlignment - data_begin % kDataAlignment) % kDataAlignment, ' ');
  require(text.size() <= kMaxHeaderBytes, kTag,
          "{}: the header would have {} bytes, more than the {} that readers accept; use fewer "
          "tensors or less metadata",
          path_.string(), text.size(), kMaxHeaderBytes);
  file_.emplace(path_);
  const uint64_t length = text.size();
  file_->write(&length, sizeof(length));
  file_->write(text.data(), text.size());
}

const TensorInfo* SafeTensorsWriter::place(std::string_view name, size_t count) {
  require(!failed_, kTag, "{}: writing failed before; start again with a new writer",
          path_.string());
  const auto found = index_.find(name);
  require(found != index_.end(), kTag, "{}: tensor {} was not declared", path_.string(),
          shown_name(name));
  if (count == 0) {
    return nullptr;
  }
  failed_ = true;  // until put() has written it all
  start();
  while (current_ < tensors_.size() && tensors_[current_].end == written_bytes_) {
    ++current_;
  }
  const TensorInfo& tensor = tensors_[found->second];
  require(found->second >= current_, kTag,
          "{}: too much data: tensor {}, {} elements, is complete already", path_.string(),
          shown_name(name), tensor.count());
  require(found->second == current_, kTag,
          "{}: data came for tensor {}, but {} is not complete; append in the order declared",
          path_.string(), shown_name(name), shown_name(tensors_[current_].name));
  const uint64_t left = (tensor.end - written_bytes_) / dtype_size(tensor.dtype);
  require(count <= left, kTag, "{}: too much data: {} elements came for tensor {}, but {} are left",
          path_.string(), count, shown_name(name), left);
  return &tensor;
}

void SafeTensorsWriter::put(std::span<const std::byte> bytes) {
  file_->write(bytes.data(), bytes.size());
  written_bytes_ += bytes.size();
}

template <typename T>
void SafeTensorsWriter::append_converted(std::string_view name, std::span<const T> values) {
  const TensorInfo* tensor = place(name, values.size());
  if (tensor == nullptr) {
    return;
  }
  require(is_float(tensor->dtype) == std::is_floating_point_v<T>, kTag,
          "{}: tensor {} is declared {}, but got {}", path_.string(), shown_name(name),
          dtype_name(tensor->dtype),
          std::is_floating_point_v<T> ? "floating-point numbers" : "integers");
  const size_t size = dtype_size(tensor->dtype);
  std::vector<std::byte> block(std::min(values.size(), kBlockElements) * size);
  for (size_t i = 0; i < values.size(); i += kBlockElements) {
    const size_t n = std::min(values.size() - i, kBlockElements);
    if constexpr (std::is_floating_point_v<T>) {
      store_elements(tensor->dtype, values.data() + i, n, block.data());
    } else {
      const size_t stored = store_elements(tensor->dtype, values.data() + i, n, block.data());
      require(stored == n, kTag, "{}: {} does not fit tensor {}, which is {}", path_.string(),
              values[std::min(i + stored, values.size() - 1)], shown_name(name),
              dtype_name(tensor->dtype));
    }
    put(std::span(block).first(n * size));
  }
  failed_ = false;
}

void SafeTensorsWriter::append(std::string_view name, std::span<const float> values) {
  append_converted(name, values);
}

void SafeTensorsWriter::append(std::string_view name, std::span<const double> values) {
  append_converted(name, values);
}

void SafeTensorsWriter::append(std::string_view name, std::span<const int64_t> values) {
  append_converted(name, values);
}

void SafeTensorsWriter::append_raw(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = index_.find(name);
  const size_t size = found == index_.end() ? 1 : dtype_size(tensors_[found->second].dtype);
  require(bytes.size() % size == 0, kTag,
          "{}: {} bytes for tensor {} are not whole elements of {} bytes", path_.string(),
          bytes.size(), shown_name(name), size);
  if (place(name, bytes.size() / size) != nullptr) {
    put(bytes);
    failed_ = false;
  }
}

void SafeTensorsWriter::commit() {
  require(!failed_, kTag, "{}: writing failed before; start again with a new writer",
          path_.string());
  failed_ = true;  // also after success: there is nothing left to do
  start();
  if (written_bytes_ < declared_bytes_) {
    const auto tensor = std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& info) {
      return info.end > written_bytes_;
    });
    fail(kTag, "{}: data is missing from tensor {} on: {} bytes of {} were appended",
         path_.string(), shown_name(tensor->name), written_bytes_, declared_bytes_);
  }
  file_->commit();
  file_.reset();
}

}  // namespace fwpkm
