#include <gtest/gtest.h>

#include <cmath>

#include "session/session.h"
#include "session_models.h"

namespace fwpkm {
namespace {

// The loss of a token by hand, from the logits before it.
double by_hand(const std::vector<double>& logits, int32_t token) {
  double sum = 0;
  for (const double x : logits) {
    sum += std::exp(x);
  }
  return std::log(sum) - logits[static_cast<size_t>(token)];
}

TEST(SessionWatch, LossesAreThoseOfTheLogits) {
  const auto model = session_model(small_session_json(), Device::reference());
  const auto tokens = tiny_tokens(40, 50, 3);
  std::vector<double> expected;
  Session slow(model);
  for (size_t i = 0; i < tokens.size(); ++i) {
    expected.push_back(i == 0 ? NAN : by_hand(slow.logits(), tokens[i]));
    slow.feed({&tokens[i], 1});
  }
  for (const size_t cut : {1u, 7u, 40u}) {
    Session session(model);
    std::vector<double> losses;
    const Watch watch = {.losses =
                             [&](size_t number, std::span<const double> some) {
                               EXPECT_EQ(number, 0u);
                               losses.insert(losses.end(), some.begin(), some.end());
                             },
                         .memory = {}};
    for (size_t at = 0; at < tokens.size(); at += cut) {
      session.feed(std::span(tokens).subspan(at, std::min(cut, tokens.size() - at)), true, watch);
    }
    ASSERT_EQ(losses.size(), tokens.size());
    EXPECT_TRUE(std::isnan(losses[0]));
    for (size_t i = 1; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-9) << "token " << i << ", cut " << cut;
    }
    // A stream that begins anew has nothing to expect its first token by.
    session.reset_tokens();
    losses.clear();
    session.feed(std::span(tokens).first(2), true, watch);
    EXPECT_TRUE(std::isnan(losses[0]));
    EXPECT_TRUE(std::isfinite(losses[1]));
  }
}

TEST(SessionWatch, SessionsAreToldApart) {
  const auto model = session_model(small_session_json(), Device::cpu());
  const std::vector<std::vector<int32_t>> texts = {tiny_tokens(9, 50, 1), tiny_tokens(30, 50, 2),
                                                   tiny_tokens(21, 50, 3)};
  std::vector<Session> alone, together;
  std::vector<Session*> pointers;
  std::vector<std::span<const int32_t>> spans;
  for (size_t i = 0; i < texts.size(); ++i) {
    alone.emplace_back(model);
    together.emplace_back(model);
    spans.push_back(texts[i]);
  }
  for (Session& session : together) {
    pointers.push_back(&session);
  }
  struct Seen {
    std::vector<double> losses;
    std::map<int, std::vector<int32_t>> slots;  // that were read
    int64_t gates = 0, updates = 0;
  };
  const auto watch_into = [](std::vector<Seen>* seen, size_t shift) {
    return Watch{.losses =
                     [=](size_t i, std::span<const double> some) {
                       auto& all = (*seen)[i + shift].losses;
                       all.insert(all.end(), some.begin(), some.end());
                     },
                 .memory =
                     [=](const MemoryRecord& record, std::span<const size_t> sessions) {
                       if (record.gates) {
                         for (const size_t i : sessions) {
                           (*seen)[i + shift].gates += record.gates.dim(1);
                         }
                         EXPECT_EQ(record.gates.dim(0), std::ssize(sessions));
                         return;
                       }
                       Seen& one = (*seen)[sessions[static_cast<size_t>(record.row)] + shift];
                       if (record.update) {
                         ++one.updates;
                         return;
                       }
                       const View& slots = record.fwpkm.slots.view();
                       auto& list = one.slots[record.layer];
                       list.insert(list.end(), slots.ptr<int32_t>(),
                                   slots.ptr<int32_t>() + slots.size());
                     }};
  };
  std::vector<Seen> apart(texts.size()), joint(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    alone[i].feed(texts[i], true, watch_into(&apart, i));
    alone[i].flush(watch_into(&apart, i));
  }
  Session::feed_together(pointers, spans, true, watch_into(&joint, 0));
  for (size_t i = 0; i < texts.size(); ++i) {
    together[i].flush(watch_into(&joint, i));
    EXPECT_EQ(joint[i].slots, apart[i].slots) << i;
    EXPECT_EQ(joint[i].gates, 2 * std::ssize(texts[i]));
    EXPECT_EQ(joint[i].updates, apart[i].updates);
    EXPECT_EQ(joint[i].updates, together[i].updates() * 2);
    ASSERT_EQ(joint[i].losses.size(), texts[i].size());
    for (size_t t = 1; t < texts[i].size(); ++t) {
      EXPECT_NEAR(joint[i].losses[t], apart[i].losses[t], 1e-4);
    }
  }
}

}  // namespace
}  // namespace fwpkm
