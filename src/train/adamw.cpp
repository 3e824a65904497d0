#include "train/adamw.h"

#include <cmath>

#include "train/adamw_kernels.h"

namespace fwpkm {

AdamW::AdamW(Parameters* parameters) : parameters_(parameters), pool_(parameters->device()) {
  require(parameters->has_gradients(), "adamw", "the model was made without gradients");
  constexpr size_t kAlign = 64;
  const auto& specs = parameters->specs();
  const size_t element = dtype_size(parameters->device().real);
  size_t total = 0;
  const auto padded = [&](const ParameterSpec& spec) {
    return (static_cast<size_t>(spec.shape.size()) + kAlign - 1) / kAlign * kAlign * element;
  };
  for (const ParameterSpec& spec : specs) {
    total += spec.fast ? 0 : 2 * padded(spec);
  }
  moments_ = pool_.allocate(total);
  moments_->zero();
  auto* at = static_cast<char*>(moments_->data());
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].fast) {
      continue;
    }
    const View& value = parameters->at(p).view();
    const auto make = [&] {
      const View view(value.name, at, value.dtype, value.device, value.shape);
      at += padded(specs[p]);
      return view;
    };
    const View first = make();
    slots_.push_back({p, first, make()});
  }
}

size_t AdamW::bytes() const {
  return moments_->bytes();
}

double AdamW::gradient_norm() const {
  double squares = 0;
  for (const Slot& slot : slots_) {
    squares += sum_of_squares(parameters_->at(slot.index).node()->grad);
  }
  return std::sqrt(squares);
}

void AdamW::step(const AdamWSettings& settings, double scale) {
  ++steps_;
  const double t = static_cast<double>(steps_);
  AdamWConstants c;
  c.beta1 = settings.beta1;
  c.beta2 = settings.beta2;
  c.eps = settings.eps;
  c.step = settings.lr / (1 - std::pow(settings.beta1, t));
  c.second_scale = 1 / std::sqrt(1 - std::pow(settings.beta2, t));
  c.gradient_scale = scale;
  for (const Slot& slot : slots_) {
    const Tensor& p = parameters_->at(slot.index);
    c.keep = 1 - (parameters_->specs()[slot.index].decay ? settings.lr * settings.weight_decay : 0);
    adamw_update(p.view(), p.node()->grad, slot.first, slot.second, c);
  }
}

}  // namespace fwpkm
