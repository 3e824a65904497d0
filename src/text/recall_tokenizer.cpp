#include "text/recall_tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_fields.h"

namespace fwpkm {
namespace {

constexpr std::string_view kName = "recall";
constexpr std::string_view kConsonants = "bdfghjklmnprstvwz", kVowels = "aeiou";

// None is made of syllables alone, as keys are.
constexpr auto kValues = std::to_array<std::string_view>(
    {"red",    "heron",   "maple",  "lantern", "blue",    "otter",    "willow",   "anchor",
     "green",  "badger",  "cedar",  "kettle",  "white",   "falcon",   "fern",     "candle",
     "black",  "rabbit",  "clover", "compass", "brown",   "salmon",   "thistle",  "feather",
     "yellow", "turtle",  "poppy",  "pebble",  "purple",  "lynx",     "tulip",    "drum",
     "orange", "walrus",  "birch",  "marble",  "silver",  "magpie",   "oak",      "copper",
     "golden", "dolphin", "mint",   "velvet",  "crimson", "squirrel", "lavender", "harbour",
     "amber",  "sparrow", "ivy",    "bridge",  "scarlet", "hedgehog", "juniper",  "window",
     "violet", "beetle",  "daisy",  "mirror",  "indigo",  "swan",     "moss",     "basket"});

// ba, be, bi ... zu, then words of two syllables: baba, babe ... zuzu, and so on.
std::string key_word(int64_t number) {
  constexpr auto kVowelCount = static_cast<int64_t>(kVowels.size());
  constexpr int64_t kSyllables = static_cast<int64_t>(kConsonants.size()) * kVowelCount;
  std::string word;
  do {
    const int64_t syllable = number % kSyllables;
    word.insert(0, {kConsonants[static_cast<size_t>(syllable / kVowelCount)],
                    kVowels[static_cast<size_t>(syllable % kVowelCount)]});
    number = number / kSyllables - 1;
  } while (number >= 0);
  return word;
}

// red ... basket, then red2 ... basket2, and so on.
std::string value_word(int64_t number) {
  constexpr auto kCount = static_cast<int64_t>(kValues.size());
  const std::string_view word = kValues[static_cast<size_t>(number % kCount)];
  return number < kCount ? std::string(word) : fmt::format("{}{}", word, number / kCount + 1);
}

class RecallTokenizer final : public Tokenizer {
 public:
  explicit RecallTokenizer(const RecallSettings& settings)
      : settings_(settings), first_value_(static_cast<size_t>(kRecallFirstKey + settings.keys)) {
    check_recall_counts(settings);
    words_ = {"", "fact", "ask"};
    words_.reserve(static_cast<size_t>(recall_vocab_size(settings)));
    for (int64_t i = 0; i < settings.keys; ++i) {
      words_.push_back(key_word(i));
    }
    for (int64_t i = 0; i < settings.values; ++i) {
      words_.push_back(value_word(i));
    }
    std::string all = model_bytes();
    for (const std::string& word : words_) {
      bytes_.push_back(word.empty() ? "" : " " + word);
      all += bytes_.back();
    }
    fingerprint_ = hash_hex(all);
    for (size_t token = kRecallEnd + 1; token < words_.size(); ++token) {
      tokens_.emplace(words_[token], static_cast<int32_t>(token));
    }
  }

  int64_t vocab_size() const override { return std::ssize(words_); }
  int32_t end_of_text() const override { return kRecallEnd; }
  std::string fingerprint() const override { return fingerprint_; }
  std::string kind() const override { return std::string(kName); }
  std::string model_bytes() const override {
    return fmt::format("{}:keys={},values={}\n", kName, settings_.keys, settings_.values);
  }

  std::string_view bytes_of(int32_t token) const override {
    require(token >= 0 && token < vocab_size(), "tokenizer",
            "token {} is outside the {} of the recall tokenizer", token, vocab_size());
    return bytes_[static_cast<size_t>(token)];
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text = Tokenizer::decode(tokens);
    return text.empty() ? text : text.substr(1);
  }

  std::vector<int32_t> encode(std::string_view text, bool) const override {
    constexpr std::string_view kBetween = " \t\n\r\v\f.,?";
    std::vector<int32_t> tokens;
    size_t end = 0;
    while (true) {
      const size_t begin = text.find_first_not_of(kBetween, end);
      if (begin == text.npos) {
        return tokens;
      }
      end = std::min(text.find_first_of(kBetween, begin), text.size());
      const auto found = tokens_.find(text.substr(begin, end - begin));
      if (found == tokens_.end()) {
        fail_at(text.substr(0, begin), text.substr(begin, end - begin));
      }
      tokens.push_back(found->second);
    }
  }

 private:
  [[noreturn]] void fail_at(std::string_view before, std::string_view word) const {
    constexpr size_t kLongest = 60;  // the nearest word is searched for this much of it
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t number = 1 + encode(before.substr(before.rfind('\n') + 1), true).size();
    const std::span words(words_);
    fail("tokenizer",
         "line {}, word {}: {} is no word that the model knows; the nearest is \"{}\". There are "
         "fact and ask, {} keys: {}, and {} values: {}",
         line, number, shown(std::string(word)),
         nearest_key(word.substr(0, kLongest), {words_.begin() + kRecallFact, words_.end()}),
         settings_.keys, some(words.subspan(kRecallFirstKey, first_value_ - kRecallFirstKey)),
         settings_.values, some(words.subspan(first_value_)));
  }

  // The first words of a list, and the last.
  static std::string some(std::span<const std::string> words) {
    constexpr size_t kFew = 8;
    return words.size() <= kFew
               ? fmt::format("{}", fmt::join(words, " "))
               : fmt::format("{} ... {}", fmt::join(words.first(kFew - 1), " "), words.back());
  }

  RecallSettings settings_;
  size_t first_value_;
  std::vector<std::string> words_, bytes_;  // of each token
  std::unordered_map<std::string_view, int32_t> tokens_;
  std::string fingerprint_;
};

}  // namespace

std::shared_ptr<const Tokenizer> recall_tokenizer(const RecallSettings& settings) {
  return std::make_shared<RecallTokenizer>(settings);
}

bool is_recall_spec(std::string_view spec) {
  return spec.starts_with(kName) && (spec.size() == kName.size() || spec[kName.size()] == ':');
}

std::shared_ptr<const Tokenizer> recall_tokenizer_of(std::string_view spec) {
  RecallSettings settings;
  std::string_view rest = spec.substr(std::min(spec.size(), kName.size() + 1));
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals);
    int64_t* const field = key == "keys"     ? &settings.keys
                           : key == "values" ? &settings.values
                                             : nullptr;
    const std::string_view number = part.substr(std::min(part.size(), equals + 1));
    const char* const end = number.data() + number.size();
    bool whole = false;
    if (field != nullptr) {
      const auto [stop, error] = std::from_chars(number.data(), end, *field);
      whole = error == std::errc() && stop == end;
    }
    require(whole, "tokenizer", "{}: \"{}\" is not understood; write recall:keys=64,values=64",
            spec, part);
  }
  return recall_tokenizer(settings);
}

}  // namespace fwpkm
