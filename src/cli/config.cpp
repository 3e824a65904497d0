#include <memory>

#include "base/error.h"
#include "cli/cli.h"

namespace fwpkm::cli {

void add_config(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  auto keys = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand(
      "config", "Check a config file (ours or the authors') and print it with every key");
  sub->add_option("file", *path, "The config file")->type_name("FILE");
  sub->add_flag("--help-keys", *keys, "List all keys with type, range, default and meaning");
  command(sub, [path, keys](const Common& common) {
    if (*keys) {
      say(common, config_help());
      return 0;
    }
    require(!path->empty(), "config", "give a config file, or --help-keys");
    const nlohmann::json json = config_to_json(load_config(*path, common.overrides));
    if (common.json != "-") {
      say(common, json.dump(2) + "\n");
    }
    emit(common, json);
    return 0;
  });
}

}  // namespace fwpkm::cli
