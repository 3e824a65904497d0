#include "report/page.h"

#include <fmt/format.h>

#include "base/file.h"
#include "report/assets.h"

namespace fwpkm::report {
namespace {

using Json = nlohmann::json;

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
    text->replace(at, from.size(), to);
  }
}

// JSON that can stand inside <script>: without "<" nothing in it can end the element or begin a
// comment.
std::string script_json(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  replace_all(&text, "<", "\\u003c");
  replace_all(&text, "\u2028", "\\u2028");
  replace_all(&text, "\u2029", "\\u2029");
  return text;
}

// Text for an element.
std::string escaped(const std::string& text) {
  // Through JSON, which mends broken UTF-8.
  std::string safe = Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
                         .get<std::string>();
  replace_all(&safe, "&", "&amp;");
  replace_all(&safe, "<", "&lt;");
  replace_all(&safe, ">", "&gt;");
  return safe;
}

}  // namespace

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void Page::add(Block block) {
  blocks_.push_back(to_json(block));
}

void Page::add(Details details) {
  add(Block(std::make_shared<Details>(std::move(details))));
}

std::string Page::html() const {
  const Json data = {
      {"title", title_}, {"subtitle", subtitle_}, {"version", FWPKM_VERSION}, {"blocks", blocks_}};
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main id=\"page\">"
      "<noscript>This page needs JavaScript to draw its figures.</noscript></main>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<script>{}</script>\n</body>\n</html>\n",
      kStyleHash, kScriptHash, escaped(title_), kStyle, script_json(data), kScript);
}

void Page::write(const std::filesystem::path& path) const {
  write_text_atomic(path, html());
}

}  // namespace fwpkm::report
