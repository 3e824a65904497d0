// Structs described once. A struct with a template
//   visit(self, f)      which calls f(key, reference, rule, help) for every field
// gets from this header: reading from JSON, writing, key=value overrides, range checks, help.
// Keys are "key" or "section.key". Every message names the source, the key and what came.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace fwpkm {

// Parses a whole file. Syntax errors name file, line and column; a key given twice and nesting
// deeper than any config's are errors.
nlohmann::json read_json_file(const std::filesystem::path& file);
nlohmann::json parse_json_text(std::string_view text, const std::string& source);

// The candidate with the least edit distance. "topk" finds "fwpkm.topk".
std::string nearest_key(std::string_view key, const std::vector<std::string>& candidates);

// A value as it may stand in a message: one line, not too long.
std::string shown(const nlohmann::json& value);

// ------------------------------------------------------------------------------------- rules

struct AnyValue {};
struct NotEmpty {};
struct IntRange {
  int64_t low, high;
};
struct RealRange {
  double low, high;
  bool above_low = false;  // low itself is not allowed
};

inline std::string rule_text(AnyValue) {
  return "";
}
inline std::string rule_text(NotEmpty) {
  return "not empty";
}
inline std::string rule_text(IntRange r) {
  return fmt::format("{}..{}", r.low, r.high);
}
inline std::string rule_text(RealRange r) {
  return r.above_low ? fmt::format("above {:g} and up to {:g}", r.low, r.high)
                     : fmt::format("{:g}..{:g}", r.low, r.high);
}

template <typename T>
bool rule_holds(AnyValue, const T&) {
  return true;
}
inline bool rule_holds(NotEmpty, const std::string& value) {
  return !value.empty();
}
inline bool rule_holds(IntRange r, int64_t value) {
  return value >= r.low && value <= r.high;
}
inline bool rule_holds(RealRange r, double value) {
  return std::isfinite(value) && value <= r.high && (r.above_low ? value > r.low : value >= r.low);
}

// ------------------------------------------------------------------------------------ codecs

// How a type is read from JSON, written to it and taken from a command line. read() returns
// false where the JSON has another type; the caller then says what was expected.
template <typename T>
struct Codec;

// Specialise with `static constexpr std::array names`, in the order of the enumerators.
template <typename E>
struct EnumNames;

template <typename E>
std::string_view enum_name(E value) {
  return EnumNames<E>::names.at(static_cast<size_t>(value));
}

template <>
struct Codec<int64_t> {
  static std::string type() { return "integer"; }
  static bool read(const nlohmann::json& json, int64_t& out);
  static nlohmann::json write(int64_t value) { return value; }
  static nlohmann::json from_text(const std::string& text);
};

template <>
struct Codec<double> {
  static std::string type() { return "number"; }
  static bool read(const nlohmann::json& json, double& out);
  static nlohmann::json write(double value) { return value; }
  static nlohmann::json from_text(const std::string& text);
};

template <>
struct Codec<bool> {
  static std::string type() { return "true or false"; }
  static bool read(const nlohmann::json& json, bool& out);
  static nlohmann::json write(bool value) { return value; }
  static nlohmann::json from_text(const std::string& text);
};

template <>
struct Codec<std::string> {
  static std::string type() { return "string"; }
  static bool read(const nlohmann::json& json, std::string& out);
  static nlohmann::json write(const std::string& value) { return value; }
  static nlohmann::json from_text(const std::string& text) { return text; }
};

template <typename E>
requires std::is_enum_v<E>
struct Codec<E> {
  static std::string type() {
    std::string all;
    for (std::string_view name : EnumNames<E>::names) {
      all += fmt::format("{}\"{}\"", all.empty() ? "" : " | ", name);
    }
    return all;
  }
  static bool read(const nlohmann::json& json, E& out) {
    if (!json.is_string()) {
      return false;
    }
    const auto& text = json.get_ref<const std::string&>();
    for (size_t i = 0; i < EnumNames<E>::names.size(); ++i) {
      if (EnumNames<E>::names[i] == text) {
        out = static_cast<E>(i);
        return true;
      }
    }
    return false;
  }
  static nlohmann::json write(E value) { return enum_name(value); }
  static nlohmann::json from_text(const std::string& text) { return text; }
};

// "[2,6]" is JSON; "2,6" is a list of texts; "" is the empty list.
nlohmann::json list_from_text(const std::string& text,
                              nlohmann::json (*element)(const std::string&));

template <typename T>
struct Codec<std::vector<T>> {
  static std::string type() { return "list of " + Codec<T>::type(); }
  static bool read(const nlohmann::json& json, std::vector<T>& out) {
    if (!json.is_array()) {
      return false;
    }
    std::vector<T> values;
    for (const nlohmann::json& element : json) {
      T value{};
      if (!Codec<T>::read(element, value)) {
        return false;
      }
      values.push_back(value);
    }
    out = std::move(values);
    return true;
  }
  static nlohmann::json write(const std::vector<T>& values) {
    nlohmann::json json = nlohmann::json::array();
    for (const T& value : values) {
      json.push_back(Codec<T>::write(value));
    }
    return json;
  }
  static nlohmann::json from_text(const std::string& text) {
    return list_from_text(text, &Codec<T>::from_text);
  }
};

template <typename T>
void read_value(const nlohmann::json& json, std::string_view key, const std::string& source,
                T& out) {
  if (!Codec<T>::read(json, out)) {
    fail("config", "{}: {} must be {}, got {}", source, key, Codec<T>::type(), shown(json));
  }
}

// ---------------------------------------------------------------------------------- visitors

// "fwpkm.topk" -> {"fwpkm", "topk"}; "layers" -> {"", "layers"}.
inline std::pair<std::string_view, std::string_view> split_key(std::string_view key) {
  const size_t dot = key.find('.');
  return dot == key.npos ? std::pair{std::string_view{}, key}
                         : std::pair{key.substr(0, dot), key.substr(dot + 1)};
}

// The value at a key, or null where it is absent. Sections must be objects.
const nlohmann::json* find_field(const nlohmann::json& json, std::string_view key,
                                 const std::string& source);

// Throws for the first key of `json` (two levels deep) that is not in `keys`.
void require_known_keys(const nlohmann::json& json, const std::vector<std::string>& keys,
                        const std::string& source);

template <typename Self>
std::vector<std::string> field_keys(const Self& self) {
  std::vector<std::string> keys;
  visit(self, [&](std::string_view key, const auto&, const auto&, std::string_view) {
    keys.emplace_back(key);
  });
  return keys;
}

template <typename Self>
void read_fields(const nlohmann::json& json, const std::string& source, Self& self) {
  visit(self, [&](std::string_view key, auto& value, const auto&, std::string_view) {
    if (const nlohmann::json* found = find_field(json, key, source)) {
      read_value(*found, key, source, value);
    }
  });
}

template <typename Self>
nlohmann::json write_fields(const Self& self) {
  nlohmann::json json = nlohmann::json::object();
  visit(self, [&](std::string_view key, const auto& value, const auto&, std::string_view) {
    const auto [section, name] = split_key(key);
    nlohmann::json& object = section.empty() ? json : json[std::string(section)];
    object[std::string(name)] = Codec<std::decay_t<decltype(value)>>::write(value);
  });
  return json;
}

// Applies one "key=value" and returns its key.
template <typename Self>
std::string override_field(const std::string& assignment, Self& self) {
  const size_t equals = assignment.find('=');
  require(equals != assignment.npos && equals > 0, "config",
          "override \"{}\" is not key=value, such as fwpkm.topk=8", assignment);
  const std::string key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  bool found = false;
  visit(self, [&](std::string_view name, auto& value, const auto&, std::string_view) {
    if (name == key) {
      found = true;
      using T = std::decay_t<decltype(value)>;
      read_value(Codec<T>::from_text(text), name, "override " + assignment, value);
    }
  });
  if (!found) {
    fail("config", "override {}: unknown key \"{}\"; did you mean \"{}\"?", assignment, key,
         nearest_key(key, field_keys(self)));
  }
  return key;
}

// Checks every field against its own rule.
template <typename Self>
void check_fields(const Self& self, const std::string& source) {
  visit(self, [&](std::string_view key, const auto& value, const auto& rule, std::string_view) {
    if (!rule_holds(rule, value)) {
      const auto [section, name] = split_key(key);
      fail(section.empty() ? "config" : section, "{}={} must be {}; change {} ({})", name,
           shown(Codec<std::decay_t<decltype(value)>>::write(value)), rule_text(rule), key, source);
    }
  });
}

// One line per field: key, type, rule, default (what `self` holds), help.
template <typename Self>
std::string describe_fields(const Self& self) {
  std::string text, last;
  visit(self,
        [&](std::string_view key, const auto& value, const auto& rule, std::string_view help) {
          using C = Codec<std::decay_t<decltype(value)>>;
          const auto [section, name] = split_key(key);
          if (section != last) {
            text += "\n";
            last = section;
          }
          const std::string range = rule_text(rule);
          text += fmt::format("{:<30} {} [{}{}default {}]\n", key, help, C::type() + ", ",
                              range.empty() ? "" : range + ", ", shown(C::write(value)));
        });
  return text;
}

// The first field of `was` that is another one in `is`, in words: "train.seed was 1, now it is 2";
// empty if there is none. Fields that only `is` has do not count, nor do those that `skip` names by
// their path, as in "/train/seed".
std::string changed_field(const nlohmann::json& was, const nlohmann::json& is,
                          const std::function<bool(const std::string& path)>& skip = {});

}  // namespace fwpkm
