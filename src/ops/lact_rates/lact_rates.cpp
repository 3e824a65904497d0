#include "ops/lact_rates/lact_rates.h"

#include "ops/lact_rates/reference.h"

namespace fwpkm {

const Op kLactRates = {
    .name = "lact_rates",
    .reference_f64 = {&lact_rates_forward_reference<double>,
                      &lact_rates_backward_reference<double>},
    .reference_f32 = {&lact_rates_forward_reference<float>, &lact_rates_backward_reference<float>},
    .cpu = {&lact_rates_forward_cpu, &lact_rates_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&lact_rates_forward_cuda, &lact_rates_backward_cuda),
};

LactRates lact_rates(Run& run, const Tensor& x, const Tensor& y, double base) {
  require(x.view().rank() == 3 && y.view().rank() == 3 &&
              x.shape() == Shape({y.dim(0), y.dim(1), 3 * y.dim(2)}) && x.view().contiguous() &&
              y.view().contiguous(),
          kLactRates.name, "x must be [B, T, 3 H] and y [B, T, H], contiguous: x is {}, y is {}",
          x.shape().str(), y.shape().str());
  require(base > 0, kLactRates.name, "the base rate must be above zero, not {}", base);
  LactRates rates = {run.make("lact_rates.lr", {y.dim(0), y.dim(1), y.dim(2), 3}, run.wide()),
                     run.make("lact_rates.momentum", y.shape(), run.wide())};
  run.call(kLactRates, {x, y}, {rates.lr, rates.momentum}, {},
           LactRatesSettings{base + std::log(-std::expm1(-base))});
  return rates;
}

}  // namespace fwpkm
