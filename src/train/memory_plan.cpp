#include "train/memory_plan.h"

#include "base/machine.h"
#include "model/fast_state.h"
#include "model/model.h"
#include "ops/fwpkm/store.h"
#include "ops/lm_loss/lm_loss.h"
#include "tensor/cuda.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

// With backward, or of a forward pass alone.
int64_t activation_bytes(const ModelConfig& config, Device device, int64_t rows, int64_t seq,
                         bool backward = true) {
  Pool pool(device);
  pool.set_dry(true);
  Model model(config, device, true, true);
  Tape tape;
  Run run(pool, backward ? &tape : nullptr);
  const Tensor tokens = run.make("tokens", {rows, seq}, DType::kI32);
  const Tensor labels = run.make("labels", {rows, seq}, DType::kI32);
  Tensor loss;
  {
    const Tensor h = model.hidden(run, tokens);
    loss = lm_loss(run, h, model.embedding_table(), labels).loss;
  }
  if (backward) {
    tape.backward(pool, loss, run.make("seed", {1}, run.wide()));
  }
  return static_cast<int64_t>(pool.peak_bytes());
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, Device device, int64_t rows, int64_t seq) {
  MemoryPlan plan;
  const auto element = static_cast<int64_t>(dtype_size(device.wide()));
  const bool halves = device.wide() != device.real;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    plan.weights += spec.shape.size() * element;
    plan.weights +=
        halves && spec.half ? spec.shape.size() * static_cast<int64_t>(dtype_size(device.real)) : 0;
    plan.gradients += spec.fast ? 0 : spec.shape.size() * element;
    if (device.kind == DeviceKind::kCuda && spec.fast && spec.name.ends_with("fwpkm.values")) {
      plan.stores += FwpkmStore::planned_bytes(fwpkm_settings(config), spec.shape, rows, seq);
    }
  }
  plan.optimizer = 2 * plan.gradients;
  plan.activations = activation_bytes(config, device, rows, seq);
  plan.available = device.kind == DeviceKind::kCuda ? static_cast<int64_t>(cuda::free_bytes())
                                                    : available_memory();
  // Activations grow in proportion to the rows, apart from a part that one row shows.
  const int64_t one = rows == 1 ? plan.activations : activation_bytes(config, device, 1, seq);
  const int64_t two = activation_bytes(config, device, 2, seq);
  const int64_t each = std::max<int64_t>(1, two - one);
  const int64_t room =
      plan.available - plan.weights - plan.gradients - plan.optimizer - plan.stores - one;
  plan.largest_rows = room < 0 ? 0 : 1 + room / each;
  return plan;
}

size_t room_beside(const ModelConfig& config, Device device, int64_t rows, int64_t seq) {
  if (device.kind != DeviceKind::kCuda) {
    return 0;
  }
  const MemoryPlan plan = plan_memory(config, device, rows, seq);
  // Validation, a forward pass alone, shares no memory with steps.
  const int64_t validation = activation_bytes(config, device, rows, seq, false);
  return static_cast<size_t>(plan.activations + validation + plan.stores);
}

std::string describe(const MemoryPlan& plan, int64_t rows) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "memory: weights {:.1f} MiB, gradients {:.1f}, optimizer {:.1f}, activations {:.1f} ({} rows "
      "at a time){}; {:.1f} of {:.1f} MiB free; largest that fits: {} rows\n",
      mib(plan.weights), mib(plan.gradients), mib(plan.optimizer), mib(plan.activations), rows,
      plan.stores > 0 ? fmt::format(", beside tables {:.1f}", mib(plan.stores)) : "",
      mib(plan.total()), mib(plan.available), plan.largest_rows);
}

}  // namespace fwpkm
