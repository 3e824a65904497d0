#include "eval/probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "session_models.h"

namespace fwpkm {
namespace {

TEST(Probe, GatesAreThoseOfASlowReader) {
  const auto model = session_model(small_session_json(), Device::reference());
  const auto tokens = tiny_tokens(40, 50, 3);
  Session session(model), slow(model);
  session.feed(std::span(tokens).first(5));
  slow.feed(std::span(tokens).first(5));
  const auto rest = std::span(tokens).subspan(5);
  const GateTrace trace = trace_gates(&session, rest);
  EXPECT_EQ(trace.layers, (std::vector<int>{1, 3}));
  std::map<int, std::vector<double>> gates;
  std::vector<std::pair<int64_t, int64_t>> updates;
  for (size_t t = 0; t < rest.size(); ++t) {
    const int64_t before = slow.updates();
    slow.feed(rest.subspan(t, 1), true,
              {.losses = {}, .memory = [&](const MemoryRecord& record, auto) {
                 if (record.gates) {
                   gates[record.layer].push_back(to_host(record.gates.view())[0]);
                 }
               }});
    if (slow.updates() > before) {
      updates.emplace_back(static_cast<int64_t>(t + 1), slow.updates());
    }
  }
  for (size_t l = 0; l < 2; ++l) {
    ASSERT_EQ(trace.gates[l].size(), rest.size());
    for (size_t t = 0; t < rest.size(); ++t) {
      EXPECT_NEAR(trace.gates[l][t], gates[trace.layers[l]][t], 1e-12);
    }
  }
  ASSERT_EQ(trace.updates.size(), updates.size());
  ASSERT_GT(updates.size(), 2u);
  for (size_t i = 0; i < updates.size(); ++i) {
    EXPECT_EQ(trace.updates[i].before, updates[i].first);
    EXPECT_EQ(trace.updates[i].number, updates[i].second);
  }
  Session frozen(model);
  EXPECT_TRUE(trace_gates(&frozen, rest, false).updates.empty());
}

TEST(Probe, SlotsAreThoseThatWereRead) {
  const auto model = session_model(small_session_json(), Device::reference());
  const auto tokens = tiny_tokens(60, 50, 4);
  Session session(model), slow(model);
  for (Session* each : {&session, &slow}) {
    each->feed(tokens);
    each->flush();
  }
  const auto prompt = tiny_tokens(3, 50, 9);
  const std::vector<int32_t> expected = {tokens[10], tokens[11]};
  const std::vector<Probe> probes = probe_slots(&session, prompt, 4, expected);
  ASSERT_EQ(probes.size(), 4u);
  EXPECT_EQ(session.updates(), slow.updates());  // nothing was written
  EXPECT_EQ(session.slots(1), slow.slots(1));
  // Token by token: the reads of the last token that was read made the next one.
  std::map<int, std::vector<std::pair<int32_t, double>>> reads;
  const Watch watch = {.losses = {}, .memory = [&](const MemoryRecord& record, auto) {
                         if (!record.fwpkm.slots) {
                           return;
                         }
                         auto& list = reads[record.layer];
                         list.clear();
                         const auto weights = to_host(record.fwpkm.weights.view());
                         for (size_t i = 0; i < weights.size(); ++i) {
                           list.emplace_back(record.fwpkm.slots.view().ptr<int32_t>()[i],
                                             weights[i]);
                         }
                       }};
  for (const int32_t token : prompt) {
    slow.feed({&token, 1}, false, watch);
  }
  int32_t last = prompt.back();
  for (size_t i = 0; i < probes.size(); ++i) {
    const Probe& probe = probes[i];
    EXPECT_EQ(probe.token, last);
    EXPECT_EQ(probe.position, 60 + 2 + static_cast<int64_t>(i));
    EXPECT_EQ(probe.needs, i < 2 ? expected[i] : probe.said);
    size_t at = 0;
    for (const int layer : {1, 3}) {
      for (const auto& [slot, weight] : reads[layer]) {  // fall in weight already
        ASSERT_LT(at, probe.reads.size());
        const Probe::Read& read = probe.reads[at++];
        EXPECT_EQ(read.layer, layer);
        EXPECT_EQ(read.slot, slot);
        EXPECT_NEAR(read.weight, weight, 1e-12);
        const SlotHistory history = slow.history(layer, slot);
        EXPECT_EQ(read.history.count, history.count);
        // Position p wrote what came after it in the text.
        const bool hit = history.count > 0 &&
                         tokens[static_cast<size_t>(history.writes[0].position + 1)] == probe.needs;
        EXPECT_EQ(read.hit, hit);
      }
    }
    EXPECT_EQ(at, probe.reads.size());
    const auto logits = slow.logits();
    last = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(probe.said, last);
    slow.feed({&last, 1}, false, watch);
  }
  EXPECT_THROW(probe_slots(&session, {}, 1), Error);
}

}  // namespace
}  // namespace fwpkm
