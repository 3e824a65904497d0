// Fast-weight memories: the layer's slow path, and who reads and writes what when.
#include "model/layer.h"
#include "ops/blend_norm/blend_norm.h"
#include "ops/linear/linear.h"
#include "ops/memory_qv/memory_qv.h"

namespace fwpkm {
namespace {

// Tokens begin..end of sequence b of x [B, T, ..], as one sequence.
Tensor tokens_of(const Tensor& x, int64_t b, int64_t begin, int64_t end) {
  return Tensor::constant(x.view().slice(0, b, b + 1).slice(1, begin, end));
}

// Rows begin..end of a queue [rows, ..], as one sequence.
Tensor queue_rows(const Tensor& x, int64_t begin, int64_t end) {
  const View rows = x.view().slice(0, begin, end);
  return Tensor::constant(rows.reshape(rows.shape.batched(1)));
}

// Weights for each of `count` rows, all alike: a copy for each, or for one row the weights
// themselves.
Tensor repeat(Run& run, const Tensor& w, int64_t count) {
  const Shape shape = w.shape().batched(count);
  if (count == 1) {
    return Tensor::constant(w.view().reshape(shape));
  }
  const Tensor all = run.make(w.view().name, shape, w.view().dtype);
  for (int64_t i = 0; i < count && !run.pool().dry(); ++i) {
    copy_view(w.view(), all.view().slice(0, i, i + 1).reshape(w.shape()));
  }
  return all;
}

}  // namespace

// Chunk, lookahead: the same for both kinds of memory.
Model::MemoryShape Model::memory_shape(int layer) const {
  return config_.has_fwpkm(layer) ? MemoryShape{config_.fwpkm.chunk, config_.fwpkm.lookahead}
                                  : MemoryShape{config_.fwmlp.chunk, config_.fwmlp.lookahead};
}

// One update of a stream by `pairs` queries and the values they are to find.
void Model::update_stream(Run& run, const Layer& layer, int index, int64_t row, FastStream* stream,
                          int64_t pairs, std::vector<MemoryRecord>* records) const {
  const int64_t lookahead = memory_shape(index).lookahead;
  Run plain(run.pool());
  const Tensor q = queue_rows(stream->q, 0, pairs);
  const Tensor v = queue_rows(stream->v, lookahead, lookahead + pairs);
  const auto add_record = [&]() -> MemoryRecord& {
    MemoryRecord& record = records->emplace_back();
    record.layer = index;
    record.update = true;
    record.row = row;
    record.first = stream->written;
    return record;
  };
  if (config_.has_fwpkm(index)) {
    FwpkmSettings settings = fwpkm_settings(config_);
    settings.lookahead = 0;
    settings.chunk = pairs;
    settings.official = false;
    settings.shared = true;
    const Tensor g = config_.fwpkm.weighted() ? queue_rows(stream->g, 0, pairs) : Tensor();
    const FwpkmResult r =
        fwpkm_memory(plain, q, v, g, stream->keys ? stream->keys : layer.memory.keys,
                     layer.memory.values, settings, stream->overlay.views());
    if (stream->keys && stream->keys.sole()) {
      copy_view(r.keys.view(), stream->keys.view());  // stays where it is
    } else {
      stream->keys = run.keep(r.keys.view());
    }
    if (!run.pool().dry()) {
      put_rows(r, &stream->overlay);
    }
    if (records != nullptr) {
      MemoryRecord& record = add_record();
      record.fwpkm = r;
      if (g && !run.pool().dry()) {
        record.strengths = plain.make("memory.strengths", g.shape(), g.view().dtype);
        copy_view(g.view(), record.strengths.view());
      }
    }
  } else {
    FastMlpSettings settings = fwmlp_settings(config_);
    settings.lookahead = 0;
    settings.chunk = pairs;
    settings.mean_target = false;
    const FastMlpResult r = fast_mlp(plain, q, v, stream_mlp(run, layer, *stream), settings);
    for (size_t i = 0; i < r.after.size(); ++i) {
      stream->mlp[i] = run.keep(r.after[i].view());
    }
    if (records != nullptr) {
      add_record().mlp = r;
    }
  }
  // The newest `lookahead` tokens stay: their pairs are not complete.
  for (Tensor* t : {&stream->q, &stream->v, &stream->g}) {
    if (*t && lookahead > 0 && !run.pool().dry()) {
      for (int64_t i = 0; i < lookahead; ++i) {
        copy_view(t->view().slice(0, pairs + i, pairs + i + 1), t->view().slice(0, i, i + 1));
      }
    }
  }
  stream->queued = lookahead;
  stream->written += pairs;
  ++stream->updates;
}

std::array<Tensor, 6> Model::stream_mlp(Run& run, const Layer& layer,
                                        const FastStream& stream) const {
  if (stream.mlp[0]) {
    return stream.mlp;
  }
  std::array<Tensor, 6> weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = repeat(run, layer.memory.mlp[i], 1);
  }
  return weights;
}

Tensor Model::read_stream(Run& run, const Layer& layer, int index, const FastStream& stream,
                          const Tensor& q, const Tensor& v, const ForwardOptions& options) const {
  if (config_.has_fwpkm(index)) {
    FwpkmSettings settings = fwpkm_settings(config_);
    settings.chunk = q.dim(1);
    settings.write = false;
    settings.shared = true;
    const FwpkmResult r = fwpkm_memory(run, q, v, {}, stream.keys ? stream.keys : layer.memory.keys,
                                       layer.memory.values, settings, stream.overlay.views());
    if (options.records != nullptr) {
      MemoryRecord& record = options.records->emplace_back();
      record.layer = index;
      record.fwpkm = r;
    }
    return r.output;
  }
  FastMlpSettings settings = fwmlp_settings(config_);
  settings.write = false;
  return fast_mlp(run, q, {}, stream_mlp(run, layer, stream), settings).output;
}

// Adds tokens to a stream's queue, which has room for them, and writes them if it is full.
void Model::queue_tokens(Run& run, const Layer& layer, const MemoryInput& input, int64_t row,
                         FastStream* stream, std::vector<MemoryRecord>* records) const {
  const auto [chunk, lookahead] = memory_shape(input.layer);
  const int64_t room = chunk + lookahead, count = input.q.dim(1);
  const auto append = [&](Tensor* queue, const Tensor& part) {
    if (!part) {
      return;
    }
    if (!*queue) {
      *queue = part.view().rank() == 2
                   ? run.make_kept("memory.queue", {room}, part.view().dtype)
                   : run.make_kept("memory.queue", {room, part.dim(2)}, part.view().dtype);
    }
    const View to = queue->view().slice(0, stream->queued, stream->queued + count);
    copy_view(part.view().reshape(to.shape), to);
  };
  append(&stream->q, input.q);
  append(&stream->v, input.v);
  append(&stream->g, input.g);
  stream->queued += count;
  if (stream->queued == room) {
    update_stream(run, layer, input.layer, row, stream, chunk, records);
  }
}

void Model::learn(Run& run, std::span<const MemoryInput> inputs, State* state,
                  std::vector<MemoryRecord>* records) const {
  state->own(run, true);
  for (const MemoryInput& input : inputs) {
    const auto l = static_cast<size_t>(input.layer);
    queue_tokens(run, *layers_[l], input, 0, &state->layers[l].fast[0], records);
  }
}

// A stream: tokens are read and queued; whenever a chunk of pairs is complete, they are written.
Tensor Model::stream_memory(Run& run, const Layer& layer, int index, const Tensor& q,
                            const Tensor& v, const Tensor& g, const ForwardOptions& options) const {
  require(!run.recording(), "model", "a memory cannot be recorded on top of a state");
  const int64_t time = q.dim(1), room = memory_shape(index).chunk + memory_shape(index).lookahead;
  require(options.inputs == nullptr || q.dim(0) == 1, "model",
          "what memories are to learn is handed out for one sequence, not {}", q.dim(0));
  const Tensor y = run.make("memory.read", v.shape());
  std::vector<FastStream*> streams;
  for (State* state : options.states) {
    for (FastStream& stream : state->layers[static_cast<size_t>(index)].fast) {
      streams.push_back(&stream);
    }
  }
  for (int64_t b = 0; b < q.dim(0); ++b) {
    FastStream& stream = *streams[static_cast<size_t>(b)];
    for (int64_t at = 0; at < time;) {
      const int64_t count = options.write_memory && options.inputs == nullptr
                                ? std::min(room - stream.queued, time - at)
                                : time - at;
      const Tensor q_part = tokens_of(q, b, at, at + count),
                   v_part = tokens_of(v, b, at, at + count);
      const Tensor read = read_stream(run, layer, index, stream, q_part, v_part, options);
      if (options.records != nullptr && config_.has_fwpkm(index)) {
        options.records->back().row = b;
        options.records->back().first = at;
      }
      copy_view(read.view(), y.view().slice(0, b, b + 1).slice(1, at, at + count));
      if (options.inputs != nullptr) {
        options.inputs->push_back({index, q, v, g});
      } else if (options.write_memory) {
        const Tensor g_part = g ? tokens_of(g, b, at, at + count) : Tensor();
        queue_tokens(run, layer, {index, q_part, v_part, g_part}, b, &stream, options.records);
      }
      at += count;
    }
  }
  if (options.records != nullptr && g) {
    MemoryRecord& record = options.records->emplace_back();
    record.layer = index;
    record.gates = g;
  }
  return y;
}

// Whole sequences: reads and writes of all chunks in one op, so that gradients go through them.
Tensor Model::sequence_memory(Run& run, const Layer& layer, int index, const Tensor& q,
                              const Tensor& v, const Tensor& g,
                              const ForwardOptions& options) const {
  MemoryRecord record;
  record.layer = index;
  record.gates = g;
  const RowMemory* rows =
      options.rows.empty() ? nullptr : &options.rows[static_cast<size_t>(index)];
  // Nobody will ask for what the rows wrote.
  const bool forgotten =
      config_.memory == MemoryMode::kPerSequence && config_.carry == Carry::kSequence;
  Tensor output, losses;
  if (config_.has_fwpkm(index)) {
    FwpkmSettings settings = fwpkm_settings(config_);
    settings.write = options.write_memory;
    settings.last_write = !forgotten;
    record.fwpkm = fwpkm_memory(
        run, q, v, config_.fwpkm.weighted() ? g : Tensor(), layer.memory.keys, layer.memory.values,
        settings, rows != nullptr ? rows->overlay.views() : OverlayViews(),
        options.selections.empty() ? FwpkmSelection()
                                   : options.selections[static_cast<size_t>(index)],
        options.stored.empty() ? FwpkmRows() : options.stored[static_cast<size_t>(index)]);
    output = record.fwpkm.output;
    losses = record.fwpkm.losses;
    if (run.trace) {
      const Shape heads = {q.dim(0), q.dim(1), config_.fwpkm.heads, config_.fwpkm.topk};
      run.trace(fmt::format("trace.{}.slots", index), record.fwpkm.slots.reshape(heads));
      run.trace(fmt::format("trace.{}.slot_weights", index), record.fwpkm.weights.reshape(heads));
      run.trace(fmt::format("selection.{}.ids", index), record.fwpkm.selection.ids);
      run.trace(fmt::format("selection.{}.picks", index), record.fwpkm.selection.picks);
    }
  } else {
    FastMlpSettings settings = fwmlp_settings(config_);
    settings.write = options.write_memory;
    const bool shared = config_.memory == MemoryMode::kShared;
    std::array<Tensor, 6> weights;
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = rows != nullptr && rows->mlp[i]
                       ? rows->mlp[i]
                       : repeat(run, layer.memory.mlp[i], shared ? 1 : q.dim(0));
    }
    record.mlp = fast_mlp(run, q, v, weights, settings);
    output = record.mlp.output;
    losses = record.mlp.losses;
  }
  if (run.trace) {
    trace_memory(run, index, g, losses);
  }
  if (options.records != nullptr) {
    if (forgotten) {
      record.fwpkm.rows = record.fwpkm.writes = Tensor();
      record.mlp.after = {};
    }
    options.records->push_back(std::move(record));
  }
  return output;
}

// Gates, and the losses of the tokens that wrote, chunk by chunk.
void Model::trace_memory(Run& run, int index, const Tensor& g, const Tensor& losses) const {
  if (g) {
    run.trace(fmt::format("trace.{}.gates", index), g);
  }
  const int64_t batch = losses.dim(0), time = losses.dim(1);
  const auto [chunk, lookahead] = memory_shape(index);
  const std::vector<double> all = to_host(losses.view());
  std::vector<double> written;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < time; ++t) {
      if (pair_in_chunk(t, time, chunk, lookahead)) {
        written.push_back(all[static_cast<size_t>(b * time + t)]);
      }
    }
  }
  const auto each = static_cast<int64_t>(written.size()) / batch;
  Run plain(run.pool());
  run.trace(fmt::format("trace.{}.memory_losses", index),
            plain.from_host("memory.losses", {batch, each}, written));
}

Tensor Model::memory(Run& run, const Layer& layer, const Tensor& h, int index,
                     const ForwardOptions& options) const {
  const Layer::Memory& w = layer.memory;
  const bool value_norm =
      config_.has_fwpkm(index) ? config_.fwpkm.value_norm : config_.fwmlp.value_norm;
  const auto [q, v, g] =
      memory_qv(run, h, {w.q_norm, w.q, w.q_bias}, {w.v_norm, w.v, w.v_bias},
                {w.gate_norm, w.gate, w.gate_bias}, value_norm, config_.norm_eps);
  const Tensor read = !options.states.empty()
                          ? stream_memory(run, layer, index, q, v, g, options)
                          : sequence_memory(run, layer, index, q, v, g, options);
  const Tensor mixed = blend_norm(run, read, v, g, w.out_norm, config_.norm_eps);
  const Tensor out = linear(run, mixed, w.out, w.out_bias, h);
  if (run.trace) {
    run.trace(fmt::format("trace.{}.after_fwpkm", index), out);
  }
  return out;
}

void Model::flush(Run& run, State* state, std::vector<MemoryRecord>* records) const {
  state->own(run, true);
  for (int l = 0; l < config_.layers; ++l) {
    std::vector<FastStream>& streams = state->layers[static_cast<size_t>(l)].fast;
    for (size_t b = 0; b < streams.size(); ++b) {
      const int64_t pairs = streams[b].queued - memory_shape(l).lookahead;
      if (pairs > 0) {
        update_stream(run, *layers_[static_cast<size_t>(l)], l, static_cast<int64_t>(b),
                      &streams[b], pairs, records);
      }
    }
  }
}

}  // namespace fwpkm
