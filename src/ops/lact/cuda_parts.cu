// What forward and backward have in common: tokens in and out of buffers, weights and their update.
#include <type_traits>

#include "ops/lact/cuda.cuh"

namespace fwpkm {
namespace {

constexpr int kThreads = FastGrid::kThreads;

template <typename From, typename Real>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(LactWindow window, FastGrid grid, LactRows<const From> first, Real* to,
                  LactRows<const From> second, Real* to_second, int64_t width) {
  constexpr int kRun = kFastRun<Real>;
  const LactRows<const From> from = blockIdx.y == 0 ? first : second;
  Real* target = blockIdx.y == 0 ? to : to_second;
  for_fast_runs<kRun>(grid, [&](uint32_t row, uint32_t at) {
    float values[kRun];
    load_run(window.place(row).in(from) + at, values);
    store_run(target + row * width + at, values);
  });
}

template <typename T, typename Real>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(LactWindow window, FastGrid grid, const float* from, LactRows<T> to,
                   int64_t width, bool accumulate) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t row, uint32_t at) {
    float values[kRun] = {};
    if (from != nullptr) {
      load_run(from + row * width + at, values);
    }
    put_run(window.place(row).in(to) + at, values, accumulate);
  });
}

// The weights at the start, [H, D, D] each.
struct Start {
  const float *w0, *w1, *w2;

  __device__ const float* row(uint32_t head, uint32_t row, int64_t width) const {
    const auto third = static_cast<uint32_t>(width);
    const float* matrices = row < third ? w0 : row < 2 * third ? w1 : w2;
    return matrices + (int64_t{head} * third + row % third) * width;
  }
};

template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    load_kernel(LactMatrixRows matrices, LactBlocks from, Real* stack) {
  constexpr int kRun = kFastRun<Real>;
  const RowPlan& plan = matrices.plan;
  for_rows(plan, [&](uint32_t number, bool here) {
    const auto place = matrices.place(number);
    const float* row = from.data + place.item * from.stride + place.in_block;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float values[kRun];
      load_run(row + at, values);
      if (here) {
        store_run(stack + place.in_stack + at, values);
      }
    });
  });
}

template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    start_kernel(LactMatrixRows matrices, Start start, LactBlocks blocks, float* norms,
                 LactBlocks zeros, Real* stack) {
  constexpr int kRun = kFastRun<Real>;
  const RowPlan& plan = matrices.plan;
  for_rows(plan, [&](uint32_t number, bool here) {
    const auto place = matrices.place(number);
    const float* from = start.row(matrices.heads.remainder(place.item), place.row, matrices.width);
    float* block = blocks.data + place.item * blocks.stride + place.in_block;
    float* zero = zeros.data + place.item * zeros.stride + place.in_block;
    double squares = 0;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float values[kRun];
      load_run(from + at, values);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      if (here) {
        store_run(block + at, values);
        if (stack != nullptr) {
          store_run(stack + place.in_stack + at, values);
        }
        if (zeros.data != nullptr) {
          const float none[kRun] = {};
          store_run(zero + at, none);
        }
      }
    });
    squares = lanes_sum(plan, squares);
    if (here && plan.lane() == 0) {
      norms[number] = static_cast<float>(sqrt(squares));
    }
  });
}

__global__ void __launch_bounds__(kThreads)
    mean_kernel(LactRows<const float> momentum, int64_t heads, int64_t tokens, float* means) {
  const int64_t item = blockIdx.x;
  const float* from =
      momentum.data + item / heads * momentum.sequence + item % heads * momentum.head;
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads) {
    sum += static_cast<double>(from[t * momentum.token]);
  }
  sum = lact_block_sum<kThreads>(sum);
  if (threadIdx.x == 0) {
    means[item] = static_cast<float>(sum / static_cast<double>(tokens));
  }
}

template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    update_kernel(LactMatrixRows matrices, LactUpdate update, Real* stack) {
  constexpr int kRun = kFastRun<Real>;
  const RowPlan& plan = matrices.plan;
  for_rows(plan, [&](uint32_t number, bool here) {
    const auto place = matrices.place(number);
    const auto row = [&](const LactBlocks& blocks) {
      return blocks.data + place.item * blocks.stride + place.in_block;
    };
    const float *w = row(update.w), *before = row(update.before);
    float *m = row(update.m), *to = row(update.to);
    const float mean = update.means != nullptr ? update.means[place.item] : 0;
    // Each lane reads again what it writes, so M may be where it was before.
    const auto moved = [&](uint32_t at, bool first, float(&x)[kRun]) {
      float momentum[kRun];
      if (first && update.steps != nullptr) {
        float old[kRun] = {};
        load_run(update.steps + place.in_stack + at, momentum);
        if (update.before.data != nullptr) {
          load_run(before + at, old);
        }
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          momentum[i] += mean * old[i];
        }
        if (here) {
          store_run(m + at, momentum);
        }
      } else {
        load_run(m + at, momentum);
      }
      load_run(w + at, x);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        x[i] += momentum[i];
      }
    };
    using Sum = std::conditional_t<sizeof(Real) == 2, float, double>;
    Sum squares = 0;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float x[kRun];
      moved(at, true, x);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        squares += static_cast<Sum>(x[i]) * static_cast<Sum>(x[i]);
      }
    });
    squares = lanes_sum(plan, squares);
    if (!here) {
      return;
    }
    const auto scale = static_cast<float>(static_cast<Sum>(update.norms[number]) /
                                          sqrt(squares + static_cast<Sum>(kLactNormEps)));
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float x[kRun];
      moved(at, false, x);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        x[i] *= scale;
      }
      store_run(to + at, x);
      if (stack != nullptr) {
        store_run(stack + place.in_stack + at, x);
      }
    });
  });
}

}  // namespace

template <typename From, typename Real>
void lact_gather(const LactSizes& n, int64_t rows, const LactRows<const From>& first, Real* to,
                 const LactRows<const From>& second, Real* to_second) {
  const FastGrid grid(n.batch * n.heads * rows, n.width, kFastRun<Real>);
  const dim3 blocks(grid.blocks(), to_second != nullptr ? 2 : 1);
  gather_kernel<<<blocks, kThreads, 0, this_stream()>>>(LactWindow(n, rows), grid, first, to,
                                                        second, to_second, n.width);
  check_launch("lact gather");
}

template <typename T, typename Real>
void lact_scatter(const LactSizes& n, int64_t rows, int64_t width, const float* from,
                  const LactRows<T>& to, bool accumulate) {
  if (to.data == nullptr) {
    return;
  }
  const FastGrid grid(n.batch * n.heads * rows, width, kFastRun<Real>);
  scatter_kernel<T, Real><<<grid.blocks(), kThreads, 0, this_stream()>>>(
      LactWindow(n, rows), grid, from, to, width, accumulate);
  check_launch("lact scatter");
}

template <typename Real>
void lact_load(const LactSizes& n, const LactBlocks& from, Real* stack) {
  const LactMatrixRows matrices(n, kFastRun<Real>);
  load_kernel<<<matrices.plan.blocks(), kRowThreads, 0, this_stream()>>>(matrices, from, stack);
  check_launch("lact weights");
}

template <typename Real>
void lact_start(const OpArgs& args, const LactSizes& n, const LactBlocks& blocks, float* norms,
                const LactBlocks& zeros, Real* stack) {
  const LactMatrixRows matrices(n, kFastRun<Real>);
  const Start start = {args.in[5].ptr<float>(), args.in[6].ptr<float>(), args.in[7].ptr<float>()};
  start_kernel<<<matrices.plan.blocks(), kRowThreads, 0, this_stream()>>>(matrices, start, blocks,
                                                                          norms, zeros, stack);
  check_launch("lact start");
}

void lact_mean_momentum(const LactSizes& n, const LactRows<const float>& momentum, float* means) {
  mean_kernel<<<static_cast<unsigned>(n.batch * n.heads), kThreads, 0, this_stream()>>>(
      momentum, n.heads, n.chunk, means);
  check_launch("lact momentum");
}

template <typename Real>
void lact_update(const LactSizes& n, const LactUpdate& update, Real* stack) {
  const LactMatrixRows matrices(n, kFastRun<Real>);
  update_kernel<<<matrices.plan.blocks(), kRowThreads, 0, this_stream()>>>(matrices, update, stack);
  check_launch("lact update");
}

#define FWPKM_LACT_REAL(Real)                                                                \
  template void lact_load<Real>(const LactSizes&, const LactBlocks&, Real*);                 \
  template void lact_start<Real>(const OpArgs&, const LactSizes&, const LactBlocks&, float*, \
                                 const LactBlocks&, Real*);                                  \
  template void lact_update<Real>(const LactSizes&, const LactUpdate&, Real*);
#define FWPKM_LACT_GATHER(From, Real)                                                           \
  template void lact_gather<From, Real>(const LactSizes&, int64_t, const LactRows<const From>&, \
                                        Real*, const LactRows<const From>&, Real*);
#define FWPKM_LACT_SCATTER(T, Real)                                                     \
  template void lact_scatter<T, Real>(const LactSizes&, int64_t, int64_t, const float*, \
                                      const LactRows<T>&, bool);
FWPKM_LACT_REAL(float)
FWPKM_LACT_REAL(bf16)
FWPKM_LACT_GATHER(float, float)
FWPKM_LACT_GATHER(bf16, float)
FWPKM_LACT_GATHER(bf16, bf16)
FWPKM_LACT_GATHER(float, bf16)
FWPKM_LACT_SCATTER(float, float)
FWPKM_LACT_SCATTER(bf16, float)
FWPKM_LACT_SCATTER(bf16, bf16)
#undef FWPKM_LACT_REAL
#undef FWPKM_LACT_GATHER
#undef FWPKM_LACT_SCATTER

}  // namespace fwpkm
