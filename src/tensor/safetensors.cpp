#include "tensor/safetensors.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/convert.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "safetensors";

// Insertions, deletions and replacements that turn one name into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view name, const std::vector<TensorInfo>& tensors) {
  // Enough for any model; a hostile file must not make an error message take minutes.
  constexpr size_t kMaxTensors = 20'000;
  constexpr size_t kMaxLength = 128;
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (size_t i = 0; i < std::min(tensors.size(), kMaxTensors); ++i) {
    const std::string& candidate = tensors[i].name;
    const size_t distance = edit_distance(name.substr(0, kMaxLength),
                                          std::string_view(candidate).substr(0, kMaxLength));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

SafeTensors SafeTensors::open(const std::filesystem::path& path, bool huge_pages) {
  return SafeTensors(path, MappedFile(path, huge_pages));
}

SafeTensors::SafeTensors(std::filesystem::path path, MappedFile file)
    : path_(std::move(path)),
      file_(std::move(file)),
      header_(parse_safetensors_header(file_.bytes(), path_.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> names;
  names.reserve(header_.tensors.size());
  for (const Info& tensor : header_.tensors) {
    names.push_back(tensor.name);
  }
  return names;
}

const SafeTensors::Info& SafeTensors::info(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    require(!header_.tensors.empty(), kTag, "{} has no tensor {}; it has none at all",
            path_.string(), shown_name(name));
    fail(kTag, "{} has no tensor {}; the nearest name is {}", path_.string(), shown_name(name),
         shown_name(nearest(name, header_.tensors)));
  }
  return header_.tensors[found->second];
}

std::span<const std::byte> SafeTensors::data(std::string_view name) const {
  const Info& tensor = info(name);
  return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
}

template <typename T>
void SafeTensors::read_elements(std::string_view name, T* out, size_t count) const {
  const Info& tensor = info(name);
  require(count == tensor.count(), kTag,
          "{}: tensor {} has {} elements, shape [{}], but {} were "
          "asked for",
          path_.string(), shown_name(name), tensor.count(), fmt::join(tensor.shape, ", "), count);
  const std::span<const std::byte> bytes = data(name);
  if (tensor.dtype == DType::kBool) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(),
                                  [](std::byte b) { return std::to_integer<int>(b) > 1; });
    require(bad == bytes.end(), kTag,
            "{}: element {} of the BOOL tensor {} is neither 0 nor 1; "
            "the file is damaged",
            path_.string(), bad - bytes.begin(), shown_name(name));
  }
  // Element by element from the map to `out`: the pages are read, and may be dropped, as we go.
  load_elements(tensor.dtype, bytes.data(), count, out);
}

void SafeTensors::read(std::string_view name, float* out, size_t count) const {
  read_elements(name, out, count);
}

void SafeTensors::read(std::string_view name, double* out, size_t count) const {
  read_elements(name, out, count);
}

void SafeTensors::read_as_i64(std::string_view name, int64_t* out, size_t count) const {
  const Info& tensor = info(name);
  require(!is_float(tensor.dtype), kTag,
          "{}: tensor {} holds {}, but integers were asked for; is it the right tensor?",
          path_.string(), shown_name(name), dtype_name(tensor.dtype));
  read_elements(name, out, count);
}

}  // namespace fwpkm
