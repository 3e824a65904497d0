#include "train/gpu_steps.h"

#include <algorithm>
#include <cstring>

namespace fwpkm {

GpuSteps::Pinned::Pinned(size_t bytes) : data(cuda::allocate_pinned(bytes)) {
  require(data != nullptr, "memory", "no pinned memory is left ({} bytes asked for)", bytes);
}

bool GpuSteps::can(const Model& model) {
  const ModelConfig& config = model.config();
  const bool carries = config.memory == MemoryMode::kPerSequence &&
                       config.carry != Carry::kSequence &&
                       (config.has_any_fwpkm() || !config.fwmlp.layers.empty());
  return model.parameters().device().kind == DeviceKind::kCuda && !carries;
}

GpuSteps::GpuSteps(Model& model, AdamW& optimizer, bool graphs)
    : model_(model), optimizer_(optimizer), graphs_(graphs), pool_(model.parameters().device()) {
  make_stores();
}

GpuSteps::~GpuSteps() {
  try {
    settle();
  } catch (const std::exception&) {
    // The GPU failed, and with it whoever used it: there is no table left to give back.
  }
}

void GpuSteps::make_stores() {
  const ModelConfig& config = model_.config();
  const Parameters& parameters = model_.parameters();
  const FwpkmSettings settings = fwpkm_settings(config);
  if (!config.has_any_fwpkm() || settings.late_values) {
    return;
  }
  stores_.resize(static_cast<size_t>(config.layers));
  stored_.resize(stores_.size());
  for (int l = 0; l < config.layers; ++l) {
    if (config.has_fwpkm(l)) {
      stores_[static_cast<size_t>(l)] = std::make_unique<FwpkmStore>(
          pool_, parameters.writable(fmt::format("model.layers.{}.fwpkm.values", l)), settings,
          parameters.host_bytes() > 0);
    }
  }
}

void GpuSteps::take_tables(int64_t batch, int64_t seq) {
  for (size_t l = 0; l < stores_.size(); ++l) {
    if (!stores_[l]) {
      continue;
    }
    FwpkmStore& store = *stores_[l];
    const int64_t rows = std::max(store.capacity(), store.log_rows(batch, seq));
    if (rows > store.capacity()) {
      store.settle();
      for (auto& [key, kind] : kinds_) {
        kind.graph.reset();
      }
    }
    if (!store.is_open()) {
      store.open(rows);
      stored_[l] = store.rows();
      model_.parameters().lend_tables(true);
    }
  }
}

void GpuSteps::settle() {
  for (const auto& store : stores_) {
    if (store) {
      store->settle();
    }
  }
  optimizer_.start_late();
  optimizer_.await_late();
  model_.parameters().lend_tables(false);
}

size_t GpuSteps::held_bytes() const {
  size_t bytes = pool_.held_bytes();
  for (const auto& store : stores_) {
    bytes += store ? store->bytes() : 0;
  }
  return bytes;
}

GpuSteps::Kind& GpuSteps::kind(const Key& key) {
  const auto [it, fresh] = kinds_.try_emplace(key);
  Kind& k = it->second;
  if (fresh) {
    const auto& [batch, seq, weight, window, hides, adds] = key;
    Run run(pool_);
    const Shape shape = {batch, seq};
    k.inputs = run.make_kept("tokens", shape, DType::kI32);
    k.labels = run.make_kept("labels", shape, DType::kI32);
    if (hides) {
      k.starts = run.make_kept("starts", shape, DType::kI32);
    }
    k.seed = run.make_kept("seed", {1}, run.wide());
    const double seed[] = {weight};
    copy_from_host(k.seed.view(), seed);
  }
  return k;
}

void GpuSteps::stage(Kind& kind, std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                     int32_t hide_after) {
  const InputsAndLabels split = split_labels(tokens, batch, seq);
  const auto bytes = static_cast<size_t>(kind.inputs.view().bytes());
  while (kind.staged.size() <= batches_) {
    kind.staged.push_back(std::make_unique<Pinned>(3 * bytes));
  }
  auto* at = static_cast<char*>(kind.staged[batches_]->data);
  const auto send = [&](const std::vector<int32_t>& from, const Tensor& to) {
    std::memcpy(at, from.data(), bytes);
    cuda::send(to.view().data, at, bytes);
    at += bytes;
  };
  send(split.inputs, kind.inputs);
  send(split.labels, kind.labels);
  if (kind.starts) {
    send(document_starts(split.inputs, batch, seq, hide_after), kind.starts);
  }
}

void GpuSteps::accumulate(std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                          double weight, int64_t window, int32_t hide_after) {
  require_tokens(tokens, model_.config(), false);
  const bool adds = batches_ > 0;  // to the gradients of batches before
  Kind& k = kind({batch, seq, weight, window, hide_after >= 0, adds});
  stage(k, tokens, batch, seq, hide_after);
  take_tables(batch, seq);
  const auto work = [&] {
    ForwardOptions options;
    options.full_attention_window = window;
    options.starts = k.starts;
    k.records.clear();
    options.records = &k.records;
    options.stored = stored_;
    options.await_tables = [&] { optimizer_.await_late(); };
    k.loss = add_gradients(model_, pool_, k.inputs, k.labels, k.seed, options);
    commit(k.records, model_.config(), &model_.parameters(), {}, stores_);
    for (MemoryRecord& record : k.records) {
      record.fwpkm.rows = record.fwpkm.writes = Tensor();
      record.mlp.after = {};
    }
  };
  last_ = &k;
  model_.parameters().mark_gradients(adds);
  if (!graphs_ || !k.ran) {
    work();
    k.ran = true;
  } else {
    if (!k.graph) {
      k.graph = std::make_unique<cuda::Graph>(work);
    }
    k.graph->launch();
  }
  if (losses_.size() <= batches_) {
    losses_.push_back(std::make_unique<Pinned>(sizeof(float)));
  }
  cuda::fetch(losses_[batches_]->data, k.loss.view().data, sizeof(float));
  ++batches_;
}

void GpuSteps::update(const AdamWSettings& settings, double clip) {
  optimizer_.begin(settings, clip);
  model_.parameters().lend_tables(true);
  if (!graphs_ || !updated_) {
    optimizer_.enqueue();
    updated_ = true;
    return;
  }
  if (!update_) {
    update_ = std::make_unique<cuda::Graph>([&] { optimizer_.enqueue(); });
  }
  update_->launch();
}

StepResult GpuSteps::finish() {
  StepResult result;
  result.grad_norm = optimizer_.last_norm();
  optimizer_.start_late();
  for (size_t i = 0; i < batches_; ++i) {
    result.loss += static_cast<double>(*static_cast<const float*>(losses_[i]->data)) /
                   static_cast<double>(batches_);
  }
  batches_ = 0;
  return result;
}

}  // namespace fwpkm
