// Haystacks: long texts in which a few sentences, the needles, tell a number for a key, and a
// question on one of them.
//
//   ... and so they went on. The secret number of K7QX is 482913. On the next day ...
//
// A file of them has a JSON object on each line:
//
//   context   the text with its needles
//   question  what is read after it; the value comes next
//   answer    that value
//   key       of the needle that is asked for
//   needles   of each: key, value, sentence, and depth: where in the context the sentence begins,
//             as a fraction of its bytes
//   length    what was asked for, in units
//   unit      tokens or words (what stands between white space)
//   tokens    of the context
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/corpus.h"
#include "text/json_lines.h"
#include "text/tokenizer.h"

namespace fwpkm {

struct Needle {
  std::string key, value, sentence;
  double depth = 0;  // 0 to 1
};

enum class HaystackUnit { kTokens, kWords };

struct Haystack {
  std::string context, question, answer, key;
  std::vector<Needle> needles;
  int64_t length = 0;
  HaystackUnit unit = HaystackUnit::kTokens;
  int64_t tokens = 0;

  const Needle& asked() const;
  nlohmann::json json() const;
  // A text to learn from: the context, then every needle told again, in the order in which they
  // were drawn.
  std::string lesson() const;
};

// Where in a context of `bytes` the sentence of a needle begins.
size_t needle_offset(const Needle& needle, size_t bytes);

struct HaystackSettings {
  std::vector<std::string> text;  // files and folders as in text/corpus.h
  std::vector<int64_t> lengths;   // in units
  int64_t samples = 10;           // of each length
  int64_t needles = 5;
  uint64_t seed = 1;
  HaystackUnit unit = HaystackUnit::kTokens;
};

// Makes haystacks one after the other: all of the first length, then of the next. Text is taken in
// order and from the start again where it ends; only that of one haystack is held. A context is as
// long as whole words allow and never longer than asked for. Keys and values stand nowhere else in
// their haystack.
class HaystackMaker {
 public:
  HaystackMaker(HaystackSettings settings, std::shared_ptr<const Tokenizer> tokenizer);
  ~HaystackMaker();

  bool next(Haystack* haystack);
  int64_t total() const;       // haystacks to make
  int64_t times_read() const;  // how often the text was begun
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  class Text;
  int64_t count(std::string_view text) const;
  std::vector<Needle> draw_needles(std::string_view text, uint64_t number) const;
  // The text with needles at some of the borders. Their depths are wishes that become what is so.
  std::string assemble(std::string_view text, const std::vector<size_t>& borders,
                       std::vector<Needle>* needles) const;
  // The context of haystack `number`, taken from the text.
  std::string fill(int64_t length, uint64_t number, std::vector<Needle>* needles);

  HaystackSettings settings_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> skipped_;
  std::unique_ptr<Text> text_;
  int64_t made_ = 0;
};

// Reads a file of haystacks; everything in it is checked, and errors name the line.
class HaystackReader {
 public:
  explicit HaystackReader(std::filesystem::path path) : lines_(std::move(path), "needles") {}
  bool next(Haystack* haystack);
  uint64_t hash() const { return lines_.hash(); }

 private:
  JsonLines lines_;
};

// All of a small file.
std::vector<Haystack> read_haystacks(const std::filesystem::path& path);

}  // namespace fwpkm
