#include "emulator.h"

#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulated {
namespace {

constexpr size_t kMostShared = size_t{227} << 10, kMostThreads = 1024;
constexpr size_t kStack = size_t{128} << 10;
alignas(1024) std::byte shared_memory[kMostShared];

template <typename... Args>
[[noreturn]] void stop(const char* format, Args... args) {
  std::fprintf(stderr, "[emulated] block %u %u %u, thread %u %u %u: ", blockIdx.x, blockIdx.y,
               blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  std::fprintf(stderr, format, args...);
  std::fputc('\n', stderr);
  std::abort();
}

struct Thread {
  boost::context::fiber fiber;
  uint3 index{};
  bool ended = false;
  bool at_barrier = false;
  unsigned mask = 0;  // of those it is to meet; 0: nobody
  void* mine = nullptr;
  const char* name = "";
};

struct Block {
  std::span<Thread> threads;
  const std::function<void()>* work = nullptr;
  boost::context::fiber main;
  size_t current = 0, live = 0, waiting = 0;
  bool some = false, some_before = false;  // at barriers that ask
  bool moved = false;                      // whether a round got anything done
};
Block* block = nullptr;
std::recursive_mutex one_at_a_time;

void give_way() {
  block->main = std::move(block->main).resume();
}

// The number of the first thread of a warp.
size_t warp_of(size_t thread) {
  return thread / 32 * 32;
}
// Calls fn(lane, thread) for those of a mask that have not ended.
template <typename Fn>
void for_lanes(size_t first, unsigned mask, Fn&& fn) {
  for (size_t i = 0; i < 32 && first + i < block->threads.size(); ++i) {
    Thread& one = block->threads[first + i];
    if ((mask >> i & 1) != 0 && !one.ended) {
      fn(i, one);
    }
  }
}
bool all_there(size_t first, unsigned mask) {
  bool all = true;
  for_lanes(first, mask, [&](size_t, const Thread& one) { all = all && one.mask == mask; });
  return all;
}

void open_barrier() {
  for (Thread& one : block->threads) {
    one.at_barrier = false;
  }
  block->waiting = 0;
  block->some_before = block->some;
  block->some = false;
  block->moved = true;
}

void report_deadlock() {
  std::fprintf(stderr, "[emulated] nobody can go on; thread: what it waits for\n");
  for (const Thread& one : block->threads) {
    if (!one.ended) {
      std::fprintf(stderr, "  %u %u %u: %s %08x\n", one.index.x, one.index.y, one.index.z,
                   one.at_barrier ? "a barrier" : one.name, one.mask);
    }
  }
  std::abort();
}

// The order of threads: that of their numbers, or with FWPKM_SHUFFLE=seed another one in each
// round, which shows where a barrier is missing.
void put_in_order(std::vector<size_t>* order) {
  static const char* const seed = std::getenv("FWPKM_SHUFFLE");
  static std::mt19937 random(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 0);
  if (seed != nullptr) {
    std::shuffle(order->begin(), order->end(), random);
  }
}

// Lets a thread run until it waits for others or ends.
void go_on(size_t i) {
  Thread& one = block->threads[i];
  if (one.ended) {
    return;
  }
  block->current = i;
  block->moved = true;
  threadIdx = one.index;
  one.fiber = std::move(one.fiber).resume();
}

// Fibers live as long as the program: one that has done a thread of a block waits for the next.
std::span<Thread> make_threads(size_t count) {
  static std::vector<Thread>& all = *new std::vector<Thread>(kMostThreads);
  for (size_t i = 0; i < count; ++i) {
    Thread& one = all[i];
    if (!one.fiber) {
      one.fiber = boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(kStack),
                                        [&one](boost::context::fiber&& main) {
                                          block->main = std::move(main);
                                          for (;;) {
                                            (*block->work)();
                                            one.ended = true;
                                            --block->live;
                                            give_way();
                                          }
                                          return std::move(block->main);
                                        });
    }
  }
  return {all.data(), count};
}

void run_block(std::vector<size_t>* order) {
  for (size_t i = 0; i < block->threads.size(); ++i) {
    Thread& one = block->threads[i];
    const auto n = static_cast<unsigned>(i);
    one.ended = one.at_barrier = false;
    one.mask = 0;
    one.index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
  }
  block->live = block->threads.size();
  block->waiting = 0;
  while (block->live > 0) {
    block->moved = false;
    put_in_order(order);
    for (const size_t i : *order) {
      if (!block->threads[i].at_barrier && block->threads[i].mask == 0) {
        go_on(i);
      }
    }
    if (block->live > 0 && block->waiting == block->live) {
      open_barrier();
    }
    // Those that others waited for may have ended.
    for (size_t i = 0; i < order->size() && !block->moved; ++i) {
      const unsigned mask = block->threads[i].mask;
      if (mask != 0 && all_there(warp_of(i), mask)) {
        go_on(i);
      }
    }
    if (!block->moved) {
      report_deadlock();
    }
  }
}

}  // namespace

std::byte* const dynamic_memory = shared_memory;

void run(const Config& config, const std::function<void()>& thread) {
  const std::lock_guard lock(one_at_a_time);
  const size_t count = size_t{config.block.x} * config.block.y * config.block.z;
  if (count == 0 || count > kMostThreads || config.shared > kMostShared || config.grid.x == 0 ||
      config.grid.y == 0 || config.grid.y > 65535 || config.grid.z == 0) {
    stop("cannot launch blocks %u %u %u of %zu threads with %zu bytes", config.grid.x,
         config.grid.y, config.grid.z, count, config.shared);
  }
  gridDim = config.grid;
  blockDim = config.block;
  Block own;
  own.threads = make_threads(count);
  own.work = &thread;
  block = &own;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        std::memset(shared_memory, 0xff, config.shared);  // nobody may count on what is there
        run_block(&order);
      }
    }
  }
  block = nullptr;
}

void meet(unsigned mask, void* mine, void (*work)(void* (&lanes)[32]), const char* name) {
  const size_t me = block->current, first = warp_of(me);
  Thread& own = block->threads[me];
  if ((mask >> me % 32 & 1) == 0) {
    stop("the lane is not in the mask %08x of %s", mask, name);
  }
  own.mask = mask;
  own.mine = mine;
  own.name = name;
  if (!all_there(first, mask)) {
    give_way();
    if (own.mask == 0) {
      return;  // somebody has done it
    }
  }
  void* lanes[32] = {};
  for_lanes(first, mask, [&](size_t i, Thread& one) {
    if (one.name != name && std::string_view(one.name) != name) {
      stop("%s meets %s", name, one.name);
    }
    lanes[i] = one.mine;
    one.mask = 0;
  });
  work(lanes);
}

void barrier() {
  Thread& own = block->threads[block->current];
  own.at_barrier = true;
  own.name = "barrier";
  ++block->waiting;
  if (block->waiting == block->live) {
    open_barrier();
    return;
  }
  give_way();
}

bool barrier_or(bool mine) {
  block->some = block->some || mine;
  barrier();
  const bool some = block->some_before;
  barrier();
  return some;
}

void multiply(float* (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Lane {
    float* d[4];
    uint32_t a[4], b[2];
  } own{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  meet(
      0xffffffffu, &own,
      [](void*(&lanes)[32]) {
        double left[16][16], right[16][8];
        for (int i = 0; i < 32; ++i) {
          const Lane& lane = *static_cast<const Lane*>(lanes[i]);
          for (int h = 0; h < 2; ++h) {
            const int line = i / 4, at = i % 4 * 2 + h;
            const auto half = [&](uint32_t two) {
              return double{__uint_as_float(h == 0 ? two << 16 : two & 0xffff0000u)};
            };
            for (int part = 0; part < 4; ++part) {
              left[line + part % 2 * 8][at + part / 2 * 8] = half(lane.a[part]);
            }
            right[at][line] = half(lane.b[0]);
            right[at + 8][line] = half(lane.b[1]);
          }
        }
        for (int i = 0; i < 32; ++i) {
          const Lane& lane = *static_cast<const Lane*>(lanes[i]);
          for (int part = 0; part < 4; ++part) {
            double sum = *lane.d[part];
            for (int k = 0; k < 16; ++k) {
              sum += left[i / 4 + part / 2 * 8][k] * right[k][i % 4 * 2 + part % 2];
            }
            *lane.d[part] = static_cast<float>(sum);
          }
        }
      },
      "mma");
}

void load_matrices(uint32_t* (&to)[4], uintptr_t row, bool transposed) {
  struct Lane {
    uint32_t* to[4];
    const uint16_t* row;
    bool transposed;
  } own{{to[0], to[1], to[2], to[3]}, reinterpret_cast<const uint16_t*>(row), transposed};
  meet(
      0xffffffffu, &own,
      [](void*(&lanes)[32]) {
        for (int i = 0; i < 32; ++i) {
          const Lane& lane = *static_cast<const Lane*>(lanes[i]);
          for (int matrix = 0; matrix < 4; ++matrix) {
            const auto at = [&](int line, int pair) -> uint32_t {
              const int r = lane.transposed ? pair : line, c = lane.transposed ? line : pair;
              return static_cast<const Lane*>(lanes[matrix * 8 + r])->row[c];
            };
            *lane.to[matrix] = at(i / 4, i % 4 * 2) | at(i / 4, i % 4 * 2 + 1) << 16;
          }
        }
      },
      "ldmatrix");
}

}  // namespace emulated
