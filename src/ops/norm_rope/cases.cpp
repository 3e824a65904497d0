#include "ops/norm_rope/norm_rope.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> norm_rope_cases() {
  std::vector<Case> cases;
  // x is the part begin..begin+width of each head of a projection [B, T, H, full].
  const auto add = [&](const Shape& projection, int64_t begin, int64_t width,
                       int64_t half) -> Case& {
    Case c;
    c.name = fmt::format("projection={},begin={},width={},rotary={}", projection.str(), begin,
                         width, 2 * half);
    const Shape table = half == 0 ? Shape() : Shape({projection[1], half});
    c.inputs = {{"x", projection},
                {"w", {width}, Draw::kSmall},
                {"cos", table, Draw::kNormal, 0, false},
                {"sin", table, Draw::kNormal, 0, false}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const Tensor x =
          width == projection[3] ? in[0] : in[0].part(in[0].view().slice(-1, begin, begin + width));
      return std::vector<Tensor>{norm_rope(run, x, in[1], in[2], in[3], 1e-5)};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1, 1}, 0, 1, 0);
  add({1, 3, 2, 2}, 0, 2, 1);
  add({2, 3, 2, 7}, 0, 7, 3);
  add({2, 63, 1, 16}, 0, 16, 4);
  add({1, 65, 2, 33}, 0, 33, 13);
  add({1, 5, 3, 64}, 0, 64, 8);
  add({2, 4, 3, 65}, 0, 65, 32);
  add({2, 5, 3, 128}, 0, 128, 17);
  // The query is the first half of each head of a [query, gate] projection.
  add({2, 5, 3, 24}, 0, 12, 3);
  add({2, 5, 3, 24}, 7, 12, 0);
  add({1, 33, 4, 40}, 3, 20, 10);
  // Gradients that nobody wants.
  for (size_t frozen = 0; frozen < 2; ++frozen) {
    Case& c = add({1, 5, 2, 9}, 0, 9, 2);
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  Case& perf = add({1, 2048, 12, 128}, 0, 64, 8);
  perf.name = "perf:" + perf.name;
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 768 * 4;
  perf.flops = 5.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
