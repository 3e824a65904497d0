// `fwpkm data niah`: haystacks from any text.
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "text/haystack.h"
#include "text/tokenizer.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  HaystackSettings settings;
  std::string tokenizer, out, unit = "tokens";
  bool corpus = false;
  std::vector<std::string> lengths = {"4K"};
};

// 4K is 4096.
int64_t parse_length(const std::string& text) {
  size_t used = 0;
  int64_t number = 0;
  try {
    number = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string rest = used == 0 ? "?" : text.substr(used);
  const int shift = rest.empty() ? 0 : rest == "K" || rest == "k" ? 10 : rest == "M" ? 20 : -1;
  require(shift >= 0 && number > 0 && number <= (int64_t{1} << 30), "needles",
          "the length '{}' is not a number as in 5000, 4K or 1M", text);
  return number << shift;
}

int run(Arguments a, const Common& common) {
  for (const std::string& length : a.lengths) {
    a.settings.lengths.push_back(parse_length(length));
  }
  a.settings.unit = a.unit == "words" ? HaystackUnit::kWords : HaystackUnit::kTokens;
  HaystackMaker maker(a.settings, load_tokenizer(a.tokenizer));
  AtomicFile file(a.out);
  Progress bar("needles");
  Haystack haystack;
  int64_t made = 0, tokens = 0;
  while (maker.next(&haystack)) {
    const nlohmann::json object =
        a.corpus ? nlohmann::json{{"text", haystack.lesson()}} : haystack.json();
    const std::string line = object.dump() + "\n";
    file.write(line.data(), line.size());
    ++made;
    tokens += haystack.tokens;
    bar.update(static_cast<double>(made) / static_cast<double>(maker.total()),
               fmt::format("{} of {} haystacks", made, maker.total()));
  }
  file.commit();
  bar.finish();
  for (const std::string& skipped : maker.skipped()) {
    fmt::print(stderr, "note: skipped '{}', which is of no known kind\n", skipped);
  }
  if (maker.times_read() > 1) {
    fmt::print(stderr,
               "note: the text was too short for all haystacks and was begun {} times; give more "
               "text for haystacks that share none\n",
               maker.times_read());
  }
  say(common, fmt::format("{}: {} haystacks of {} {}, {} tokens in all\n", a.out, made,
                          fmt::join(a.lengths, ", "), a.unit, tokens));
  emit(common, {{"out", a.out},
                {"haystacks", made},
                {"lengths", a.settings.lengths},
                {"unit", a.unit},
                {"tokens", tokens},
                {"times_read", maker.times_read()},
                {"skipped", maker.skipped()}});
  return 0;
}

}  // namespace

void add_data_niah(CLI::App* data) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = data->add_subcommand(
      "niah", "Make haystacks: long texts with needles in them, and a question on one");
  sub->add_option("--text", a->settings.text, "Text files and folders, as for encode")
      ->type_name("PATH...")
      ->required();
  sub->add_option("--tokenizer", a->tokenizer, "The one that counts tokens")
      ->type_name("bytes|recall|FILE")
      ->required();
  sub->add_option("--out", a->out, "The file to write")->type_name("FILE.jsonl")->required();
  sub->add_option("--lengths", a->lengths, "How long contexts are, as in 4K,8K,32K,128K; K is 1024")
      ->type_name("N,...")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--samples", a->settings.samples, "Haystacks of each length")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--needles", a->settings.needles, "Needles in each")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  sub->add_option("--seed", a->settings.seed, "Of keys, values, depths and questions")
      ->capture_default_str();
  sub->add_option("--unit", a->unit, "What lengths count")
      ->check(CLI::IsMember({"tokens", "words"}))
      ->capture_default_str();
  sub->add_flag(
      "--corpus", a->corpus,
      "Write texts to train on, for `data encode`, instead: after each context all of its "
      "needles are told again");
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
