#include "ops/linear/linear.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

Case linear_case(int64_t rows, int64_t ins, int64_t outs, bool bias, bool residual) {
  Case c;
  c.name = fmt::format("rows={},in={},out={}{}{}", rows, ins, outs, bias ? ",bias" : "",
                       residual ? ",residual" : "");
  c.inputs = {{"x", {rows, ins}},
              {"w", {outs, ins}},
              {"b", bias ? Shape({outs}) : Shape()},
              {"residual", residual ? Shape({rows, outs}) : Shape()}};
  c.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{linear(run, in[0], in[1], in[2], in[3])};
  };
  return c;
}

}  // namespace

std::vector<Case> linear_cases() {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 3, 4, 5, 63, 65}) {
    cases.push_back(linear_case(rows, 40, 33, rows % 2 == 1, rows % 3 != 0));
  }
  cases.push_back(linear_case(1, 1, 1, true, true));
  cases.push_back(linear_case(2, 129, 130, false, false));
  cases.push_back(linear_case(17, 7, 257, true, false));
  // Biases whose gradients are summed in runs: rows and columns that do not fill a block.
  cases.push_back(linear_case(1, 5, 8, true, false));
  cases.push_back(linear_case(300, 3, 24, true, false));
  cases.push_back(linear_case(77, 9, 520, true, true));
  cases.push_back(linear_case(41, 6, 2048, true, false));
  cases.push_back(linear_case(9, 4, 2056, true, false));
  cases.push_back(linear_case(9001, 2, 264, true, false));
  // The same input as x and as residual: both gradients meet in one tensor.
  Case both = linear_case(6, 9, 9, false, true);
  both.name = "residual is x";
  both.inputs.pop_back();
  both.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor h = linear(run, in[0], in[1]);
    return std::vector<Tensor>{linear(run, h, in[1], {}, h)};
  };
  cases.push_back(both);
  for (const int64_t rows : {1, 2048}) {
    Case perf = linear_case(rows, 768, 2304, false, false);
    perf.name = fmt::format("perf:rows={},in=768,out=2304", rows);
    perf.perf = true;
    perf.flops = 2.0 * static_cast<double>(rows) * 768 * 2304;
    perf.bytes = 4.0 * (768.0 * 2304 + static_cast<double>(rows) * (768 + 2304));
    cases.push_back(perf);
  }
  return cases;
}

}  // namespace fwpkm
