// Comparing a whole model with numbers that another program printed, and printing our own.
//
// Such a file holds, beside the config in its metadata: weight.* (before the run), token_ids
// [B, T+1] (inputs are the first T, labels the last T), logits, loss, grad.*, trace.* and
// fast_after.* (the fast weights after the run). Files of ours also hold selection.*: which
// sub-keys and slots each token took.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace fwpkm {

// How far a group of tensors is off.
struct GoldenGroup {
  std::string name;  // "logits", "loss", "trace", "grad", "fast_after"
  int64_t tensors = 0;
  double error = 0;   // largest max|a-b| / max|b| over its tensors
  std::string worst;  // the tensor that has it
};

struct GoldenResult {
  std::string config_name;
  double limit = 0;  // 1e-9 on the reference device, 1e-4 in float
  bool ok = false;
  std::vector<GoldenGroup> groups;
  // Of a replay: how many slots were read, and how many of them the file's run had read too, before
  // it was told which to take.
  int64_t slots = 0, equal_slots = 0;
};

struct GoldenOptions {
  std::vector<std::string> overrides;  // "key=value" for the file's config
  // Numbers are those of a run that takes the file's selections instead of its own: rounding may
  // choose another one of two slots that are about as good. At least kEqualSlots of its own must be
  // the same all the same.
  bool replay = false;
  static constexpr double kEqualSlots = 0.999;
};
GoldenResult run_golden(const std::filesystem::path& file, Device device,
                        const GoldenOptions& options = {});

struct DumpOptions {
  bool gradients = false;
  bool weights = false;  // so that the file can be run again on its own
};

// Runs a model on token_ids [batch, seq + 1] and writes such a file. Numbers are F64 on the
// reference device and F32 elsewhere. Returns the loss. The model keeps the fast weights that the
// run wrote.
double write_dump(Model& model, std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                  const std::filesystem::path& file, const DumpOptions& options);

// Reads rows of tokens: `token_ids` of a .safetensors file, or a text file with one sequence of
// whitespace-separated numbers per line, all of one length.
struct TokenRows {
  std::vector<int32_t> tokens;
  int64_t rows = 0;
  int64_t length = 0;
};
TokenRows read_token_rows(const std::filesystem::path& file);

}  // namespace fwpkm
