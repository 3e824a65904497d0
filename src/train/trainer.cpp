#include "train/trainer.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "base/random.h"
#include "base/timer.h"
#include "model/memory_stats.h"
#include "ops/lm_loss/lm_loss.h"
#include "train/carried.h"
#include "train/gpu_steps.h"
#include "train/memory_plan.h"
#include "train/schedule.h"
#include "train/step.h"

namespace fwpkm {
namespace {

// Streams of the run's random numbers; each is indexed by the step.
enum RandomStream : uint64_t { kPswaStream = 1 };

// What rows carry from sequence to sequence, in a checkpoint.
constexpr const char* kCarriedFile = "carried.safetensors";

// Counting what the memories did takes the host longer than a step takes a GPU.
constexpr int64_t kGpuStatsEvery = 10;

class Trainer {
 public:
  Trainer(const ModelConfig& config, Device device, const TrainOptions& options, TrainData data,
          const TrainEvents& events)
      : options_(options),
        events_(events),
        folder_(options.out),
        data_(std::move(data)),
        model_(config, device, true, false, nullptr,
               room_beside(config, device, config.train.micro(), config.train.seq)),
        pool_(device),
        optimizer_(&model_.parameters(), parts() == 1),
        carried_(model_, pool_, config.train.micro()) {
    if (GpuSteps::can(model_)) {
      gpu_ = std::make_unique<GpuSteps>(model_, optimizer_);
    }
  }

  TrainResult run();

 private:
  const TrainConfig& settings() const { return model_.config().train; }
  // The token after which documents begin that must not see what came before, or -1.
  int32_t hide_after() const { return settings().hide_borders ? data_.end_of_text : -1; }
  void start();
  // Weights as others know them.
  void settle();
  void save(int64_t step);
  nlohmann::json state() const;
  // A whole step: all its micro batches, clipping, the optimizer. Stops the run, with the weights
  // as they were, if loss or gradients are not finite.
  StepResult take_step(int64_t step, const AdamWSettings& adam);
  // The same, queued on a GPU; the next step's data are read meanwhile.
  StepResult queue_step(int64_t step, const AdamWSettings& adam);
  // Forward and backward of all micro batches of a step. Returns the mean loss.
  double accumulate(int64_t step);
  int64_t parts() const { return (settings().batch + settings().micro() - 1) / settings().micro(); }
  // pSWA's window in this step, or 0.
  int64_t attention_window(int64_t step) const;
  Batch next_batch();
  void require_finite(int64_t step, double loss, double norm) const;
  void validate_model(int64_t step, nlohmann::json* line);

  TrainOptions options_;
  TrainEvents events_;
  RunFolder folder_;
  TrainData data_;
  Model model_;
  Pool pool_;
  AdamW optimizer_;
  CarriedMemory carried_;
  std::unique_ptr<GpuSteps> gpu_;
  std::optional<Batch> read_ahead_;
  nlohmann::json data_state_;  // before read_ahead_ was read
  MemoryStats memory_;         // of the step
  int64_t done_ = 0;           // steps
  int64_t best_step_ = -1;
  double best_loss_ = std::numeric_limits<double>::infinity();
  double last_valid_ = std::numeric_limits<double>::quiet_NaN();
  bool resumed_ = false;
};

void Trainer::start() {
  require(!settings().hide_borders || data_.end_of_text >= 0, "train",
          "train.hide_borders needs data that says which token ends a document");
  const std::vector<Checkpoint> checkpoints = folder_.checkpoints();
  if (options_.resume && !checkpoints.empty()) {
    const Checkpoint& last = checkpoints.back();
    const nlohmann::json state = folder_.restore(last, &model_, &optimizer_);
    if (!carried_.empty()) {
      carried_.load(last.path / kCarriedFile);
    }
    data_.train->restore(state.at("data"));
    done_ = last.step;
    best_step_ = state.at("best_step");
    best_loss_ = state.at("best_loss").is_null() ? std::numeric_limits<double>::infinity()
                                                 : state.at("best_loss").get<double>();
    resumed_ = true;
    events_.note(fmt::format("resumed from step {}", done_));
  } else {
    require(options_.resume || !folder_.has_run(), "run",
            "{} holds a run already; give --resume to go on with it, or choose another --out",
            options_.out.string());
    folder_.start_over();
    model_.parameters().initialize(static_cast<uint64_t>(settings().seed));
  }
  folder_.open_metrics(done_);
}

nlohmann::json Trainer::state() const {
  return {{"version", FWPKM_VERSION},
          {"step", done_},
          {"best_step", best_step_},
          {"best_loss", std::isfinite(best_loss_) ? nlohmann::json(best_loss_) : nullptr},
          {"data", read_ahead_ ? data_state_ : data_.train->state()}};
}

void Trainer::settle() {
  if (gpu_) {
    gpu_->settle();
  }
}

void Trainer::save(int64_t step) {
  settle();
  const auto extra = [&](const std::filesystem::path& folder) {
    if (!carried_.empty()) {
      carried_.save(folder / kCarriedFile);
    }
  };
  folder_.save(step, model_, optimizer_, state(), options_.files, options_.keep, best_step_, extra);
}

double Trainer::accumulate(int64_t step) {
  ForwardOptions forward;
  forward.full_attention_window = attention_window(step);
  double loss = 0;
  memory_.clear();
  for (int64_t part = 0; part < parts(); ++part) {
    const Batch batch = next_batch();
    std::vector<MemoryRecord> records;
    carried_.start_batch(batch.continues);
    forward.rows = carried_.layers();
    forward.records = &records;
    loss += accumulate_gradients(model_, pool_, batch.tokens, batch.rows, batch.seq,
                                 1.0 / static_cast<double>(parts()), forward, hide_after());
    for (const MemoryRecord& record : records) {
      memory_.add(record, model_.config());
    }
    commit(records, model_.config(), &model_.parameters(), carried_.layers());
  }
  return loss / static_cast<double>(parts());
}

int64_t Trainer::attention_window(int64_t step) const {
  const TrainConfig& t = settings();
  const Random random(static_cast<uint64_t>(t.seed), kPswaStream);
  const bool narrow =
      t.pswa_prob > 0 && random.uniform_at(static_cast<uint64_t>(step)) < t.pswa_prob;
  return narrow ? t.pswa_window : 0;
}

Batch Trainer::next_batch() {
  if (!read_ahead_) {
    return data_.train->next();
  }
  Batch batch = std::move(*read_ahead_);
  read_ahead_.reset();
  return batch;
}

StepResult Trainer::take_step(int64_t step, const AdamWSettings& adam) {
  if (gpu_) {
    return queue_step(step, adam);
  }
  StepResult result;
  result.loss = accumulate(step);
  result.grad_norm = optimizer_.gradient_norm();
  require_finite(step, result.loss, result.grad_norm);
  const double clip = settings().clip, norm = result.grad_norm;
  optimizer_.step(adam, clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1.0);
  return result;
}

StepResult Trainer::queue_step(int64_t step, const AdamWSettings& adam) {
  for (int64_t part = 0; part < parts(); ++part) {
    const Batch batch = next_batch();
    gpu_->accumulate(batch.tokens, batch.rows, batch.seq, 1.0 / static_cast<double>(parts()),
                     attention_window(step), hide_after());
  }
  gpu_->update(adam, settings().clip);
  memory_.clear();
  if (step < settings().steps) {
    data_state_ = data_.train->state();
    read_ahead_ = data_.train->next();
  }
  const StepResult result = gpu_->finish();
  require_finite(step, result.loss, result.grad_norm);
  if (step % kGpuStatsEvery == 0 || step == settings().steps) {
    for (const MemoryRecord& record : gpu_->records()) {
      memory_.add(record, model_.config());
    }
  }
  return result;
}

void Trainer::require_finite(int64_t step, double loss, double norm) const {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    return;
  }
  const Parameters& p = model_.parameters();
  for (size_t i = 0; i < p.specs().size(); ++i) {
    if (p.specs()[i].fast) {
      continue;
    }
    for (const double g : to_host(p.at(i).node()->grad)) {
      if (!std::isfinite(g)) {
        fail("train",
             "step {}: loss {}, and the gradient of {} is not finite; the run stops and its "
             "newest checkpoint is good; lower --lr or train.clip",
             step, loss, p.specs()[i].name);
      }
    }
  }
  fail("train",
       "step {}: the loss is {}; the run stops and its newest checkpoint is good; lower --lr "
       "or train.clip",
       step, loss);
}

void Trainer::validate_model(int64_t step, nlohmann::json* line) {
  settle();
  const auto source = data_.valid();
  last_valid_ = evaluate_loss(model_, pool_, *source, options_.valid_batches, hide_after());
  (*line)["valid_loss"] = last_valid_;
  events_.note(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", step, last_valid_,
                           std::exp(last_valid_)));
  if (last_valid_ < best_loss_) {
    best_loss_ = last_valid_;
    best_step_ = step;
  }
}

TrainResult Trainer::run() {
  start();
  const TrainConfig& t = settings();
  TrainResult result;
  result.resumed = resumed_;
  result.loss = std::numeric_limits<double>::quiet_NaN();
  const double begin = now_seconds();
  int64_t tokens = 0;
  bool saved = done_ > 0;
  while (done_ < t.steps && !result.stopped) {
    const int64_t step = done_ + 1;
    const double step_begin = now_seconds();
    AdamWSettings adam;
    adam.lr = learning_rate(t, step);
    adam.beta1 = t.beta1;
    adam.beta2 = t.beta2;
    adam.eps = t.eps;
    adam.weight_decay = t.weight_decay;
    const auto [loss, norm] = take_step(step, adam);
    done_ = step;
    saved = false;
    tokens += t.batch * t.seq;
    const double speed = static_cast<double>(t.batch * t.seq) / (now_seconds() - step_begin);
    nlohmann::json line = {{"step", step},
                           {"loss", loss},
                           {"lr", adam.lr},
                           {"grad_norm", norm},
                           {"tokens_per_second", speed}};
    if (!memory_.empty()) {
      line["memory"] = memory_.json();
    }
    if (data_.valid && options_.valid_every > 0 &&
        (step % options_.valid_every == 0 || step == t.steps)) {
      validate_model(step, &line);
    }
    folder_.add_metrics(line);
    events_.step(step, t.steps, loss, speed, memory_.brief());
    if (data_.sample && options_.sample_every > 0 && step % options_.sample_every == 0) {
      settle();
      events_.note(fmt::format("step {}: {}", step, data_.sample(model_)));
    }
    result.loss = loss;
    result.stopped = step < t.steps && events_.stop();
    if (step % options_.save_every == 0 || step == t.steps || result.stopped) {
      save(step);
      saved = true;
    }
  }
  if (!saved) {
    save(done_);
  }
  result.step = done_;
  result.valid_loss = last_valid_;
  result.seconds = now_seconds() - begin;
  result.tokens_per_second = result.seconds > 0 ? static_cast<double>(tokens) / result.seconds : 0;
  return result;
}

}  // namespace

double evaluate_loss(const Model& model, Pool& pool, BatchSource& source, int64_t batches,
                     int32_t hide_after) {
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const Batch batch = source.next();
    const InputsAndLabels split = split_labels(batch.tokens, batch.rows, batch.seq);
    Run run(pool);
    const Shape shape = {batch.rows, batch.seq};
    ForwardOptions options;
    if (hide_after >= 0) {
      options.starts = run.from_host(
          "starts", shape, document_starts(split.inputs, batch.rows, batch.seq, hide_after));
    }
    const Tensor h = model.hidden(run, run.from_host("tokens", shape, split.inputs), options);
    const Tensor labels = run.from_host("labels", shape, split.labels);
    sum += to_host(lm_loss(run, h, model.embedding_table(), labels).loss.view())[0];
  }
  return sum / static_cast<double>(batches);
}

TrainResult train(const ModelConfig& config, Device device, const TrainOptions& options,
                  TrainData data, const TrainEvents& events) {
  Trainer trainer(config, device, options, std::move(data), events);
  return trainer.run();
}

}  // namespace fwpkm
