// A stream that goes on and on: nothing grows, nothing overflows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/machine.h"
#include "base/random.h"
#include "base/timer.h"
#include "model/model.h"

namespace fwpkm {
namespace {

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// FWPKM_LONG_STREAM=1000000 reads as many tokens; more are better, but take their time.
int64_t stream_tokens() {
  const char* text = std::getenv("FWPKM_LONG_STREAM");
  return text == nullptr ? 40000 : std::atoll(text);
}

TEST(LongStream, StaysFlat) {
  const nlohmann::json json = {
      {"name", "stream"},
      {"vocab_size", 97},
      {"hidden_size", 32},
      {"layers", 4},
      {"layout", "gdn+swa"},
      {"max_seq", 256},
      {"attention", {{"heads", 2}, {"kv_heads", 1}, {"head_dim", 16}, {"window", 16}}},
      {"gdn", {{"key_heads", 2}, {"value_heads", 2}, {"key_dim", 16}, {"value_dim", 16}}},
      {"mlp", {{"hidden", 48}}},
      {"fwpkm",
       {{"layers", {1, 2}},
        {"topk", 4},
        {"n_subkeys", 32},
        {"key_dim", 16},
        {"value_dim", 32},
        {"chunk", 64}}}};
  Model model(parse_config(json, "test"), Device::cpu(), false);
  model.parameters().initialize(3);
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);  // testing::Test has one too
  State state = model.start(run);
  ForwardOptions options;
  options.states = {&state};

  constexpr int64_t kPiece = 250;  // not a multiple of anything
  const int64_t pieces = stream_tokens() / kPiece, warm = pieces / 4;
  const Random random(5, 0);
  int64_t warm_memory = 0, warm_resident = 0;
  double warm_seconds = 0, begin = now_seconds();
  for (int64_t p = 0; p < pieces; ++p) {
    std::vector<int32_t> tokens;
    for (int64_t i = p * kPiece; i < (p + 1) * kPiece; ++i) {
      tokens.push_back(static_cast<int32_t>(97 * random.uniform_at(static_cast<uint64_t>(i))));
    }
    const Tensor h = model.hidden(run, run.from_host("tokens", {1, kPiece}, tokens), options);
    for (const double x : to_host(h.view())) {
      ASSERT_TRUE(std::isfinite(x)) << "piece " << p;
    }
    if (p + 1 == warm) {
      warm_memory = allocated_memory();
      warm_resident = resident_memory();
      warm_seconds = (now_seconds() - begin) / static_cast<double>(warm);
      begin = now_seconds();
    }
  }
  const double seconds = (now_seconds() - begin) / static_cast<double>(pieces - warm);
  const double grown = mib(allocated_memory() - warm_memory);
  const FastStream& stream = state.layers[1].fast[0];
  std::printf(
      "%lld tokens: %.2f MiB more allocated and %.2f resident than after a quarter of them; %.1f "
      "us a token, before "
      "%.1f; %lld updates, %lld of %lld slots written\n",
      static_cast<long long>(pieces * kPiece), grown, mib(resident_memory() - warm_resident),
      1e6 * seconds / static_cast<double>(kPiece), 1e6 * warm_seconds / static_cast<double>(kPiece),
      static_cast<long long>(stream.updates), static_cast<long long>(stream.overlay.rows()),
      static_cast<long long>(model.config().fwpkm.slots()));
  EXPECT_EQ(stream.updates, (pieces * kPiece - 1) / 64);
  EXPECT_EQ(state.position, pieces * kPiece);
  // What is resident is the system's affair (huge pages come and go); what is held is ours.
  EXPECT_LT(grown, 1.0);
  // Time depends on what else the machine does; a cost that grows with the stream would show.
  EXPECT_LT(seconds, 5 * warm_seconds);
}

}  // namespace
}  // namespace fwpkm
