#include "model/token_graph.h"

namespace fwpkm {
namespace {

std::vector<const void*> places(const State& state) {
  std::vector<const void*> list;
  for (const LayerState& layer : state.layers) {
    list.push_back(layer.delta.view().data);
    list.push_back(layer.tail.view().data);
  }
  return list;
}

}  // namespace

bool TokenGraph::can(const Model& model) {
  const ModelConfig& config = model.config();
  for (int l = 0; l < config.layers; ++l) {
    if (config.mixer(l) != Mixer::kGdn || config.has_fwpkm(l) || config.has_fwmlp(l)) {
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

const Tensor& TokenGraph::read(State& state, int32_t token) {
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
    hidden_ = model_.hidden(run, token_, options);
  };
  if (!ran_) {
    work();  // settles memory
    ran_ = true;
    return hidden_;
  }
  if (graph_) {
    ++state.position;  // all else that a token changes is on the GPU
  } else {
    graph_ = std::make_unique<cuda::Graph>(work);
  }
  graph_->launch();
  return hidden_;
}

}  // namespace fwpkm
