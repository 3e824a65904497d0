#include "tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tensor/cuda.h"
#include "tensor/profile.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

const char* kernel_device(DeviceKind device, DType real) {
  if (device == DeviceKind::kReference) {
    return real == DType::kF64 ? "reference" : "plain";
  }
  return device_name(device);
}

// Calls fn(pointer, index) for every element in row-major order.
template <typename T, typename Fn>
void for_each(const View& view, Fn&& fn) {
  T* data = view.ptr<T>();
  std::array<int64_t, kMaxRank> at{};
  const int64_t n = view.size();
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < view.rank(); ++d) {
      offset += at[d] * view.strides[d];
    }
    fn(data + offset, i);
    for (int d = view.rank() - 1; d >= 0; --d) {
      if (++at[d] < view.shape.dims[d]) {
        break;
      }
      at[d] = 0;
    }
  }
}

// Calls fn with a null pointer of the view's element type.
template <typename Fn>
void with_type(const View& view, Fn&& fn) {
  switch (view.dtype) {
    case DType::kF64:
      return fn(static_cast<double*>(nullptr));
    case DType::kF32:
      return fn(static_cast<float*>(nullptr));
    case DType::kBF16:
      return fn(static_cast<Bf16*>(nullptr));
    case DType::kI64:
      return fn(static_cast<int64_t*>(nullptr));
    case DType::kI32:
      return fn(static_cast<int32_t*>(nullptr));
    default:
      fail("tensor", "{} holds {}, which tensors in memory cannot be copied as", view.name,
           dtype_name(view.dtype));
  }
}

}  // namespace

const Kernels& Op::kernels(DeviceKind device, DType real) const {
  const Kernels* found = &cpu;
  if (device == DeviceKind::kReference) {
    found = real == DType::kF64 ? &reference_f64 : &reference_f32;
  } else if (device == DeviceKind::kCuda) {
    found = &cuda;
  }
  require(found->forward != nullptr, name, "no {} kernel for {}", kernel_device(device, real),
          dtype_name(real));
  return *found;
}

Tensor Tensor::parameter(const View& value, const View& grad) {
  auto node = std::make_shared<Node>();
  node->value = value;
  node->grad = grad;
  node->is_parameter = true;
  node->wants_grad = static_cast<bool>(grad);
  node->grad_written = true;
  return Tensor(std::move(node));
}

Tensor Tensor::constant(const View& value) {
  auto node = std::make_shared<Node>();
  node->value = value;
  return Tensor(std::move(node));
}

Tensor Tensor::part(const View& part) const {
  auto node = std::make_shared<Node>();
  node->value = part;
  node->storage = node_->storage;
  node->wants_grad = node_->wants_grad;
  node->parent = node_;
  node->grad_written = node_->is_parameter;  // parts of a parameter always add
  return Tensor(std::move(node));
}

Tensor Tensor::reshape(const Shape& shape) const {
  return part(view().reshape(shape));
}

bool Tensor::sole() const {
  const bool sole = node_.use_count() == 1 && node_->storage.use_count() == 1;
  // What the last other owner did in another thread happened before what we do now.
  std::atomic_thread_fence(std::memory_order_acquire);
  return sole;
}

Tensor Run::make(const char* name, const Shape& shape) {
  return make(name, shape, device().real);
}

Tensor Run::keep(const View& view) {
  const Tensor copy = make_kept(view.name, view.shape, view.dtype);
  if (!pool_.dry()) {
    copy_view(view, copy.view());
  }
  return copy;
}

Tensor Run::make_kept(const char* name, const Shape& shape, DType dtype) {
  auto node = std::make_shared<Node>();
  node->storage = pool_.allocate_kept(static_cast<size_t>(shape.size()) * dtype_size(dtype));
  node->value = View(name, node->storage->data(), dtype, device().kind, shape);
  return Tensor(std::move(node));
}

Tensor Run::make(const char* name, const Shape& shape, DType dtype) {
  auto node = std::make_shared<Node>();
  const size_t bytes = static_cast<size_t>(shape.size()) * dtype_size(dtype);
  node->storage = pool_.allocate(bytes);
  node->value = View(name, node->storage->data(), dtype, device().kind, shape);
  return Tensor(std::move(node));
}

Tensor Run::make_saved(const char* name, const Shape& shape) {
  return recording() ? make(name, shape, wide()) : Tensor();
}

Tensor Run::from_host(const char* name, const Shape& shape, std::span<const double> values) {
  return from_host(name, shape, values, wide());
}

Tensor Run::from_host(const char* name, const Shape& shape, std::span<const double> values,
                      DType dtype) {
  Tensor t = make(name, shape, dtype);
  if (!pool_.dry()) {
    copy_from_host(t.view(), values);
  }
  return t;
}

Tensor Run::from_host(const char* name, const Shape& shape, std::span<const int32_t> values) {
  require(static_cast<int64_t>(values.size()) == shape.size(), "tensor",
          "{} values do not fill {} {}", values.size(), name, shape.str());
  Tensor t = make(name, shape, DType::kI32);
  if (device().kind == DeviceKind::kCuda && !pool_.dry()) {
    cuda::copy_in(t.view().data, values.data(), values.size_bytes());
  } else if (device().kind != DeviceKind::kCuda) {
    std::memcpy(t.view().data, values.data(), values.size_bytes());
  }
  return t;
}

void Run::call(const Op& op, std::vector<Tensor> in, std::vector<Tensor> out,
               std::vector<Tensor> saved, Attributes attributes, std::vector<Tensor> state) {
  const auto views = [](const std::vector<Tensor>& tensors) {
    std::vector<View> list(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      list[i] = tensors[i] ? tensors[i].view() : View();
    }
    return list;
  };
  const auto in_views = views(in), out_views = views(out), saved_views = views(saved),
             state_views = views(state);
  OpArgs args;
  args.in = in_views;
  args.out = out_views;
  args.saved = saved_views;
  args.state = state_views;
  args.attributes = attributes;
  const bool wants = tape_ != nullptr && std::any_of(in.begin(), in.end(), [](const Tensor& t) {
                       return t && t.node()->wants_grad;
                     });
  args.late = wants && op.late && device().kind == DeviceKind::kCuda && !trace;
  const Kernels& kernels = op.kernels(device().kind, device().real);
  std::shared_ptr<Block> workspace;
  if (kernels.workspace != nullptr) {
    if (const size_t bytes = kernels.workspace(args, false); bytes > 0) {
      workspace = pool_.allocate(bytes);
      args.workspace = workspace->data();
    }
  }
  if (!pool_.dry()) {
    Profile::time(op.name, false, [&] { kernels.forward(args); });
  }

  if (!wants) {
    return;
  }
  for (Tensor& t : in) {
    if (t && t.node()->parent && !t.node()->parent->is_parameter && !t.node()->counted) {
      Node& parent = *t.node()->parent;
      t.node()->counted = true;
      parent.parts_elements += t.view().size();
      require(parent.parts_elements <= parent.value.size(), "tape",
              "parts of {} overlap; take each part once and reuse the handle", parent.value.name);
    }
  }
  for (Tensor& t : out) {
    if (t) {
      t.node()->wants_grad = true;
    }
  }
  tape_->record({&op, std::move(in), std::move(out), std::move(saved), attributes, args.late,
                 args.late ? std::move(workspace) : nullptr});
}

namespace {

// Memory of the host for a view of the GPU: contiguous, of the same shape and type.
struct Staged {
  std::vector<std::byte> bytes;
  View view;

  explicit Staged(const View& of) : bytes(static_cast<size_t>(of.bytes())) {
    view = View(of.name, bytes.data(), of.dtype, DeviceKind::kCpu, of.shape);
  }
};

// A contiguous view of the GPU, either `of` itself or memory that goes with this.
struct Packed {
  void* own = nullptr;
  View view;

  explicit Packed(const View& of) : view(of) {
    if (!of.contiguous()) {
      own = cuda::allocate(static_cast<size_t>(of.bytes()));
      require(own != nullptr, "memory", "the GPU has no {} bytes left to copy {}", of.bytes(),
              of.name);
      view = View(of.name, own, of.dtype, of.device, of.shape);
    }
  }
  ~Packed() {
    if (own != nullptr) {
      cuda::release(own, static_cast<size_t>(view.bytes()));
    }
  }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
};

}  // namespace

std::vector<double> to_host(const View& view) {
  if (view.device == DeviceKind::kCuda && view.size() > 0) {
    Staged staged(view);
    const Packed packed(view);
    if (packed.own != nullptr) {
      cuda::copy_view(view, packed.view);
    }
    cuda::copy_out(staged.bytes.data(), packed.view.data, staged.bytes.size());
    return to_host(staged.view);
  }
  std::vector<double> values(static_cast<size_t>(view.size()));
  with_type(view, [&]<typename T>(T*) {
    for_each<T>(view, [&](const T* x, int64_t i) { values[i] = static_cast<double>(*x); });
  });
  return values;
}

std::vector<int32_t> ints_to_host(const View& view) {
  std::vector<int32_t> values(static_cast<size_t>(view.size()));
  if (!values.empty()) {
    read_on_host(view, [&](const View& host) {
      std::copy_n(host.ptr<int32_t>(), values.size(), values.data());
    });
  }
  return values;
}

void copy_from_host(const View& view, std::span<const double> values) {
  require(static_cast<int64_t>(values.size()) == view.size(), "tensor",
          "{} values do not fill {} {}", values.size(), view.name, view.shape.str());
  if (view.device == DeviceKind::kCuda && view.size() > 0) {
    Staged staged(view);
    copy_from_host(staged.view, values);
    const Packed packed(view);
    cuda::copy_in(packed.view.data, staged.bytes.data(), staged.bytes.size());
    if (packed.own != nullptr) {
      cuda::copy_view(packed.view, view);
      cuda::synchronize();
    }
    return;
  }
  with_type(view, [&]<typename T>(T*) {
    for_each<T>(view, [&](T* x, int64_t i) { *x = static_cast<T>(values[i]); });
  });
}

void fill_zero(const View& view) {
  if (view.device == DeviceKind::kCuda) {
    if (view.contiguous()) {
      cuda::fill(view.data, 0, static_cast<size_t>(view.bytes()));
    } else {
      copy_from_host(view, std::vector<double>(static_cast<size_t>(view.size())));
    }
    return;
  }
  if (view.contiguous()) {
    std::memset(view.data, 0, static_cast<size_t>(view.bytes()));
    return;
  }
  with_type(view, [&]<typename T>(T*) {
    for_each<T>(view, [](T* x, int64_t) { *x = static_cast<T>(0); });
  });
}

void fill_on_host(const View& to, const std::function<void(const View& host)>& fill) {
  if (to.device != DeviceKind::kCuda) {
    fill(to);
    return;
  }
  require(to.contiguous(), "tensor", "{} is not contiguous and cannot be filled", to.name);
  Staged staged(to);
  fill(staged.view);
  cuda::copy_in(to.data, staged.bytes.data(), staged.bytes.size());
}

void read_on_host(const View& from, const std::function<void(const View& host)>& read) {
  if (from.device != DeviceKind::kCuda) {
    read(from);
    return;
  }
  require(from.contiguous(), "tensor", "{} is not contiguous and cannot be read", from.name);
  Staged staged(from);
  cuda::copy_out(staged.bytes.data(), from.data, staged.bytes.size());
  read(staged.view);
}

void copy_view(const View& from, const View& to) {
  require(from.shape == to.shape && from.dtype == to.dtype && from.rank() > 0, "tensor",
          "{} {} cannot be copied to {} {}", from.name, from.shape.str(), to.name, to.shape.str());
  if (from.device == DeviceKind::kCuda) {
    cuda::copy_view(from, to);
    return;
  }
  // The longest run of elements that is contiguous in both is moved at once.
  int inner = from.rank();
  int64_t run = 1;
  while (inner > 0 && from.strides[inner - 1] == run && to.strides[inner - 1] == run) {
    run *= from.shape.dims[--inner];
  }
  View outer_from = from, outer_to = to;
  outer_from.shape.rank = outer_to.shape.rank = inner;
  const size_t element = dtype_size(from.dtype);
  std::array<int64_t, kMaxRank> at{};
  const int64_t runs = outer_from.shape.size();
  for (int64_t i = 0; i < runs; ++i) {
    int64_t source = 0, target = 0;
    for (int d = 0; d < inner; ++d) {
      source += at[d] * from.strides[d];
      target += at[d] * to.strides[d];
    }
    std::memcpy(static_cast<char*>(to.data) + target * static_cast<int64_t>(element),
                static_cast<const char*>(from.data) + source * static_cast<int64_t>(element),
                static_cast<size_t>(run) * element);
    for (int d = inner - 1; d >= 0; --d) {
      if (++at[d] < from.shape.dims[d]) {
        break;
      }
      at[d] = 0;
    }
  }
}

}  // namespace fwpkm
