#include "text/haystack.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "needles";
// Without those that look like others.
constexpr std::string_view kKeyLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
constexpr int kKeyLength = 4;
constexpr int64_t kLowestValue = 100'000, kValues = 900'000;  // six digits
// A longer word may be cut, between characters.
constexpr size_t kLongestWord = 256;
// A needle goes to a sentence's end that is no more words away than this.
constexpr size_t kSentenceWords = 60;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Words' ends: the places where a text may be cut or get a needle, ascending.
std::vector<size_t> borders_of(std::string_view text) {
  std::vector<size_t> borders;
  size_t last = 0;  // where the current word began, or was cut
  for (size_t i = 1; i < text.size(); ++i) {
    const bool word_end = is_space(text[i]) && !is_space(text[i - 1]);
    if (word_end || (i - last >= kLongestWord && !is_utf8_continuation(text[i]))) {
      borders.push_back(i);
    }
    if (is_space(text[i]) || (!borders.empty() && borders.back() == i)) {
      last = i;
    }
  }
  return borders;
}

bool ends_sentence(std::string_view text) {
  while (!text.empty() && (text.back() == '"' || text.back() == '\'' || text.back() == ')')) {
    text.remove_suffix(1);
  }
  return !text.empty() && (text.back() == '.' || text.back() == '!' || text.back() == '?');
}

// The border for a needle near byte `wish`: a sentence's end, or else a word's, that no other has.
size_t place(std::string_view text, const std::vector<size_t>& borders, size_t wish,
             const std::set<size_t>& taken) {
  const auto first =
      static_cast<size_t>(std::lower_bound(borders.begin(), borders.end(), wish) - borders.begin());
  const size_t end = std::min(borders.size(), first + kSentenceWords);
  for (size_t i = first; i < end; ++i) {
    if (!taken.contains(borders[i]) && ends_sentence(text.substr(0, borders[i]))) {
      return borders[i];
    }
  }
  for (size_t away = 0; away <= borders.size(); ++away) {
    for (const size_t i : {first + away, first - away - 1}) {
      if (i < borders.size() && !taken.contains(borders[i])) {
        return borders[i];
      }
    }
  }
  fail(kTag, "{} words are too few for the needles; ask for a greater length", borders.size());
}

std::string beginning(const std::string& key) {
  return fmt::format("The secret number of {} is ", key);
}

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    words += !is_space(text[i]) && (i == 0 || is_space(text[i - 1])) ? 1 : 0;
  }
  return words;
}

const char* unit_name(HaystackUnit unit) {
  return unit == HaystackUnit::kTokens ? "tokens" : "words";
}

}  // namespace

const Needle& Haystack::asked() const {
  const auto it = std::find_if(needles.begin(), needles.end(),
                               [&](const Needle& needle) { return needle.key == key; });
  require(it != needles.end(), kTag, "no needle has the key '{}' that is asked for", key);
  return *it;
}

nlohmann::json Haystack::json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Needle& needle : needles) {
    list.push_back({{"key", needle.key},
                    {"value", needle.value},
                    {"depth", needle.depth},
                    {"sentence", needle.sentence}});
  }
  return {{"context", context}, {"question", question},   {"answer", answer},
          {"key", key},         {"needles", list},        {"length", length},
          {"tokens", tokens},   {"unit", unit_name(unit)}};
}

std::string Haystack::lesson() const {
  std::string text = context;
  for (const Needle& needle : needles) {
    text += " " + needle.sentence;
  }
  return text;
}

size_t needle_offset(const Needle& needle, size_t bytes) {
  return static_cast<size_t>(std::llround(needle.depth * static_cast<double>(bytes)));
}

// The corpus as one text without end.
class HaystackMaker::Text {
 public:
  explicit Text(std::vector<SourceFile> files) : files_(std::move(files)) {}

  std::string_view view() const { return buffer_; }
  // Puts more text behind that which is there.
  void grow() {
    TextPiece piece;
    while (reader_ == nullptr || !reader_->next(piece)) {
      require(reader_ == nullptr || reader_->text_bytes() > blank_, kTag,
              "there is nothing but white space in '{}'; give files with text",
              files_.front().path);
      reader_ = std::make_unique<DocumentReader>(files_);
      blank_ = 0;
      ++times_;
    }
    if (piece.text.find_first_not_of(" \t\n\v\f\r") == piece.text.npos) {
      blank_ += piece.text.size();
      return;
    }
    if (piece.starts_document && !buffer_.empty()) {
      buffer_ += "\n\n";
    }
    buffer_ += piece.text;
    if (begins_) {
      drop(0);
    }
  }
  // Forgets the first bytes, and the white space behind them.
  void drop(size_t bytes) {
    bytes = std::min(buffer_.find_first_not_of(" \t\n\v\f\r", bytes), buffer_.size());
    buffer_.erase(0, bytes);
    begins_ = buffer_.empty();
  }
  int64_t times() const { return times_; }

 private:
  std::vector<SourceFile> files_;
  std::unique_ptr<DocumentReader> reader_;
  std::string buffer_;
  bool begins_ = true;  // a haystack begins with what comes next
  int64_t times_ = 0;
  uint64_t blank_ = 0;  // bytes of pieces that were passed over
};

HaystackMaker::HaystackMaker(HaystackSettings settings, std::shared_ptr<const Tokenizer> tokenizer)
    : settings_(std::move(settings)), tokenizer_(std::move(tokenizer)) {
  require(!settings_.lengths.empty() && settings_.samples > 0 && settings_.needles > 0, kTag,
          "{} lengths, {} samples and {} needles are given; there must be at least one of each",
          settings_.lengths.size(), settings_.samples, settings_.needles);
  text_ = std::make_unique<Text>(list_sources(settings_.text, &skipped_));
}

HaystackMaker::~HaystackMaker() = default;

int64_t HaystackMaker::total() const {
  return settings_.samples * static_cast<int64_t>(settings_.lengths.size());
}

int64_t HaystackMaker::times_read() const {
  return text_->times();
}

int64_t HaystackMaker::count(std::string_view text) const {
  return settings_.unit == HaystackUnit::kWords
             ? count_words(text)
             : static_cast<int64_t>(tokenizer_->encode(text).size());
}

std::vector<Needle> HaystackMaker::draw_needles(std::string_view text, uint64_t number) const {
  Random random(settings_.seed, number);
  std::set<std::string> used;
  const auto draw_new = [&](auto&& draw) {
    for (int i = 0; i < 100'000; ++i) {
      std::string drawn = draw();
      if (text.find(drawn) == text.npos && used.insert(drawn).second) {
        return drawn;
      }
    }
    fail(kTag, "no key or value is left for {} needles; ask for fewer", settings_.needles);
  };
  std::vector<Needle> needles;
  for (int64_t i = 0; i < settings_.needles; ++i) {
    Needle& needle = needles.emplace_back();
    needle.key = draw_new([&] {
      std::string key;
      for (int c = 0; c < kKeyLength; ++c) {
        key += kKeyLetters[static_cast<size_t>(random.below(std::ssize(kKeyLetters)))];
      }
      return key;
    });
    needle.value = draw_new([&] { return std::to_string(kLowestValue + random.below(kValues)); });
    needle.depth = random.uniform();
    needle.sentence = beginning(needle.key) + needle.value + ".";
  }
  return needles;
}

std::string HaystackMaker::assemble(std::string_view text, const std::vector<size_t>& borders,
                                    std::vector<Needle>* needles) const {
  std::set<size_t> taken;
  std::vector<std::pair<size_t, Needle*>> order;
  for (Needle& needle : *needles) {
    const auto wish = static_cast<size_t>(needle.depth * static_cast<double>(text.size()));
    order.emplace_back(place(text, borders, wish, taken), &needle);
    taken.insert(order.back().first);
  }
  std::sort(order.begin(), order.end());
  std::string context;
  std::vector<size_t> offsets;
  size_t at = 0;
  for (const auto& [border, needle] : order) {
    context += text.substr(at, border - at);
    context += ' ';
    offsets.push_back(context.size());
    context += needle->sentence;
    if (border < text.size() && !is_space(text[border])) {
      context += ' ';
    }
    at = border;
  }
  context += text.substr(at);
  for (size_t i = 0; i < order.size(); ++i) {
    order[i].second->depth = static_cast<double>(offsets[i]) / static_cast<double>(context.size());
  }
  return context;
}

// Finds by bisection between estimates how much text fits.
std::string HaystackMaker::fill(int64_t length, uint64_t number, std::vector<Needle>* needles) {
  int64_t counted = 0;
  size_t upto = 0;
  while (counted < length || upto == 0) {
    if (upto == text_->view().size()) {
      text_->grow();
    }
    counted += count(text_->view().substr(upto));
    upto = text_->view().size();
  }
  const std::vector<size_t> borders = borders_of(text_->view());
  const std::vector<Needle> wishes = draw_needles(text_->view(), number);
  std::string best;
  // All that ends before border number `low` fits, and what ends at border `high` does not.
  size_t low = 0, high = borders.size(), end = 0;
  double per_border = static_cast<double>(counted) / static_cast<double>(borders.size() + 1);
  double guess = static_cast<double>(length) / per_border;
  for (int round = 0; low < high; ++round) {
    size_t next = low + (high - low) / 2;
    if (round < 8) {  // estimates come closer in fewer steps, as a rule
      next = std::clamp(static_cast<size_t>(std::max(0.0, guess)), low, high - 1);
    }
    const std::string_view text = text_->view().substr(0, borders[next]);
    const std::vector<size_t> inside(borders.begin(),
                                     borders.begin() + static_cast<ptrdiff_t>(next + 1));
    std::vector<Needle> placed = wishes;
    int64_t size = length + 1;
    std::string context;
    if (inside.size() >= placed.size()) {
      context = assemble(text, inside, &placed);
      size = count(context);
    }
    guess = static_cast<double>(next) + static_cast<double>(length - size) / per_border;
    if (inside.size() >= placed.size() && size > length) {
      high = next;
    } else {
      low = next + 1;
      if (!context.empty()) {
        best = std::move(context);
        *needles = std::move(placed);
        end = borders[next];
      }
    }
  }
  require(!best.empty(), kTag, "{} {} are too short for {} needles; ask for a greater length",
          length, unit_name(settings_.unit), settings_.needles);
  text_->drop(end);
  return best;
}

bool HaystackMaker::next(Haystack* haystack) {
  if (made_ == total()) {
    return false;
  }
  const auto number = static_cast<uint64_t>(made_);
  Haystack made;
  made.length = settings_.lengths[static_cast<size_t>(made_ / settings_.samples)];
  made.unit = settings_.unit;
  made.context = fill(made.length, number, &made.needles);
  Random random(settings_.seed, number + (uint64_t{1} << 40));
  const Needle& asked = made.needles[static_cast<size_t>(random.below(settings_.needles))];
  made.key = asked.key;
  made.answer = asked.value;
  made.question = " " + beginning(asked.key);
  made.tokens = static_cast<int64_t>(tokenizer_->encode(made.context).size());
  *haystack = std::move(made);
  ++made_;
  return true;
}

bool HaystackReader::next(Haystack* haystack) {
  nlohmann::json object;
  if (!lines_.next(&object)) {
    return false;
  }
  Haystack h;
  h.context = lines_.text(object, "context");
  h.question = lines_.text(object, "question");
  h.answer = lines_.text(object, "answer");
  h.key = lines_.text(object, "key");
  h.length = lines_.count(object, "length");
  h.tokens = lines_.count(object, "tokens");
  const std::string unit = lines_.text(object, "unit");
  lines_.check(unit == "tokens" || unit == "words", "\"unit\" is \"{}\", not tokens or words",
               unit);
  h.unit = unit == "tokens" ? HaystackUnit::kTokens : HaystackUnit::kWords;
  std::set<std::string> keys, values;
  const nlohmann::json& list = lines_.list(object, "needles");
  for (size_t i = 0; i < list.size(); ++i) {
    lines_.check(list[i].is_object(), "needle {} is not an object", i + 1);
    Needle needle;
    needle.key = lines_.text(list[i], "key");
    needle.value = lines_.text(list[i], "value");
    needle.sentence = lines_.text(list[i], "sentence");
    const auto depth = list[i].find("depth");
    lines_.check(depth != list[i].end() && depth->is_number() && depth->get<double>() >= 0 &&
                     depth->get<double>() <= 1,
                 "the depth of needle {} must be a number from 0 to 1", i + 1);
    needle.depth = depth->get<double>();
    lines_.check(keys.insert(needle.key).second, "two needles have the key '{}'", needle.key);
    lines_.check(values.insert(needle.value).second, "two needles have the value '{}'",
                 needle.value);
    lines_.check(!is_space(needle.value.front()), "the value of needle {} begins with a space",
                 i + 1);
    const size_t at = needle.sentence.find(needle.key);
    lines_.check(
        at != std::string::npos &&
            needle.sentence.find(needle.value, at + needle.key.size()) != std::string::npos,
        "the sentence of needle '{}' does not tell its key and then its value", needle.key);
    lines_.check(
        h.context.compare(std::min(h.context.size(), needle_offset(needle, h.context.size())),
                          needle.sentence.size(), needle.sentence) == 0,
        "the sentence of needle '{}' is not in the context at depth {}", needle.key, needle.depth);
    h.needles.push_back(std::move(needle));
  }
  lines_.check(keys.contains(h.key), "no needle has the key '{}' that is asked for", h.key);
  lines_.check(h.asked().value == h.answer, "the answer is '{}', but the needle '{}' says '{}'",
               h.answer, h.key, h.asked().value);
  lines_.check(h.question.find(h.key) != std::string::npos,
               "the question does not name the key '{}'", h.key);
  *haystack = std::move(h);
  return true;
}

std::vector<Haystack> read_haystacks(const std::filesystem::path& path) {
  HaystackReader reader(path);
  std::vector<Haystack> all;
  for (Haystack h; reader.next(&h);) {
    all.push_back(h);
  }
  return all;
}

}  // namespace fwpkm
