#include "model/token_graph.h"

#include <algorithm>

namespace fwpkm {
namespace {

std::vector<const void*> places(const State& state) {
  std::vector<const void*> list;
  for (const LayerState& layer : state.layers) {
    list.push_back(layer.delta.view().data);
    list.push_back(layer.tail.view().data);
    for (const FastStream& stream : layer.fast) {
      const auto add = [&](const Tensor& t) { list.push_back(t ? t.view().data : nullptr); };
      const OverlayViews overlay =
          stream.overlay.owners() > 0 ? stream.overlay.views() : OverlayViews();
      for (const Tensor& t : {stream.keys, overlay.directory, overlay.pages, overlay.rows}) {
        add(t);
      }
      std::for_each(stream.mlp.begin(), stream.mlp.end(), add);
    }
  }
  return list;
}

}  // namespace

bool TokenGraph::can(const Model& model) {
  const ModelConfig& config = model.config();
  for (int l = 0; l < config.layers; ++l) {
    if (config.mixer(l) != Mixer::kGdn) {
      return false;
    }
  }
  return model.parameters().device().kind == DeviceKind::kCuda;
}

TokenGraph::TokenGraph(const Model& model)
    : model_(model),
      pool_(model.parameters().device()),
      slots_(static_cast<int32_t*>(cuda::allocate_pinned(kSlots * sizeof(int32_t)))) {
  require(slots_ != nullptr, "memory", "no pinned memory is left");
  Run run(pool_);
  token_ = run.make_kept("token", {1, 1}, DType::kI32);
}

TokenGraph::~TokenGraph() {
  cuda::release_pinned(slots_);
}

const Tensor& TokenGraph::read(State& state, int32_t token, bool learn,
                               std::vector<MemoryRecord>* records) {
  Run run(pool_);
  state.own(run, false);
  if (places(state) != recorded_) {
    recorded_ = places(state);
    graph_.reset();
    ran_ = false;
  }
  if (next_ == kSlots) {
    cuda::synchronize();
    next_ = 0;
  }
  slots_[next_] = token;
  cuda::send(token_.view().data, slots_ + next_, sizeof(int32_t));
  ++next_;
  const auto work = [&] {
    ForwardOptions options;
    options.states = {&state};
    inputs_.clear();
    options.inputs = &inputs_;
    hidden_ = model_.hidden(run, token_, options);
  };
  if (!ran_) {
    work();  // settles memory
    ran_ = true;
  } else {
    if (graph_) {
      ++state.position;  // all else that a token changes is on the GPU
    } else {
      graph_ = std::make_unique<cuda::Graph>(work);
    }
    graph_->launch();
  }
  if (learn) {
    model_.learn(run, inputs_, &state, records);
  }
  return hidden_;
}

}  // namespace fwpkm
