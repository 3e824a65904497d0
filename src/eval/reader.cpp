#include "eval/reader.h"

#include <limits>

#include "base/error.h"

namespace fwpkm {
namespace {

constexpr const char* kNames[] = {"never", "document", "segment"};

}  // namespace

ResetAt parse_reset(const std::string& text) {
  for (int i = 0; i < 3; ++i) {
    if (text == kNames[i]) {
      return static_cast<ResetAt>(i);
    }
  }
  fail("eval", "'{}' is no place to reset at; use never, document or segment", text);
}

std::string reset_name(ResetAt at) {
  return kNames[static_cast<int>(at)];
}

nlohmann::json ReaderSettings::json() const {
  return {{"reset", reset_name(memory)},
          {"reset_mixers", reset_name(mixers)},
          {"segment", segment},
          {"freeze", freeze}};
}

Reader::Reader(Session session, const ReaderSettings& settings, int32_t end_of_text)
    : Reader(std::move(session), settings) {
  require(settings.segment > 0, "eval", "a segment of {} tokens cannot be", settings.segment);
  last_ = end_of_text;
  session_.feed({&last_, 1}, false);
}

Reader Reader::load(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                    const ReaderSettings& settings) {
  const auto about = Session::load_about(path);
  Reader reader(Session::load(std::move(model), path), settings);
  reader.last_ = std::stoi(about.at("last"));
  reader.tokens_ = std::stoll(about.at("tokens"));
  return reader;
}

void Reader::save(const std::filesystem::path& path) const {
  session_.save(path, {{"last", std::to_string(last_)}, {"tokens", std::to_string(tokens_)}});
}

int64_t Reader::room() const {
  const bool segments =
      settings_.memory == ResetAt::kSegment || settings_.mixers == ResetAt::kSegment;
  return segments ? settings_.segment - tokens_ % settings_.segment
                  : std::numeric_limits<int64_t>::max();
}

std::vector<double> Reader::read(const DocumentTokens::Piece& piece, MemoryStats* stats) {
  require(std::ssize(piece.tokens) <= room(), "eval", "{} tokens cross the border of a segment",
          piece.tokens.size());
  const auto is_due = [&](ResetAt at) {
    return tokens_ > 0 && ((at == ResetAt::kDocument && piece.starts) ||
                           (at == ResetAt::kSegment && tokens_ % settings_.segment == 0));
  };
  if (is_due(settings_.memory)) {
    session_.reset_memory();
  }
  if (is_due(settings_.mixers)) {
    session_.reset_tokens();
    session_.feed({&last_, 1}, false);
  }
  std::vector<double> losses;
  Watch watch;
  watch.losses = [&](size_t, std::span<const double> some) {
    losses.insert(losses.end(), some.begin(), some.end());
  };
  if (stats != nullptr) {
    watch.memory = [&](const MemoryRecord& record, std::span<const size_t>) {
      stats->add(record, session_.model().config());
    };
  }
  session_.feed(piece.tokens, !settings_.freeze, watch);
  last_ = piece.tokens.back();
  tokens_ += std::ssize(piece.tokens);
  return losses;
}

}  // namespace fwpkm
