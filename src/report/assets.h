// Style sheet and script of a page, as the build put them into the program
// (cmake/embed_report.cmake).
#pragma once

#include <string_view>

namespace fwpkm::report {

extern const std::string_view kStyle, kStyleHash;
extern const std::string_view kScript, kScriptHash;

}  // namespace fwpkm::report
