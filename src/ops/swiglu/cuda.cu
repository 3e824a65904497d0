#include "ops/common/device.cuh"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {
namespace {

__global__ void forward_kernel(const float* gate, const float* up, float* y, int64_t size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
  }
}

__global__ void backward_kernel(const float* gate, const float* up, const float* dy, float* dgate,
                                float* dup, int64_t size, bool add_gate, bool add_up) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float s = 1 / (1 + expf(-gate[i]));
    if (dgate != nullptr) {
      put(dgate + i, dy[i] * up[i] * s * (1 + gate[i] * (1 - s)), add_gate);
    }
    if (dup != nullptr) {
      put(dup + i, dy[i] * gate[i] * s, add_up);
    }
  }
}

}  // namespace

void swiglu_forward_cuda(const OpArgs& args) {
  const int64_t size = args.in[0].size();
  forward_kernel<<<blocks_for(size, 256), 256, 0, this_stream()>>>(
      args.in[0].ptr<float>(), args.in[1].ptr<float>(), args.out[0].ptr<float>(), size);
  check_launch("swiglu");
}

void swiglu_backward_cuda(const OpArgs& args) {
  const int64_t size = args.in[0].size();
  backward_kernel<<<blocks_for(size, 256), 256, 0, this_stream()>>>(
      args.in[0].ptr<float>(), args.in[1].ptr<float>(), args.dout[0].ptr<float>(),
      args.din[0].ptr<float>(), args.din[1].ptr<float>(), size, args.accumulate[0],
      args.accumulate[1]);
  check_launch("swiglu backward");
}

}  // namespace fwpkm
