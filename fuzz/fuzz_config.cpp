// Model configs, ours and the authors': JSON text, overrides, and what is computed from a config.
//
// First byte: 1 = lines after the first zero byte are overrides, 2 = read a file instead of a text.
#include <vector>

#include "base/json_fields.h"
#include "fuzz.h"
#include "model/config.h"
#include "model/cost.h"

namespace fwpkm::fuzz {
namespace {

std::vector<std::string> split_overrides(std::string& text) {
  std::vector<std::string> lines;
  const size_t zero = std::min(text.find('\0'), text.size());
  for (size_t at = zero + 1; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  text.resize(zero);
  return lines;
}

void target(Input in) {
  const uint8_t mode = in.byte();
  std::string text = in.rest();
  const std::vector<std::string> overrides =
      mode & 1 ? split_overrides(text) : std::vector<std::string>{};
  const auto config = accepted([&] {
    return mode & 2 ? load_config(scratch().write("config.json", text), overrides)
                    : parse_config(parse_json_text(text, "config.json"), "config.json", overrides);
  });
  if (!config) {
    return;
  }
  const nlohmann::json json = config_to_json(*config);
  const ModelConfig again = parse_config(parse_json_text(json.dump(), "again"), "again");
  check(config_to_json(again) == json, "a config that is written and read is the same");
  check(!row_name(*config).empty(), "every model has a row");
  check(count_active(*config).total() <= count_params(*config).total(), "not all is active");
  // Counts over 64 bits are refused.
  refused([&] { count_cost(*config, config->train.batch, config->train.seq); });
}

}  // namespace
}  // namespace fwpkm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fwpkm::fuzz::run(data, size, fwpkm::fuzz::target);
}
