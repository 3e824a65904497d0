// `fwpkm eval ablate`: several models trained and evaluated alike, in one table.
#include <algorithm>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/json_fields.h"
#include "cli/eval_reading.h"
#include "cli/train.h"
#include "model/cost.h"
#include "train/metrics.h"

namespace fwpkm::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct AblateArguments {
  TrainArguments train;
  std::vector<std::string> configs, variants, texts, questions;
  std::string needles, domains, out;
  int64_t tokens = 0, samples = 0;
};

struct Variant {
  std::string name, config;
  std::vector<std::string> overrides;
};

// "NAME:key=value,key=value" changes the first config.
Variant parse_variant(const std::string& text, const std::string& config) {
  const size_t colon = text.find(':');
  require(colon != std::string::npos && colon > 0 && colon + 1 < text.size(), "eval",
          "'{}' is not NAME:key=value,..., as in no-gate:fwpkm.gating=false", text);
  Variant variant = {text.substr(0, colon), config, {}};
  variant.overrides.push_back("name=" + variant.name);
  for (size_t at = colon + 1; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    variant.overrides.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return variant;
}

std::vector<Variant> all_variants(const AblateArguments& a, const Common& common) {
  std::vector<Variant> variants;
  for (const std::string& path : a.configs) {
    variants.push_back({load_config(path, common.overrides).name, path, {}});
  }
  for (const std::string& text : a.variants) {
    variants.push_back(parse_variant(text, a.configs[0]));
  }
  std::set<std::string> names;
  for (Variant& variant : variants) {
    // Names become folders.
    std::replace_if(
        variant.name.begin(), variant.name.end(),
        [](char c) { return c == '/' || c == '|' || c == '\\' || c == ' '; }, '_');
    require(names.insert(variant.name).second, "eval",
            "two of the models are called '{}'; give configs different names", variant.name);
  }
  return variants;
}

// What eval ppl says of a model: perplexity, mean gate, and how slots were used in the last window.
void evaluate_text(const AblateArguments& a, const std::string& run, const fs::path& out,
                   bool freeze, const Common& common, json* result) {
  PplArguments ppl;
  ppl.eval.model = run;
  ppl.eval.out = out.string();
  ppl.data = a.texts;
  ppl.options.tokens = a.tokens;
  ppl.options.reader.freeze = freeze;
  run_ppl(ppl, common);
  const json found = read_json_file(out / "result.json").at("models").at(0);
  (*result)[freeze ? "ppl_frozen" : "ppl"] = found.at("ppl");
  if (freeze) {
    return;
  }
  const auto mean = [](const json& layers, const char* key) {
    double sum = 0;
    int64_t count = 0;
    for (const auto& [layer, values] : layers.items()) {
      if (values.contains(key)) {
        sum += values.at(key).get<double>();
        ++count;
      }
    }
    return count == 0 ? json() : json(sum / static_cast<double>(count));
  };
  (*result)["gate"] = mean(found.at("gates"), "gate");
  for (const char* key : {"collision", "coverage", "kld"}) {
    (*result)[key] = mean(found.at("windows").back().at("memory"), key);
  }
}

// Needles, questions and domains, as far as they were given.
void evaluate_more(const AblateArguments& a, const std::string& run, const std::string& folder,
                   const Common& common, json* result) {
  if (!a.needles.empty()) {
    NiahArguments niah;
    niah.reading.model = run;
    niah.reading.out = folder + ".niah";
    niah.reading.chunk = "haystack";
    niah.data = a.needles;
    niah.options.samples = a.samples;
    run_niah(niah, common);
    const json groups = read_json_file(fs::path(niah.reading.out) / "result.json").at("groups");
    for (const int64_t readings : {niah.options.readings.front(), niah.options.readings.back()}) {
      double right = 0, samples = 0;
      for (const json& group : groups) {
        if (group.at("depth_bin").is_null() && group.at("readings") == readings) {
          right += group.at("exact").get<double>() * group.at("samples").get<double>();
          samples += group.at("samples").get<double>();
        }
      }
      (*result)[fmt::format("needles_{}", readings)] = right / samples;
    }
  }
  if (!a.questions.empty()) {
    LongbenchArguments questions;
    questions.reading.model = run;
    questions.reading.out = folder + ".qa";
    questions.reading.chunk = "context";
    questions.data = a.questions;
    questions.options.samples = a.samples;
    run_longbench(questions, common);
    (*result)["answer_ppl"] =
        read_json_file(fs::path(questions.reading.out) / "result.json").at("all").at("perplexity");
  }
  if (!a.domains.empty()) {
    ContinualArguments continual;
    continual.eval.model = run;
    continual.eval.out = folder + ".domains";
    continual.domains = a.domains;
    continual.options.adapt_tokens = continual.options.test_tokens = a.tokens;
    run_continual(continual, common);
    (*result)["retention"] =
        read_json_file(fs::path(continual.eval.out) / "result.json").at("retention");
  }
}

// Trains a variant, or goes on, or does nothing if that is done; then evaluates it.
int run_variant(const AblateArguments& a, const Variant& variant, const Common& common,
                json* result) {
  Common own = common;
  own.part = true;
  own.overrides.insert(own.overrides.end(), variant.overrides.begin(), variant.overrides.end());
  TrainArguments train = a.train;
  train.config = variant.config;
  const fs::path folder = fs::path(a.out) / variant.name;
  train.out = folder.string() + ".run";
  train.options.resume = true;
  const ModelConfig config = configured(train, own);
  if (const int status = run_train(train, own); status != 0) {
    return status;
  }
  const Cost cost = count_cost(config, 1, 1);
  *result = {{"name", variant.name},
             {"total_params", cost.total_params},
             {"active_params", cost.active_params},
             {"valid_loss", nullptr}};
  read_metrics(train.out, [&](int64_t, const json& line) {
    if (line.contains("valid_loss") && line["valid_loss"].is_number()) {
      (*result)["valid_loss"] = line["valid_loss"];
    }
  });
  Common plain = own;
  plain.overrides.clear();  // they are in the model's config
  evaluate_text(a, train.out, folder.string() + ".ppl", false, plain, result);
  if (learns_by_reading(config)) {
    evaluate_text(a, train.out, folder.string() + ".frozen", true, plain, result);
  }
  evaluate_more(a, train.out, folder.string(), plain, result);
  return 0;
}

int run_ablate(const AblateArguments& a, const Common& common) {
  const std::vector<Variant> variants = all_variants(a, common);
  fs::create_directories(a.out);
  json models = json::array();
  for (const Variant& variant : variants) {
    say(common, fmt::format("\n# {}\n", variant.name));
    json result;
    if (const int status = run_variant(a, variant, common, &result); status != 0) {
      say(common, "stopped; the same command goes on\n");
      return status;
    }
    models.push_back(std::move(result));
  }
  std::vector<std::pair<const char*, const char*>> columns = {{"active (M)", "active_params"},
                                                              {"valid loss", "valid_loss"},
                                                              {"perplexity", "ppl"},
                                                              {"frozen", "ppl_frozen"},
                                                              {"gate", "gate"},
                                                              {"collision", "collision"},
                                                              {"coverage", "coverage"},
                                                              {"kld", "kld"},
                                                              {"needles, 1", "needles_1"},
                                                              {"needles, 4", "needles_4"},
                                                              {"answers", "answer_ppl"},
                                                              {"retention", "retention"}};
  std::erase_if(columns, [&](const auto& column) {
    return std::none_of(models.begin(), models.end(), [&](const json& model) {
      return !model.value(column.second, json()).is_null();
    });
  });
  std::vector<std::vector<std::string>> rows = {{"model"}};
  for (const auto& [name, key] : columns) {
    rows[0].push_back(name);
  }
  for (const json& model : models) {
    rows.push_back({model.at("name")});
    for (const auto& [name, key] : columns) {
      const json value = model.value(key, json());
      rows.back().push_back(value.is_null() ? "-"
                            : std::string(key) == "active_params"
                                ? fmt::format("{:.2f}", value.get<double>() / 1e6)
                                : fmt::format("{:.3f}", value.get<double>()));
    }
  }
  say(common, "\n" + table(rows));
  const json result = {{"kind", "ablate"}, {"version", FWPKM_VERSION}, {"variants", models}};
  write_text_atomic(fs::path(a.out) / "result.json", result.dump(1) + "\n");
  write_page(a.out, result, common);
  emit(common, result);
  return 0;
}

}  // namespace

void add_eval_ablate(CLI::App* eval) {
  auto a = std::make_shared<AblateArguments>();
  CLI::App* sub = eval->add_subcommand(
      "ablate", "Train several models alike, evaluate each, and put them into one table");
  sub->add_option("--config", a->configs, "Config files, one for each model")
      ->type_name("FILE...")
      ->required();
  sub->add_option("--variant", a->variants,
                  "The first config with changes, as in no-gate:fwpkm.gating=false; several times")
      ->take_all()
      ->expected(1)
      ->type_name("NAME:KEY=VALUE,...");
  add_train_options(sub, &a->train);
  sub->add_option("--text", a->texts, "Text or encoded corpora for eval ppl, live and frozen")
      ->type_name("PATH...")
      ->required();
  sub->add_option("--tokens", a->tokens, "Tokens of it to read at most; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  sub->add_option("--needles", a->needles, "Haystacks for eval niah")->type_name("FILE.jsonl");
  sub->add_option("--questions", a->questions, "Questions for eval longbench")
      ->type_name("FILE...");
  sub->add_option("--samples", a->samples,
                  "Needles of each length and documents of each file at most; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--domains", a->domains,
                  "Domains for eval continual, which takes --tokens of each text")
      ->type_name("DIR");
  sub->add_option("--out", a->out, "Folder for runs and results; what was stopped goes on there")
      ->type_name("DIR")
      ->required();
  command(sub, [a](const Common& common) { return run_ablate(*a, common); });
}

}  // namespace fwpkm::cli
