#include "tensor/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "safetensors";
constexpr const char* kDamaged = "the file is damaged or not a safetensors file";

// Receives the header piece by piece, as it is parsed. Whatever does not belong at its place is
// refused on the spot, so nothing nests deeper than the format does, and duplicate keys, which a
// parsed document would hide, are seen.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, uint64_t data_bytes, SafeTensorsHeader* header)
      : path_(path), data_bytes_(data_bytes), header_(header) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_float(double /*value*/, const std::string& text) override {
    unexpected("the number " + clipped(text));
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { unexpected("binary data"); }

  bool number_integer(int64_t value) override {
    if (value < 0) {
      unexpected(fmt::format("the number {}", value));
    }
    return number_unsigned(static_cast<uint64_t>(value));
  }

  bool number_unsigned(uint64_t value) override {
    if (where_ == Where::kShape) {
      require(shape_->size() < kMaxFileRank, kTag, "{}: tensor {} has more than {} dimensions",
              path_, shown_name(key_), kMaxFileRank);
      require(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), kTag,
              "{}: tensor {} has a dimension of {}, which is too large; {}", path_,
              shown_name(key_), value, kDamaged);
      shape_->push_back(static_cast<int64_t>(value));
    } else if (where_ == Where::kOffsets) {
      require(offsets_->size() < 2, kTag, "{}: data_offsets of tensor {} must hold 2 numbers; {}",
              path_, shown_name(key_), kDamaged);
      offsets_->push_back(value);
    } else {
      unexpected(fmt::format("the number {}", value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (where_ == Where::kMetadata) {
      header_->metadata[field_] = std::move(value);
    } else if (where_ == Where::kTensor && field_ == "dtype") {
      dtype_ = std::move(value);
    } else {
      unexpected("the string " + shown_name(value));
    }
    return true;
  }

  bool start_object(size_t /*elements*/) override {
    if (where_ == Where::kStart) {
      where_ = Where::kRoot;
    } else if (where_ == Where::kRoot) {
      where_ = key_ == kMetadataKey ? Where::kMetadata : Where::kTensor;
      dtype_.reset();
      shape_.reset();
      offsets_.reset();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    if (where_ == Where::kRoot) {
      require(keys_.insert(value).second, kTag, "{}: {} is in the header twice; {}", path_,
              shown_name(value), kDamaged);
      key_ = std::move(value);
      return true;
    }
    field_ = std::move(value);
    if (where_ == Where::kMetadata) {
      require(header_->metadata.emplace(field_, "").second, kTag, "{}: {} is in {} twice; {}",
              path_, shown_name(field_), kMetadataKey, kDamaged);
      return true;
    }
    require(field_ == "dtype" || field_ == "shape" || field_ == "data_offsets", kTag,
            "{}: tensor {} has an unknown field {}; known are dtype, shape and data_offsets", path_,
            shown_name(key_), shown_name(field_));
    require(!(field_ == "dtype" && dtype_) && !(field_ == "shape" && shape_) &&
                !(field_ == "data_offsets" && offsets_),
            kTag, "{}: tensor {} has {} twice; {}", path_, shown_name(key_), field_, kDamaged);
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kTensor) {
      add_tensor();
    }
    where_ = where_ == Where::kRoot ? Where::kDone : Where::kRoot;
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (where_ == Where::kTensor && field_ == "shape") {
      shape_.emplace();
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && field_ == "data_offsets") {
      offsets_.emplace();
      where_ = Where::kOffsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    std::string_view what = error.what();
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));  // the library's own tag
    fail(kTag, "{}: the header is not valid JSON at its byte {}: {}; {}", path_, position,
         clipped(what), kDamaged);
  }

 private:
  enum class Where : uint8_t { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kDone };

  // Parser messages quote the input, valid text or not.
  static std::string clipped(std::string_view text) {
    std::string out(text.substr(0, 160));
    std::replace_if(
        out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
    return out + (text.size() > out.size() ? "..." : "");
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    const std::string tensor = "tensor " + shown_name(key_);
    switch (where_) {
      case Where::kRoot:
        fail(kTag, "{}: {} must be an object, but is {}; {}", path_,
             key_ == kMetadataKey ? key_ : tensor, what, kDamaged);
      case Where::kMetadata:
        fail(kTag, "{}: {} must hold strings, but {} is {}; {}", path_, kMetadataKey,
             shown_name(field_), what, kDamaged);
      case Where::kTensor:
        fail(kTag, "{}: {} of {} must be {}, but is {}; {}", path_, field_, tensor,
             field_ == "dtype" ? "a string" : "an array of integers", what, kDamaged);
      case Where::kShape:
      case Where::kOffsets:
        fail(kTag, "{}: {} of {} must hold non-negative integers, but holds {}; {}", path_, field_,
             tensor, what, kDamaged);
      default:
        fail(kTag, "{}: the header must be an object, but has {}; {}", path_, what, kDamaged);
    }
  }

  void add_tensor() {
    const std::string name = shown_name(key_);
    const char* missing = !dtype_ ? "dtype" : !shape_ ? "shape" : !offsets_ ? "data_offsets" : "";
    require(*missing == '\0', kTag, "{}: tensor {} has no {}; {}", path_, name, missing, kDamaged);
    TensorInfo info;
    require(parse_dtype(*dtype_, &info.dtype), kTag,
            "{}: tensor {} has the dtype {}, which is not supported; convert it to F64, F32, F16, "
            "BF16, I64, I32, I16, I8, U8 or BOOL",
            path_, name, shown_name(*dtype_));
    require(offsets_->size() == 2, kTag, "{}: data_offsets of tensor {} must hold 2 numbers; {}",
            path_, name, kDamaged);
    info.begin = (*offsets_)[0];
    info.end = (*offsets_)[1];
    require(info.begin <= info.end, kTag,
            "{}: tensor {} begins at byte {}, but ends at byte {}; {}", path_, name, info.begin,
            info.end, kDamaged);
    require(info.end <= data_bytes_, kTag,
            "{}: tensor {} ends at byte {}, but there are only {} bytes of data; the file was cut "
            "short or is damaged",
            path_, name, info.end, data_bytes_);
    uint64_t bytes = 0;
    const std::string shape = fmt::format("[{}]", fmt::join(*shape_, ", "));
    require(checked_bytes(*shape_, info.dtype, &bytes), kTag,
            "{}: tensor {} has the shape {}, which is too large; {}", path_, name, shape, kDamaged);
    require(bytes == info.end - info.begin, kTag,
            "{}: tensor {} is {} {} and needs {} bytes, but has {}; {}", path_, name, *dtype_,
            shape, bytes, info.end - info.begin, kDamaged);
    info.name = key_;
    info.shape = std::move(*shape_);
    header_->tensors.push_back(std::move(info));
  }

  const std::string& path_;
  const uint64_t data_bytes_;
  SafeTensorsHeader* header_;
  Where where_ = Where::kStart;
  std::set<std::string> keys_;
  std::string key_;    // of the root object: a tensor's name
  std::string field_;  // of the object inside
  std::optional<std::string> dtype_;
  std::optional<std::vector<int64_t>> shape_;
  std::optional<std::vector<uint64_t>> offsets_;
};

// The tensors must cover the data exactly, one after the other.
void check_coverage(const SafeTensorsHeader& header, uint64_t data_bytes, const std::string& path) {
  uint64_t end = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin < end) {
      fail(kTag, "{}: tensors {} (bytes {} to {}) and {} (bytes {} to {}) overlap; {}", path,
           shown_name(before->name), before->begin, before->end, shown_name(tensor.name),
           tensor.begin, tensor.end, kDamaged);
    }
    if (tensor.begin > end) {
      fail(kTag, "{}: no tensor covers the bytes {} to {}, between {} and {}; {}", path, end,
           tensor.begin, before == nullptr ? "the header" : shown_name(before->name),
           shown_name(tensor.name), kDamaged);
    }
    end = tensor.end;
    before = &tensor;
  }
  require(end == data_bytes, kTag, "{}: {} bytes follow {}, where the file should end; {}", path,
          data_bytes - end, before == nullptr ? "the header" : shown_name(before->name), kDamaged);
}

}  // namespace

bool checked_bytes(std::span<const int64_t> shape, DType type, uint64_t* bytes) {
  int64_t product = static_cast<int64_t>(dtype_size(type));
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && __builtin_mul_overflow(product, dim, &product))) {
      return false;
    }
    empty = empty || dim == 0;
  }
  *bytes = empty ? 0 : static_cast<uint64_t>(product);
  return true;
}

std::string shown_name(std::string_view name) {
  constexpr size_t kShown = 96;
  size_t length = std::min(name.size(), kShown);
  while (length < name.size() && length > 0 && (name[length] & 0xc0) == 0x80) {
    --length;  // not inside a UTF-8 sequence
  }
  std::string out(name.substr(0, length));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return fmt::format("'{}{}'", out, length < name.size() ? "..." : "");
}

SafeTensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& path) {
  uint64_t length = 0;
  require(file.size() >= sizeof(length), kTag,
          "{}: {} bytes are too few for a safetensors file; it was cut short or is something else",
          path, file.size());
  std::memcpy(&length, file.data(), sizeof(length));
  require(length <= kMaxHeaderBytes, kTag, "{}: a header of {} bytes exceeds the limit of {}; {}",
          path, length, kMaxHeaderBytes, kDamaged);
  const uint64_t rest = file.size() - sizeof(length);
  require(length <= rest, kTag,
          "{}: the header should have {} bytes, but only {} are left; the file was cut short", path,
          length, rest);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(length), length);
  require(text.starts_with('{'), kTag, "{}: the header does not start with '{{'; {}", path,
          kDamaged);
  // The JSON parser takes a zero byte for the end of its input.
  require(text.find('\0') == std::string_view::npos, kTag, "{}: a zero byte in the header; {}",
          path, kDamaged);

  SafeTensorsHeader header;
  header.data_begin = sizeof(length) + length;
  const uint64_t data_bytes = rest - length;
  HeaderReader reader(path, data_bytes, &header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_coverage(header, data_bytes, path);
  return header;
}

}  // namespace fwpkm
