// The documents of a generated source that were used last, so that reading one piece by piece does
// not make it anew for each piece.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fwpkm {

class DocumentCache {
 public:
  using Tokens = std::shared_ptr<const std::vector<int32_t>>;

  // Keeps documents of at most `budget` tokens together, and always the last one.
  explicit DocumentCache(int64_t budget = int64_t{1} << 22) : budget_(budget) {}

  // The document, from make() if it is not here. Threads may make one twice.
  template <typename Make>
  Tokens get(int64_t document, Make make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = places_.find(document); found != places_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
      }
    }
    auto made = std::make_shared<const std::vector<int32_t>>(make());
    const std::lock_guard lock(mutex_);
    if (places_.contains(document)) {
      return made;
    }
    entries_.emplace_front(document, made);
    places_[document] = entries_.begin();
    held_ += std::ssize(*made);
    while (held_ > budget_ && entries_.size() > 1) {
      held_ -= std::ssize(*entries_.back().second);
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    return made;
  }

 private:
  int64_t budget_;
  int64_t held_ = 0;
  std::mutex mutex_;
  std::list<std::pair<int64_t, Tokens>> entries_;  // the last used first
  std::unordered_map<int64_t, std::list<std::pair<int64_t, Tokens>>::iterator> places_;
};

}  // namespace fwpkm
