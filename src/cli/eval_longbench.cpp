// `fwpkm eval longbench`: questions on long documents.
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "cli/eval_reading.h"

namespace fwpkm::cli {
namespace {

// \n and \t as they are written on a command line; a backslash before anything else stays.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    out += next == 'n' ? '\n' : next == 't' ? '\t' : text[i];
    i += next == 'n' || next == 't' ? 1 : 0;
  }
  return out;
}

}  // namespace

int run_longbench(LongbenchArguments a, const Common& common) {
  const Evaluated evaluated = open_evaluated(a.reading, common);
  a.options.data.assign(a.data.begin(), a.data.end());
  a.options.chunk = parse_chunk(a.reading.chunk, "context");
  a.options.out = a.reading.out;
  a.options.start_over = a.reading.start_over;
  if (!a.prompt.empty()) {
    a.options.prompt = unescape(a.prompt);
  }
  Progress bar("longbench");
  const nlohmann::json result =
      evaluate_longbench(evaluated.with_chunk, *evaluated.tokenizer, evaluated.about, a.options,
                         [&](double done, const std::string& note) { bar.update(done, note); });
  bar.finish();

  std::vector<std::vector<std::string>> rows = {
      {"task", "documents", "questions", "answer tokens", "perplexity", "tokens left out"}};
  const auto add = [&](const std::string& name, const nlohmann::json& sum) {
    rows.push_back({name, sum.at("documents").dump(), sum.at("questions").dump(),
                    sum.at("answer_tokens").dump(),
                    fmt::format("{:.3f}", sum.at("perplexity").get<double>()),
                    sum.at("cut_tokens").dump()});
  };
  for (const auto& task : result.at("tasks")) {
    add(task.at("task").get<std::string>(), task);
  }
  add("all", result.at("all"));
  say(common, fmt::format("{}{}: perplexity of answers\n\n{}",
                          evaluated.about.at("name").get<std::string>(),
                          a.options.freeze ? ", memories frozen" : "", table(rows)));
  write_page(a.reading.out, result, common);
  emit(common, result);
  return 0;
}

void add_eval_longbench(CLI::App* eval) {
  auto a = std::make_shared<LongbenchArguments>();
  CLI::App* sub = eval->add_subcommand(
      "longbench", "How well a model expects the answers to questions on long documents");
  add_reading_options(sub, &a->reading, "context", &a->options.freeze);
  sub->add_option("--data", a->data,
                  "Lines of LongBench (context, input, answers, dataset) or L-Eval (input, "
                  "instructions, outputs); also .gz or .zst")
      ->type_name("FILE...")
      ->required();
  sub->add_option("--template", a->prompt,
                  "What stands between document and answer, with {question} in it; \\n is a line's "
                  "end. By default \\n\\nQuestion: {question}\\nAnswer: and a space")
      ->type_name("TEXT");
  sub->add_option("--max-tokens", a->options.max_tokens,
                  "Leave out the middle of documents that are longer")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  sub->add_option("--batch", a->options.batch, "Documents, and questions on one, at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str();
  sub->add_option("--samples", a->options.samples, "Documents of each file; all if not given")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command(sub, [a](const Common& common) { return run_longbench(*a, common); });
}

}  // namespace fwpkm::cli
