#include <sys/resource.h>

#include <chrono>
#include <memory>

#include "base/progress.h"
#include "cli/cli.h"
#include "text/encode.h"
#include "text/shards.h"
#include "text/tokenizer.h"

namespace fwpkm::cli {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) * 1e-6;
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024e-6;
}

struct EncodeArguments {
  std::string tokenizer;
  EncodeSettings settings;
  int64_t shard_mb = 64;
};

int encode(EncodeArguments a, const Common& common) {
  const auto tokenizer = load_tokenizer(a.tokenizer);
  a.settings.shard_bytes = a.shard_mb << 20;
  const Stopwatch watch;
  Progress bar("encode");
  const EncodeResult result =
      encode_corpus(a.settings, *tokenizer, [&](const EncodeProgress& progress) {
        bar.update(progress.done,
                   fmt::format("{:.1f} MB, {:.1f} MB/s", megabytes(progress.text_bytes),
                               megabytes(progress.text_bytes) / watch.seconds()));
      });
  bar.finish();
  const double seconds = watch.seconds();
  for (const std::string& file : result.skipped) {
    fmt::print(stderr, "note: skipped '{}', which is of no known kind\n", file);
  }
  if (result.resumed_documents > 0) {
    say(common, fmt::format("{} of {} documents were there already\n", result.resumed_documents,
                            result.documents));
  }
  say(common,
      fmt::format("{}: {} documents, {} tokens, {:.2f} bytes per token, {} shards\n"
                  "{:.1f} MB of text in {:.1f} s, peak memory {:.0f} MB\n",
                  a.settings.out, result.documents, result.tokens,
                  static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens),
                  result.shards, megabytes(result.encoded_bytes), seconds, peak_megabytes()));
  emit(common, {{"out", a.settings.out},
                {"documents", result.documents},
                {"tokens", result.tokens},
                {"shards", result.shards},
                {"text_bytes", result.text_bytes},
                {"resumed_documents", result.resumed_documents},
                {"encoded_bytes", result.encoded_bytes},
                {"skipped", result.skipped},
                {"seconds", seconds},
                {"peak_mb", peak_megabytes()}});
  return 0;
}

struct TokenizerArguments {
  std::vector<std::string> inputs;
  std::string out;
  int64_t vocab = 0, sample_mb = 32;
  uint64_t seed = 0;
};

int train_tokenizer(const TokenizerArguments& a, const Common& common) {
  const Stopwatch watch;
  Progress bar("tokenizer");
  train_sentencepiece(a.inputs, a.vocab, a.out,
                      [&](double done, const std::string& note) { bar.update(done, note); },
                      {.sample_bytes = a.sample_mb << 20, .seed = a.seed});
  bar.finish();
  const auto tokenizer = load_tokenizer(a.out);
  say(common, fmt::format("{}: {} tokens, fingerprint {}, in {:.1f} s, peak memory {:.0f} MB\n",
                          a.out, tokenizer->vocab_size(), tokenizer->fingerprint(), watch.seconds(),
                          peak_megabytes()));
  emit(common, {{"out", a.out},
                {"vocab_size", tokenizer->vocab_size()},
                {"fingerprint", tokenizer->fingerprint()},
                {"seconds", watch.seconds()},
                {"peak_mb", peak_megabytes()}});
  return 0;
}

struct InfoArguments {
  std::string path, tokenizer;
  bool verify = false;
};

int info(const InfoArguments& a, const Common& common) {
  const auto tokenizer = a.tokenizer.empty() ? nullptr : load_tokenizer(a.tokenizer);
  const auto store = open_tokens(a.path, tokenizer.get());
  int64_t longest = 0;
  for (int64_t i = 0; i < store->documents(); ++i) {
    longest = std::max(longest, store->length(i));
  }
  if (a.verify) {
    Progress bar("verify");
    verify_tokens(*store, [&](double done) {
      bar.update(done, fmt::format("of {} tokens", store->tokens()));
    });
  }
  const std::string kind =
      store->kind().empty() ? "not recorded" : store->kind() + " " + store->fingerprint();
  say(common, table({{"documents", std::to_string(store->documents())},
                     {"tokens", std::to_string(store->tokens())},
                     {"longest document", std::to_string(longest)},
                     {"vocabulary", store->vocab_size() == 0 ? "not recorded"
                                                             : std::to_string(store->vocab_size())},
                     {"tokenizer", kind},
                     {"contents", a.verify ? "verified" : "not read (--verify)"}}));
  emit(common, {{"path", a.path},
                {"documents", store->documents()},
                {"tokens", store->tokens()},
                {"longest_document", longest},
                {"vocab_size", store->vocab_size()},
                {"kind", store->kind()},
                {"fingerprint", store->fingerprint()},
                {"verified", a.verify}});
  return 0;
}

constexpr const char* kInputs =
    ".txt (a line <|endoftext|> separates documents) and .jsonl files, plain, .gz or .zst, and "
    "folders of them";

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Encode text for training; train tokenizers");
  data->require_subcommand(1);

  auto e = std::make_shared<EncodeArguments>();
  CLI::App* sub = data->add_subcommand("encode",
                                       "Encode text once, into memory-mapped shards; "
                                       "given again after an interruption, it goes on");
  sub->add_option("--tokenizer", e->tokenizer,
                  "bytes, a SentencePiece model, or recall: the words of builtin:recall")
      ->type_name("bytes|recall|FILE")
      ->required();
  sub->add_option("--out", e->settings.out, "Folder for the shards")->type_name("DIR")->required();
  sub->add_option("--shard-mb", e->shard_mb, "MiB of tokens in a shard; documents are never split")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_flag("--restart", e->settings.restart, "Replace what is in the folder");
  sub->add_option("paths", e->settings.inputs, kInputs)->type_name("PATH...")->required();
  command(sub, [e](const Common& common) { return encode(*e, common); });

  auto t = std::make_shared<TokenizerArguments>();
  sub = data->add_subcommand("tokenizer", "Train a SentencePiece model on text");
  sub->add_option("--vocab", t->vocab, "Tokens, 256 of which are bytes")
      ->check(CLI::Range(int64_t{300}, int64_t{1} << 20))
      ->required();
  sub->add_option("--out", t->out, "The model to write")->type_name("FILE.model")->required();
  sub->add_option("--sample-mb", t->sample_mb,
                  "MiB of lines to train on, drawn evenly from the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 14))
      ->capture_default_str();
  sub->add_option("--seed", t->seed, "Which lines are drawn")->capture_default_str();
  sub->add_option("paths", t->inputs, kInputs)->type_name("PATH...")->required();
  command(sub, [t](const Common& common) { return train_tokenizer(*t, common); });

  auto i = std::make_shared<InfoArguments>();
  sub = data->add_subcommand("info", "What an encoded corpus holds");
  sub->add_option("path", i->path,
                  "A folder of shards, or NAME of the authors' NAME.bin and NAME.idx")
      ->type_name("DIR")
      ->required();
  sub->add_option("--tokenizer", i->tokenizer, "Check that it was encoded with this one")
      ->type_name("bytes|recall|FILE");
  sub->add_flag("--verify", i->verify, "Read everything and check it");
  command(sub, [i](const Common& common) { return info(*i, common); });

  add_data_niah(data);
}

}  // namespace fwpkm::cli
