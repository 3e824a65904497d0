#include "session/session.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "base/machine.h"
#include "check/compare.h"
#include "session/section_file.h"
#include "session_models.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

std::vector<int32_t> text(int64_t count, uint64_t seed) {
  return tiny_tokens(count, 50, seed);
}

// A text that has one spelling.
std::vector<std::vector<int32_t>> one(const std::vector<int32_t>& tokens) {
  return {tokens};
}

void expect_error(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    FAIL() << "no error; wanted: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

class Sessions : public testing::Test {
 protected:
  Session read(int64_t count = 60, uint64_t seed = 1) const {
    Session session(model_);
    session.feed(text(count, seed));
    return session;
  }
  std::string saved(const Session& session) const {
    session.save(dir_ / "saved");
    return read_text(dir_ / "saved");
  }

  TempDir dir_;
  std::shared_ptr<const Model> model_ = session_model(small_session_json(), Device::cpu());
};

TEST_F(Sessions, CountWhatTheyRead) {
  Session session(model_);
  EXPECT_EQ(session.position(), 0);
  expect_error([&] { session.logits(); }, "nothing was read yet");
  expect_error([&] { session.next({}); }, "nothing was read yet");
  expect_error([&] { session.feed(std::vector<int32_t>{3, 50}); }, "token 50");
  session.feed(text(20, 1));
  EXPECT_EQ(session.position(), 20);
  EXPECT_EQ(session.updates(), 2);  // 19 pairs are complete
  EXPECT_EQ(session.queued(), 4);
  session.feed(text(5, 2), false);  // never enters the queue
  EXPECT_EQ(session.position(), 25);
  EXPECT_EQ(session.queued(), 4);
  session.flush();
  EXPECT_EQ(session.updates(), 3);
  EXPECT_EQ(session.queued(), 1);
  session.reset_tokens();
  EXPECT_EQ(session.in_stream(), 0);
  EXPECT_EQ(session.position(), 25);
  EXPECT_GT(session.slots(1), 0);
  expect_error([&] { session.logits(); }, "nothing was read yet");
  session.reset_memory();
  EXPECT_EQ(session.slots(1), 0);
  EXPECT_EQ(session.updates(), 0);
  EXPECT_EQ(session.bytes().rows, 0u);
}

TEST_F(Sessions, ForksGoTheirOwnWay) {
  Session first = read();
  const std::string before = saved(first);
  Session second = first.fork();
  EXPECT_EQ(saved(second), before);
  second.feed(text(40, 2));
  EXPECT_EQ(saved(first), before);
  // The same as without a fork in between, whichever goes on.
  Session alone = read();
  alone.feed(text(40, 2));
  EXPECT_EQ(saved(second), saved(alone));
  first.feed(text(40, 2));
  EXPECT_EQ(saved(first), saved(alone));
}

TEST_F(Sessions, MarksComeBack) {
  Session session = read();
  const std::string before = saved(session);
  session.mark("a");
  session.feed(text(30, 2));
  const std::string later_tokens = saved(session.fork());
  session.mark("b");
  session.rollback("a");
  EXPECT_EQ(session.position(), 60);
  session.rollback("b");  // made later than a, and still there
  EXPECT_EQ(session.position(), 90);
  session.save(dir_ / "marks");
  Session again = Session::load(model_, dir_ / "marks");
  EXPECT_EQ(again.marks(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(saved(again.at_mark("a")), before);
  again.rollback("a");
  again.remove_mark("a");
  again.remove_mark("b");
  EXPECT_EQ(saved(again), before);
  expect_error([&] { again.rollback("c"); }, "there is no mark 'c'");
  expect_error([&] { session.rollback("c"); }, "a, b");
  expect_error([&] { session.mark(""); }, "a mark needs a name");
}

// Rows that marks share are in the file once.
TEST_F(Sessions, MarksShareRowsInTheFile) {
  Session session = read(200);
  const size_t one = saved(session).size();
  const size_t rows = session.bytes().rows + session.bytes().history;
  for (const char* name : {"a", "b", "c"}) {
    session.mark(name);
  }
  EXPECT_LT(saved(session).size(), one + 3 * one - 2 * rows);
}

TEST_F(Sessions, ReadTogetherAsAlone) {
  // In double; in float products of several rows round differently.
  const auto model = session_model(small_session_json(), Device::reference());
  const std::vector<std::vector<int32_t>> texts = {text(50, 1), text(33, 2), {}, text(90, 3)};
  std::vector<Session> together, alone;
  for (size_t i = 0; i < texts.size(); ++i) {
    together.emplace_back(model);
    alone.emplace_back(model);
    together[i].feed(text(7 * static_cast<int64_t>(i), 9));  // at different positions
    alone[i].feed(text(7 * static_cast<int64_t>(i), 9));
    alone[i].feed(texts[i]);
  }
  std::vector<Session*> all;
  std::vector<std::span<const int32_t>> spans;
  for (size_t i = 0; i < texts.size(); ++i) {
    all.push_back(&together[i]);
    spans.emplace_back(texts[i]);
  }
  Session::feed_together(all, spans);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(together[i].position(), alone[i].position());
    EXPECT_EQ(together[i].updates(), alone[i].updates());
    EXPECT_EQ(together[i].written(1), alone[i].written(1));
    if (together[i].position() > 0) {
      EXPECT_LE(relative_error(together[i].logits(), alone[i].logits()), 1e-9) << i;
    }
    for (const int32_t slot : alone[i].written(1)) {
      EXPECT_EQ(together[i].history(1, slot).writes[0].tokens,
                alone[i].history(1, slot).writes[0].tokens);
    }
  }
  Session* twice[] = {&together[0], &together[0]};
  expect_error([&] { Session::feed_together(twice, std::span(spans).subspan(0, 2)); }, "twice");
  Session other(session_model(small_session_json(), Device::reference()));
  Session* mixed[] = {&together[0], &other};
  expect_error([&] { Session::feed_together(mixed, std::span(spans).subspan(0, 2)); },
               "of one model");
}

TEST_F(Sessions, RunInThreads) {
  const Session base = read(80);
  constexpr int kThreads = 4;
  std::vector<std::string> right, got(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    Session session = base.fork();
    session.feed(text(100, static_cast<uint64_t>(10 + i)));
    right.push_back(saved(session));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto tokens = text(100, static_cast<uint64_t>(10 + i));
      for (int round = 0; round < 5; ++round) {
        Session session = base.fork();
        for (size_t at = 0; at < tokens.size(); at += 100) {
          session.feed(std::span(tokens).subspan(at, 100));
        }
        const auto path = dir_ / fmt::format("thread{}", i);
        session.save(path);
        got[static_cast<size_t>(i)] = read_text(path);
        Session::load(model_, path);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)], right[static_cast<size_t>(i)]) << i;
  }
}

// History tells of each write the query, the target and what stood around them.
TEST_F(Sessions, RememberWhoWroteASlot) {
  const auto tokens = text(60, 1);
  Session session(model_);
  session.feed(std::span(tokens).subspan(0, 23));
  session.feed(std::span(tokens).subspan(23));
  ASSERT_GT(session.slots(1), 10);
  int64_t writes = 0;
  for (const int32_t slot : session.written(1)) {
    const SlotHistory history = session.history(1, slot);
    EXPECT_GT(history.count, 0);
    writes += history.count;
    int64_t before = INT64_MAX;
    for (const SlotWrite& write : history.kept()) {
      EXPECT_LT(write.position, before);  // the newest first; a slot once per token and head
      before = write.position;
      EXPECT_EQ(write.query(), tokens[static_cast<size_t>(write.position)]);
      EXPECT_EQ(write.target(1), tokens[static_cast<size_t>(write.position + 1)]);
      if (write.position >= SlotWrite::kBefore) {
        EXPECT_EQ(write.tokens[0],
                  tokens[static_cast<size_t>(write.position) - SlotWrite::kBefore]);
      } else {
        EXPECT_EQ(write.tokens[0], -1);
      }
      EXPECT_GT(write.strength, 0);
    }
  }
  EXPECT_EQ(writes, 7 * 8 * 3);  // 7 updates of 8 pairs, 3 slots each
  Session without(model_, {.history = false});
  without.feed(std::span(tokens).subspan(0, 23));
  without.feed(std::span(tokens).subspan(23));
  EXPECT_EQ(without.bytes().history, 0u);
  EXPECT_EQ(without.history(1, without.written(1)[0]).count, 0);
  EXPECT_EQ(without.logits(), session.fork().logits()) << "history changes nothing else";
}

// What is found by its text is what wrote it.
TEST_F(Sessions, FindSlotsByText) {
  const auto tokens = text(90, 1);
  Session session(model_);
  session.feed(tokens);
  session.flush();
  const std::vector<int32_t> part(tokens.begin() + 70, tokens.begin() + 80);
  const auto found = session.written_by(one(part));
  std::set<std::pair<int, int32_t>> expected;
  for (const int layer : {1, 3}) {
    for (const int32_t slot : session.written(layer)) {
      const SlotHistory history = session.history(layer, slot);
      for (const SlotWrite& write : history.kept()) {
        // From the fourth on: four tokens tell, and those after a chunk are not known.
        if (write.position >= 73 && write.position < 80) {
          expected.insert({layer, slot});
        }
      }
    }
  }
  EXPECT_GT(expected.size(), 5u);
  for (const auto& slot : expected) {
    EXPECT_NE(std::find(found.begin(), found.end(), slot), found.end());
  }
  for (const auto& [layer, slot] : found) {
    const auto history = session.history(layer, slot);
    EXPECT_TRUE(std::any_of(history.kept().begin(), history.kept().end(), [](const SlotWrite& w) {
      return w.position >= 70 && w.position < 80;
    })) << slot;
  }
  EXPECT_TRUE(session.written_by(one(text(12, 77))).size() < 3);
  session.feed(std::span(part).subspan(0, 5));
  EXPECT_TRUE(session.queued_from(one(part)));
  EXPECT_FALSE(session.queued_from(one(text(12, 77))));
}

TEST_F(Sessions, ForgetAndDiff) {
  Session session = read(100);
  const Session before = session.fork();
  EXPECT_TRUE(Session::diff(before, session).slots.empty());
  const int32_t slot = session.written(3)[2];
  EXPECT_TRUE(session.forget(3, slot));
  EXPECT_FALSE(session.forget(3, slot));
  EXPECT_EQ(session.slots(3), before.slots(3) - 1);
  EXPECT_EQ(session.history(3, slot).count, 0);
  const SessionDiff diff = Session::diff(before, session);
  ASSERT_EQ(diff.slots.size(), 1u);
  EXPECT_EQ(diff.slots[0].layer, 3);
  EXPECT_EQ(diff.slots[0].slot, slot);
  EXPECT_FALSE(diff.slots[0].written);
  EXPECT_GT(diff.slots[0].change, 0);
  EXPECT_GT(diff.slots[0].before.count, 0);
  // As if it had never been written: the next read finds the model's row.
  session.save(dir_ / "forgot");
  EXPECT_EQ(Session::load(model_, dir_ / "forgot").written(3), session.written(3));
  // A fork that reads on differs in what it wrote, and says what wrote it.
  Session after = before.fork();
  after.feed(text(16, 5));
  const SessionDiff more = Session::diff(before, after);
  EXPECT_GT(more.slots.size(), 10u);
  EXPECT_EQ(more.keys.size(), 2u);
  EXPECT_GT(more.keys[0].moved, 0);
  for (const SlotChange& change : more.slots) {
    EXPECT_GE(change.after.writes[0].position, 100 - 8);
  }
  // Through files, where rows are not shared, it is the same.
  before.save(dir_ / "before");
  after.save(dir_ / "after");
  const SessionDiff files =
      Session::diff(Session::load(model_, dir_ / "before"), Session::load(model_, dir_ / "after"));
  ASSERT_EQ(files.slots.size(), more.slots.size());
  for (size_t i = 0; i < files.slots.size(); ++i) {
    EXPECT_EQ(files.slots[i].slot, more.slots[i].slot);
    EXPECT_EQ(files.slots[i].change, more.slots[i].change);
  }
  expect_error([&] { session.forget(0, 1); }, "memories are in layers 1, 3");
  expect_error([&] { session.forget(1, 256); }, "outside 0..255");
  expect_error([&] { session.written(4); }, "layer 4 is outside 0..3");
  expect_error([&] { session.history(-1, 0); }, "layer -1 is outside 0..3");
  expect_error([&] { session.slots(4); }, "layer 4 is outside 0..3");
}

TEST_F(Sessions, OtherWeightsAreRefusedByName) {
  read().save(dir_ / "s");
  expect_error(
      [&] { Session::load(session_model(small_session_json(), Device::cpu(), 41), dir_ / "s"); },
      "has other weights: ");
  nlohmann::json config = small_session_json();
  config["fwpkm"]["chunk"] = 9;
  expect_error([&] { Session::load(session_model(config, Device::cpu()), dir_ / "s"); },
               "fwpkm.chunk was 8, now it is 9");
  expect_error(
      [&] { Session::load(session_model(small_session_json(), Device::reference()), dir_ / "s"); },
      "numbers of type F32");
  // One number of one tensor.
  auto changed =
      std::make_shared<Model>(parse_config(small_session_json(), "test"), Device::cpu(), false);
  randomize(&changed->parameters(), 40);
  changed->parameters().at("model.norm.weight").view().ptr<float>()[3] += 1e-3f;
  expect_error([&] { Session::load(changed, dir_ / "s"); }, "model.norm.weight");
}

TEST_F(Sessions, DamageIsNamedBySection) {
  Session session = read(100);
  session.mark("m");
  session.save(dir_ / "s");
  const std::string good = read_text(dir_ / "s");
  const auto put = [&](const std::string& bytes) {
    std::ofstream(dir_ / "bad", std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  std::set<std::string> named;
  for (size_t at = 0; at < good.size(); at += at < 200 ? 7 : 509) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    put(bad);
    try {
      const Session loaded = Session::load(model_, dir_ / "bad");
      EXPECT_EQ(saved(loaded), good) << "byte " << at;  // only padding may change unseen
    } catch (const Error& error) {
      const std::string what = error.what();
      const size_t quote = what.find("section '");
      if (quote != std::string::npos) {
        named.insert(what.substr(quote, what.find('\'', quote + 9) - quote));
      } else {
        EXPECT_TRUE(what.find("header") != std::string::npos ||
                    what.find("is not a session") != std::string::npos ||
                    what.find("version") != std::string::npos)
            << what;
      }
    }
  }
  EXPECT_GT(named.size(), 10u);
  for (size_t size = 0; size < good.size(); size += size < 100 ? 9 : 1531) {
    put(good.substr(0, size));
    EXPECT_THROW(Session::load(model_, dir_ / "bad"), Error) << size;
  }
  expect_error(
      [&] {
        put(good.substr(0, good.size() - 1));
        Session::load(model_, dir_ / "bad");
      },
      "is cut off in section '");
}

TEST_F(Sessions, AboutComesBackWithoutTheModel) {
  read().save(dir_ / "s", {{"model", "somewhere"}});
  EXPECT_EQ(Session::load_about(dir_ / "s").at("model"), "somewhere");
}

// Sessions cost what they wrote, and a mapped file costs nothing until it is touched.
TEST_F(Sessions, CostWhatTheyWrote) {
  const auto model = session_model(
      memory_model(
          {{"vocab_size", 50}, {"fwpkm", {{"chunk", 8}, {"n_subkeys", 128}, {"value_dim", 64}}}}),
      Device::cpu());
  Session base(model);
  base.feed(text(300, 1));
  ASSERT_GT(base.bytes().rows, 200000u);
  const int64_t before = allocated_memory();
  std::vector<Session> forks;
  for (int i = 0; i < 1000; ++i) {
    forks.push_back(base.fork());
  }
  if (before > 0) {  // not under a sanitizer
    EXPECT_LT(allocated_memory() - before, 1000 * 8000);
  }
  // Those that read on make rows of their own, and no more than they wrote.
  for (int i = 0; i < 20; ++i) {
    forks[static_cast<size_t>(i)].feed(text(8, static_cast<uint64_t>(100 + i)));
  }
  EXPECT_LE(forks[0].bytes().rows, base.bytes().rows + 2 * 8 * 3 * 256);
}

TEST(SectionFile, ChecksumsDoNotDependOnPieces) {
  std::vector<std::byte> data(20000);
  Random random(1);
  for (std::byte& b : data) {
    b = static_cast<std::byte>(random.below(256));
  }
  Checksum whole;
  whole.add(data.data(), data.size());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random cuts(seed);
    Checksum sum;
    for (size_t at = 0; at < data.size();) {
      const auto count = std::min(data.size() - at, static_cast<size_t>(cuts.below(9000)));
      sum.add(data.data() + at, count);
      at += count;
    }
    EXPECT_EQ(sum.value(), whole.value());
  }
  Checksum shorter;
  shorter.add(data.data(), data.size() - 1);
  EXPECT_NE(shorter.value(), whole.value());
}

}  // namespace
}  // namespace fwpkm
