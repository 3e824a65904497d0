// `fwpkm eval niah`: needles in haystacks.
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "cli/eval_reading.h"

namespace fwpkm::cli {

int run_niah(NiahArguments a, const Common& common) {
  const Evaluated evaluated = open_evaluated(a.reading, common);
  a.options.data = a.data;
  a.options.chunk = parse_chunk(a.reading.chunk, "haystack");
  a.options.out = a.reading.out;
  a.options.start_over = a.reading.start_over;
  Progress bar("needles");
  const nlohmann::json result =
      evaluate_niah(evaluated.with_chunk, evaluated.tokenizer, evaluated.about, a.options,
                    [&](double done, const std::string& note) { bar.update(done, note); });
  bar.finish();

  std::vector<std::vector<std::string>> rows = {
      {"length", "readings", "samples", "exact", "digit", "candidate"}};
  for (const auto& group : result.at("groups")) {
    const auto share = [&](const char* key) {
      return fmt::format("{:.3f}", group.at(key).get<double>());
    };
    if (group.at("depth_bin").is_null()) {
      rows.push_back({group.at("length").dump(), group.at("readings").dump(),
                      group.at("samples").dump(), share("exact"), share("digit"),
                      share("candidate")});
    }
  }
  const auto& guess = result.at("guess");
  rows.push_back({"guessing", "", "", fmt::format("{:.3f}", guess.at("exact").get<double>()),
                  fmt::format("{:.3f}", guess.at("digit").get<double>()),
                  fmt::format("{:.3f}", guess.at("candidate").get<double>())});
  say(common,
      fmt::format("{}{}{}\n\n{}", evaluated.about.at("name").get<std::string>(),
                  a.options.freeze ? ", memories frozen" : "",
                  a.options.carry ? ", memories carried from sample to sample" : "", table(rows)));
  write_page(a.reading.out, result, common);
  emit(common, result);
  return 0;
}

void add_eval_niah(CLI::App* eval) {
  auto a = std::make_shared<NiahArguments>();
  CLI::App* sub = eval->add_subcommand(
      "niah", "How often a model finds numbers in long texts, by length, depth and readings");
  add_reading_options(sub, &a->reading, "haystack", &a->options.freeze);
  sub->add_option("--data", a->data, "Haystacks that `fwpkm data niah` made")
      ->type_name("FILE.jsonl")
      ->required();
  sub->add_option("--readings", a->options.readings,
                  "How often a text is read before the question; several, as in 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_flag("--carry", a->options.carry,
                "One memory reads sample after sample; otherwise each begins with the model's");
  sub->add_option("--batch", a->options.batch, "Samples at a time; by default as length allows")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  sub->add_option("--samples", a->options.samples, "Samples of each length; all if not given")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command(sub, [a](const Common& common) { return run_niah(*a, common); });
}

}  // namespace fwpkm::cli
