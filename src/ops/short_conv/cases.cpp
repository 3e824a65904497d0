#include "ops/registry.h"
#include "ops/short_conv/short_conv.h"

namespace fwpkm {
namespace {

// x is [B,T,H,2 dk + 2 dv]: q, k and v are parts of it, as in the model.
Case conv_case(int64_t batch, int64_t time, int64_t heads, int64_t dk, int64_t dv, int64_t taps,
               bool with_tail) {
  Case c;
  c.name = fmt::format("B={},T={},H={},dk={},dv={},K={}{}", batch, time, heads, dk, dv, taps,
                       with_tail ? ",tail" : "");
  const int64_t channels = heads * (2 * dk + dv);
  c.inputs = {{"x", {batch, time, heads, 2 * dk + 2 * dv}}, {"w", {channels, 1, taps}}};
  if (with_tail) {
    c.inputs.push_back({"tail", {batch, taps - 1, channels}, Draw::kNormal, 0, false});
  }
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const auto part = [&](int64_t begin, int64_t end) {
      return in[0].part(in[0].view().slice(-1, begin, end));
    };
    Tensor tail;
    if (with_tail) {
      tail = run.from_host("tail", in[2].shape(), to_host(in[2].view()), in[2].view().dtype);
    }
    const Tensor y =
        short_conv(run, part(0, dk), part(dk, 2 * dk), part(2 * dk, 2 * dk + dv), in[1], tail);
    return with_tail ? std::vector<Tensor>{y, tail} : std::vector<Tensor>{y};
  };
  return c;
}

}  // namespace

std::vector<Case> short_conv_cases() {
  std::vector<Case> cases = {
      conv_case(1, 1, 1, 1, 1, 4, false),   conv_case(2, 1, 2, 8, 12, 4, true),
      conv_case(1, 2, 2, 8, 12, 4, true),   conv_case(2, 65, 2, 8, 12, 4, false),
      conv_case(3, 63, 2, 16, 16, 4, true), conv_case(1, 130, 1, 17, 33, 3, true),
      conv_case(1, 10, 2, 4, 4, 1, false),
  };
  for (const int64_t taps : {4, 3}) {
    Case packed = conv_case(2, 70, 2, 8, 12, taps, false);
    packed.name = fmt::format("documents,T=70,K={}", taps);
    packed.build = [](Run& run, const std::vector<Tensor>& in) {
      const auto part = [&](int64_t begin, int64_t end) {
        return in[0].part(in[0].view().slice(-1, begin, end));
      };
      const Tensor starts = run.from_host("starts", {2, 70}, packed_starts(2, 70));
      return std::vector<Tensor>{
          short_conv(run, part(0, 8), part(8, 16), part(16, 28), in[1], {}, starts)};
    };
    cases.push_back(packed);
  }
  Case perf = conv_case(1, 2048, 8, 64, 64, 4, false);
  perf.name = "perf:T=2048,H=8,dk=dv=64";
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 1536 * 4;
  perf.flops = 8.0 * 2048 * 1536;
  cases.push_back(perf);
  return cases;
}

}  // namespace fwpkm
