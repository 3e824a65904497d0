#include <fmt/format.h>

#include "report/kinds.h"

namespace fwpkm::report {
namespace {

using nlohmann::json;

std::string plain(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

void draw_about(Page* page, const Result& result) {
  Settings settings;
  const auto add = [&](const std::string& key, const json& value) {
    settings.entries.emplace_back(key, plain(value));
  };
  const json none = json::object();
  for (const auto& [key, value] :
       (result.data.contains("settings") ? result.data.at("settings") : none).items()) {
    add(key, value);
  }
  for (const json& model : result.data.value("models", json::array())) {
    for (const char* key : {"name", "folder", "fingerprint", "device"}) {
      if (model.contains(key)) {
        add(fmt::format("model {}", key), model.at(key));
      }
    }
  }
  if (result.data.contains("version")) {
    add("fwpkm", result.data.at("version"));
  }
  Details details{.summary = result.label + ": settings, models, data"};
  details.blocks.emplace_back(std::move(settings));
  if (result.data.contains("data")) {
    details.blocks.emplace_back(Tree{.title = "data", .value = result.data.at("data")});
  }
  page->add(std::move(details));
}

}  // namespace fwpkm::report
