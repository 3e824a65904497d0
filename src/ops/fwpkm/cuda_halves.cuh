// Rows as kernels take them: of floats, of bf16 numbers, or of floats in halves (store.h).
#pragma once

#include "ops/fwpkm/cuda_call.cuh"

namespace fwpkm {

// The two halves of a float: the bf16 number nearest to it (between two, the one further from zero)
// and its lower 16 bits. What is not a number becomes one that stays so when it is rounded.
struct Halves {
  static constexpr uint32_t kRound = 0x8000, kNan = 0x7fc00000;
  uint32_t upper, lower;

  __device__ explicit Halves(float x) {
    const uint32_t bits = isnan(x) ? kNan : __float_as_uint(x);
    upper = (bits + kRound) >> 16;
    lower = bits & 0xffffu;
  }
  // Who was rounded up has a lower half that, with a sign, is below zero. What stands above the
  // halves does not matter; what stands there in join_above alone does.
  static __device__ float join(uint32_t upper, uint32_t lower) {
    return __uint_as_float((upper << 16) + static_cast<uint32_t>(static_cast<int16_t>(lower)));
  }
  static __device__ float join_above(uint32_t upper, uint32_t lower) {
    return __uint_as_float((upper & 0xffff0000u) +
                           static_cast<uint32_t>(static_cast<int32_t>(lower) >> 16));
  }
};

// How the rows of values lie among rows of type T.
enum class ValueRows { kAsOthers, kFloats, kHalves };

// A run of numbers of type T, or of a row of values, as they are in memory: nobody waits for it
// before use.
template <typename T, int kRun, ValueRows kValues = ValueRows::kAsOthers>
struct RowPart {
  uint32_t words[kRun];

  // `value`: of a row of values, which has `width` numbers. kOnce: nobody wants it again before
  // long, so that it should not take the place of others in the cache; rows in halves are such.
  template <bool kOnce = false>
  __device__ void load(const void* row, bool value, int c, int width) {
    if (kValues == ValueRows::kHalves && value) {
      load_words<kRun / 2, true>(static_cast<const uint16_t*>(row) + c, 0);
      load_words<kRun / 2, true>(static_cast<const uint16_t*>(row) + width + c, kRun / 2);
    } else if (sizeof(T) == 4 || (kValues == ValueRows::kFloats && value)) {
      load_words<kRun, kOnce>(static_cast<const float*>(row) + c, 0);
    } else if constexpr (kRun == 1) {
      words[0] = *reinterpret_cast<const uint16_t*>(static_cast<const T*>(row) + c);
    } else {
      load_words<kRun / 2, kOnce>(static_cast<const T*>(row) + c, 0);
    }
  }
  __device__ void get(bool value, float (&to)[kRun]) const {
    if (kValues == ValueRows::kHalves && value) {
      join(to);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const uint32_t narrow = words[i / 2] << (i % 2 == 0 ? 16 : 0) & 0xffff0000u;
      const bool floats = sizeof(T) == 4 || (kValues == ValueRows::kFloats && value);
      to[i] = __uint_as_float(floats ? words[i] : narrow);
    }
  }

 private:
  __device__ void join(float (&to)[kRun]) const {
#pragma unroll
    for (int i = 0; i + 1 < kRun; i += 2) {
      const uint32_t upper = words[i / 2], lower = words[(kRun + i) / 2];
      to[i] = Halves::join(upper, lower);
      to[i + 1] = Halves::join_above(upper, lower);
    }
  }
  template <int kWords, bool kOnce>
  __device__ void load_words(const void* from, int at) {
    if constexpr (kWords == 8) {
      load_words<4, kOnce>(from, at);
      load_words<4, kOnce>(static_cast<const uint4*>(from) + 1, at + 4);
    } else if constexpr (kWords == 4) {
      const auto* four = static_cast<const uint4*>(from);
      const uint4 held = kOnce ? __ldcs(four) : *four;
      words[at] = held.x, words[at + 1] = held.y, words[at + 2] = held.z, words[at + 3] = held.w;
    } else if constexpr (kWords == 2) {
      const auto held = *static_cast<const uint2*>(from);
      words[at] = held.x, words[at + 1] = held.y;
    } else if constexpr (kWords == 1) {
      words[at] = *static_cast<const uint32_t*>(from);
    }
  }
};

// store_wide of what nobody wants again before long, as RowPart::load<true>.
template <typename T, int kRun>
__device__ inline void store_once(T* to, const float (&x)[kRun]) {
  if constexpr (kRun * sizeof(T) == 16) {
    alignas(16) T packed[kRun];
    store_run(packed, x);
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(packed));
  } else {
    store_wide(to, x);
  }
}

// Makes every number that is none the one that Halves takes for it.
template <int kGroups, int kRun>
__device__ inline void tame_nans(float (&x)[kGroups][kRun]) {
  static_assert(kRun % 2 == 0);
  float any = 0;  // not a number if one of them is none; rarely if none is
#pragma unroll
  for (int i = 0; i < kGroups * kRun; i += 2) {
    any = fmaf(x[i / kRun][i % kRun], x[i / kRun][i % kRun + 1], any);
  }
  if (isnan(any)) {
#pragma unroll
    for (int i = 0; i < kGroups * kRun; ++i) {
      float& one = x[i / kRun][i % kRun];
      one = isnan(one) ? __uint_as_float(Halves::kNan) : one;
    }
  }
}

// Stores columns from c on of a row of `width` numbers; for rows in halves, after tame_nans.
template <ValueRows kValues, typename To, int kRun>
__device__ inline void put_part(To* row, int c, int width, const float (&x)[kRun]) {
  if constexpr (kValues == ValueRows::kHalves) {
    static_assert(kRun == 8);
    uint32_t upper[kRun / 2], lower[kRun / 2];
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const uint32_t a = __float_as_uint(x[i]), b = __float_as_uint(x[i + 1]);
      upper[i / 2] = __byte_perm(a + Halves::kRound, b + Halves::kRound, 0x7632);
      lower[i / 2] = __byte_perm(a, b, 0x5410);
    }
    auto* halves = reinterpret_cast<uint16_t*>(row);
    __stcs(reinterpret_cast<uint4*>(halves + c),
           make_uint4(upper[0], upper[1], upper[2], upper[3]));
    __stcs(reinterpret_cast<uint4*>(halves + width + c),
           make_uint4(lower[0], lower[1], lower[2], lower[3]));
  } else {
    store_wide(row + c, x);
  }
}
// The same of any numbers.
template <ValueRows kValues, typename To, int kRun>
__device__ inline void store_part(To* row, int c, int width, const float (&x)[kRun]) {
  float tame[1][kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    tame[0][i] = x[i];
  }
  if constexpr (kValues == ValueRows::kHalves) {
    tame_nans(tame);
  }
  put_part<kValues>(row, c, width, tame[0]);
}

// Calls fn with the type of q and v, the number of columns to take at a time, and whether rows of
// values lie in halves.
template <typename Fn>
void with_value_rows(const FwpkmCall& call, Fn&& fn) {
  if (call.halved) {
    fn(static_cast<bf16*>(nullptr), std::integral_constant<int, 8>(), std::true_type());
    return;
  }
  with_real_and_run(call, [&](auto* real, auto run) { fn(real, run, std::false_type()); });
}

}  // namespace fwpkm
