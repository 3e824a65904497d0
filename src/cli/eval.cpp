#include <initializer_list>
#include <memory>

#include "base/progress.h"
#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/open.h"
#include "eval/recall.h"
#include "model/checkpoint.h"
#include "report/gather.h"
#include "text/recall_tokenizer.h"
#include "train/run_folder.h"

namespace fwpkm::cli {
namespace {

struct RecallArguments {
  EvalArguments eval;
  RecallOptions options;
};

std::string percent(const RecallShare& share) {
  return share.questions == 0 ? "-" : fmt::format("{:.3f}", *share.recall());
}

nlohmann::json number(const RecallShare& share) {
  return share.questions == 0 ? nlohmann::json(nullptr) : nlohmann::json(*share.recall());
}

int run_recall(const RecallArguments& a, const Common& common) {
  const auto folder_of_model = find_model(a.eval.model);
  const auto model = load_model(folder_of_model, common.parsed_device(), false, common.overrides);
  // It takes seconds, so it begins anew each time.
  const EvalFolder folder(
      a.eval.out, {{"kind", "recall"}, {"models", {about_evaluated(*model, folder_of_model)}}},
      true);
  Progress bar("recall");
  const RecallResult r = evaluate_recall(*model, a.options, [&](double done) {
    bar.update(done, fmt::format("{} sequences", a.options.sequences));
  });
  bar.finish();

  std::vector<std::vector<std::string>> rows = {{"tokens back", "questions", "recall"}};
  nlohmann::json distances = nlohmann::json::array();
  for (const RecallResult::Distance& d : r.by_distance) {
    distances.push_back({{"from", d.from},
                         {"to", d.to},
                         {"questions", d.share.questions},
                         {"recall", number(d.share)}});
    if (d.share.questions > 0) {
      rows.push_back({fmt::format("{} to {}", d.from, d.to), fmt::format("{}", d.share.questions),
                      percent(d.share)});
    }
  }
  std::vector<std::vector<std::string>> readings = {
      {"readings", "questions", "recall", "beyond the window"}};
  nlohmann::json by_readings = nlohmann::json::array();
  for (const RecallResult::Readings& row : r.by_readings) {
    readings.push_back({fmt::format("{}", row.readings), fmt::format("{}", row.all.questions),
                        percent(row.all), percent(row.beyond_window)});
    by_readings.push_back({{"readings", row.readings},
                           {"questions", row.all.questions},
                           {"recall", number(row.all)},
                           {"recall_beyond_window", number(row.beyond_window)}});
  }
  const std::string window = r.window < 0    ? std::string("attention sees everything")
                             : r.window == 0 ? std::string("no attention")
                                             : fmt::format("attention sees {} tokens", r.window);
  say(common,
      fmt::format("{}: {}; {}{}; guessing scores {:.3f}\n\n{}\n"
                  "beyond the window, and written: {} of {} questions\n"
                  "beyond the window, not written yet: {} of {}; within the window: {} of {}\n",
                  model->config().name, window,
                  r.memory.empty() ? std::string("no memory")
                                   : fmt::format("a memory writes every {} tokens", r.chunk),
                  a.options.freeze ? ", but is frozen here" : "", r.chance, table(rows),
                  percent(r.beyond_window), r.beyond_window.questions, percent(r.not_written),
                  r.not_written.questions, percent(r.within_window), r.within_window.questions));
  const nlohmann::json memory = r.memory.json();
  if (!r.memory.empty()) {
    std::vector<std::vector<std::string>> layers = {
        {"layer", "gate", "memory loss", "collision", "coverage", "kld"}};
    for (const auto& [layer, line] : memory.items()) {
      const auto cell = [&, line = line](const char* key) {
        return line.contains(key) ? fmt::format("{:.3f}", line[key].get<double>())
                                  : std::string("-");
      };
      layers.push_back({layer, cell("gate"), cell("memory_loss"), cell("collision"),
                        cell("coverage"), cell("kld")});
    }
    say(common, "\n" + table(layers));
  }
  nlohmann::json examples = nlohmann::json::array();
  std::string shown;
  const auto words = recall_tokenizer(a.options.corpus);
  for (const RecallResult::Example& e : r.examples) {
    const auto text = [&](std::initializer_list<int32_t> tokens) { return words->decode(tokens); };
    const std::string fact = text({kRecallFact, e.key[0], e.key[1], e.answer});
    const std::string says = text({e.expected});
    shown += fmt::format("  {:4} tokens ago it read: {}.  Told \"{}\" it says: {} {}\n", e.distance,
                         fact, text({kRecallQuestion, e.key[0], e.key[1]}),
                         says.empty() ? "(end of text)" : says,
                         e.answer == e.expected ? "(right)" : "(wrong)");
    examples.push_back({{"key", {e.key[0], e.key[1]}},
                        {"answer", e.answer},
                        {"expected", e.expected},
                        {"distance", e.distance},
                        {"fact", fact},
                        {"says", says}});
  }
  if (!shown.empty()) {
    say(common, "\n" + shown);
  }
  if (!r.by_readings.empty()) {
    say(common, fmt::format("\nAll facts read first, then all questions:\n\n{}", table(readings)));
  }
  finish_eval(common, a.eval, &folder,
              {{"name", model->config().name},
               {"sequences", a.options.sequences},
               {"freeze", a.options.freeze},
               {"window", r.window < 0 ? nlohmann::json(nullptr) : nlohmann::json(r.window)},
               {"chunk", r.chunk},
               {"chance", r.chance},
               {"recall_beyond_window", number(r.beyond_window)},
               {"questions_beyond_window", r.beyond_window.questions},
               {"recall_not_written", number(r.not_written)},
               {"recall_within_window", number(r.within_window)},
               {"by_distance", distances},
               {"examples", examples},
               {"memory", memory},
               {"by_readings", by_readings}});
  return 0;
}

}  // namespace

void add_eval_options(CLI::App* sub, EvalArguments* a) {
  add_model_options(sub, ModelOption::kRequired, &a->model, &a->tokenizer);
  sub->add_option("--out", a->out,
                  "Folder for the result and a page; an evaluation that was stopped goes on there")
      ->type_name("DIR");
  sub->add_flag("--start-over", a->start_over, "Empty the folder first");
}

void write_page(const std::string& folder, const nlohmann::json& result, const Common& common) {
  if (folder.empty()) {
    return;
  }
  const std::string out[] = {folder};
  report::Page page(result.at("kind").get<std::string>());
  report::draw(&page, report::gather(out));
  const auto path = std::filesystem::path(folder) / "report.html";
  page.write(path);
  say(common, fmt::format("written to {}, with a page: {}\n", folder, path.string()));
}

void finish_eval(const Common& common, const EvalArguments& a, const EvalFolder* folder,
                 const nlohmann::json& result) {
  const nlohmann::json whole = folder->finish(result);
  write_page(a.out, whole, common);
  emit(common, whole);
}

void add_eval(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "Evaluate a model");
  eval->require_subcommand(1);
  auto a = std::make_shared<RecallArguments>();
  CLI::App* recall = eval->add_subcommand(
      "recall", "How many facts of builtin:recall a model tells again, by distance and readings");
  recall->add_option("--model", a->eval.model, "A model folder, or the --out of a training run")
      ->type_name("DIR")
      ->required();
  recall->add_option("--out", a->eval.out, "Folder for the result and a page")->type_name("DIR");
  recall
      ->add_option("--readings", a->options.readings,
                   "How often facts are read before the questions; several, as in 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  recall->add_flag("--freeze", a->options.freeze, "Memories are only read, never written");
  recall->add_option("--sequences", a->options.sequences, "Held-out sequences")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  recall->add_option("--batch", a->options.batch, "Sequences at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  recall->add_option("--tokens", a->options.corpus.tokens, "Tokens in a sequence")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 24))
      ->capture_default_str();
  recall->add_option("--show", a->options.show, "Questions to show with the model's answers")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}))
      ->capture_default_str();
  recall->add_option("--seed", a->options.seed, "Seed of the corpus, as in training")
      ->capture_default_str();
  command(recall, [a](const Common& common) { return run_recall(*a, common); });
  add_eval_ppl(eval);
  add_eval_continual(eval);
  add_eval_ablate(eval);
  add_eval_niah(eval);
  add_eval_longbench(eval);
}

}  // namespace fwpkm::cli
