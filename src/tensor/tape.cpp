#include "tensor/tape.h"

#include <algorithm>
#include <exception>

#include "tensor/cuda.h"
#include "tensor/profile.h"

namespace fwpkm {
namespace {

// The window on `parent_grad` that `part` is on its parent's value.
View matching_window(const View& part, const View& parent, const View& parent_grad) {
  View window = part;
  const auto offset = static_cast<const char*>(part.data) - static_cast<const char*>(parent.data);
  window.data = static_cast<char*>(parent_grad.data) + offset;
  return window;
}

// Makes room for the gradient of a node. Contents are undefined, except that a node whose parts do
// not cover it starts at zero.
void make_grad(Pool& pool, Node& node) {
  if (node.grad) {
    return;
  }
  if (node.parent) {
    Node& parent = *node.parent;
    make_grad(pool, parent);
    node.grad = matching_window(node.value, parent.value, parent.grad);
    return;
  }
  node.grad_storage = pool.allocate(static_cast<size_t>(node.value.bytes()));
  node.grad = View(node.value.name, node.grad_storage->data(), node.value.dtype, node.value.device,
                   node.value.shape);
  if (node.parts_elements > 0 && node.parts_elements < node.value.size() && !pool.dry()) {
    fill_zero(node.grad);
  }
}

void drop_grad(Node& node) {
  if (node.is_parameter) {
    return;
  }
  node.grad = View();
  node.grad_storage.reset();
  node.grad_written = false;
}

}  // namespace

Tape::~Tape() {
  try {
    clear();
  } catch (const std::exception&) {
    // The GPU failed, and whoever waits for it will say so.
  }
}

void Tape::clear() {
  if (std::any_of(calls_.begin(), calls_.end(), [](const Call& c) { return c.late; })) {
    cuda::join_late();
  }
  calls_.clear();
}

void Tape::backward(Pool& pool, const Tensor& output, const Tensor& seed) {
  const std::pair<Tensor, Tensor> one[] = {{output, seed}};
  backward(pool, one);
}

void Tape::backward(Pool& pool, std::span<const std::pair<Tensor, Tensor>> seeds) {
  for (const auto& [output, seed] : seeds) {
    require(output.shape() == seed.shape(), "tape", "the seed of {} has shape {}, not {}",
            output.view().name, seed.shape().str(), output.shape().str());
    require(!output.node()->parent, "tape", "a seed must be for a whole tensor, not for a part");
    output.node()->grad = seed.view();
    output.node()->grad_storage = seed.node()->storage;
    output.node()->grad_written = true;
  }
  const auto kept = [&](const Node* node) {
    return std::any_of(kept_.begin(), kept_.end(),
                       [&](const Tensor& t) { return t.node() == node; });
  };

  std::vector<View> in, out, saved, dout, din;
  while (!calls_.empty()) {
    Call call = std::move(calls_.back());
    calls_.pop_back();
    const size_t inputs = call.in.size();
    if (call.late && !pool.dry()) {
      cuda::join_late();
    }

    dout.clear();
    bool arrived = false;
    for (const Tensor& t : call.out) {
      if (!t) {
        dout.emplace_back();
        continue;
      }
      const Node& node = *t.node();
      // A node with parts has its gradient in place as soon as one of them has.
      const bool here = node.grad_written || (node.grad && node.parts_elements > 0);
      dout.push_back(here ? node.grad : View());
      arrived = arrived || here;
    }

    din.assign(inputs, View());
    // std::vector<bool> has no data(); kernels want a plain array.
    auto accumulate = std::make_unique<bool[]>(inputs);
    for (size_t i = 0; i < inputs; ++i) {
      if (!call.in[i] || !call.in[i].node()->wants_grad) {
        continue;
      }
      Node& node = *call.in[i].node();
      if (!arrived) {
        // Nothing comes through this call, but a part must not stay undefined.
        if (node.parent && !node.grad_written) {
          make_grad(pool, node);
          if (!pool.dry()) {
            fill_zero(node.grad);
          }
          node.grad_written = true;
        }
        continue;
      }
      if (static_cast<int>(i) == call.op->pass_through && !node.grad && !node.parent &&
          node.parts_elements == 0 && !kept(&node) && !kept(call.out[0].node()) &&
          dout[0].contiguous()) {
        node.grad = dout[0];
        node.grad_storage = call.out[0].node()->grad_storage;
        if (call.out[0].node()->parent) {
          node.grad_storage = call.out[0].node()->parent->grad_storage;
        }
      }
      make_grad(pool, node);
      if (node.parent && node.parent->is_parameter && !node.parent->grad_written) {
        // Its parts add to it; they need not cover it.
        if (!pool.dry()) {
          fill_zero(node.parent->grad);
        }
        node.parent->grad_written = true;
      }
      din[i] = node.grad;
      accumulate[i] = node.grad_written;
      node.grad_written = true;
    }

    if (arrived) {
      const auto views = [](const std::vector<Tensor>& tensors, std::vector<View>* list) {
        list->clear();
        for (const Tensor& t : tensors) {
          list->push_back(t ? t.view() : View());
        }
      };
      views(call.in, &in);
      views(call.out, &out);
      views(call.saved, &saved);
      OpArgs args;
      args.in = in;
      args.out = out;
      args.saved = saved;
      args.dout = dout;
      args.din = din;
      args.accumulate = std::span<const bool>(accumulate.get(), inputs);
      args.attributes = call.attributes;
      const Kernels& kernels = call.op->kernels(pool.device().kind, pool.device().real);
      require(kernels.backward != nullptr, call.op->name, "has no backward kernel");
      std::shared_ptr<Block> workspace;
      if (kernels.workspace != nullptr) {
        if (const size_t bytes = kernels.workspace(args, true); bytes > 0) {
          workspace = pool.allocate(bytes);
          args.workspace = workspace->data();
        }
      }
      if (!pool.dry()) {
        Profile::time(call.op->name, true, [&] { kernels.backward(args); });
      }
    }
    for (const Tensor& t : call.out) {
      if (t && !kept(t.node())) {
        drop_grad(*t.node());
      }
    }
  }
  kept_.clear();
}

}  // namespace fwpkm
