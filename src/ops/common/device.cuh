// What CUDA kernels share. Kernels take views, never allocate, and add in a fixed order: no float
// atomics, so that the same call gives the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "tensor/op.h"
#include "tensor/view.h"

namespace fwpkm {

// Activations are float or bf16; all arithmetic is in float. What kernels keep for themselves
// (statistics, decays, states) and the gradients of parameters are float in either case, but for
// those that Parameters::narrow_gradients tells of.
using bf16 = __nv_bfloat16;
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};

// Calls fn with a null pointer of the view's type, float or bf16.
template <typename Fn>
void with_real(const View& view, Fn&& fn) {
  if (view.dtype == DType::kBF16) {
    fn(static_cast<bf16*>(nullptr));
  } else {
    fn(static_cast<float*>(nullptr));
  }
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <typename T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// kCount (4 or 8) numbers that lie side by side, aligned to that many elements.
template <int kCount>
__device__ inline void load_run(const float* from, float (&to)[kCount]) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    to[i] = four.x;
    to[i + 1] = four.y;
    to[i + 2] = four.z;
    to[i + 3] = four.w;
  }
}
template <int kCount>
__device__ inline void load_run(const bf16* from, float (&to)[kCount]) {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t words[kCount / 2];
  if constexpr (kCount == 8) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words[0] = all.x;
    words[1] = all.y;
    words[2] = all.z;
    words[3] = all.w;
  } else {
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    words[0] = all.x;
    words[1] = all.y;
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
template <int kCount>
__device__ inline void store_run(float* to, const float (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(to + i) = {from[i], from[i + 1], from[i + 2], from[i + 3]};
  }
}
template <int kCount>
__device__ inline void store_run(bf16* to, const float (&from)[kCount]) {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t words[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&two);
  }
  if constexpr (kCount == 8) {
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  } else {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  }
}
// Sets or adds to kCount numbers, as the gradient contract asks.
template <int kCount, typename T>
__device__ inline void put_run(T* to, float (&values)[kCount], bool accumulate) {
  if (accumulate) {
    float old[kCount];
    load_run(to, old);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] += old[i];
    }
  }
  store_run(to, values);
}
// Whether rows of all these views can be taken `count` numbers at a time; empty ones can.
inline bool in_runs_of(int64_t count, std::initializer_list<View> views) {
  for (const View& view : views) {
    if (!view) {
      continue;
    }
    const auto bytes = static_cast<size_t>(count) * dtype_size(view.dtype);
    if (view.dim(-1) % count != 0 || reinterpret_cast<uintptr_t>(view.data) % bytes != 0) {
      return false;
    }
    for (int i = 0; i + 1 < view.rank(); ++i) {
      if (view.dim(i) > 1 && view.stride(i) % count != 0) {
        return false;
      }
    }
  }
  return true;
}

// The calling thread's stream. All kernels go there, in order.
cudaStream_t this_stream();

// The streams of a thread besides its first one. Where SMs have no room for all, blocks of kLong
// come after all others, those of kShort after the first stream's only.
enum class Side { kLong, kShort };

// Work beside that of this_stream(): while one of these exists, this_stream() is another stream of
// the thread, on which kernels run at the same time (products must not go there). Only fork() and
// join() order it and the one that is this_stream() when they are called; all that was forked must
// be joined before an op returns, or left. While phases are waited for there is one stream only.
class SideStream {
 public:
  explicit SideStream(Side side);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // What is queued on the side from now on waits for all that is queued on this_stream(); and the
  // other way round.
  static void fork(Side side);
  static void join(Side side);
  // What is queued on the sides goes on when the op returns, which must be allowed (OpArgs::late).
  static void leave();

 private:
  cudaStream_t before_;
};

// Throws an Error that names what was being done.
void check_cuda(cudaError_t error, const char* what);

// Whether a kernel can be on its way before the one before it has ended (launch_next).
bool starts_early();
// Launches a kernel with `bytes` of shared memory that it asks for. If `next`, it comes right after
// another one on this stream, with no fork or join between that it waits for: its launch then does
// not wait for what that one writes, but wait_for_earlier does, which every thread must call. Only
// what has long been there can be read before that.
template <typename... Params, typename... Args>
void launch(bool next, void (*kernel)(Params...), unsigned blocks, int threads, size_t bytes,
            const char* what, const Args&... args) {
  if (bytes > 48 << 10) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               what);
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = this_stream();
  config.attrs = &early;
  config.numAttrs = next && starts_early() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Params(args)...), what);
}
template <typename... Params, typename... Args>
void launch_next(void (*kernel)(Params...), unsigned blocks, int threads, size_t bytes,
                 const char* what, const Args&... args) {
  launch(true, kernel, blocks, threads, bytes, what, args...);
}
// Waits until what the kernel before wrote can be read.
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets blocks of the next kernel come, where SMs have room, once all of this one have called it;
// else they come when this one has ended.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Bytes of shared memory that a block of this GPU can have.
size_t most_shared_memory();
// After a launch: bad configurations show here, errors inside kernels at the next synchronize.
inline void check_launch(const char* what) {
  check_cuda(cudaGetLastError(), what);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Blocks for a loop over `items` with this many threads each; loops step over the whole grid.
inline unsigned blocks_for(int64_t items, int threads, int64_t most = 132 * 16) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min(ceil_div(items, threads), most)));
}

// Turns a row number into an element offset, as Rows does on the host.
struct DeviceRows {
  int levels = 0;
  int64_t count = 0;
  int64_t extents[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  explicit DeviceRows(const View& view) {
    count = view.rows();
    for (int i = 0; i + 1 < view.rank(); ++i) {
      const int64_t extent = view.shape.dims[i], stride = view.strides[i];
      if (extent == 1) {
        continue;
      }
      if (levels > 0 && strides[levels - 1] == extent * stride) {
        extents[levels - 1] *= extent;
        strides[levels - 1] = stride;
      } else {
        extents[levels] = extent;
        strides[levels] = stride;
        ++levels;
      }
    }
  }
  __device__ int64_t operator[](int64_t row) const {
    if (levels == 1) {
      return row * strides[0];
    }
    int64_t offset = 0;
    for (int i = levels - 1; i >= 0; --i) {
      offset += row % extents[i] * strides[i];
      row /= extents[i];
    }
    return offset;
  }
};

// Sums over a warp and over a block, the same for all threads; always in one order.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}
template <int kThreads>
__device__ inline float block_sum(float x) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  __shared__ float parts[kThreads / 32];
  x = warp_sum(x);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    sum += parts[i];
  }
  return sum;
}
template <int kThreads>
__device__ inline float block_max(float x) {
  __shared__ float parts[kThreads / 32];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float most = parts[0];
  for (int i = 1; i < kThreads / 32; ++i) {
    most = fmaxf(most, parts[i]);
  }
  return most;
}

// Adds or sets, as the gradient contract asks.
template <typename T>
__device__ inline void put(T* to, float value, bool accumulate) {
  *to = from_float<T>(accumulate ? to_float(*to) + value : value);
}

// Sums over rows go in two steps: over groups of this many rows, then over groups.
inline constexpr int64_t kColumnRows = 64;
inline int64_t column_groups(int64_t rows) {
  return ceil_div(rows, kColumnRows);
}

// Products, row-major: C [m, n] = alpha op(A) op(B) + beta D (+ bias [n]), batches `stride`
// elements apart; D is C itself or `add`. Floats are multiplied in float32, without TF32, or, where
// that takes little memory, in double; bf16 on tensor cores, summed in float32, to bf16 or float.
struct GpuGemm {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  float alpha = 1, beta = 0;
  const void* add = nullptr;   // of C's type and layout; bf16 products only
  const void* bias = nullptr;  // of C's type; bf16 products only
};
void gpu_gemm(const GpuGemm& g, const float* a, const float* b, float* c);
void gpu_gemm(const GpuGemm& g, const bf16* a, const bf16* b, bf16* c);
void gpu_gemm(const GpuGemm& g, const bf16* a, const bf16* b, float* c);

// x sigmoid(z). Where the result becomes bf16 a few approximate instructions are exact enough.
template <typename T>
__device__ inline float gated(float x, float z) {
  if constexpr (sizeof(T) == 2) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
    return x * inverse;
  } else {
    return x / (1 + expf(-z));
  }
}

// Runs of one number: with them a kernel for runs takes rows that have no longer ones.
__device__ inline void load_run(const float* from, float (&to)[1]) {
  to[0] = *from;
}
__device__ inline void load_run(const bf16* from, float (&to)[1]) {
  to[0] = to_float(*from);
}
__device__ inline void store_run(float* to, const float (&from)[1]) {
  *to = from[0];
}
__device__ inline void store_run(bf16* to, const float (&from)[1]) {
  *to = from_float<bf16>(from[0]);
}
template <typename T>
__device__ inline void put_run(T* to, float (&values)[1], bool accumulate) {
  put(to, values[0], accumulate);
}

// Division of numbers below 2^31 by a number known to the host: a multiplication and a shift.
struct FastDivisor {
  uint32_t divisor = 1, factor = 1, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(int64_t by) : divisor(static_cast<uint32_t>(std::max<int64_t>(1, by))) {
    while ((uint64_t{1} << shift) < divisor) {
      ++shift;
    }
    factor = static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, factor) + n) >> shift; }
  __device__ uint32_t remainder(uint32_t n) const { return n - quotient(n) * divisor; }
};

// DeviceRows for row numbers below 2^31, without divisions.
struct FastRows {
  int levels = 0;
  FastDivisor extents[kMaxRank - 1];
  int64_t strides[kMaxRank - 1] = {};

  explicit FastRows(const View& view) {
    const DeviceRows rows(view);
    levels = rows.levels;
    for (int i = 0; i < levels; ++i) {
      extents[i] = FastDivisor(rows.extents[i]);
      strides[i] = rows.strides[i];
    }
  }
  __device__ int64_t operator[](uint32_t row) const {
    if (levels <= 1) {
      return row * strides[0];
    }
    int64_t offset = 0;
#pragma unroll
    for (int i = kMaxRank - 2; i > 0; --i) {
      if (i < levels) {
        const uint32_t outer = extents[i].quotient(row);
        offset += (row - outer * extents[i].divisor) * strides[i];
        row = outer;
      }
    }
    return offset + row * strides[0];
  }
};

// store_run, surely in one instruction for each 16 bytes: at some addresses the compiler takes wide
// stores apart. Global memory only.
template <int kCount, typename T>
__device__ inline void store_wide(T* to, const float (&from)[kCount]) {
  if constexpr (kCount == 1) {
    store_run(to, from);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      __stwb(reinterpret_cast<float4*>(to + i),
             make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]));
    }
  } else {
    alignas(16) T packed[kCount];
    store_run(packed, from);
    if constexpr (kCount == 8) {
      __stwb(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(packed));
    } else {
      __stwb(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(packed));
    }
  }
}

}  // namespace fwpkm
