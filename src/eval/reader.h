// A model that reads documents one after the other; how well it expected each token.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/memory_stats.h"
#include "session/session.h"
#include "text/document_tokens.h"

namespace fwpkm {

enum class ResetAt { kNever, kDocument, kSegment };
ResetAt parse_reset(const std::string& text);
std::string reset_name(ResetAt at);

struct ReaderSettings {
  ResetAt memory = ResetAt::kNever;
  ResetAt mixers = ResetAt::kNever;  // attention and GDN
  int64_t segment = 4096;            // tokens
  bool freeze = false;               // memories are only read

  nlohmann::json json() const;
};

// Before the first token of all it has read end of text, so that every token is expected by
// something. Where mixers are reset it reads the last token before once more, without a loss and
// without writing.
class Reader {
 public:
  Reader(Session session, const ReaderSettings& settings, int32_t end_of_text);
  // What save() wrote.
  static Reader load(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                     const ReaderSettings& settings);
  void save(const std::filesystem::path& path) const;

  // Tokens that the next piece may have at most: none crosses the border of a segment.
  int64_t room() const;
  // Loss of each token of a piece. `stats`, unless null, gets what the memories did.
  std::vector<double> read(const DocumentTokens::Piece& piece, MemoryStats* stats = nullptr);

  int64_t tokens() const { return tokens_; }  // that had a loss
  const Session& session() const { return session_; }
  Session& session() { return session_; }

 private:
  Reader(Session session, const ReaderSettings& settings)
      : session_(std::move(session)), settings_(settings) {}

  Session session_;
  ReaderSettings settings_;
  int32_t last_ = -1;
  int64_t tokens_ = 0;
};

}  // namespace fwpkm
