#include "ops/lm_loss/lm_loss.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> lm_loss_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t tokens, int64_t vocab, int64_t width, Draw labels) -> Case& {
    Case c;
    c.name = fmt::format("tokens={},vocab={},width={}{}", tokens, vocab, width,
                         labels == Draw::kLabel ? ",some unlabelled" : "");
    c.inputs = {{"h", {1, tokens, width}},
                {"table", {vocab, width}},
                {"labels", {1, tokens}, labels, vocab}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      const LmLoss result = lm_loss(run, in[0], in[1], in[2]);
      // Only the loss carries a gradient; per-token values are compared as a copy.
      const Tensor nll = run.from_host("nll", result.nll.shape(), to_host(result.nll.view()));
      return std::vector<Tensor>{result.loss, nll};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1, 1, Draw::kIndex);
  add(5, 3, 7, Draw::kLabel);
  add(65, 63, 40, Draw::kIndex);
  add(129, 257, 16, Draw::kLabel);
  Case& perf = add(256, 32000, 768, Draw::kIndex);
  perf.name = "perf:tokens=256,vocab=32000,width=768";
  perf.perf = true;
  perf.flops = 2.0 * 256 * 32000 * 768;
  perf.bytes = 4.0 * 32000 * 768;
  return cases;
}

}  // namespace fwpkm
