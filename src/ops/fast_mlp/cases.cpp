#include "ops/fast_mlp/fast_mlp.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Sizes {
  int64_t batch, sets, time, dk, h, dv;
};

Case make(const Sizes& z, const FastMlpSettings& settings) {
  Case c;
  c.name = fmt::format("B={},R={},T={},C={},L={}{},lr={},dk={},h={},dv={}", z.batch, z.sets, z.time,
                       settings.chunk, settings.lookahead, settings.mean_target ? ",mean" : "",
                       settings.lr, z.dk, z.h, z.dv);
  c.inputs = {{"q", {z.batch, z.time, z.dk}},  {"v", {z.batch, z.time, z.dv}},
              {"w_up", {z.sets, z.h, z.dk}},   {"b_up", {z.sets, z.h}},
              {"w_gate", {z.sets, z.h, z.dk}}, {"b_gate", {z.sets, z.h}},
              {"w_down", {z.sets, z.dv, z.h}}, {"b_down", {z.sets, z.dv}}};
  for (size_t i = 2; i < c.inputs.size(); ++i) {
    c.inputs[i].draw = Draw::kSmall;
    c.inputs[i].grad = false;
  }
  c.build = [settings](Run& run, const std::vector<Tensor>& in) {
    const FastMlpResult result =
        fast_mlp(run, in[0], in[1], {in[2], in[3], in[4], in[5], in[6], in[7]}, settings);
    std::vector<Tensor> out = {result.output, result.losses};
    if (settings.write) {
      out.insert(out.end(), result.after.begin(), result.after.end());
    }
    return out;
  };
  return c;
}

}  // namespace

std::vector<Case> fast_mlp_cases() {
  std::vector<Case> cases;
  // Chunks and lookaheads; the last chunk is short and, by turns, too short to write. The steps
  // are large: a chunk's write moves its outputs by a good part of their error.
  int turn = 0;
  for (const int64_t chunk : {1, 2, 7, 63, 64, 65}) {
    for (const int64_t lookahead : {0, 1, 4}) {
      const int64_t batch = turn % 2 == 0 ? 3 : 1, sets = turn % 4 == 0 ? batch : 1;
      const int64_t tail = chunk == 1 ? 0 : 1 + turn % 6 % chunk;
      const int64_t time = (chunk < 10 ? 4 : 2) * chunk + tail;
      cases.push_back(
          make({batch, sets, time, 5, 13, 7},
               {.chunk = chunk, .lookahead = lookahead, .lr = turn % 3 == 0 ? 0.1 : 1}));
      ++turn;
    }
  }
  for (const int64_t sets : {1, 3}) {
    cases.push_back(make({3, sets, 17, 3, 33, 1}, {.chunk = 5, .lookahead = 2, .lr = 0.5}));
    cases.push_back(
        make({3, sets, 40, 5, 13, 7}, {.chunk = 9, .lookahead = 4, .mean_target = true, .lr = 1}));
    cases.push_back(make({3, sets, 6, 4, 8, 16}, {.chunk = 7, .lookahead = 1, .lr = 1}));
  }
  cases.push_back(make({1, 1, 1, 1, 1, 1}, {.chunk = 1, .lookahead = 0, .lr = 1}));
  cases.push_back(make({1, 1, 12, 5, 13, 7}, {.chunk = 1, .lookahead = 0, .mean_target = true}));
  cases.push_back(make({2, 1, 200, 64, 130, 65}, {.chunk = 64, .lookahead = 1, .lr = 1}));
  // Wide enough for tensor cores.
  cases.push_back(make({2, 1, 70, 64, 72, 64}, {.chunk = 32, .lookahead = 1, .lr = 1}));
  cases.push_back(
      make({2, 2, 40, 64, 64, 72}, {.chunk = 16, .lookahead = 2, .mean_target = true, .lr = 1}));
  // More tokens than the kernel takes at once, in one row and in several.
  cases.push_back(make({1, 1, 1300, 5, 13, 7}, {.chunk = 600, .lookahead = 4, .lr = 1}));
  cases.push_back(
      make({2, 1, 1060, 5, 13, 7}, {.chunk = 530, .lookahead = 20, .mean_target = true, .lr = 1}));
  cases.push_back(make({5, 1, 450, 5, 13, 7}, {.chunk = 200, .lookahead = 1, .lr = 1}));
  // As many chunks as a gradient may pass: nothing is cut.
  Case uncut = make({3, 1, 25, 5, 13, 7}, {.chunk = 6, .lookahead = 1, .lr = 1, .bptt_chunks = 5});
  uncut.name = "bptt_chunks=5 of 5";
  cases.push_back(uncut);
  for (const int wanted : {0, 1}) {
    Case c = make({3, 1, 25, 5, 13, 7}, {.chunk = 6, .lookahead = 1, .lr = 1});
    c.name = fmt::format("only {}", c.inputs[wanted].name);
    c.inputs[1 - wanted].grad = false;
    cases.push_back(c);
  }
  // Values are their own queries: both gradients meet in one tensor.
  Case same = make({3, 1, 25, 7, 13, 7}, {.chunk = 6, .lookahead = 1, .lr = 1});
  same.name = "q is v";
  same.inputs.erase(same.inputs.begin());
  same.build = [](Run& run, const std::vector<Tensor>& in) {
    const FastMlpResult result =
        fast_mlp(run, in[0], in[0], {in[1], in[2], in[3], in[4], in[5], in[6]},
                 {.chunk = 6, .lookahead = 1, .lr = 1});
    return std::vector<Tensor>{result.output};
  };
  cases.push_back(same);
  // Only reading, with values that nobody looks at and without any.
  for (const int64_t sets : {1, 3}) {
    Case read = make({3, sets, 9, 5, 13, 7}, {.chunk = 4, .write = false});
    read.name = fmt::format("read,R={}", sets);
    read.inputs[1].shape = Shape();
    cases.push_back(read);
  }

  const auto perf = [&](const Sizes& z, const FastMlpSettings& settings, const std::string& name) {
    Case c = make(z, settings);
    c.name = "perf:" + name;
    c.perf = true;
    const double tokens = static_cast<double>(z.batch * z.time), h = static_cast<double>(z.h);
    const double read = 2 * h * static_cast<double>(2 * z.dk + z.dv);
    const double write = settings.write ? read + 2 * h * static_cast<double>(z.dv) : 0;
    c.flops = tokens * (read + write);
    c.bytes = 4 * h * static_cast<double>(2 * z.dk + z.dv);
    cases.push_back(c);
  };
  perf({1, 1, 2048, 512, 2304, 512}, {.chunk = 512, .lookahead = 1, .lr = 0.1}, "T=2048,C=512");
  perf({8, 8, 256, 512, 512, 512}, {.chunk = 64, .lookahead = 1, .lr = 0.1},
       "B=8,R=8,T=256,C=64,h=512");
  perf({1, 1, 1, 512, 2304, 512}, {.write = false}, "read,T=1");
  return cases;
}

}  // namespace fwpkm
