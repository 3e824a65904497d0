// A report: one HTML file that needs nothing else, neither network nor fonts nor scripts.
//
// The file holds a style sheet, a script and the blocks as JSON. The script (*.js here, put into
// the program by the build) makes elements and texts from them, never HTML: whatever stands in a
// text is shown and not run. A content security policy names style and script by their hashes, so
// that the browser would not run anything else either.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/blocks.h"

namespace fwpkm::report {

class Page {
 public:
  explicit Page(std::string title, std::string subtitle = "");

  // Adds a block, at the end.
  void add(Block block);
  void add(Details details);

  // Bytes that are not UTF-8 become U+FFFD.
  std::string html() const;
  // Whole or not at all.
  void write(const std::filesystem::path& path) const;

 private:
  std::string title_, subtitle_;
  nlohmann::json blocks_ = nlohmann::json::array();
};

}  // namespace fwpkm::report
