#include "ops/lact_qk/lact_qk.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> lact_qk_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape, int64_t heads, int64_t half) -> Case& {
    Case c;
    c.name = fmt::format("q={},heads={},rotary={}", shape.str(), heads, 2 * half);
    const int64_t features = shape[2] * shape[3];
    const Shape table = half == 0 ? Shape() : Shape({shape[1], half});
    c.inputs = {{"q", shape},
                {"k", shape},
                {"scale", {features, 2}},
                {"offset", {features, 2}},
                {"cos", table, Draw::kNormal, 0, false},
                {"sin", table, Draw::kNormal, 0, false}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const LactQk out = lact_qk(run, in[0], in[1], in[2], in[3], heads, in[4], in[5]);
      return std::vector<Tensor>{out.q, out.k};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1, 2}, 1, 1);  // a single feature has no direction to learn
  add({2, 3, 2, 6}, 3, 2);
  add({1, 65, 3, 16}, 2, 8);
  add({2, 5, 1, 33}, 3, 13);
  add({3, 63, 4, 5}, 4, 2);
  for (size_t frozen = 0; frozen < 4; ++frozen) {
    Case& c = add({1, 7, 2, 10}, 4, 5);
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  // q and k as parts of one projection, and only one of the results used.
  const int64_t width = 24;
  for (const int used : {0, 1, 2}) {
    Case c;
    c.name = fmt::format("projection,used={}", used == 0 ? "q" : used == 1 ? "k" : "both");
    c.inputs = {{"qkv", {2, 9, 3 * width}}, {"scale", {width, 2}}, {"offset", {width, 2}}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const auto part = [&](int64_t begin) {
        return in[0].part(in[0].view().slice(-1, begin, begin + width).split_last(3, 8));
      };
      const LactQk out = lact_qk(run, part(0), part(width), in[1], in[2], 2, {}, {});
      return used == 2 ? std::vector<Tensor>{out.q, out.k}
                       : std::vector<Tensor>{used == 0 ? out.q : out.k};
    };
    cases.push_back(c);
  }
  Case& perf = add({1, 2048, 12, 64}, 4, 32);
  perf.name = "perf:T=2048,12 heads of 64,4 of 192";
  perf.perf = true;
  perf.bytes = 4.0 * 2048 * 768 * 4;
  perf.flops = 2 * 12.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
