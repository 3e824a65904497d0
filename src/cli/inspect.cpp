#include <algorithm>
#include <memory>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/inspect.h"
#include "cli/open.h"
#include "cli/slots.h"

namespace fwpkm::cli {
namespace {

using nlohmann::json;

struct Arguments : ProbeArguments {
  std::string text;
  std::vector<std::string> slots;
};

int run_slots(const Arguments& a, const Common& common) {
  if (!a.prompt.empty()) {
    require(a.slots.empty() && a.text.empty(), "inspect",
            "--prompt cannot be together with --slot or --text");
    return run_probe(a, common);
  }
  require(!a.session.empty(), "inspect", "give --session");
  const SessionOnDisk disk(a.session, a.model, a.tokenizer, false, common);
  const Session& session = disk.session;
  const ModelConfig& config = disk.open.model->config();
  require(config.has_any_fwpkm(), "inspect", "{} has no memory with slots", config.name);
  require(a.slots.empty() || a.text.empty(), "inspect", "give --slot or --text, not both");
  require(session.settings().history, "inspect",
          "{} keeps no history: it was made with --no-history", a.session);
  std::vector<std::pair<int, int32_t>> chosen;
  for (const std::string& slot : a.slots) {
    chosen.push_back(parse_slot(slot));
  }
  if (!a.text.empty()) {
    chosen = session.written_by(spellings_of(a.text, disk.open.text()));
  } else if (a.slots.empty()) {
    for (const int layer : config.fwpkm.layers) {
      for (const int32_t slot : session.written(layer)) {
        chosen.emplace_back(layer, slot);
      }
    }
  }
  std::vector<std::pair<std::pair<int, int32_t>, SlotHistory>> found;
  for (const auto& slot : chosen) {
    found.emplace_back(slot, session.history(slot.first, slot.second));
  }
  if (a.slots.empty()) {  // those that were written last
    std::stable_sort(found.begin(), found.end(), [](const auto& x, const auto& y) {
      return x.second.writes[0].position > y.second.writes[0].position;
    });
  }
  json slots = json::array();
  std::vector<std::vector<std::string>> rows = {
      {"layer:slot", "writes", "position", "strength", "query", "target", "text"}};
  for (const auto& [slot, history] : found) {
    json writes = json::array();
    for (const SlotWrite& write : history.kept()) {
      writes.push_back(write_json(write, disk.open));
      const json& w = writes.back();
      if (static_cast<int64_t>(slots.size()) < a.top || !a.slots.empty()) {
        const bool first = writes.size() == 1;
        rows.push_back({first ? fmt::format("{}:{}", slot.first, slot.second) : "",
                        first ? std::to_string(history.count) : "", std::to_string(write.position),
                        fmt::format("{:.3f}", write.strength), w.at("query"), w.at("target"),
                        w.at("text")});
      }
    }
    slots.push_back({{"layer", slot.first},
                     {"slot", slot.second},
                     {"count", history.count},
                     {"writes", std::move(writes)}});
  }
  say(common, rows.size() > 1 ? table(rows) : "no slot was written\n");
  if (a.slots.empty() && static_cast<int64_t>(slots.size()) > a.top) {
    say(common, fmt::format("and {} more slots; --top shows them, --json has all\n",
                            static_cast<int64_t>(slots.size()) - a.top));
  }
  emit(common, {{"slots", slots}});
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* inspect = app.add_subcommand("inspect", "Look into what a model has learned");
  inspect->require_subcommand(1);
  auto a = std::make_shared<Arguments>();
  CLI::App* slots = inspect->add_subcommand(
      "slots",
      "What text wrote which slot of a session's memory; with --prompt, which slots tokens are "
      "made from");
  slots->add_option("--session", a->session, "The session's file")->type_name("FILE");
  slots->add_option("--slot", a->slots, "A slot, as in 1:4711; left out, those written last")
      ->type_name("LAYER:SLOT")
      ->take_all()
      ->expected(1);
  slots->add_option("--text", a->text, "Slots that this text wrote")->type_name("TEXT");
  slots->add_option("--top", a->top, "Slots to show; with --prompt, for each token")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  add_probe_options(slots, a.get());
  add_model_options(slots, ModelOption::kOrSession, &a->model, &a->tokenizer);
  add_inspect_gates(inspect);
  command(slots, [a](const Common& common) { return run_slots(*a, common); });
}

}  // namespace fwpkm::cli
