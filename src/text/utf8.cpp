#include "text/utf8.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace fwpkm {
namespace {

// After `lead`: how many bytes must follow, and the range of the first of them. 0: cannot lead.
struct Follow {
  int count;
  unsigned char low, high;
};

Follow follow(unsigned char lead) {
  if (lead < 0xc2) {
    return {0, 0, 0};  // a continuation byte, or the start of an overlong form
  }
  if (lead < 0xe0) {
    return {1, 0x80, 0xbf};
  }
  if (lead < 0xf0) {
    return {2, static_cast<unsigned char>(lead == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(lead == 0xed ? 0x9f : 0xbf)};
  }
  if (lead < 0xf5) {
    return {3, static_cast<unsigned char>(lead == 0xf0 ? 0x90 : 0x80),
            static_cast<unsigned char>(lead == 0xf4 ? 0x8f : 0xbf)};
  }
  return {0, 0, 0};
}

size_t ascii_run(const char* data, size_t size) {
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, 8);
    if (word & 0x8080808080808080ull) {
      break;
    }
  }
  while (i < size && static_cast<unsigned char>(data[i]) < 0x80) {
    ++i;
  }
  return i;
}

// Goes through `bytes` from a state and leaves the state behind; returns the first bad offset.
size_t scan(std::string_view bytes, int& need, unsigned char& low, unsigned char& high) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (need == 0) {
      i += ascii_run(bytes.data() + i, bytes.size() - i);
      if (i == bytes.size()) {
        break;
      }
      const Follow next = follow(static_cast<unsigned char>(bytes[i]));
      if (next.count == 0) {
        return i;
      }
      need = next.count;
      low = next.low;
      high = next.high;
    } else {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      if (byte < low || byte > high) {
        return i;
      }
      --need;
      low = 0x80;
      high = 0xbf;
    }
    ++i;
  }
  return std::string_view::npos;
}

}  // namespace

void Utf8Check::feed(std::string_view bytes) {
  const size_t bad = scan(bytes, need_, low_, high_);
  const std::string_view good = bytes.substr(0, bad);
  line_ += static_cast<uint64_t>(std::count(good.begin(), good.end(), '\n'));
  offset_ += good.size();
  if (bad != bytes.npos) {
    fail_at(offset_, line_, fmt::format("byte 0x{:02x}", static_cast<unsigned char>(bytes[bad])));
  }
}

void Utf8Check::finish() const {
  if (need_ > 0) {
    fail_at(offset_, line_, "the text ends inside a character");
  }
}

void Utf8Check::fail_at(uint64_t offset, uint64_t line, std::string_view what) const {
  fail("corpus",
       "{} is not UTF-8 in line {}, at byte {} of the text: {}; convert it first, as in "
       "iconv -f LATIN1 -t UTF-8, or remove the damaged part",
       source_, line, offset, what);
}

int utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : follow(lead).count == 0 ? 0 : follow(lead).count + 1;
}

bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

size_t utf8_whole(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(4, text.size()); ++back) {
    const char byte = text[text.size() - back];
    if (!is_utf8_continuation(byte)) {
      const int length = utf8_length(static_cast<unsigned char>(byte));
      return static_cast<size_t>(length) > back ? text.size() - back : text.size();
    }
  }
  return text.size();
}

bool utf8_so_far(std::string_view text) {
  int need = 0;
  unsigned char low = 0, high = 0;
  return scan(text, need, low, high) == text.npos;
}

size_t utf8_error(std::string_view text) {
  int need = 0;
  unsigned char low = 0, high = 0;
  const size_t bad = scan(text, need, low, high);
  return bad == text.npos && need > 0 ? utf8_whole(text) : bad;
}

}  // namespace fwpkm
