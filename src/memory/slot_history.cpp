#include "memory/slot_history.h"

#include <algorithm>

namespace fwpkm {

bool SlotWrite::stands_in(std::span<const int32_t> text, int least) const {
  const auto size = static_cast<int>(text.size());
  for (int at = 0; at < size; ++at) {  // of the query in the text
    int met = 0;
    bool equal = true;
    for (int i = 0; i < static_cast<int>(tokens.size()) && equal; ++i) {
      const int place = at + i - kBefore;
      if (place >= 0 && place < size && tokens[static_cast<size_t>(i)] >= 0) {
        equal = tokens[static_cast<size_t>(i)] == text[static_cast<size_t>(place)];
        ++met;
      }
    }
    if (equal && met >= std::min(least, size)) {
      return true;
    }
  }
  return false;
}

}  // namespace fwpkm
