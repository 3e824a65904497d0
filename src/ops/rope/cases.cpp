#include "ops/registry.h"
#include "ops/rope/rope.h"

namespace fwpkm {

std::vector<Case> rope_cases() {
  std::vector<Case> cases;
  // x is the part begin..begin+width of each head of a projection [B, T, H, full].
  const auto add = [&](const Shape& projection, int64_t begin, int64_t width,
                       int64_t half) -> Case& {
    Case c;
    c.name = fmt::format("projection={},begin={},width={},rotary={}", projection.str(), begin,
                         width, 2 * half);
    const Shape table = half == 0 ? Shape() : Shape({projection[1], half});
    c.inputs = {{"x", projection},
                {"cos", table, Draw::kNormal, 0, false},
                {"sin", table, Draw::kNormal, 0, false}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const Tensor x =
          width == projection[3] ? in[0] : in[0].part(in[0].view().slice(-1, begin, begin + width));
      return std::vector<Tensor>{rope(run, x, in[1], in[2])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1, 1}, 0, 1, 0);
  add({1, 3, 2, 2}, 0, 2, 1);
  add({2, 63, 3, 16}, 0, 16, 4);
  add({1, 65, 2, 33}, 0, 33, 13);
  add({2, 4, 3, 65}, 0, 65, 32);
  add({2, 5, 3, 24}, 7, 12, 6);
  Case& perf = add({1, 2048, 12, 64}, 0, 64, 32);
  perf.name = "perf:T=2048,H=12,D=64";
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 768 * 4;
  perf.flops = 3.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
