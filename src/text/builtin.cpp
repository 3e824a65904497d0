#include "text/builtin.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/builtin_phrases.h"
#include "text/document_cache.h"

namespace fwpkm {
namespace {

using phrases::Phrase;

constexpr int64_t kShortest = 2000, kLongest = 20000;
constexpr int64_t kMostTokens = int64_t{1} << 31;
// Bytes of text for each person.
constexpr int64_t kBytesPerPerson = 800;
// Nobody has a birthday after this.
constexpr std::string_view kOldest = "99";

// Writes one document, paragraph by paragraph.
class Story {
 public:
  Story(uint64_t seed, uint64_t stream, int64_t tokens)
      : random_(seed, stream),
        target_(length(tokens)),
        world_(std::clamp<int64_t>(target_ / kBytesPerPerson, 3, World::kMostPeople), random_) {
    while (size() < target_) {
      paragraph();
    }
  }

  BuiltinText take() { return std::move(out_); }

 private:
  int64_t size() const { return std::ssize(out_.text); }
  bool chance(double p) { return random_.uniform() < p; }
  template <typename List>
  const auto& one_of(const List& list) {
    return list[static_cast<size_t>(random_.below(std::ssize(list)))];
  }

  int64_t length(int64_t tokens) {
    const double u = random_.uniform();
    if (tokens > 0) {
      return std::llround(static_cast<double>(tokens) * (0.75 + 0.5 * u));
    }
    return std::llround(kShortest * std::pow(static_cast<double>(kLongest) / kShortest, u));
  }

  // New people come in the first half, then what is still untold of them; the end only looks back.
  void paragraph() {
    const double progress = static_cast<double>(size()) / static_cast<double>(target_);
    const auto people = std::ssize(world_.people());
    named_ = -1;
    const bool closing = progress > 0.85;
    if (closing && !closed_) {
      closed_ = true;
      sentence(one_of(phrases::kClosing), 0);
    } else if (known_ == 0 ||
               (known_ < people &&
                static_cast<double>(known_) < progress / 0.5 * static_cast<double>(people))) {
      tell(known_++, 3 + random_.below(3));
    } else if (!closing && chance(0.3)) {
      // Not both in the call, where each compiler draws in an order of its own.
      const int64_t count = 2 + random_.below(2);
      tell(random_.below(known_), count);
    } else {
      look_back();
    }
    out_.text.back() = '\n';  // instead of the last sentence's space
    out_.text += '\n';
  }

  // Up to `count` facts of a person that the text has not told yet; a look back if there are none.
  void tell(int64_t person, int64_t count) {
    std::vector<const phrases::KindPhrases*> untold;
    for (const auto& kind : phrases::kKinds) {
      if (world_.fact(person, kind.kind).told < 0) {
        untold.push_back(&kind);
      }
    }
    if (untold.empty()) {
      look_back();
      return;
    }
    for (; count > 0 && !untold.empty(); --count) {
      const auto chosen = untold.begin() + random_.below(std::ssize(untold));
      const phrases::KindPhrases& kind = **chosen;
      untold.erase(chosen);
      // A phrase about another fact may have told this one on the way.
      if (world_.fact(person, kind.kind).told < 0) {
        sentence(one_of(kind.told), person);
      }
    }
  }

  void look_back() {
    if (chance(0.2)) {
      sentence(one_of(phrases::kFiller), 0);
    }
    int64_t person = pick_person();
    std::vector<Phrase> used;
    const int64_t count = 2 + random_.below(3);
    for (int tries = 0; std::ssize(used) < count && (used.empty() || tries < 50); ++tries) {
      const Phrase phrase = chance(0.12) ? one_of(phrases::kChanges).phrase
                                         : Phrase(one_of(one_of(phrases::kKinds).again));
      if (told(phrase, person) && std::find(used.begin(), used.end(), phrase) == used.end()) {
        sentence(phrase, person);
        used.push_back(phrase);
      }
      if (chance(0.3)) {
        person = pick_person();
      }
    }
    if (chance(0.1)) {
      sentence(one_of(phrases::kFiller), 0);
    }
  }

  // Mostly one who was not mentioned for long.
  int64_t pick_person() {
    int64_t best = random_.below(known_);
    for (int tries = chance(0.7) ? 2 : 0; tries > 0; --tries) {
      const int64_t other = random_.below(known_);
      if (person(other).mentioned < person(best).mentioned) {
        best = other;
      }
    }
    return best;
  }

  Person& person(int64_t index) { return world_.people()[static_cast<size_t>(index)]; }

  static const phrases::KindPhrases* kind_of(std::string_view key) {
    for (const auto& kind : phrases::kKinds) {
      if (kind.key == key) {
        return &kind;
      }
    }
    return nullptr;
  }

  // Calls text(part) and slot(key) for the parts of a phrase.
  template <typename Text, typename Slot>
  static void parse(Phrase phrase, Text text, Slot slot) {
    while (!phrase.empty()) {
      const size_t open = phrase.find('{');
      text(phrase.substr(0, open));
      if (open == phrase.npos) {
        return;
      }
      const size_t close = phrase.find('}', open);
      slot(phrase.substr(open + 1, close - open - 1));
      phrase.remove_prefix(close + 1);
    }
  }

  // A slot's mark, or 0: "=thing" is '=' and "thing".
  static char mark_of(std::string_view& slot) {
    const char mark = slot.front();
    if (mark == '=' || mark == '-' || mark == '+') {
      slot.remove_prefix(1);
      return mark;
    }
    return 0;
  }

  // Whether everything that the phrase takes for known was said.
  bool told(Phrase phrase, int64_t who) {
    bool all = true;
    parse(
        phrase, [](std::string_view) {},
        [&](std::string_view slot) {
          const char mark = mark_of(slot);
          if (const auto* kind = kind_of(slot); kind != nullptr && mark != '-') {
            const Fact& fact = world_.fact(who, kind->kind);
            all = all && fact.told >= 0;
            all = all && !(mark == '+' && fact.value == kOldest);
          }
        });
    return all;
  }

  void sentence(Phrase phrase, int64_t who) {
    std::vector<Fact*> said;
    const int64_t begin = size();
    parse(
        phrase, [&](std::string_view text) { out_.text += text; },
        [&](std::string_view slot) {
          const char mark = mark_of(slot);
          if (const auto* kind = kind_of(slot)) {
            Fact& fact = world_.fact(who, kind->kind);
            if (mark != '-') {
              say(fact, kind->kind, mark);
              said.push_back(&fact);
            }
            out_.text += fact.value;
          } else if (slot == "who") {
            recall(person(who).name, said.front()->owner_told);
            name(who);
          } else {
            word(slot, who);
          }
        });
    for (Fact* fact : said) {
      fact->owner_told = person(who).mentioned;
    }
    char& start = out_.text[static_cast<size_t>(begin)];
    start = 'a' <= start && start <= 'z' ? static_cast<char>(start - 'a' + 'A') : start;
    out_.text += ' ';
  }

  void recall(const std::string& value, int64_t stated) {
    if (stated >= 0) {
      out_.recalls.push_back({size(), size() + std::ssize(value), stated});
    }
  }

  // What the text comes to say of a fact at this place.
  void say(Fact& fact, FactKind kind, char mark) {
    if (mark == '+') {
      fact.value = world_.other_value(kind, fact.value, random_);
    } else if (mark == 0) {
      recall(fact.value, fact.told);
    }
    fact.told = size();
  }

  void name(int64_t who) {
    person(who).mentioned = size();
    named_ = who;
    out_.text += person(who).name;
  }

  void word(std::string_view slot, int64_t who) {
    const bool woman = person(who).woman;
    const bool repeat = named_ != who || chance(0.2);
    if (slot == "NN" || (slot[0] == 'N' && repeat)) {
      name(who);
    } else if ((slot == "P" || slot == "p_") && repeat) {
      name(who);
      out_.text += "'s";
    } else if (slot == "N") {
      out_.text += woman ? "She" : "He";
    } else if (slot == "N_" || slot == "s") {
      out_.text += woman ? "she" : "he";
    } else if (slot == "P") {
      out_.text += woman ? "Her" : "His";
    } else if (slot == "p" || slot == "p_") {
      out_.text += woman ? "her" : "his";
    } else if (slot == "o") {
      out_.text += woman ? "her" : "him";
    } else {  // X
      const int64_t other = random_.below(known_);
      if (other == who) {
        out_.text += "a stranger";
      } else {
        name(other);
      }
    }
  }

  Random random_;
  int64_t target_;
  World world_;
  int64_t known_ = 0;   // people 0..known_-1 were introduced
  int64_t named_ = -1;  // whom "she" or "he" would mean
  bool closed_ = false;
  BuiltinText out_;
};

void check_length(int64_t tokens) {
  require(tokens >= 0 && tokens <= kMostTokens, "builtin",
          "tokens={} must be 1..{}, or 0 for {} to {}", tokens, kMostTokens, kShortest, kLongest);
}

class BuiltinDocuments final : public DocumentSource {
 public:
  BuiltinDocuments(uint64_t seed, int64_t tokens, Split split)
      : seed_(seed), tokens_(tokens), split_(split) {
    check_length(tokens);
  }

  int64_t documents() const override { return kEndless; }
  int64_t length(int64_t document) const override { return std::ssize(*get(document)); }
  int64_t vocab_size() const override { return kByteVocab; }
  std::string fingerprint() const override {
    return fmt::format("builtin/1 seed={} split={} tokens={}", seed_,
                       split_ == Split::kTrain ? "train" : "valid", tokens_);
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    const DocumentCache::Tokens tokens = get(document);
    require(begin >= 0 && begin + std::ssize(out) <= std::ssize(*tokens), "builtin",
            "tokens {}..{} of document {} were asked for; it has {}", begin,
            begin + std::ssize(out), document, tokens->size());
    std::copy_n(tokens->begin() + begin, out.size(), out.begin());
  }

 private:
  DocumentCache::Tokens get(int64_t document) const {
    return cache_.get(document, [&] {
      const std::string text = builtin_text(seed_, document, tokens_, split_).text;
      std::vector<int32_t> tokens(text.size());
      std::transform(text.begin(), text.end(), tokens.begin(),
                     [](char c) { return static_cast<unsigned char>(c); });
      return tokens;
    });
  }

  uint64_t seed_;
  int64_t tokens_;
  Split split_;
  mutable DocumentCache cache_;
};

}  // namespace

BuiltinText builtin_text(uint64_t seed, int64_t index, int64_t tokens, Split split) {
  check_length(tokens);
  require(index >= 0 && index <= kLastDocument, "builtin", "document {} must be 0..{}", index,
          kLastDocument);
  const uint64_t world = 2 * static_cast<uint64_t>(index) + (split == Split::kValid ? 1 : 0);
  return Story(seed, world, tokens).take();
}

std::unique_ptr<DocumentSource> builtin_documents(uint64_t seed, int64_t tokens, Split split) {
  return std::make_unique<BuiltinDocuments>(seed, tokens, split);
}

}  // namespace fwpkm
