// The memory that stands alone: what is written is found, kept and refused.
#include "memory_api/memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "temp_dir.h"
#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

std::vector<float> draw(size_t count, uint64_t stream, double scale = 1) {
  const Random random(5, stream);
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(scale * random.normal_at(i));
  }
  return numbers;
}

// |found - wanted|^2 / |wanted|^2.
double error(const std::vector<float>& found, const std::vector<float>& wanted) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(found.at(i) - wanted[i], 2);
    length += std::pow(wanted[i], 2);
  }
  return difference / length;
}

constexpr size_t kKey = 32, kValue = 24;

Memory::Settings small() {
  return {.key_dim = kKey, .value_dim = kValue, .n_subkeys = 64, .topk = 4};
}

TEST(MemoryApi, FindsWhatWasWritten) {
  constexpr size_t kPairs = 400;
  for (const Memory::Score score : {Memory::Score::kDistance, Memory::Score::kDot}) {
    // Dot products of such keys are far apart: the softmax takes one slot, and more keys share it.
    const bool dot = score == Memory::Score::kDot;
    Memory memory({.key_dim = 64, .value_dim = 48, .n_subkeys = dot ? 1024 : 256, .score = score});
    const auto keys = draw(kPairs * 64, 1), values = draw(kPairs * 48, 2);
    EXPECT_EQ(error(memory.read(keys), values), 1);  // zeros
    memory.write(keys, values);
    EXPECT_LT(error(memory.read(keys), values), 0.01);
    // Others find little.
    EXPECT_GT(error(memory.read(draw(kPairs * 64, 3)), values), 0.9);
    EXPECT_GT(memory.rows(), 0);
    EXPECT_LE(memory.rows(), static_cast<int64_t>(kPairs) * 8);
    EXPECT_EQ(memory.slots(), dot ? 1 << 20 : 1 << 16);
    EXPECT_LT(memory.bytes(), 16u << 20);
  }
}

TEST(MemoryApi, TheNewestValueWins) {
  Memory memory(small());
  const auto key = draw(kKey, 1), first = draw(kValue, 2), second = draw(kValue, 3);
  memory.write(key, first);
  EXPECT_LT(error(memory.read(key), first), 1e-10);
  memory.write(key, second);
  EXPECT_LT(error(memory.read(key), second), 1e-10);
}

// One pair, by hand: the prediction moves by eta * strength * sum_i w_i^2.
TEST(MemoryApi, StepsAndStrengths) {
  const auto key = draw(kKey, 1), value = draw(kValue, 2);
  const auto moved = [&](const Memory::Step& step, std::vector<float> strengths) {
    Memory::Settings settings = small();
    settings.value_step = step;
    Memory memory(settings);
    memory.write(key, value, strengths);
    const Memory::Reading r = memory.read_with_slots(key);
    double squares = 0;
    for (const float w : r.weights) {
      squares += double(w) * w;
    }
    return std::pair(r.values[0] / value[0], squares);
  };
  const double squares = moved(Memory::Step::paper(), {}).second;
  EXPECT_GT(squares, 0.25);
  EXPECT_LT(squares, 1);
  EXPECT_NEAR(moved(Memory::Step::rewrite(), {}).first, 1, 1e-5);
  EXPECT_NEAR(moved(Memory::Step::rewrite(), {0.25f}).first, 0.25, 1e-5);
  EXPECT_NEAR(moved(Memory::Step::rewrite(), {0.0f}).first, 0, 1e-5);
  EXPECT_NEAR(moved(Memory::Step::paper(), {}).first, squares, 1e-5);
  EXPECT_NEAR(moved(Memory::Step::slots(), {}).first, 4 * squares, 1e-5);
  EXPECT_NEAR(moved(Memory::Step::of(0.5), {0.5f}).first, squares / 4, 1e-5);
}

TEST(MemoryApi, ManyAtOnceFindTheSameAsOneByOne) {
  Memory memory(small());
  memory.write(draw(200 * kKey, 1), draw(200 * kValue, 2));
  constexpr size_t kReads = 1100;  // more than are read at once inside
  const auto keys = draw(kReads * kKey, 7);
  const Memory::Reading all = memory.read_with_slots(keys);
  std::vector<float> into(kReads * kValue);
  memory.read(keys, into);
  EXPECT_EQ(into, all.values);
  EXPECT_EQ(memory.read(keys), all.values);
  for (size_t i = 0; i < kReads; ++i) {
    const Memory::Reading one = memory.read_with_slots({keys.data() + i * kKey, kKey});
    ASSERT_TRUE(std::equal(one.values.begin(), one.values.end(), &all.values[i * kValue])) << i;
    ASSERT_TRUE(std::equal(one.slots.begin(), one.slots.end(), &all.slots[i * 4])) << i;
    ASSERT_TRUE(std::equal(one.weights.begin(), one.weights.end(), &all.weights[i * 4])) << i;
    EXPECT_NEAR(one.weights[0] + one.weights[1] + one.weights[2] + one.weights[3], 1, 1e-6);
  }
  EXPECT_TRUE(memory.read({}).empty());
}

TEST(MemoryApi, ThreadsMayReadTogether) {
  Memory memory(small());
  memory.write(draw(200 * kKey, 1), draw(200 * kValue, 2));
  const auto keys = draw(300 * kKey, 1);
  const auto expected = memory.read(keys);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        count += memory.read(keys) == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(MemoryApi, CopiesAreTheirOwnAndClearForgets) {
  const auto keys = draw(50 * kKey, 1), values = draw(50 * kValue, 2);
  Memory::Settings settings = small();
  settings.addr_weight = 3;
  Memory memory(settings);
  const auto slots = memory.read_with_slots(keys).slots;
  memory.write(keys, values);
  const auto found = memory.read(keys);
  Memory copy = memory;
  copy.write(keys, draw(50 * kValue, 3));
  EXPECT_NE(copy.read(keys), found);
  EXPECT_EQ(memory.read(keys), found);
  Memory moved = std::move(copy);
  moved = memory;
  EXPECT_EQ(moved.read(keys), found);
  memory.clear();
  EXPECT_EQ(memory.rows(), 0);
  EXPECT_EQ(memory.read(keys), std::vector<float>(values.size()));
  EXPECT_EQ(memory.read_with_slots(keys).slots, slots);
  memory.write(keys, values);
  EXPECT_EQ(memory.read(keys), found);
}

TEST(MemoryApi, ComesBackFromAFileBitForBit) {
  const TempDir dir;
  const auto keys = draw(300 * kKey, 1);
  for (const double addr_weight : {0.0, 2.5}) {
    Memory::Settings settings = small();
    settings.addr_weight = addr_weight;
    settings.score = addr_weight > 0 ? Memory::Score::kDot : Memory::Score::kDistance;
    settings.value_step = addr_weight > 0 ? Memory::Step::of(0.1) : Memory::Step::slots();
    settings.seed = std::numeric_limits<uint64_t>::max();
    settings.key_scale = 0.3;
    Memory memory(settings);
    memory.save(dir / "empty");
    EXPECT_EQ(Memory::load(dir / "empty", settings).rows(), 0);
    memory.write(keys, draw(300 * kValue, 2));
    memory.save(dir / "m.safetensors");
    Memory back = Memory::load(dir / "m.safetensors");
    EXPECT_TRUE(back.settings() == settings);
    EXPECT_EQ(back.rows(), memory.rows());
    EXPECT_EQ(back.read(keys), memory.read(keys));
    // And goes on alike, sub-keys included.
    back.write(keys, draw(300 * kValue, 4));
    memory.write(keys, draw(300 * kValue, 4));
    EXPECT_EQ(back.read(draw(99 * kKey, 5)), memory.read(draw(99 * kKey, 5)));
    back.save(dir / "a");
    memory.save(dir / "b");
    EXPECT_EQ(read_text(dir / "a"), read_text(dir / "b"));
    // Only what was touched is stored.
    EXPECT_LT(std::filesystem::file_size(dir / "a"), memory.bytes() + 4096);
  }
}

TEST(MemoryApi, RefusesFilesThatAreNotWhole) {
  const TempDir dir;
  Memory memory(small());
  memory.write(draw(20 * kKey, 1), draw(20 * kValue, 2));
  memory.save(dir / "good");
  const std::string good = read_text(dir / "good");
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(dir / "bad", std::ios::binary) << bytes;
    try {
      Memory::load(dir / "bad");
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find((dir / "bad").string()), std::string::npos) << e.what();
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(good));
  for (size_t size = 0; size < good.size(); size += size < 1200 ? 7 : 97) {
    EXPECT_TRUE(refused(good.substr(0, size))) << size;
  }
  // A flipped bit anywhere, but for the padding of the header.
  for (size_t at = 0; at < good.size(); at += at < 1200 ? 1 : 61) {
    if (good[at] == ' ') {
      continue;
    }
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    EXPECT_TRUE(refused(bad)) << "byte " << at << " of " << good.size();
  }
  SafeTensorsWriter writer(dir / "foreign");
  writer.declare("keys", DType::kF32, {1});
  writer.append("keys", std::vector<float>{1});
  writer.commit();
  expect_error([&] { Memory::load(dir / "foreign"); }, "foreign", "not a memory");
  expect_error([&] { Memory::load(dir / "nowhere"); }, "nowhere");
  Memory::Settings other = small();
  other.topk = 5;
  expect_error([&] { Memory::load(dir / "good", other); }, "good", "topk=4, not 5");
  expect_error([&] { memory.save(dir / "no" / "such" / "folder"); }, "folder");
}

TEST(MemoryApi, AKilledSaveLeavesTheOldFile) {
  const TempDir dir;
  const auto keys = draw(300 * kKey, 1);
  Memory a(small()), b(small());
  a.write(keys, draw(300 * kValue, 2));
  b.write(keys, draw(300 * kValue, 3));
  const auto in_a = a.read(keys), in_b = b.read(keys);
  a.save(dir / "m");
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {
        b.save(dir / "m");
        a.save(dir / "m");
      }
    }
    ::usleep(static_cast<useconds_t>(1000 + 1700 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    const auto found = Memory::load(dir / "m").read(keys);
    EXPECT_TRUE(found == in_a || found == in_b) << round;
  }
  a.save(dir / "m");
  EXPECT_EQ(dir.entries(), 1u);  // no leftovers
}

TEST(MemoryApi, SaysWhatIsWrong) {
  const auto settings_fail = [](const std::string& text, auto&& change) {
    Memory::Settings settings = small();
    change(settings);
    expect_error([&] { Memory memory(settings); }, text);
  };
  settings_fail("key_dim=33", [](auto& s) { s.key_dim = 33; });
  settings_fail("key_dim=0", [](auto& s) { s.key_dim = 0; });
  settings_fail("value_dim=-1", [](auto& s) { s.value_dim = -1; });
  settings_fail("n_subkeys=50000", [](auto& s) { s.n_subkeys = 50000; });
  settings_fail("topk=65", [](auto& s) { s.topk = 65; });
  settings_fail("key_scale=0", [](auto& s) { s.key_scale = 0; });
  settings_fail("addr_weight=nan", [](auto& s) { s.addr_weight = NAN; });
  settings_fail("value_step=-1", [](auto& s) { s.value_step = Memory::Step::of(-1); });

  Memory memory(small());
  auto keys = draw(2 * kKey, 1), values = draw(2 * kValue, 2);
  const auto before = memory.read(keys);
  expect_error([&] { memory.write(draw(kKey + 1, 1), values); }, "33 numbers", "keys of 32");
  expect_error([&] { memory.write(keys, draw(kValue, 1)); }, "2 keys, but 1 values");
  expect_error([&] { memory.write(keys, values, draw(1, 1)); }, "2 keys, but 1 strengths");
  expect_error(
      [&] {
        memory.write(keys, values, std::vector<float>{0.5f, 1.5f});
      },
      "strength 1", "1.5");
  expect_error([&] { memory.read(draw(5, 1)); }, "5 numbers");
  expect_error([&] { memory.read(keys, std::span(values).first(3)); }, "room for 3");
  values[kValue + 3] = NAN;
  expect_error([&] { memory.write(keys, values); }, "number 3 of vector 1 of values is nan");
  keys[1] = INFINITY;
  expect_error([&] { memory.read(keys); }, "number 1 of vector 0 of keys is inf");
  EXPECT_EQ(memory.rows(), 0);
  memory.write({}, {});
  EXPECT_EQ(memory.rows(), 0);
  EXPECT_EQ(before, std::vector<float>(2 * kValue));
}

}  // namespace
}  // namespace fwpkm
