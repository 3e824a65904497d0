// What evaluations share that let a model read a long text and then ask about it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session/session.h"
#include "text/tokenizer.h"

namespace fwpkm {

// The evaluated model with memories that write after `chunk` tokens; 0 leaves the config's.
using ModelWithChunk = std::function<std::shared_ptr<const Model>(int64_t chunk)>;

// Overrides for load_model that set the chunk of the memories that a model has; none for 0.
std::vector<std::string> chunk_overrides(const ModelConfig& config, int64_t chunk);
// Whether reading a text can change what the model remembers after reset_tokens.
bool learns_by_reading(const ModelConfig& config);

// A question and its possible answers as tokens, cut where the answers begin. Question and answer
// are encoded together, so that the border is as in a text; `read` holds the tokens of the question
// that do not depend on the answer, and answers[i] what follows in the i-th case.
struct Prompt {
  std::vector<int32_t> read;
  std::vector<std::vector<int32_t>> answers;
};
Prompt encode_prompt(const Tokenizer& tokenizer, std::string_view question,
                     std::span<const std::string> answers);

// feed_together, with a call of `read` (tokens of all since the last call) now and then.
void read_together(std::span<Session> sessions, std::span<const std::vector<int32_t>> texts,
                   bool learn, const std::function<void(int64_t read)>& read = {});

// Reads without writing; the loss of each token, in nats.
std::vector<std::vector<double>> losses_of(std::span<Session> sessions,
                                           std::span<const std::vector<int32_t>> texts);

// Frees scratch memory that the model keeps for the next call: texts of many lengths would leave
// blocks of many sizes.
void free_scratch(const Model& model);

}  // namespace fwpkm
