// CUDA kernels on the CPU, so that what they compute can be checked where there is no GPU. Threads
// of a block are fibers; blocks run one after the other. All that lanes do together (shuffles,
// votes, products of tensor cores) happens when the last of them has come.
//
// Sources go through translate.cpp first: what is left then is C++, with this header before it.
// Timing, caches and what a GPU does out of order are not here: a kernel that is right here can
// still lack a fence.
#pragma once

// These have their own variables below, which can be set.
#define blockDim cuda_block_dim
#define blockIdx cuda_block_index
#define gridDim cuda_grid_dim
#define threadIdx cuda_thread_index
#include <device_launch_parameters.h>
#undef blockDim
#undef blockIdx
#undef gridDim
#undef threadIdx
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#undef __align__
#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__ static
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static  // there is one block at a time
#define __builtin_assume(what) static_cast<void>(0)

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulated {

// Shared memory that a launch asks for.
extern std::byte* const dynamic_memory;

struct Config {
  dim3 grid, block;
  size_t shared;

  template <typename Grid, typename Block>
  Config(Grid g, Block b, size_t bytes = 0, cudaStream_t = nullptr)
      : grid(static_cast<dim3>(g)), block(static_cast<dim3>(b)), shared(bytes) {}
};

// Does it, or records it if a graph is being recorded.
void enqueue(std::function<void()> what);
// All threads of all blocks.
void run(const Config& config, const std::function<void()>& thread);
// What stands for kernel<<<config>>>(args...).
template <typename Kernel>
auto launch(Config config, Kernel kernel) {
  return [=](auto... args) { enqueue([=] { run(config, [&] { kernel(args...); }); }); };
}

template <typename... Params, typename... Args>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                          Args... args) {
  launch(Config(config->gridDim, config->blockDim, config->dynamicSmemBytes),
         kernel)(Params(args)...);
  return cudaSuccess;
}

// The lanes of `mask` come together. The last one calls work(what each has, null for those that
// have ended); `name` must be the same for all.
void meet(unsigned mask, void* mine, void (*work)(void* (&lanes)[32]), const char* name);
void barrier();
bool barrier_or(bool mine);

inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}

// A number of each lane, and what it gets.
template <typename T>
struct Exchange {
  T mine, got;
  int from;
};
template <typename T>
T take_from(unsigned mask, T x, int from, const char* name) {
  Exchange<T> all{x, x, from};
  meet(
      mask, &all,
      [](void*(&lanes)[32]) {
        for (void* one : lanes) {
          if (one != nullptr) {
            auto& to = *static_cast<Exchange<T>*>(one);
            const auto* other = static_cast<const Exchange<T>*>(lanes[to.from]);
            to.got = other != nullptr ? other->mine : to.mine;
          }
        }
      },
      name);
  return all.got;
}
template <typename Op, typename T>
T reduce(unsigned mask, T x, const char* name) {
  Exchange<T> all{x, x, 0};
  meet(
      mask, &all,
      [](void*(&lanes)[32]) {
        const Exchange<T>* before = nullptr;
        T sum{};
        for (void* one : lanes) {
          if (one != nullptr) {
            const auto* here = static_cast<const Exchange<T>*>(one);
            sum = before != nullptr ? Op()(sum, here->mine) : here->mine;
            before = here;
          }
        }
        for (void* one : lanes) {
          if (one != nullptr) {
            static_cast<Exchange<T>*>(one)->got = sum;
          }
        }
      },
      name);
  return all.got;
}
struct Lower {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Higher {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

}  // namespace emulated

// The runtime's own has no types of arguments any more when it calls.
#define cudaLaunchKernelEx ::emulated::launch_kernel
template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*)(Params...), cudaFuncAttribute, int) {
  return cudaSuccess;
}

// Lanes.
template <typename T>
T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  const int first = emulated::lane() / width * width;
  return emulated::take_from(mask, x, first + (from & (width - 1)), "shfl");
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int step, int width = 32) {
  const int lane = emulated::lane(), from = lane ^ step;
  return emulated::take_from(mask, x, from / width > lane / width ? lane : from, "shfl.xor");
}
template <typename T>
T __shfl_up_sync(unsigned mask, T x, int step, int width = 32) {
  const int lane = emulated::lane(), from = lane - step;
  return emulated::take_from(mask, x, from < lane / width * width ? lane : from, "shfl.up");
}
template <typename T>
T __shfl_down_sync(unsigned mask, T x, int step, int width = 32) {
  const int lane = emulated::lane(), from = lane + step;
  return emulated::take_from(mask, x, from / width > lane / width ? lane : from, "shfl.down");
}
template <typename T>
T __reduce_add_sync(unsigned mask, T x) {
  return emulated::reduce<std::plus<T>>(mask, x, "add");
}
template <typename T>
T __reduce_max_sync(unsigned mask, T x) {
  return emulated::reduce<emulated::Higher>(mask, x, "max");
}
template <typename T>
T __reduce_min_sync(unsigned mask, T x) {
  return emulated::reduce<emulated::Lower>(mask, x, "min");
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned x) {
  return emulated::reduce<std::bit_or<unsigned>>(mask, x, "or");
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  return emulated::reduce<std::bit_or<unsigned>>(mask, vote != 0 ? 1u << emulated::lane() : 0u,
                                                 "ballot");
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0 ? 1 : 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T x) {
  unsigned same = 0;
  for (int from = 0; from < 32; ++from) {
    if ((mask >> from & 1) != 0 && emulated::take_from(mask, x, from, "match") == x) {
      same |= 1u << from;
    }
  }
  return same;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated::meet(
      mask, nullptr, [](void*(&)[32]) {}, "syncwarp");
}
inline void __syncthreads() {
  emulated::barrier();
}
inline int __syncthreads_or(int mine) {
  return emulated::barrier_or(mine != 0) ? 1 : 0;
}
inline void __threadfence() {}

// Numbers.
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned all = 0;
  for (int i = 0; i < 4; ++i) {
    all |= static_cast<unsigned>(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return all;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
// Not to be fused with an addition.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float rsqrtf(float x) {
  return static_cast<float>(1 / std::sqrt(double{x}));
}
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::min(static_cast<T>(a), static_cast<T>(b));
}
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::max(static_cast<T>(a), static_cast<T>(b));
}
using std::isfinite;
using std::isnan;

// Memory.
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T x) {
  *to = x;
}
template <typename T>
void __stwb(T* to, T x) {
  *to = x;
}
inline uintptr_t __cvta_generic_to_shared(const void* at) {
  return reinterpret_cast<uintptr_t>(at);
}
inline uintptr_t __cvta_generic_to_global(const void* at) {
  return reinterpret_cast<uintptr_t>(at);
}
template <typename T, typename Change>
T emulated_change(T* at, Change&& change) {
  const T before = *at;
  *at = change(before);
  return before;
}
template <typename T, typename U>
T atomicAdd(T* at, U x) {
  return emulated_change(at, [&](T before) { return static_cast<T>(before + x); });
}
template <typename T, typename U>
T atomicOr(T* at, U x) {
  return emulated_change(at, [&](T before) { return static_cast<T>(before | x); });
}
template <typename T, typename U>
T atomicMax(T* at, U x) {
  return emulated_change(at, [&](T before) { return std::max(before, static_cast<T>(x)); });
}
template <typename T, typename U>
T atomicMin(T* at, U x) {
  return emulated_change(at, [&](T before) { return std::min(before, static_cast<T>(x)); });
}
template <typename T, typename U>
T atomicExch(T* at, U x) {
  return emulated_change(at, [&](T) { return static_cast<T>(x); });
}
template <typename T, typename U, typename V>
T atomicCAS(T* at, U expected, V x) {
  return emulated_change(at, [&](T before) {
    return before == static_cast<T>(expected) ? static_cast<T>(x) : before;
  });
}

#include "ptx.h"
