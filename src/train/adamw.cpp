#include "train/adamw.h"

#include <cmath>

#include "tensor/cuda.h"
#include "train/adamw_kernels.h"

namespace fwpkm {

AdamW::AdamW(Parameters* parameters, bool one_batch)
    : parameters_(parameters), pool_(parameters->device()) {
  require(parameters->has_gradients(), "adamw", "the model was made without gradients");
  if (one_batch) {
    parameters->narrow_gradients();
  }
  constexpr size_t kAlign = 64;
  const auto& specs = parameters->specs();
  const size_t element = dtype_size(parameters->device().wide());
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
  std::vector<AdamWGpu::Part> parts;
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].fast) {
      continue;
    }
    const View& stored = parameters->stored(p);
    const auto make = [&] {
      const View view(stored.name, at, stored.dtype, stored.device, stored.shape);
      at += padded(specs[p]);
      return view;
    };
    const View first = make();
    slots_.push_back({p, first, make()});
    const View& used = parameters->at(p).view();
    const double* squares = parameters->gradient_squares(p);
    parts.push_back({stored, used.data == stored.data ? View() : used,
                     parameters->at(p).node()->grad, first, slots_.back().second, specs[p].decay,
                     squares, /*late=*/squares != nullptr});
  }
  if (parameters->device().kind == DeviceKind::kCuda) {
    gpu_ = std::make_unique<AdamWGpu>(parts);
  }
}

size_t AdamW::bytes() const {
  return moments_->bytes();
}

void AdamW::require_settled() const {
  require(!parameters_->tables_lent(), "adamw",
          "training steps have not updated all parameters yet: settle those first");
}

double AdamW::gradient_norm() const {
  require_settled();
  if (gpu_) {
    gpu_->enqueue_norm();
    return gpu_->norm();
  }
  double squares = 0;
  for (const Slot& slot : slots_) {
    squares += sum_of_squares(parameters_->at(slot.index).node()->grad);
  }
  return std::sqrt(squares);
}

AdamWConstants AdamW::constants(const AdamWSettings& settings, double scale) {
  ++steps_;
  const double t = static_cast<double>(steps_);
  AdamWConstants c;
  c.beta1 = settings.beta1;
  c.beta2 = settings.beta2;
  c.eps = settings.eps;
  c.keep = 1 - settings.lr * settings.weight_decay;
  c.step = settings.lr / (1 - std::pow(settings.beta1, t));
  c.second_scale = 1 / std::sqrt(1 - std::pow(settings.beta2, t));
  c.gradient_scale = scale;
  return c;
}

void AdamW::step(const AdamWSettings& settings, double scale) {
  require_settled();
  AdamWConstants c = constants(settings, scale);
  if (gpu_) {
    cuda::synchronize();
    gpu_->send(c, 0);
    late_due_ = true;
    enqueue();
    start_late();
    await_late();
    return;
  }
  const double keep = c.keep;
  for (const Slot& slot : slots_) {
    c.keep = parameters_->specs()[slot.index].decay ? keep : 1;
    adamw_update(parameters_->stored(slot.index), parameters_->at(slot.index).node()->grad,
                 slot.first, slot.second, c);
  }
}

void AdamW::begin(const AdamWSettings& settings, double clip) {
  require(gpu_ != nullptr, "adamw", "steps are queued on a GPU only");
  require(!late_due_, "adamw", "the step before is not finished");
  gpu_->send(constants(settings, 1), clip);
  late_due_ = true;
}

void AdamW::enqueue() {
  gpu_->enqueue_norm();
  gpu_->enqueue_update();
  parameters_->mark_gradients(false);
}

void AdamW::start_late() {
  if (late_due_) {
    gpu_->start_late();
    late_due_ = false;
  }
}

void AdamW::await_late() const {
  gpu_->await_late();
}

double AdamW::last_norm() const {
  return gpu_->norm();
}

}  // namespace fwpkm
