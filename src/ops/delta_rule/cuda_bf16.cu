// The delta rule in bf16, on tensor cores: what is launched, and the workspace that it takes.
#include "ops/delta_rule/tensor.cuh"

namespace fwpkm {
namespace delta_tensor {
namespace {

// A tape wants states at the starts of chunks; without one, few tokens need no chunks.
bool by_tokens(const OpArgs& args, const Sizes& n) {
  return n.length < delta_cuda::kFewTokens && !args.saved[0];
}

struct BackwardParts {
  Parts parts;
  Tiles tiles;
  bf16 *du, *ds;

  BackwardParts(const Sizes& n, void* base) : parts{static_cast<char*>(base)} {
    tiles = tiles_of(n, true, &parts);
    du = parts.take<bf16>(n.items() * n.dvp * kChunk);
    ds = parts.take<bf16>(n.items() * n.dvp * n.dkp);
  }
};

}  // namespace
}  // namespace delta_tensor

void delta_rule_forward_bf16(const OpArgs& args) {
  using namespace delta_tensor;
  const Sizes n(args);
  if (n.empty()) {
    return;
  }
  if (by_tokens(args, n)) {
    delta_cuda::forward_tokens(args, nullptr);
    return;
  }
  Parts parts{static_cast<char*>(args.workspace)};
  const Tiles tiles = tiles_of(n, false, &parts);
  prepare(args, n, false, tiles);
  walk(args, n, tiles);
}

void delta_rule_backward_bf16(const OpArgs& args) {
  using namespace delta_tensor;
  const Sizes n(args);
  if (n.empty()) {
    return;
  }
  const BackwardParts at(n, args.workspace);
  prepare(args, n, true, at.tiles);
  walk_back(args, n, at.tiles, at.du, at.ds);
  chunks_back(args, n, at.tiles, at.du, at.ds);
}

size_t delta_rule_workspace_bf16(const OpArgs& args, bool backward) {
  using namespace delta_tensor;
  const Sizes n(args);
  if (n.empty() || (!backward && by_tokens(args, n))) {
    return 0;
  }
  if (backward) {
    return BackwardParts(n, nullptr).parts.used;
  }
  Parts parts{nullptr};
  tiles_of(n, false, &parts);
  return parts.used;
}

}  // namespace fwpkm
