// What all kernels of the delta rule share, in float and in bf16: how inputs lie, the parts of a
// workspace, launches.
#pragma once

#include "ops/common/device.cuh"
#include "ops/delta_rule/delta_rule.h"

namespace fwpkm {
namespace delta_cuda {

// A [B, T, H, d] tensor on the device.
template <typename T>
struct HeadsOf {
  T* data;
  int64_t strides[3];
  explicit HeadsOf(const View& view) : data(view.ptr<T>()) {
    for (int i = 0; i < 3; ++i) {
      strides[i] = view.strides[i];
    }
  }
  __device__ T* operator()(int64_t b, int64_t t, int64_t h) const {
    return data + b * strides[0] + t * strides[1] + h * strides[2];
  }
};

// Hands out parts of a workspace, each aligned to 256 bytes; without a base it only counts.
struct Parts {
  char* base;
  size_t used = 0;
  template <typename T = float>
  T* take(int64_t count) {
    T* part = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return part;
  }
};

// 1 / sqrt(|x|^2 + eps), for all lanes of a warp.
template <typename T>
__device__ double inverse_norm(const T* x, int64_t width) {
  double squares = 0;
  for (int64_t i = threadIdx.x % 32; i < width; i += 32) {
    const auto number = static_cast<double>(to_float(x[i]));
    squares += number * number;
  }
  for (int step = 16; step > 0; step /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, step);
  }
  return 1 / sqrt(squares + kDeltaEps);
}

// The factor of normalised q.
double query_scale(const DeltaSizes& n);

// Whether a block can have this much shared memory; if so, lets the kernel have it.
bool allow_shared(const void* kernel, size_t bytes);

// Launches a kernel with so many bytes of shared memory on the thread's stream.
template <typename... Params, typename... Args>
void launch(const char* what, void (*kernel)(Params...), int64_t blocks, int threads, size_t shared,
            const Args&... args) {
  require(allow_shared(reinterpret_cast<const void*>(kernel), shared), "delta_rule",
          "{} asks for {} bytes of shared memory, more than this GPU has", what, shared);
  kernel<<<static_cast<unsigned>(blocks), threads, shared, this_stream()>>>(args...);
  check_launch(what);
}

// Fewer tokens than this go one by one (cuda_tokens.cu).
constexpr int64_t kFewTokens = 16;
void forward_tokens(const OpArgs& args, float* scratch);
// Floats of scratch that this takes.
int64_t token_scratch(const OpArgs& args);

}  // namespace delta_cuda

// The kernels for q, k, v and o in bf16.
void delta_rule_forward_bf16(const OpArgs& args);
void delta_rule_backward_bf16(const OpArgs& args);
size_t delta_rule_workspace_bf16(const OpArgs& args, bool backward);

}  // namespace fwpkm
