#include "eval/reading.h"

#include <algorithm>

namespace fwpkm {
namespace {

// Tokens of a text that are read between two reports.
constexpr size_t kSlice = 1024;

std::vector<Session*> pointers(std::span<Session> sessions) {
  std::vector<Session*> all;
  for (Session& session : sessions) {
    all.push_back(&session);
  }
  return all;
}

}  // namespace

std::vector<std::string> chunk_overrides(const ModelConfig& config, int64_t chunk) {
  std::vector<std::string> overrides;
  if (chunk > 0 && !config.fwpkm.layers.empty()) {
    overrides.push_back(fmt::format("fwpkm.chunk={}", chunk));
  }
  if (chunk > 0 && !config.fwmlp.layers.empty()) {
    overrides.push_back(fmt::format("fwmlp.chunk={}", chunk));
  }
  return overrides;
}

bool learns_by_reading(const ModelConfig& config) {
  return !config.fwpkm.layers.empty() || !config.fwmlp.layers.empty();
}

Prompt encode_prompt(const Tokenizer& tokenizer, std::string_view question,
                     std::span<const std::string> answers) {
  Prompt prompt;
  prompt.read = tokenizer.encode(question, true);
  for (const std::string& answer : answers) {
    prompt.answers.push_back(tokenizer.encode(std::string(question) + answer, true));
    const auto& whole = prompt.answers.back();
    const auto apart =
        std::mismatch(prompt.read.begin(), prompt.read.end(), whole.begin(), whole.end());
    prompt.read.erase(apart.first, prompt.read.end());
  }
  for (std::vector<int32_t>& answer : prompt.answers) {
    answer.erase(answer.begin(), answer.begin() + std::ssize(prompt.read));
  }
  return prompt;
}

void read_together(std::span<Session> sessions, std::span<const std::vector<int32_t>> texts,
                   bool learn, const std::function<void(int64_t read)>& read) {
  const std::vector<Session*> all = pointers(sessions);
  size_t longest = 0;
  for (const auto& text : texts) {
    longest = std::max(longest, text.size());
  }
  for (size_t at = 0; at < longest; at += kSlice) {
    std::vector<std::span<const int32_t>> slices;
    int64_t tokens = 0;
    for (const auto& text : texts) {
      const size_t begin = std::min(at, text.size());
      slices.push_back(std::span(text).subspan(begin, std::min(kSlice, text.size() - begin)));
      tokens += std::ssize(slices.back());
    }
    Session::feed_together(all, slices, learn);
    if (read) {
      read(tokens);
    }
  }
}

std::vector<std::vector<double>> losses_of(std::span<Session> sessions,
                                           std::span<const std::vector<int32_t>> texts) {
  std::vector<std::vector<double>> losses(sessions.size());
  const Watch watch = {.losses =
                           [&](size_t i, std::span<const double> some) {
                             losses[i].insert(losses[i].end(), some.begin(), some.end());
                           },
                       .memory = {}};
  const std::vector<Session*> all = pointers(sessions);
  const std::vector<std::span<const int32_t>> spans(texts.begin(), texts.end());
  Session::feed_together(all, spans, false, watch);
  return losses;
}

void free_scratch(const Model& model) {
  const PoolSet::Loan pool(model.pools());
  (*pool).trim();
}

}  // namespace fwpkm
