#include "base/json_fields.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

namespace fwpkm {
namespace {

using nlohmann::json;

// Levenshtein distance, one row at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t up = row[j + 1];
      row[j + 1] = std::min({up + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = up;
    }
  }
  return row.back();
}

// Text of a JSON scalar, or the text itself as a string (which no number or bool accepts).
json scalar_from_text(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() || value.is_structured() ? json(text) : value;
}

}  // namespace

json parse_json_text(std::string_view text, const std::string& source) {
  // Copying, comparing and showing a value recurse into it, so a hostile file could use up the
  // stack.
  constexpr int kDeepest = 64;
  std::vector<std::set<std::string>> open;  // keys seen in each object that is still open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    require(depth <= kDeepest, "config", "{}: nested deeper than {} levels", source, kDeepest);
    if (event == json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == json::parse_event_t::key &&
               !open.back().insert(parsed.get<std::string>()).second) {
      fail("config", "{}: key {} is given twice; remove one", source, shown(parsed));
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line ..."
    if (const size_t end = what.find("] "); what.starts_with('[') && end != what.npos) {
      what = what.substr(end + 2);
    }
    fail("config", "{}: not valid JSON: {}", source, what);
  }
}

json read_json_file(const std::filesystem::path& file) {
  std::error_code ignored;
  require(!std::filesystem::is_directory(file, ignored), "config",
          "{} is a directory; name the JSON file in it", file.string());
  std::ifstream stream(file, std::ios::binary);
  require(stream.good(), "config", "{} cannot be opened; check the path", file.string());
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  return parse_json_text(text, file.string());
}

std::string nearest_key(std::string_view key, const std::vector<std::string>& candidates) {
  // Longer than any key there is; a hostile file must not make an error message take minutes.
  constexpr size_t kLongest = 128;
  key = key.substr(0, kLongest);
  std::string best;
  size_t least = std::string::npos;
  for (const std::string& candidate : candidates) {
    // The right leaf in the wrong section (or in none) is a near miss too.
    const size_t leaf = edit_distance(split_key(key).second, split_key(candidate).second) + 1;
    const size_t distance = std::min(edit_distance(key, candidate), leaf);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      --end;  // do not cut a UTF-8 sequence
    }
    text = text.substr(0, end) + "...";
  }
  return text;
}

bool Codec<int64_t>::read(const json& value, int64_t& out) {
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return false;
    }
    out = static_cast<int64_t>(wide);
    return true;
  }
  if (value.is_number_integer()) {
    out = value.get<int64_t>();
    return true;
  }
  if (value.is_number_float()) {  // 512.0 and 1e6 are integers, 0.5 is not
    const double real = value.get<double>();
    if (std::abs(real) <= 0x1p53 && real == std::floor(real)) {
      out = static_cast<int64_t>(real);
      return true;
    }
  }
  return false;
}

json Codec<int64_t>::from_text(const std::string& text) {
  return scalar_from_text(text);
}

bool Codec<double>::read(const json& value, double& out) {
  if (!value.is_number()) {
    return false;
  }
  const auto real = value.get<double>();
  if (!std::isfinite(real)) {
    return false;
  }
  out = real;
  return true;
}

json Codec<double>::from_text(const std::string& text) {
  return scalar_from_text(text);
}

bool Codec<bool>::read(const json& value, bool& out) {
  if (!value.is_boolean()) {
    return false;
  }
  out = value.get<bool>();
  return true;
}

json Codec<bool>::from_text(const std::string& text) {
  return scalar_from_text(text);
}

bool Codec<std::string>::read(const json& value, std::string& out) {
  if (!value.is_string()) {
    return false;
  }
  out = value.get<std::string>();
  return true;
}

json list_from_text(const std::string& text, json (*element)(const std::string&)) {
  if (text.starts_with('[')) {
    const json list = json::parse(text, nullptr, false);
    return list.is_discarded() ? json(text) : list;
  }
  json list = json::array();
  for (size_t start = 0; !text.empty() && start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    list.push_back(element(text.substr(start, comma - start)));
    start = comma + 1;
  }
  return list;
}

const json* find_field(const json& object, std::string_view key, const std::string& source) {
  const auto [section, name] = split_key(key);
  const json* holder = &object;
  if (!section.empty()) {
    const auto found = object.find(std::string(section));
    if (found == object.end()) {
      return nullptr;
    }
    if (!found->is_object()) {
      fail("config", "{}: {} must be an object with keys, got {}", source, section, shown(*found));
    }
    holder = &*found;
  }
  const auto found = holder->find(std::string(name));
  return found == holder->end() ? nullptr : &*found;
}

void require_known_keys(const json& object, const std::vector<std::string>& keys,
                        const std::string& source) {
  const auto check = [&](const std::string& key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail("config", "{}: unknown key {}; did you mean \"{}\"?", source, shown(key),
           nearest_key(key, keys));
    }
  };
  for (const auto& [name, value] : object.items()) {
    const bool section = std::any_of(
        keys.begin(), keys.end(),
        [&wanted = name](const std::string& key) { return split_key(key).first == wanted; });
    if (name.find('.') != name.npos) {
      fail("config",
           "{}: unknown key {}; a dotted key is for overrides, a file nests it as an object",
           source, shown(name));
    } else if (!section || name.empty()) {
      check(name);
    } else if (value.is_object()) {
      for (const auto& entry : value.items()) {
        check(name + "." + entry.key());
      }
    }
  }
}

std::string changed_field(const nlohmann::json& was, const nlohmann::json& is,
                          const std::function<bool(const std::string& path)>& skip) {
  const nlohmann::json a = was.flatten(), b = is.flatten();
  for (const auto& [path, value] : a.items()) {
    if (skip && skip(path)) {
      continue;
    }
    const std::string now = b.contains(path) ? b.at(path).dump() : "nothing";
    if (now != value.dump()) {
      std::string plain = path.substr(1);
      std::replace(plain.begin(), plain.end(), '/', '.');
      return fmt::format("{} was {}, now it is {}", plain, value.dump(), now);
    }
  }
  return "";
}

}  // namespace fwpkm
