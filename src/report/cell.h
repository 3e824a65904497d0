// Text or a number, as a page shows it.
#pragma once

#include <concepts>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace fwpkm::report {

// JSON has no NaN and no infinity: they go into the page as the texts "NaN", "inf" and "-inf",
// which the page reads as these numbers again.
nlohmann::json number(double value);

// How numbers are written. The page has one function that does it (format.js).
//   ""     five significant digits, and thousands set apart
//   "0"    whole numbers, thousands set apart
//   ".3"   three digits after the point
//   ".1%"  a share as percents
// Anything else is an error.
void check_format(std::string_view format);

// What stands in a table or in settings: nothing, a text or a number.
class Cell {
 public:
  Cell() = default;
  Cell(std::nullptr_t) {}
  Cell(const char* text) : json_(text) {}
  Cell(std::string_view text) : json_(text) {}
  Cell(std::string text) : json_(std::move(text)) {}
  Cell(bool value) : json_(value ? "yes" : "no") {}
  template <std::integral T>
  Cell(T value) : json_({{"n", value}}) {}
  template <std::floating_point T>
  Cell(T value) : json_({{"n", number(value)}}) {}
  template <typename T>
  Cell(const std::optional<T>& value) : Cell(value ? Cell(*value) : Cell()) {}

  // null, a text, or {"n": number}: a text that reads "NaN" is no number.
  const nlohmann::json& json() const { return json_; }

 private:
  nlohmann::json json_;
};

}  // namespace fwpkm::report
