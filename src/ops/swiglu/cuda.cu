// All tensors are contiguous: a thread for each run of them.
#include <type_traits>

#include "ops/common/device.cuh"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* gate, const T* up, T* y, uint32_t runs) {
  const uint32_t run = blockIdx.x * kThreads + threadIdx.x;
  if (run >= runs) {
    return;
  }
  const int64_t at = int64_t{run} * kCount;
  float g[kCount], u[kCount];
  load_run(gate + at, g);
  load_run(up + at, u);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    g[i] = gated<T>(g[i], g[i]) * u[i];
  }
  store_run(y + at, g);
}

// Null gradients are not wanted. gate and up may be one tensor: dup then adds to what was written
// to dgate, in the same thread.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* gate, const T* up, const T* dy, T* dgate, T* dup, uint32_t runs,
                    bool add_gate, bool add_up) {
  const uint32_t run = blockIdx.x * kThreads + threadIdx.x;
  if (run >= runs) {
    return;
  }
  const int64_t at = int64_t{run} * kCount;
  float g[kCount], u[kCount], d[kCount];
  load_run(gate + at, g);
  load_run(up + at, u);
  load_run(dy + at, d);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = gated<T>(1, g[i]);
    u[i] = d[i] * u[i] * s * (1 + g[i] * (1 - s));
    d[i] = d[i] * g[i] * s;
  }
  if (dgate != nullptr) {
    put_run(dgate + at, u, add_gate);
  }
  if (dup != nullptr) {
    put_run(dup + at, d, add_up);
  }
}

// Calls fn with the number of runs of the tensors and, as a constant, their length: 8 if they can
// be cut into such runs.
template <typename Fn>
void with_flat_runs(std::initializer_list<View> views, Fn&& fn) {
  const int64_t size = views.begin()->size();
  bool in_runs = true;
  for (const View& view : views) {
    in_runs = in_runs && (!view || in_runs_of(8, {view.reshape({size})}));
  }
  const int64_t runs = in_runs ? size / 8 : size;
  require(runs < int64_t{1} << 31, "swiglu", "{} features are too many", size);
  if (in_runs) {
    fn(static_cast<uint32_t>(runs), std::integral_constant<int, 8>());
  } else {
    fn(static_cast<uint32_t>(runs), std::integral_constant<int, 1>());
  }
}

template <typename T>
void forward(const OpArgs& args) {
  const View &gate = args.in[0], &up = args.in[1], &y = args.out[0];
  with_flat_runs(
      {gate, up, y}, [&]<int kCount>(uint32_t runs, std::integral_constant<int, kCount>) {
        forward_kernel<T, kCount>
            <<<static_cast<unsigned>(ceil_div(runs, kThreads)), kThreads, 0, this_stream()>>>(
                gate.ptr<T>(), up.ptr<T>(), y.ptr<T>(), runs);
      });
  check_launch("swiglu");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &gate = args.in[0], &up = args.in[1], &dy = args.dout[0];
  with_flat_runs(
      {gate, up, dy, args.din[0], args.din[1]},
      [&]<int kCount>(uint32_t runs, std::integral_constant<int, kCount>) {
        backward_kernel<T, kCount>
            <<<static_cast<unsigned>(ceil_div(runs, kThreads)), kThreads, 0, this_stream()>>>(
                gate.ptr<T>(), up.ptr<T>(), dy.ptr<T>(), args.din[0].ptr<T>(), args.din[1].ptr<T>(),
                runs, args.accumulate[0], args.accumulate[1]);
      });
  check_launch("swiglu backward");
}

}  // namespace

void swiglu_forward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
  }
}

void swiglu_backward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
  }
}

}  // namespace fwpkm
