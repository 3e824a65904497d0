#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <streambuf>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace fwpkm {
namespace {

// What SentencePiece sees of a long line at once.
constexpr size_t kSentenceBytes = 4000;
// Loading the text and learning the pieces, as parts of the whole time.
constexpr double kSampling = 0.2;

// Draws lines evenly from a stream of unknown length in one pass: each line has a random height,
// and whenever too much text is held the bar is lowered and what lies above it leaves.
class LineSample {
 public:
  LineSample(int64_t limit, uint64_t seed) : limit_(limit), random_(seed) {}

  void add(std::string_view line) {
    const double height = random_.uniform_at(seen_++);
    if (height >= bar_) {
      return;
    }
    held_ += static_cast<int64_t>(line.size() + kOverhead);
    lines_.push_back({height, std::string(line)});
    while (held_ > limit_ && lines_.size() > 1) {
      lower_bar();
    }
  }

  std::vector<std::string> take() {
    std::vector<std::string> lines;
    lines.reserve(lines_.size());
    for (Line& line : lines_) {
      lines.push_back(std::move(line.text));
    }
    lines_.clear();
    return lines;
  }

 private:
  struct Line {
    double height;
    std::string text;
  };
  static constexpr size_t kOverhead = 1;  // its line end

  void lower_bar() {
    bar_ *= 0.9;
    const auto above = [&](const Line& line) { return line.height >= bar_; };
    for (const Line& line : lines_) {
      held_ -= above(line) ? static_cast<int64_t>(line.text.size() + kOverhead) : 0;
    }
    std::erase_if(lines_, above);
  }

  int64_t limit_;
  Random random_;
  double bar_ = 1.0;
  uint64_t seen_ = 0;
  int64_t held_ = 0;
  std::vector<Line> lines_;
};

void add_lines(std::string_view text, LineSample& sample) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty()) {
      const size_t cut = cut_text(line, kSentenceBytes);
      sample.add(line.substr(0, cut));
      line.remove_prefix(cut);
    }
  }
}

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override {
    std::string().swap(lines_[at_]);  // SentencePiece has its own copy
    ++at_;
  }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  size_t at_ = 0;
};

// Stands in for standard error while SentencePiece trains: its log, which is not for users, says
// how many pieces there are, and that becomes progress.
class TrainerLog final : public std::streambuf {
 public:
  TrainerLog(int64_t vocab_size, const TrainProgress& progress)
      : vocab_size_(vocab_size), progress_(progress), old_(std::cerr.rdbuf(this)) {}
  ~TrainerLog() override { std::cerr.rdbuf(old_); }

 protected:
  int overflow(int c) override {
    if (c != traits_type::eof()) {
      const char byte = static_cast<char>(c);
      xsputn(&byte, 1);
    }
    return 0;
  }
  std::streamsize xsputn(const char* data, std::streamsize size) override {
    for (std::streamsize i = 0; i < size; ++i) {
      if (data[i] == '\n') {
        line_done();
      } else if (line_.size() < 4096) {
        line_ += data[i];
      }
    }
    return size;
  }

 private:
  // "... Alphabet size=83" and then, again and again, "... Added: freq=... size=120 all=...".
  void line_done() {
    const int64_t size = number_after("size=");
    if (line_.find("Alphabet ") != line_.npos) {
      alphabet_ = size;
    } else if (line_.find(" Added: ") != line_.npos && progress_) {
      const auto wanted = std::max<int64_t>(1, vocab_size_ - 256 - alphabet_);
      const double part = static_cast<double>(size) / static_cast<double>(wanted);
      progress_(kSampling + (1 - kSampling) * std::clamp(part, 0.0, 1.0),
                fmt::format("{} of {} pieces", size, wanted));
    }
    line_.clear();
  }

  int64_t number_after(std::string_view key) const {
    const size_t at = line_.find(key);
    return at == line_.npos ? 0 : std::strtoll(line_.c_str() + at + key.size(), nullptr, 10);
  }

  int64_t alphabet_ = 0;
  int64_t vocab_size_;
  const TrainProgress& progress_;
  std::streambuf* old_;
  std::string line_;
};

std::vector<std::string> sample_corpus(const std::vector<std::string>& inputs,
                                       const TrainProgress& progress, const TrainLimits& limits) {
  DocumentReader reader(list_sources(inputs));
  LineSample sample(limits.sample_bytes, limits.seed);
  TextPiece piece;
  while (reader.next(piece)) {
    add_lines(piece.text, sample);
    if (progress) {
      progress(kSampling * reader.fraction(),
               fmt::format("{:.0f} MB read", static_cast<double>(reader.text_bytes()) * 1e-6));
    }
  }
  std::vector<std::string> lines = sample.take();
  require(!lines.empty(), "tokenizer",
          "the corpus has no line of text to train on; give more text");
  return lines;
}

}  // namespace

void train_sentencepiece(const std::vector<std::string>& inputs, int64_t vocab_size,
                         const std::string& out_model, const TrainProgress& progress,
                         const TrainLimits& limits) {
  // 256 bytes, unknown, end of text, line end, space; the rest is learned.
  require(vocab_size >= 300 && vocab_size <= (1 << 20), "tokenizer",
          "vocab={} must be 300..{}; 256 of them are bytes", vocab_size, 1 << 20);
  require(limits.sample_bytes >= 1 << 16, "tokenizer",
          "a sample of {} bytes is too small; use 64 KiB or more", limits.sample_bytes);
  AtomicFile file(out_model);  // first, so that a bad path is known before the work
  Sentences sentences(sample_corpus(inputs, progress, limits));
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      // Lossless: text is taken as it is, and characters without a piece become bytes.
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      {"character_coverage", "0.9999"},
      // Lines are the training examples, so no piece but this one has a line end in it.
      {"user_defined_symbols", "\n"},
      {"unk_id", "0"},
      {"bos_id", "-1"},
      {"eos_id", "1"},
      {"pad_id", "-1"},
      {"eos_piece", std::string(kDocumentSeparator)},
      {"max_sentence_length", std::to_string(kSentenceBytes + 1)},
      {"num_threads", std::to_string(threads())},
      {"minloglevel", "0"},
  };
  std::string model;
  sentencepiece::util::Status status;
  {
    const TrainerLog log(vocab_size, progress);
    status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  }
  require(
      status.ok(), "tokenizer",
      "SentencePiece cannot train {} pieces on this text: {}; give more text or a smaller vocab",
      vocab_size, status.message());
  file.write(model.data(), model.size());
  file.commit();
}

}  // namespace fwpkm
