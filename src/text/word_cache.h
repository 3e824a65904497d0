// Tokens of words that were seen before. Text repeats its words, and looking one up is many times
// faster than taking it apart again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fwpkm {

class WordCache {
 public:
  // The words of `text`: a line end, or spaces and what follows them up to the next space or line
  // end. Appends to `tokens` what `encode` gives for each.
  template <typename Encode>
  void encode_words(std::string_view text, Encode&& encode, std::vector<int32_t>& tokens) {
    while (!text.empty()) {
      const std::string_view word = text.substr(0, word_length(text));
      text.remove_prefix(word.size());
      if (word.size() > kLongest) {
        const std::vector<int32_t> fresh = encode(word);
        tokens.insert(tokens.end(), fresh.begin(), fresh.end());
        continue;
      }
      auto found = words_.find(word);
      if (found == words_.end()) {
        if (words_.size() == kWords) {
          words_.clear();  // bounded, and what is frequent is soon back
        }
        found = words_.emplace(std::string(word), encode(word)).first;
      }
      tokens.insert(tokens.end(), found->second.begin(), found->second.end());
    }
  }

  static size_t word_length(std::string_view text) {
    if (text.front() == '\n') {
      return 1;
    }
    const size_t start = text.find_first_not_of(' ');
    return start == text.npos ? text.size()
                              : std::min(text.find_first_of(" \n", start), text.size());
  }

 private:
  static constexpr size_t kLongest = 64, kWords = 1u << 16;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words_;
};

// Lends each caller a cache of its own, so that threads do not wait for each other.
class WordCaches {
 public:
  class Loan {
   public:
    explicit Loan(WordCaches& home) : home_(home) {
      const std::lock_guard lock(home.mutex_);
      if (home.free_.empty()) {
        cache_ = std::make_unique<WordCache>();
      } else {
        cache_ = std::move(home.free_.back());
        home.free_.pop_back();
      }
    }
    ~Loan() {
      const std::lock_guard lock(home_.mutex_);
      home_.free_.push_back(std::move(cache_));
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    WordCache* operator->() { return cache_.get(); }

   private:
    WordCaches& home_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace fwpkm
