// What the cases of the memory cannot show: a grid of sizes, cut gradients, calls cut in two,
// repeatability.
#include "fwpkm_run.h"

#include <set>

#include "base/parallel.h"
#include "check/compare.h"

namespace fwpkm {
namespace {

void expect_near(const Values& got, const Values& right, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), right.size()) << what;
  EXPECT_LE(relative_error(got, right), tolerance) << what;
}

Values rows_of(const MemoryResult& r) {
  Values rows;
  for (const auto& [place, row] : r.written) {
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

std::vector<std::pair<int64_t, int32_t>> places_of(const MemoryResult& r) {
  std::vector<std::pair<int64_t, int32_t>> places;
  for (const auto& [place, row] : r.written) {
    places.push_back(place);
  }
  return places;
}

// All but the gradients, or all.
void expect_same(const MemoryResult& got, const MemoryResult& right, double tolerance,
                 const std::string& what) {
  EXPECT_EQ(got.slots, right.slots) << what;
  EXPECT_EQ(places_of(got), places_of(right)) << what;
  expect_near(got.output, right.output, tolerance, what + ": output");
  expect_near(got.weights, right.weights, tolerance, what + ": weights");
  expect_near(got.losses, right.losses, tolerance, what + ": losses");
  for (size_t i = 0; i < right.addressing.size(); ++i) {  // of order 1, or almost nothing
    EXPECT_NEAR(got.addressing[i], right.addressing[i], tolerance) << what << ": addressing";
  }
  expect_near(got.keys, right.keys, tolerance, what + ": keys");
  expect_near(rows_of(got), rows_of(right), tolerance, what + ": rows");
  expect_near(got.dq, right.dq, tolerance, what + ": dq");
  expect_near(got.dv, right.dv, tolerance, what + ": dv");
  expect_near(got.dg, right.dg, tolerance, what + ": dg");
}

// Values, writes and gradients of the CPU against the reference, which tells the selection.
TEST(Fwpkm, GridOfSizes) {
  uint64_t turn = 0;
  for (const int32_t n : {2, 8, 17, 512}) {
    for (const int32_t k : std::set<int32_t>{1, std::min(n, 5), n < 512 ? n : 9}) {
      for (const int64_t chunk : {1, 2, 63, 64, 65}) {
        for (const int32_t heads : {1, 4}) {
          for (const int64_t batch : {1, 3}) {
            for (const int32_t lookahead : {0, 1, 4}) {
              for (const bool shared : {false, true}) {
                // Of the large table only some: making it takes most of the time.
                if (++turn % (n == 512 ? 7 : 1) != 0) {
                  continue;
                }
                FwpkmSettings s = memory_settings(heads, n, k, chunk, lookahead, shared);
                s.step = 1.5;
                s.rewrite = turn % 4 == 1;
                s.addr_loss = turn % 5 != 2;
                s.official = turn % 7 == 3 && lookahead < chunk;
                const MemorySizes z{batch, chunk < 5 ? 3 * chunk + 5 : chunk + 9, 6, 3};
                const MemoryInputs in = draw_inputs(z, s, turn);
                const MemoryResult right = run_memory(Device::reference(), z, s, in);
                const MemoryResult got = run_memory(Device::cpu(), z, s, in, {.selection = &right});
                EXPECT_EQ(got.ids, right.ids);
                expect_same(got, right, 2e-5,
                            fmt::format("n={} k={} C={} H={} B={} L={} shared={} turn={}", n, k,
                                        chunk, heads, batch, lookahead, shared, turn));
              }
            }
          }
        }
      }
    }
  }
}

// As many slots as there are.
TEST(Fwpkm, ReadsAllSubkeys) {
  const FwpkmSettings s = memory_settings(1, 512, 512, 2, 1, false);
  const MemorySizes z{1, 5, 6, 2};
  const MemoryInputs in = draw_inputs(z, s, 1);
  const MemoryResult right = run_memory(Device::reference(), z, s, in);
  std::set<double> slots;  // read by tokens 0 and 2, which write
  for (const int64_t token : {0, 2}) {
    slots.insert(right.slots.begin() + token * 512, right.slots.begin() + (token + 1) * 512);
  }
  EXPECT_EQ(right.written.size(), slots.size());
  expect_same(run_memory(Device::cpu(), z, s, in, {.selection = &right}), right, 2e-5, "all");
}

// Eta, N and the new row worked out by hand: one slot, two reads of it.
TEST(Fwpkm, OneSlotByHand) {
  for (const Device device : {Device::reference(), Device::cpu()}) {
    for (const bool official : {false, true}) {
      FwpkmSettings s = memory_settings(1, 1, 1, 3, 1, true);
      s.official = official;
      s.step = 0.5;
      const MemorySizes z{1, 4, 1, 1};
      // Tokens 0 and 1 write towards v_1 = 2 and v_2 = 4 with gates 0.5 and 1; the row is 8.
      const MemoryInputs in{
          {0, 0, 0, 0, 0, 0, 0, 0}, {1, 2, 4, 7}, {0.5, 1, 1, 1}, {1, 1}, {8}, {0, 0, 0, 1}};
      const MemoryResult r = run_memory(device, z, s, in);
      // Errors 6 and 4. eta / N = 0.5 / 2, official 0.5 * (3 / 2) / 3: the same, since every token
      // reads the slot. The last chunk does not write.
      const double rate = 0.25;
      const double row = 8 - rate * (0.5 * 6 + 4);
      EXPECT_EQ(r.output, (Values{8, 8, 8, row}));
      EXPECT_EQ(r.losses, (Values{0.5 * 36, 16, 0, 0}));
      EXPECT_EQ(rows_of(r), Values{row});
      EXPECT_EQ(r.keys, in.keys);  // one sub-key: nothing to choose from, no push
      // row = 8 - rate (g_0 (8 - v_1) + g_1 (8 - v_2)).
      EXPECT_EQ(r.dv, (Values{0, rate * 0.5, rate, 0}));
      EXPECT_EQ(r.dg, (Values{-rate * 6, -rate * 4, 0, 0}));
      EXPECT_EQ(r.dq, Values(8, 0.0));
    }
  }
}

class FwpkmCalls : public testing::TestWithParam<Device> {
 protected:
  double tolerance() const { return GetParam().real == DType::kF64 ? 1e-12 : 5e-6; }
};

// A gradient cut in front of a chunk is that of separate calls that carry the fast weights.
TEST_P(FwpkmCalls, CutGradients) {
  for (const bool shared : {false, true}) {
    for (const bool addressing : {false, true}) {
      FwpkmSettings s = memory_settings(2, 9, 4, 6, 1, shared);
      s.addr_loss = addressing;
      const MemorySizes z{3, 43, 5, 7};
      const MemoryInputs in = draw_inputs(z, s, 2);
      const MemoryResult whole = run_memory(GetParam(), z, s, in);
      s.bptt_chunks = 3;
      const MemoryResult cut = run_memory(GetParam(), z, s, in);
      EXPECT_EQ(cut.output, whole.output);
      EXPECT_EQ(cut.keys, whole.keys);
      EXPECT_GT(relative_error(cut.dq, whole.dq), 1e-3);
      EXPECT_GT(relative_error(cut.dv, whole.dv), 1e-3);
      EXPECT_GT(relative_error(cut.dg, whole.dg), 1e-3);
      s.bptt_chunks = 0;
      Overlay overlay(shared ? 1 : z.batch, s.n_subkeys, z.dv, GetParam());
      Values keys = in.keys;
      for (const auto& [begin, end] : {std::pair{0, 18}, {18, 36}, {36, 43}}) {
        MemorySizes piece = z;
        piece.time = end - begin;
        const MemoryResult r = run_memory(GetParam(), piece, s, cut_inputs(in, z, begin, end, keys),
                                          {.overlay = &overlay, .commit_to = &overlay});
        EXPECT_EQ(r.slots, cut_tokens(cut.slots, z, begin, end));
        expect_near(cut_tokens(cut.output, z, begin, end), r.output, tolerance(), "output");
        expect_near(cut_tokens(cut.dq, z, begin, end), r.dq, tolerance(), "dq");
        expect_near(cut_tokens(cut.dv, z, begin, end), r.dv, tolerance(), "dv");
        expect_near(cut_tokens(cut.dg, z, begin, end), r.dg, tolerance(), "dg");
        keys = r.keys;
      }
    }
  }
}

// Two calls with a commit between them are one call, if the cut is at a chunk's border: the same
// bits.
TEST_P(FwpkmCalls, CommitBetweenCalls) {
  for (const bool shared : {false, true}) {
    for (const int64_t cut : {6, 12, 18}) {
      const FwpkmSettings s = memory_settings(2, 9, 4, 6, 1, shared);
      const MemorySizes z{3, 27, 5, 7};
      const MemoryInputs in = draw_inputs(z, s, 3);
      const MemoryResult whole = run_memory(GetParam(), z, s, in);
      Overlay overlay(shared ? 1 : z.batch, s.n_subkeys, z.dv, GetParam());
      MemorySizes first = z, second = z;
      first.time = cut;
      second.time = z.time - cut;
      const MemoryResult a = run_memory(GetParam(), first, s, cut_inputs(in, z, 0, cut, in.keys),
                                        {.commit_to = &overlay});
      const MemoryResult b =
          run_memory(GetParam(), second, s, cut_inputs(in, z, cut, z.time, a.keys),
                     {.overlay = &overlay, .commit_to = &overlay});
      EXPECT_EQ(a.output, cut_tokens(whole.output, z, 0, cut));
      EXPECT_EQ(b.output, cut_tokens(whole.output, z, cut, z.time));
      EXPECT_EQ(b.slots, cut_tokens(whole.slots, z, cut, z.time));
      EXPECT_EQ(b.losses, cut_tokens(whole.losses, z, cut, z.time));
      EXPECT_EQ(b.keys, whole.keys);
      EXPECT_EQ(overlay.rows(), static_cast<int64_t>(whole.written.size()));
      for (const auto& [place, row] : whole.written) {
        const std::byte* found = overlay.find(place.first, place.second);
        ASSERT_NE(found, nullptr);
        const View view("row", const_cast<std::byte*>(found), GetParam().real, GetParam().kind,
                        {z.dv});
        EXPECT_EQ(to_host(view), row);
      }
      // Without the commit the second half would be another.
      const MemoryResult alone =
          run_memory(GetParam(), second, s, cut_inputs(in, z, cut, z.time, in.keys));
      EXPECT_GT(relative_error(alone.output, b.output), 1e-2);
    }
  }
}

// Nothing stays behind: a call that is repeated gives the same bits, with a tape or without, and
// run_memory has seen that its inputs are as before.
TEST_P(FwpkmCalls, ArePure) {
  for (const bool shared : {false, true}) {
    const FwpkmSettings s = memory_settings(2, 17, 5, 8, 1, shared);
    const MemorySizes z{2, 40, 5, 7};
    const MemoryInputs in = draw_inputs(z, s, 4);
    Overlay overlay(shared ? 1 : z.batch, s.n_subkeys, z.dv, GetParam());
    run_memory(GetParam(), z, s, draw_inputs(z, s, 5), {.commit_to = &overlay});
    const int64_t rows = overlay.rows();
    EXPECT_GT(rows, 0);
    const MemoryResult once = run_memory(GetParam(), z, s, in, {.overlay = &overlay});
    EXPECT_TRUE(run_memory(GetParam(), z, s, in, {.overlay = &overlay}) == once);
    MemoryResult forward =
        run_memory(GetParam(), z, s, in, {.overlay = &overlay, .backward = false});
    forward.dq = once.dq;
    forward.dv = once.dv;
    forward.dg = once.dg;
    EXPECT_TRUE(forward == once);
    EXPECT_EQ(overlay.rows(), rows);
    EXPECT_FALSE(run_memory(GetParam(), z, s, in).output == once.output);
  }
}

// With late values the backward of the first chunk goes through the rows as they are at the end.
TEST_P(FwpkmCalls, LateValues) {
  for (const bool shared : {false, true}) {
    for (const bool addressing : {false, true}) {
      FwpkmSettings s = memory_settings(2, 9, 4, 8, 1, shared);
      s.official = true;
      s.addr_loss = addressing;
      const MemorySizes z{2, 24, 5, 7};
      const MemoryInputs in = draw_inputs(z, s, 6);
      const MemoryResult right = run_memory(GetParam(), z, s, in);
      s.late_values = true;
      const MemoryResult late = run_memory(GetParam(), z, s, in);
      const MemoryResult exact = run_memory(Device::reference(), z, s, in, {.selection = &late});
      expect_same(late, exact, 2e-5, "late");
      EXPECT_EQ(late.output, right.output);
      EXPECT_EQ(late.keys, right.keys);
      // Only the first chunk's gradients are others, and only those that go through the read.
      EXPECT_EQ(cut_tokens(late.dq, z, 8, 24), cut_tokens(right.dq, z, 8, 24));
      EXPECT_EQ(late.dv, right.dv);
      EXPECT_EQ(late.dg, right.dg);
      EXPECT_GT(relative_error(cut_tokens(late.dq, z, 0, 8), cut_tokens(right.dq, z, 0, 8)), 1e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, FwpkmCalls, testing::Values(Device::reference(), Device::cpu()),
                         [](const auto& info) {
                           return info.param.kind == DeviceKind::kCpu ? "cpu" : "reference";
                         });

TEST(Fwpkm, DoesNotDependOnThreads) {
  const int before = threads();
  for (const bool shared : {false, true}) {
    for (const bool addressing : {false, true}) {
      FwpkmSettings s = memory_settings(2, 40, 8, 70, 1, shared);
      s.addr_loss = addressing;
      const MemorySizes z{3, 200, 19, 33};
      const MemoryInputs in = draw_inputs(z, s, 8);
      set_threads(1);
      const MemoryResult one = run_memory(Device::cpu(), z, s, in);
      for (const int count : {2, 3}) {
        set_threads(count);
        EXPECT_TRUE(run_memory(Device::cpu(), z, s, in) == one) << count << " threads";
      }
    }
  }
  set_threads(before);
}

TEST(Fwpkm, RefusesWrongShapes) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const auto make = [&](const Shape& shape) {
    const Tensor t = run.make("x", shape);
    fill_zero(t.view());
    return t;
  };
  const FwpkmSettings good = memory_settings(2, 4, 2, 3, 1, false);
  const Tensor q = make({3, 5, 24}), v = make({3, 5, 7}), g = make({3, 5}), keys = make({16, 6}),
               values = make({16, 7});
  EXPECT_NO_THROW(fwpkm_memory(run, q, v, g, keys, values, good));
  EXPECT_NO_THROW(fwpkm_memory(run, q, v, {}, keys, values, good));
  EXPECT_THROW(fwpkm_memory(run, v, v, g, keys, values, good), Error);
  EXPECT_THROW(fwpkm_memory(run, q, q, g, keys, values, good), Error);
  EXPECT_THROW(fwpkm_memory(run, q, v, v, keys, values, good), Error);
  EXPECT_THROW(fwpkm_memory(run, q, v, g, values, values, good), Error);
  EXPECT_THROW(fwpkm_memory(run, q, v, g, keys, keys, good), Error);
  const auto refused = [&](auto&& change) {
    FwpkmSettings s = good;
    change(s);
    EXPECT_THROW(fwpkm_memory(run, q, v, g, keys, values, s), Error);
  };
  refused([](FwpkmSettings& s) { s.topk = 5; });
  refused([](FwpkmSettings& s) { s.topk = 0; });
  refused([](FwpkmSettings& s) { s.chunk = 0; });
  refused([](FwpkmSettings& s) { s.lookahead = -1; });
  refused([](FwpkmSettings& s) { s.heads = 0; });
  // An overlay of another number of owners.
  Overlay two(2, 4, 7, Device::cpu());
  const std::vector<float> row(7);
  two.put(0, 3, row.data());
  EXPECT_THROW(fwpkm_memory(run, q, v, g, keys, values, good, two.views()), Error);
}

// Rows of a store are a GPU's.
TEST(Fwpkm, RefusesStoresOnACpu) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const FwpkmSettings s = memory_settings(1, 4, 2, 3, 1, true);
  const Tensor q = run.make("q", {1, 5, 12}), v = run.make("v", {1, 5, 8}),
               keys = run.make("keys", {8, 6}), values = run.make("values", {16, 8});
  for (const Tensor& t : {q, v, keys, values}) {
    fill_zero(t.view());
  }
  FwpkmStore store(pool, values.view(), s, false);
  EXPECT_FALSE(store.rows().halved);
  EXPECT_EQ(store.log_rows(1, 5), 6);  // tokens 0, 1 and 3 write, two slots each
  EXPECT_EQ(FwpkmStore(pool, values.view(), s, true).log_rows(1, 5), 0);
  EXPECT_THROW(store.open(6), Error);
  EXPECT_FALSE(store.is_open());
  FwpkmRows halved, logged;
  halved.halved = true;
  logged.log = run.make("log", {6, 8});
  logged.places = run.make("places", {16}, DType::kI32);
  logged.free = run.make("free", {6}, DType::kI32);
  EXPECT_THROW(fwpkm_memory(run, q, v, {}, keys, values, s, {}, {}, halved), Error);
  EXPECT_THROW(fwpkm_memory(run, q, v, {}, keys, values, s, {}, {}, logged), Error);
  EXPECT_NO_THROW(fwpkm_memory(run, q, v, {}, keys, values, s, {}, {}, store.rows()));
}

}  // namespace
}  // namespace fwpkm
