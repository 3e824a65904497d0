// UTF-8: checking it as it streams by, and where characters begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fwpkm {

// Takes a text in pieces that may be cut anywhere, and throws at the first byte that is not UTF-8
// (overlong forms, surrogates and values past U+10FFFF are not).
class Utf8Check {
 public:
  // `source` names the text in messages.
  explicit Utf8Check(std::string source) : source_(std::move(source)) {}

  void feed(std::string_view bytes);
  // The text ends here: a character that is only begun is an error.
  void finish() const;

  // Bytes seen so far, and the line (from 1) of the next one.
  uint64_t offset() const { return offset_; }
  uint64_t line() const { return line_; }

 private:
  [[noreturn]] void fail_at(uint64_t offset, uint64_t line, std::string_view what) const;

  std::string source_;
  uint64_t offset_ = 0, line_ = 1;
  int need_ = 0;                         // continuation bytes that must still come
  unsigned char low_ = 0, high_ = 0xff;  // what the next of them may be
};

// Bytes of the UTF-8 character that starts with `lead`; 0 where no character can.
int utf8_length(unsigned char lead);
bool is_utf8_continuation(char byte);
// The length of the longest beginning of `text` that does not end inside a character.
size_t utf8_whole(std::string_view text);
// Whether more bytes could make `text` valid, or it is already.
bool utf8_so_far(std::string_view text);
// The offset of the first byte that is not UTF-8, or npos.
size_t utf8_error(std::string_view text);

}  // namespace fwpkm
