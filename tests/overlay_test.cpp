#include "memory/overlay.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "memory/slot_map.h"

namespace fwpkm {
namespace {

using Row = std::vector<float>;

Row row_of(float x, int64_t width = 3) {
  return Row(static_cast<size_t>(width), x);
}

Row found(const Overlay& overlay, int64_t owner, int32_t slot) {
  const auto* row = reinterpret_cast<const float*>(overlay.find(owner, slot));
  return row == nullptr ? Row() : Row(row, row + overlay.width());
}

// The row of a slot as kernels look it up.
Row looked_up(const OverlayViews& views, int64_t n, int64_t owner, int32_t slot) {
  if (!views) {
    return {};
  }
  const int32_t page = views.directory.view().ptr<int32_t>()[owner * n + slot / n];
  EXPECT_LT(page, views.pages.dim(0));
  const int32_t row = page < 0 ? -1 : views.pages.view().ptr<int32_t>()[page * n + slot % n];
  EXPECT_LT(row, views.rows.dim(0));
  const int64_t width = views.rows.dim(1);
  const float* at = views.rows.view().ptr<float>() + row * width;
  return row < 0 ? Row() : Row(at, at + width);
}

TEST(Overlay, KeepsRowsOfEachOwner) {
  Overlay overlay(2, 5, 3, Device::cpu());
  EXPECT_EQ(overlay.rows(), 0);
  EXPECT_FALSE(overlay.views());
  EXPECT_EQ(overlay.find(0, 0), nullptr);
  const size_t empty = overlay.bytes();
  EXPECT_EQ(empty, 2 * 5 * sizeof(int32_t));

  overlay.put(0, 24, row_of(1).data());
  overlay.put(1, 24, row_of(2).data());
  overlay.put(1, 23, row_of(3).data());
  EXPECT_EQ(found(overlay, 0, 24), row_of(1));
  EXPECT_EQ(found(overlay, 1, 24), row_of(2));
  EXPECT_EQ(found(overlay, 1, 23), row_of(3));
  EXPECT_EQ(overlay.find(0, 23), nullptr);
  EXPECT_EQ(overlay.rows(), 3);
  // Two pages: slots 23 and 24 of an owner share one.
  EXPECT_EQ(overlay.bytes(), empty + 2 * 5 * sizeof(int32_t) + 3 * 3 * sizeof(float));

  overlay.put(1, 24, row_of(4).data());
  EXPECT_EQ(found(overlay, 1, 24), row_of(4));
  EXPECT_EQ(overlay.rows(), 3);
}

TEST(Overlay, GivesNewRowsTheirPlace) {
  Overlay a(1, 4, 2, Device::cpu());
  const float first[] = {1, 2}, second[] = {3, 4};
  const int32_t number = a.renew(0, 5);
  EXPECT_EQ(a.number(0, 5), number);
  EXPECT_EQ(a.renew(0, 5), number);  // nobody else has it
  a.arena()->fill(number, first);
  Overlay fork = a;
  const int32_t other = fork.renew(0, 5);
  EXPECT_NE(other, number);
  fork.arena()->fill(other, second);
  EXPECT_EQ(a.number(0, 5), number);
  std::vector<float> rows(4);
  const int32_t both[] = {other, number};
  a.arena()->fetch(both, reinterpret_cast<std::byte*>(rows.data()));
  EXPECT_EQ(rows, (std::vector<float>{3, 4, 1, 2}));
}

TEST(Overlay, ReusesWhatIsCleared) {
  Overlay overlay(3, 5, 3, Device::cpu());
  for (int32_t slot = 0; slot < 25; slot += 2) {
    overlay.put(0, slot, row_of(static_cast<float>(slot)).data());
    overlay.put(2, slot, row_of(static_cast<float>(100 + slot)).data());
  }
  const size_t full = overlay.bytes();
  const int64_t rows = overlay.views().rows.dim(0), pages = overlay.views().pages.dim(0);
  EXPECT_EQ(rows, 26);
  EXPECT_EQ(pages, 10);
  overlay.clear(0);
  overlay.clear(1);  // has nothing
  EXPECT_EQ(overlay.rows(), 13);
  EXPECT_LT(overlay.bytes(), full);
  for (int32_t slot = 0; slot < 25; ++slot) {
    EXPECT_EQ(overlay.find(0, slot), nullptr);
    EXPECT_EQ(found(overlay, 2, slot),
              slot % 2 == 0 ? row_of(static_cast<float>(100 + slot)) : Row());
  }
  // Another owner, other slots: in the memory that became free, and with nothing of the old.
  for (int32_t slot = 1; slot < 25; slot += 2) {
    overlay.put(1, slot, row_of(static_cast<float>(-slot)).data());
  }
  EXPECT_EQ(overlay.views().rows.dim(0), rows);
  EXPECT_EQ(overlay.views().pages.dim(0), pages);
  for (int32_t slot = 0; slot < 25; ++slot) {
    EXPECT_EQ(found(overlay, 1, slot), slot % 2 == 1 ? row_of(static_cast<float>(-slot)) : Row());
  }
  overlay.clear(1);
  overlay.clear(2);
  EXPECT_EQ(overlay.rows(), 0);
  EXPECT_FALSE(overlay.views());
}

// Any sequence of calls, beside a map.
TEST(Overlay, AgreesWithAMap) {
  constexpr int64_t kOwners = 3, kN = 7, kWidth = 4;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Overlay overlay(kOwners, kN, kWidth, Device::cpu());
    std::map<std::pair<int64_t, int32_t>, Row> map;
    Random random(seed);
    for (int step = 0; step < 600; ++step) {
      const int64_t owner = random.below(kOwners);
      if (random.below(40) == 0) {
        overlay.clear(owner);
        std::erase_if(map, [&](const auto& entry) { return entry.first.first == owner; });
      } else {
        const auto slot = static_cast<int32_t>(random.below(kN * kN));
        const Row row = row_of(static_cast<float>(random.normal()), kWidth);
        overlay.put(owner, slot, row.data());
        map[{owner, slot}] = row;
      }
      ASSERT_EQ(overlay.rows(), static_cast<int64_t>(map.size()));
    }
    const OverlayViews views = overlay.views();
    for (int64_t owner = 0; owner < kOwners; ++owner) {
      for (int32_t slot = 0; slot < kN * kN; ++slot) {
        const auto it = map.find({owner, slot});
        const Row right = it == map.end() ? Row() : it->second;
        EXPECT_EQ(found(overlay, owner, slot), right);
        EXPECT_EQ(looked_up(views, kN, owner, slot), right);
      }
      int32_t last = -1;
      int64_t count = 0;
      overlay.for_each(owner, [&](int32_t slot, const std::byte* row) {
        EXPECT_GT(slot, last);
        last = slot;
        ++count;
        EXPECT_EQ(row, overlay.find(owner, slot));
      });
      EXPECT_EQ(count, std::count_if(map.begin(), map.end(), [&](const auto& entry) {
                  return entry.first.first == owner;
                }));
    }
  }
}

TEST(Overlay, HoldsDoublesOnTheReference) {
  Overlay overlay(1, 2, 2, Device::reference());
  const double row[] = {1.0 / 3, 2.0 / 3};
  overlay.put(0, 3, row);
  EXPECT_EQ(to_host(overlay.views().rows.view()), (std::vector<double>{1.0 / 3, 2.0 / 3}));
}

TEST(SlotMap, NumbersSlotsInOrder) {
  for (const int64_t entries : {1, 2, 3, 100, 1000}) {
    std::vector<uint64_t> memory(SlotMap::bytes(entries) / sizeof(uint64_t));
    EXPECT_GE(memory.size(), static_cast<size_t>(2 * entries));
    SlotMap map(memory.data(), entries);
    for (int round = 0; round < 2; ++round) {  // clearing makes it as new
      map.clear();
      Random random(static_cast<uint64_t>(entries), static_cast<uint64_t>(round));
      std::map<int32_t, int32_t> right;
      int32_t next = 0;
      for (int64_t i = 0; i < 4 * entries; ++i) {
        // Slots that lie close together, multiples of powers of two, the first and the last.
        const int64_t x = random.below(entries);
        auto slot = static_cast<int32_t>(x % 3 == 0   ? x
                                         : x % 3 == 1 ? x << 20
                                                      : 46340 * 46340 - 1 - x);
        if (!right.contains(slot) && next == entries) {
          continue;
        }
        const int32_t number = map.find_or_add(slot, next);
        const auto [it, added] = right.emplace(slot, next);
        EXPECT_EQ(number, it->second);
        next += added ? 1 : 0;
      }
      for (const auto& [slot, number] : right) {
        EXPECT_EQ(map.find_or_add(slot, -7), number);
      }
    }
  }
}

}  // namespace
}  // namespace fwpkm
