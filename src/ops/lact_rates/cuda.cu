#include "ops/common/device.cuh"
#include "ops/lact_rates/lact_rates.h"

namespace fwpkm {
namespace {

template <typename T>
__global__ void rate_kernel(const T* x, float* lr, int64_t size, float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float at = to_float(x[i]) + shift;
    lr[i] = fmaxf(at, 0) + log1pf(expf(-fabsf(at)));
  }
}

template <typename T>
__global__ void momentum_kernel(const T* y, float* momentum, int64_t size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    momentum[i] = 1 / (1 + expf(-to_float(y[i])));
  }
}

// Gradients of an output that nothing came back to are null.
template <typename T>
__global__ void rate_backward_kernel(const T* x, const float* dlr, T* dx, int64_t size, float shift,
                                     bool accumulate) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    put(dx + i, dlr != nullptr ? dlr[i] / (1 + expf(-to_float(x[i]) - shift)) : 0, accumulate);
  }
}

template <typename T>
__global__ void momentum_backward_kernel(const float* momentum, const float* dmomentum, T* dy,
                                         int64_t size, bool accumulate) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float m = momentum[i];
    put(dy + i, dmomentum != nullptr ? dmomentum[i] * (m * (1 - m)) : 0, accumulate);
  }
}

float shift_of(const OpArgs& args) {
  return static_cast<float>(args.attr<LactRatesSettings>().shift);
}

template <typename T>
void forward(const OpArgs& args) {
  const int64_t rates = args.in[0].size(), momenta = args.in[1].size();
  if (rates > 0) {
    rate_kernel<<<blocks_for(rates, 256), 256, 0, this_stream()>>>(
        args.in[0].ptr<T>(), args.out[0].ptr<float>(), rates, shift_of(args));
    check_launch("lact_rates");
  }
  if (momenta > 0) {
    momentum_kernel<<<blocks_for(momenta, 256), 256, 0, this_stream()>>>(
        args.in[1].ptr<T>(), args.out[1].ptr<float>(), momenta);
    check_launch("lact_rates momentum");
  }
}

template <typename T>
void backward(const OpArgs& args) {
  const int64_t rates = args.din[0].size(), momenta = args.din[1].size();
  if (rates > 0) {
    rate_backward_kernel<<<blocks_for(rates, 256), 256, 0, this_stream()>>>(
        args.in[0].ptr<T>(), args.dout[0].ptr<float>(), args.din[0].ptr<T>(), rates, shift_of(args),
        args.accumulate[0]);
    check_launch("lact_rates backward");
  }
  if (momenta > 0) {
    momentum_backward_kernel<<<blocks_for(momenta, 256), 256, 0, this_stream()>>>(
        args.out[1].ptr<float>(), args.dout[1].ptr<float>(), args.din[1].ptr<T>(), momenta,
        args.accumulate[1]);
    check_launch("lact_rates momentum backward");
  }
}

}  // namespace

void lact_rates_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void lact_rates_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

}  // namespace fwpkm
