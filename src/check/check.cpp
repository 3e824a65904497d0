#include "check/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/random.h"
#include "base/timer.h"
#include "check/compare.h"
#include "tensor/cuda.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

// The numbers of a case: inputs, and what running it on a device gave.
struct Outcome {
  std::vector<std::string> names;
  std::vector<Values> values;
};

// What becomes of an input of a case on a device that computes in 16 bits.
struct InputTypes {
  DType value, grad;
  bool weight;  // always a parameter; its gradient is not of 16 bits

  InputTypes(const OpInfo& info, const InputSpec& spec, Device device) {
    const auto listed = [&](const char* names) {
      return fmt::format(" {} ", names).find(fmt::format(" {} ", spec.name)) != std::string::npos;
    };
    weight = listed(info.weights) && !spec.half_grad && device.real != device.wide();
    value = listed(info.wide) ? device.wide() : device.real;
    grad = weight ? device.wide() : value;
  }
};

bool is_index(const InputSpec& spec) {
  return spec.draw == Draw::kIndex || spec.draw == Draw::kLabel;
}

// A number that fits the type.
double rounded(double x, DType type) {
  return type == DType::kBF16 ? static_cast<double>(Bf16(x))
                              : static_cast<double>(static_cast<float>(x));
}

// All devices start from the same numbers, so they must fit what `device` has.
std::vector<Values> draw_inputs(const OpInfo& info, const Case& c, Device device, uint64_t seed) {
  std::vector<Values> drawn;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    const InputSpec& spec = c.inputs[k];
    Random random(seed, k);
    Values v(spec.shape.rank == 0 ? 0 : static_cast<size_t>(spec.shape.size()));
    for (double& x : v) {
      switch (spec.draw) {
        case Draw::kNormal:
          x = random.normal();
          break;
        case Draw::kSmall:
          x = 0.1 * random.normal();
          break;
        case Draw::kUnit:
          x = 0.05 + 0.9 * random.uniform();
          break;
        case Draw::kDecay:
          x = -random.uniform();
          break;
        case Draw::kWhole:
          x = static_cast<double>(random.below(3)) - 1;
          break;
        case Draw::kIndex:
          x = static_cast<double>(random.below(spec.limit));
          break;
        case Draw::kLabel:
          x = static_cast<double>(random.below(spec.limit + 1) - 1);
          break;
      }
      x = is_index(spec) ? x : rounded(x, InputTypes(info, spec, device).value);
    }
    drawn.push_back(std::move(v));
  }
  return drawn;
}

// A case set up on a device: inputs with gradients, ready to run forward and backward.
class Bench {
 public:
  // With `parameters` the inputs are parameters, whose gradients are added to kStart; otherwise
  // they are activations, whose gradients start undefined and must be overwritten. Gradients of
  // outputs are numbers that fit `seeds`.
  Bench(const OpInfo& info, const Case& c, const std::vector<Values>& inputs, Device device,
        bool poison, bool parameters, DType seeds = DType::kF32)
      : case_(c), pool_(device), parameters_(parameters), seed_type_(seeds) {
    pool_.set_poison(poison);
    Run run(pool_);
    for (size_t k = 0; k < inputs.size(); ++k) {
      const InputSpec& spec = c.inputs[k];
      if (spec.shape.rank == 0) {
        tensors_.emplace_back();
        continue;
      }
      if (is_index(spec)) {
        const std::vector<int32_t> ids(inputs[k].begin(), inputs[k].end());
        hold_.push_back(run.from_host(spec.name, spec.shape, ids));
        tensors_.push_back(Tensor::constant(hold_.back().view()));
        continue;
      }
      const InputTypes types(info, spec, device);
      hold_.push_back(run.from_host(spec.name, spec.shape, inputs[k], types.value));
      const View value = hold_.back().view();
      if (spec.grad && (parameters || types.weight)) {
        const Values start(inputs[k].size(), parameters ? kStart : NAN);
        hold_.push_back(run.from_host(spec.name, spec.shape, start, types.grad));
        tensors_.push_back(Tensor::parameter(value, hold_.back().view()));
      } else {
        tensors_.push_back(Tensor::constant(value));
        tensors_.back().node()->wants_grad = spec.grad;
      }
    }
  }

  void forward(bool record) {
    outputs_.clear();
    tape_.clear();
    for (const Tensor& t : tensors_) {
      if (t && !t.node()->is_parameter) {
        t.node()->grad = View();
        t.node()->grad_storage.reset();
      }
      if (t && !parameters_) {
        t.node()->grad_written = false;
      }
      if (t) {
        t.node()->parts_elements = 0;
      }
    }
    Run run(pool_, record ? &tape_ : nullptr);
    outputs_ = case_.build(run, tensors_);
    if (record) {
      carries_.clear();
      for (const Tensor& t : outputs_) {
        carries_.push_back(t.node()->wants_grad);
      }
    }
  }

  void backward(uint64_t seed) {
    prepare_backward(seed);
    replay();
  }

  // Draws the gradients of the outputs.
  void prepare_backward(uint64_t seed) {
    seeds_.clear();
    Run run(pool_);
    for (const Tensor& t : tensors_) {
      if (t && !parameters_) {
        tape_.keep_grad(t);
      }
    }
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (carries_[k]) {
        seeds_.emplace_back(outputs_[k], run.from_host("seed", outputs_[k].shape(),
                                                       weights(k, seed), outputs_[k].view().dtype));
      }
    }
  }

  void replay() { tape_.backward(pool_, seeds_); }

  // The fixed random weights that make one number of output k.
  Values weights(size_t k, uint64_t seed) const {
    const Random random(seed, 1000 + k);
    Values w(static_cast<size_t>(outputs_[k].view().size()));
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] = rounded(random.normal_at(i), seed_type_);
    }
    return w;
  }

  // One number of all outputs that carry a gradient.
  double weighted_sum(uint64_t seed) const {
    double sum = 0;
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (!carries_[k]) {
        continue;
      }
      const Values w = weights(k, seed), v = to_host(outputs_[k].view());
      for (size_t i = 0; i < v.size(); ++i) {
        sum += w[i] * v[i];
      }
    }
    return sum;
  }

  Outcome collect_outputs() const {
    Outcome outcome;
    for (size_t k = 0; k < outputs_.size(); ++k) {
      outcome.names.push_back(fmt::format("output {}", outputs_[k].view().name));
      outcome.values.push_back(to_host(outputs_[k].view()));
    }
    return outcome;
  }

  void collect_gradients(Outcome* outcome) const {
    for (size_t k = 0; k < tensors_.size(); ++k) {
      if (!has_gradient(k)) {
        continue;
      }
      outcome->names.push_back(fmt::format("{} of {}", parameters_ ? "added gradient" : "gradient",
                                           case_.inputs[k].name));
      outcome->values.push_back(gradient(k));
    }
  }

  void set_input(size_t k, const Values& values) { copy_from_host(tensors_[k].view(), values); }
  Values gradient(size_t k) const { return to_host(tensors_[k].node()->grad); }
  bool has_gradient(size_t k) const {
    return tensors_[k] && tensors_[k].node()->wants_grad && tensors_[k].node()->grad;
  }

 private:
  const Case& case_;
  static constexpr double kStart = 0.5;
  Pool pool_;
  Tape tape_;
  bool parameters_;
  DType seed_type_;
  std::vector<Tensor> tensors_, hold_, outputs_;
  std::vector<std::pair<Tensor, Tensor>> seeds_;
  std::vector<bool> carries_;  // which outputs carry a gradient
};

Outcome run_all(const OpInfo& info, const Case& c, const std::vector<Values>& inputs, Device device,
                DType seeds, uint64_t seed) {
  Bench bench(info, c, inputs, device, true, false, seeds);
  bench.forward(true);
  Outcome outcome = bench.collect_outputs();
  bench.backward(seed);
  bench.collect_gradients(&outcome);
  Bench adding(info, c, inputs, device, true, true, seeds);
  adding.forward(true);
  adding.backward(seed);
  adding.collect_gradients(&outcome);
  // Once more without a tape: inference must give the same.
  bench.forward(false);
  Outcome again = bench.collect_outputs();
  for (size_t k = 0; k < again.values.size(); ++k) {
    outcome.names.push_back(again.names[k] + " without a tape");
    outcome.values.push_back(std::move(again.values[k]));
  }
  return outcome;
}

template <typename Fn>
std::vector<CheckResult> over_cases(const CheckOptions& options, const std::string& kind, Fn&& fn) {
  std::vector<CheckResult> results;
  bool found = options.op.empty();
  for (const OpInfo& info : all_ops()) {
    if (!options.op.empty() && options.op != info.op->name) {
      continue;
    }
    found = true;
    for (const Case& c : info.cases()) {
      if (!options.only.empty() && options.only != c.name) {
        continue;
      }
      CheckResult result;
      result.op = info.op->name;
      result.name = c.name;
      result.kind = kind;
      try {
        if (!fn(info, c, &result)) {
          continue;
        }
      } catch (const std::exception& e) {
        result.ok = false;
        result.detail = e.what();
      }
      results.push_back(std::move(result));
    }
  }
  if (!found) {
    std::string names;
    for (const OpInfo& info : all_ops()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", info.op->name);
    }
    fail("check", "there is no op '{}'; the ops are {}", options.op, names);
  }
  return results;
}

void compare(const OpInfo& info, const Case& c, const CheckOptions& options, CheckResult* result) {
  const std::vector<Values> inputs = draw_inputs(info, c, options.device, options.seed);
  const auto run = [&](Device device) {
    return run_all(info, c, inputs, device, options.device.real, options.seed);
  };
  const Outcome exact = run(Device::reference()), plain = run(Device::plain()),
                fast = run(options.device);
  // A float has 24 bits, a bf16 8: no kernel can be asked for less than a few units in the last
  // place. Sums of rounded products in 16 bits are what the budget is for.
  const double kFloor = options.device.real == DType::kBF16 ? 0x1.0p-8 : 4 * 0x1.0p-24;
  double worst_ratio = -1;
  for (size_t k = 0; k < exact.values.size(); ++k) {
    const double error = relative_error(fast.values[k], exact.values[k]);
    const double limit =
        c.budget * std::max(relative_error(plain.values[k], exact.values[k]), kFloor);
    // Not a number on either side is never right.
    const double ratio = std::isfinite(error) && std::isfinite(limit)
                             ? error / limit
                             : std::numeric_limits<double>::infinity();
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      result->error = error;
      result->limit = limit;
      result->detail = exact.names[k];
    }
  }
  result->ok = worst_ratio <= 1;
}

void difference_quotients(const OpInfo& info, const Case& c, uint64_t seed, CheckResult* result) {
  const std::vector<Values> inputs = draw_inputs(info, c, Device::cpu(), seed);
  Bench bench(info, c, inputs, Device::reference(), true, false);
  bench.forward(true);
  bench.backward(seed);
  result->limit = c.grad_tolerance;
  // All of them now: running forward again drops them.
  std::vector<Values> gradients;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const bool wanted = c.inputs[k].grad && c.inputs[k].shape.rank > 0 && !is_index(c.inputs[k]);
    require(wanted == bench.has_gradient(k), "check", "{} of the gradient of {}",
            wanted ? "nothing came" : "nobody asked", c.inputs[k].name);
    gradients.push_back(wanted ? bench.gradient(k) : Values());
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Values& gradient = gradients[k];
    if (gradient.empty()) {
      continue;
    }
    for (uint64_t direction = 0; direction < 3; ++direction) {
      const Random random(seed + 77, k * 3 + direction);
      Values along(gradient.size());
      double analytic = 0, scale = 0;
      for (size_t i = 0; i < along.size(); ++i) {
        along[i] = random.normal_at(i);
        analytic += along[i] * gradient[i];
        scale += along[i] * along[i] * gradient[i] * gradient[i];
      }
      const auto at = [&](double step) {
        Values moved = inputs[k];
        for (size_t i = 0; i < moved.size(); ++i) {
          moved[i] += step * along[i];
        }
        bench.set_input(k, moved);
        bench.forward(false);
        return bench.weighted_sum(seed);
      };
      const double h = c.grad_step;
      // Fourth order, so that the step can be large enough for rounding not to matter.
      const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      bench.set_input(k, inputs[k]);
      const double error = std::fabs(numeric - analytic) / std::max(std::sqrt(scale), 1e-6);
      if (!(error <= result->error)) {
        result->error = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        result->detail = fmt::format("gradient of {}: {:.9g} by backward, {:.9g} by differences",
                                     c.inputs[k].name, analytic, numeric);
      }
    }
  }
  result->ok = result->error <= result->limit;
}

}  // namespace

std::vector<CheckResult> check_values(const CheckOptions& options) {
  return over_cases(options, "values", [&](const OpInfo& info, const Case& c, CheckResult* result) {
    if (c.perf) {
      return false;
    }
    compare(info, c, options, result);
    return true;
  });
}

std::vector<CheckResult> check_gradients(const CheckOptions& options) {
  return over_cases(options, "grad", [&](const OpInfo& info, const Case& c, CheckResult* result) {
    if (c.perf) {
      return false;
    }
    difference_quotients(info, c, options.seed, result);
    return true;
  });
}

std::vector<CheckResult> check_speed(const CheckOptions& options) {
  // No number from a red check: an op whose cases fail is not timed.
  std::map<std::string, std::string> broken;
  for (const CheckResult& r : check_values({options.op, "", options.device, options.seed})) {
    if (!r.ok) {
      broken[r.op] = fmt::format("not timed, because its case '{}' fails: {}", r.name, r.detail);
    }
  }
  return over_cases(options, "perf", [&](const OpInfo& info, const Case& c, CheckResult* result) {
    if (!c.perf) {
      return false;
    }
    if (const auto it = broken.find(info.op->name); it != broken.end()) {
      result->ok = false;
      result->detail = it->second;
      return true;
    }
    const std::vector<Values> inputs = draw_inputs(info, c, options.device, options.seed);
    Bench bench(info, c, inputs, options.device, false, true, options.device.real);
    const auto done = [&] {
      if (options.device.kind == DeviceKind::kCuda) {
        cuda::synchronize();
      }
      return now_seconds();
    };
    Values forward, backward;
    for (int i = 0; i < 9; ++i) {
      const double start = done();
      bench.forward(true);
      const double forward_end = done();
      bench.prepare_backward(options.seed);
      const double backward_start = done();
      bench.replay();
      if (i >= 2) {
        forward.push_back(forward_end - start);
        backward.push_back(done() - backward_start);
      }
    }
    result->forward_ms = 1e3 * median(forward);
    result->backward_ms = 1e3 * median(backward);
    result->gflops = c.flops / result->forward_ms / 1e6;
    result->gbps = c.bytes / result->forward_ms / 1e6;
    return true;
  });
}

std::string support_table() {
  std::string text =
      "| op | reference, F64 | reference, F32 | cpu | cuda |\n|---|---|---|---|---|\n";
  for (const OpInfo& info : all_ops()) {
    const auto mark = [](const Kernels& k) {
      return k.forward == nullptr ? "no" : k.backward == nullptr ? "forward" : "yes";
    };
    text += fmt::format("| {} | {} | {} | {} | {} |\n", info.op->name, mark(info.op->reference_f64),
                        mark(info.op->reference_f32), mark(info.op->cpu), mark(info.op->cuda));
  }
  return text;
}

}  // namespace fwpkm
