// Reading rows of bf16 on tensor cores: a warp has a token and 64 features.
//
// A row goes into a product as it lies in memory: 16 bytes of a lane, four words of two features,
// are its A (mma.cuh). With line = lane / 4, the lane has features 8 line .. 8 line + 7 of one of
// four slots, lane % 4. Then A [m, k] has k = (slot, half of a word), words 0 and 1 in rows
// m = line and line + 8, and words 2 and 3 there too, but 8 columns on. Which of these meets which
// weight is B's matter: column n has the weight where k's words (n / 2 % 2) and half (n % 2) are
// those of n, and zeros elsewhere. So nothing has to be unpacked. A row with a number that is not
// finite makes others of that row's word not finite, too.
//
// A weight is the sum of two bf16 numbers (n / 4), which differs from it by less than 2^-17 of it.
#pragma once

#include "ops/common/mma.cuh"
#include "ops/common/row_sums.cuh"

namespace fwpkm {

inline constexpr int kReadFeatures = 64;
inline constexpr int kReadTogether = 32;  // rows that are on their way together

// What a lane has of weights in its column of B.
struct WeightColumn {
  float first;        // 1: without the first of both numbers
  uint32_t picks[2];  // which bytes, or zeros, are in the two registers

  __device__ WeightColumn() {
    const int column = threadIdx.x % 32 / 4;
    const uint32_t pick = column % 2 == 0 ? 0x4432u : 0x3244u;
    first = column / 4 == 0 ? 0.0f : 1.0f;
    picks[0] = column / 2 % 2 == 0 ? pick : 0x4444u;
    picks[1] = column / 2 % 2 == 0 ? 0x4444u : pick;
  }
  // The nearest bf16, as a float.
  static __device__ float nearest(float x) { return __uint_as_float(pack_two(0, x)); }
  __device__ uint2 operator()(float weight) const {
    const float part = nearest(fmaf(-first, nearest(weight), weight));
    return {__byte_perm(__float_as_uint(part), 0, picks[0]),
            __byte_perm(__float_as_uint(part), 0, picks[1])};
  }
};

// Four neighbours that are not wanted again before long, so that they should not take the place of
// others in the cache.
template <typename T>
struct alignas(16) FourOnce {
  T x[4];

  __device__ explicit FourOnce(const T* from) {
    const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
    *this = *reinterpret_cast<const FourOnce*>(&raw);
  }
};

// Whether rows of `slots` slots can be read so; they must be aligned to 16 bytes, too.
inline bool reads_in_tiles(int64_t slots, int64_t reads, int64_t dv) {
  return reads % kReadTogether == 0 && dv % kReadFeatures == 0 &&
         slots * dv <= (int64_t{1} << 32) / static_cast<int64_t>(sizeof(bf16));
}

// y of a token. Neighbouring blocks have the same features of other tokens, so that more of what
// they read is still in the cache.
template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    read_tiles_kernel(const bf16* values, const int32_t* slots, const float* weights, bf16* y,
                      int64_t tokens, int64_t reads, int64_t dv) {
  const int64_t token = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (token >= tokens) {
    return;
  }
  constexpr int kEach = kReadTogether / 4;  // rows that a lane has
  const int line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  const int64_t column = blockIdx.y * int64_t{kReadFeatures} + line * 8;
  // Bytes from the first value on have 32 bits, so that addresses take few instructions.
  const auto row_bytes = static_cast<uint32_t>(dv * sizeof(bf16));
  const auto first_byte = static_cast<uint32_t>(column * sizeof(bf16));
  const auto load_row = [&](int32_t slot) {
    const uint32_t at = static_cast<uint32_t>(slot) * row_bytes + first_byte;
    return *reinterpret_cast<const uint4*>(reinterpret_cast<const std::byte*>(values) + at);
  };
  const WeightColumn own;
  slots += token * reads + pair * 4;
  weights += token * reads + pair * 4;
  float sums[4] = {};
#pragma unroll 1
  for (const int32_t* end = slots + reads; slots < end;
       slots += kReadTogether, weights += kReadTogether) {
    uint4 rows[kEach];
    float weight[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const FourOnce slot(slots + i * 4);
      const FourOnce some(weights + i * 4);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        rows[i + u] = load_row(slot.x[u]);
        weight[i + u] = some.x[u];
      }
    }
    __syncwarp();  // all loads are asked for before one is waited for
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint2 b = own(weight[i]);
      mma(sums, {rows[i].x, rows[i].y, rows[i].z, rows[i].w}, b.x, b.y);
    }
  }
  // Two lanes have the two parts of four features. Each adds up two of these.
  const bool upper = pair >= 2;
  const float given[2] = {upper ? sums[0] : sums[2], upper ? sums[1] : sums[3]};
  const float kept[2] = {upper ? sums[2] : sums[0], upper ? sums[3] : sums[1]};
  const float first = kept[0] + __shfl_xor_sync(0xffffffffu, given[0], 2);
  const float second = kept[1] + __shfl_xor_sync(0xffffffffu, given[1], 2);
  const int64_t at = token * dv + column + pair % 2 * 4 + pair / 2 * 2;
  __stcs(reinterpret_cast<uint32_t*>(y + at), pack_two(first, second));
}

}  // namespace fwpkm
