#include "ops/embedding/embedding.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> embedding_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t tokens, int64_t vocab, int64_t width) -> Case& {
    Case c;
    c.name = fmt::format("tokens={},vocab={},width={}", tokens, vocab, width);
    c.inputs = {{"ids", {1, tokens}, Draw::kIndex, vocab}, {"table", {vocab, width}}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{embedding(run, in[0], in[1])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1, 1);
  add(65, 3, 130);  // every row many times
  add(63, 1000, 40);
  Case& perf = add(2048, 32000, 768);
  perf.name = "perf:tokens=2048,vocab=32000,width=768";
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 768 * 4;
  return cases;
}

}  // namespace fwpkm
