#include "train/step.h"

#include "ops/lm_loss/lm_loss.h"
#include "tensor/profile.h"

namespace fwpkm {

InputsAndLabels split_labels(std::span<const int32_t> tokens, int64_t batch, int64_t seq) {
  require(static_cast<int64_t>(tokens.size()) == batch * (seq + 1), "train",
          "{} tokens are not {} rows of {}", tokens.size(), batch, seq + 1);
  InputsAndLabels split;
  for (int64_t b = 0; b < batch; ++b) {
    const auto row =
        tokens.subspan(static_cast<size_t>(b * (seq + 1)), static_cast<size_t>(seq + 1));
    split.inputs.insert(split.inputs.end(), row.begin(), row.end() - 1);
    split.labels.insert(split.labels.end(), row.begin() + 1, row.end());
  }
  return split;
}

std::vector<int32_t> document_starts(std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                                     int32_t end_of_text) {
  std::vector<int32_t> starts(tokens.size());
  for (int64_t b = 0; b < batch; ++b) {
    int32_t start = 0;
    for (int64_t t = 0; t < seq; ++t) {
      starts[static_cast<size_t>(b * seq + t)] = start;
      if (tokens[static_cast<size_t>(b * seq + t)] == end_of_text) {
        start = static_cast<int32_t>(t + 1);
      }
    }
  }
  return starts;
}

Tensor add_gradients(Model& model, Pool& pool, const Tensor& inputs, const Tensor& labels,
                     const Tensor& seed, const ForwardOptions& options) {
  Tape tape;
  Run run(pool, &tape);
  Tensor loss;
  {
    const Tensor h = model.hidden(run, inputs, options);
    loss = lm_loss(run, h, model.embedding_table(), labels).loss;
  }
  tape.backward(pool, loss, seed);
  if (!pool.dry()) {
    model.parameters().settle_gradients();
  }
  return loss;
}

double accumulate_gradients(Model& model, Pool& pool, std::span<const int32_t> tokens,
                            int64_t batch, int64_t seq, double weight,
                            const ForwardOptions& options, int32_t hide_after) {
  const InputsAndLabels split = split_labels(tokens, batch, seq);
  require_tokens(tokens, model.config(), false);
  Run run(pool);
  const Shape shape = {batch, seq};
  const Tensor inputs = run.from_host("tokens", shape, split.inputs);
  const Tensor labels = run.from_host("labels", shape, split.labels);
  ForwardOptions forward = options;
  if (hide_after >= 0) {
    forward.starts =
        run.from_host("starts", shape, document_starts(split.inputs, batch, seq, hide_after));
  }
  const double seed[] = {weight};
  const Tensor loss =
      add_gradients(model, pool, inputs, labels, run.from_host("seed", {1}, seed), forward);
  return to_host(loss.view())[0];
}

StepResult train_step(Model& model, Pool& pool, AdamW& optimizer, std::span<const int32_t> tokens,
                      int64_t batch, int64_t seq, const AdamWSettings& settings, double clip) {
  StepResult result;
  std::vector<MemoryRecord> records;
  ForwardOptions options;
  options.records = &records;
  result.loss = accumulate_gradients(model, pool, tokens, batch, seq, 1.0, options);
  Profile::time("optimizer", false, [&] {
    result.grad_norm = optimizer.gradient_norm();
    const double scale =
        clip > 0 && result.grad_norm > clip ? clip / (result.grad_norm + 1e-6) : 1.0;
    optimizer.step(settings, scale);
  });
  commit(records, model.config(), &model.parameters());
  return result;
}

}  // namespace fwpkm
