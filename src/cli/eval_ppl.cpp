#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "base/timer.h"
#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/open.h"

namespace fwpkm::cli {
namespace {

using nlohmann::json;

// Attention that sees everything cannot read without end.
std::string usual_reset(std::span<const std::shared_ptr<const Model>> models) {
  for (const auto& model : models) {
    if (model->config().has_mixer(Mixer::kFa)) {
      return "segment";
    }
  }
  return "never";
}

}  // namespace

int run_ppl(PplArguments a, const Common& common) {
  std::vector<OpenModel> open = {open_model(a.eval.model, a.eval.tokenizer, common)};
  if (!a.against.empty()) {
    open.push_back(open_model(a.against, a.eval.tokenizer, common));
    require(open[0].tokenizer->fingerprint() == open[1].tokenizer->fingerprint(), "eval",
            "{} and {} have different tokenizers, so their perplexities cannot be compared",
            a.eval.model, a.against);
  }
  std::vector<std::shared_ptr<const Model>> models;
  json about = {{"kind", "ppl"}, {"models", json::array()}};
  for (const OpenModel& one : open) {
    models.push_back(one.model);
    about["models"].push_back(about_evaluated(*one.model, one.folder));
  }
  a.options.reader.memory = parse_reset(a.reset);
  a.options.reader.mixers =
      parse_reset(a.reset_mixers == "auto" ? usual_reset(models) : a.reset_mixers);
  a.options.reader.segment = a.segment > 0 ? a.segment : models[0]->config().max_seq;
  DocumentTokens data(a.data, open[0].tokenizer);
  about["settings"] = a.options.json();
  about["data"] = data.about();
  EvalFolder folder(a.eval.out, about, a.eval.start_over);
  if (!folder.done().empty()) {
    say(common, fmt::format("going on in {}\n", a.eval.out));
  }
  Progress bar("ppl");
  const double start = now_seconds();
  int64_t first = 0;
  for (const json& line : folder.done()) {
    first += line.at("tokens").get<int64_t>();
  }
  const json result =
      evaluate_ppl(models, &data, a.options, &folder, [&](double done, int64_t tokens) {
        bar.update(done,
                   fmt::format("{} tokens, {:.0f} tokens/s", tokens,
                               static_cast<double>(tokens - first) / (now_seconds() - start)));
      });
  bar.finish();

  std::vector<std::vector<std::string>> rows = {{"model", "tokens", "loss", "perplexity", "gate"}};
  for (size_t m = 0; m < models.size(); ++m) {
    const json& one = result.at("models").at(m);
    std::string gates;
    for (const auto& [layer, gate] : one.at("gates").items()) {
      gates += fmt::format("{}{}: {:.2f}", gates.empty() ? "" : ", ", layer,
                           gate.at("gate").get<double>());
    }
    rows.push_back({one.at("name"), std::to_string(result.at("tokens").get<int64_t>()),
                    fmt::format("{:.4f}", one.at("loss").get<double>()),
                    fmt::format("{:.3f}", one.at("ppl").get<double>()),
                    gates.empty() ? "-" : gates});
  }
  say(common, table(rows));
  const json& documents = result.at("documents");
  if (documents.size() > 1) {
    rows = {{"document", "tokens", "perplexity"}};
    if (models.size() > 1) {
      rows[0].insert(rows[0].end(), {models[1]->config().name, "difference"});
    }
    const size_t shown = std::min<size_t>(documents.size(), 20);
    for (size_t i = 0; i < shown; ++i) {
      const json& d = documents.at(i);
      const double ppl = d.at("ppl").at(0);
      rows.push_back({std::to_string(d.at("document").get<int64_t>()),
                      std::to_string(d.at("tokens").get<int64_t>()), fmt::format("{:.3f}", ppl)});
      if (models.size() > 1) {
        const double other = d.at("ppl").at(1);
        rows.back().insert(rows.back().end(),
                           {fmt::format("{:.3f}", other), fmt::format("{:+.3f}", ppl - other)});
      }
    }
    say(common, "\n" + table(rows));
    if (documents.size() > shown) {
      say(common, fmt::format("and {} more documents; --json has all\n", documents.size() - shown));
    }
  }
  finish_eval(common, a.eval, &folder, result);
  return 0;
}

int run_continual(const ContinualArguments& a, const Common& common) {
  const OpenModel open = open_model(a.eval.model, a.eval.tokenizer, common);
  std::vector<Domain> domains = find_domains(a.domains);
  if (!a.order.empty()) {
    std::vector<Domain> chosen;
    for (const std::string& name : a.order) {
      const auto it = std::find_if(domains.begin(), domains.end(),
                                   [&](const Domain& d) { return d.name == name; });
      require(it != domains.end(), "eval", "{} has no domain '{}'", a.domains, name);
      chosen.push_back(*it);
    }
    domains = chosen;
  }
  json about = {{"kind", "continual"},
                {"models", {about_evaluated(*open.model, open.folder)}},
                {"settings", a.options.json()}};
  for (const Domain& domain : domains) {
    about["data"][domain.name] = {DocumentTokens(domain.adapt, open.tokenizer).about(),
                                  DocumentTokens(domain.test, open.tokenizer).about()};
    about["order"].push_back(domain.name);
  }
  EvalFolder folder(a.eval.out, about, a.eval.start_over);
  if (!folder.done().empty()) {
    say(common, fmt::format("going on in {}\n", a.eval.out));
  }
  Progress bar("continual");
  const json result =
      evaluate_continual(open.model, open.tokenizer, domains, a.options, &folder,
                         [&](double done, const std::string& note) { bar.update(done, note); });
  bar.finish();

  std::vector<std::vector<std::string>> rows = {{"change of loss after"}};
  for (const Domain& domain : domains) {
    rows[0].push_back(domain.name);
  }
  rows.push_back({"(loss before)"});
  for (const json& loss : result.at("loss").at(0)) {
    rows.back().push_back(fmt::format("{:.4f}", loss.get<double>()));
  }
  for (size_t stage = 1; stage <= domains.size(); ++stage) {
    rows.push_back({domains[stage - 1].name});
    for (const json& change : result.at("change").at(stage)) {
      rows.back().push_back(fmt::format("{:+.4f}", change.get<double>()));
    }
  }
  say(common, table(rows));
  const json& kept = result.at("retention");
  say(common, kept.is_null()
                  ? "nothing was gained that could be kept\n"
                  : fmt::format("retention: {:.2f} of what was gained is left at the end\n",
                                kept.get<double>()));
  finish_eval(common, a.eval, &folder, result);
  return 0;
}

void add_eval_ppl(CLI::App* eval) {
  auto a = std::make_shared<PplArguments>();
  CLI::App* sub = eval->add_subcommand(
      "ppl", "Perplexity of documents that are read in order, as one stream, while memories learn");
  add_eval_options(sub, &a->eval);
  sub->add_option("--data", a->data, "Text files, folders of them, or an encoded corpus")
      ->type_name("PATH")
      ->required();
  sub->add_option("--against", a->against, "A second model, to compare with token by token")
      ->type_name("DIR");
  sub->add_option("--reset", a->reset, "When memories forget: never, document or segment")
      ->capture_default_str();
  sub->add_option("--reset-mixers", a->reset_mixers,
                  "When attention and GDN forget: never, document, segment; auto: segment if there "
                  "is attention that sees everything, else never")
      ->capture_default_str();
  sub->add_option("--segment", a->segment, "Tokens of a segment; 0: the model's max_seq")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  sub->add_flag("--freeze", a->options.reader.freeze, "Memories are only read, never written");
  sub->add_option("--tokens", a->options.tokens, "Tokens to read at most; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  sub->add_option("--window", a->options.window,
                  "Tokens between two looks at how slots are used; after each, progress is kept")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  sub->add_option("--every", a->options.every, "Tokens between two points of the curves")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command(sub, [a](const Common& common) { return run_ppl(*a, common); });
}

void add_eval_continual(CLI::App* eval) {
  auto a = std::make_shared<ContinualArguments>();
  CLI::App* sub = eval->add_subcommand(
      "continual", "Read domain after domain; after each, test all of them without writing");
  add_eval_options(sub, &a->eval);
  sub->add_option("--domains", a->domains,
                  "A folder with a folder for each domain, which holds adapt.* and eval.*: text "
                  "files or encoded corpora")
      ->type_name("DIR")
      ->required();
  sub->add_option("--order", a->order, "Domains in the order of adaptation; left out: by name")
      ->delimiter(',')
      ->type_name("NAME");
  sub->add_option("--adapt-tokens", a->options.adapt_tokens,
                  "Tokens of a domain to adapt to at most; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  sub->add_option("--test-tokens", a->options.test_tokens,
                  "Tokens of a domain to test at most; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  sub->add_option("--segment", a->options.segment,
                  "Tokens after which attention and GDN forget; 0: only between texts")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command(sub, [a](const Common& common) { return run_continual(*a, common); });
}

}  // namespace fwpkm::cli
