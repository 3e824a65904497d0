#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/pkm_read/pkm_read.h"
#include "tensor/cuda.h"

namespace fwpkm {
namespace {

// Collects specs; the helpers name the kinds of tensors that layers are made of.
class Table {
 public:
  explicit Table(double std) : std_(std) {}

  void matrix(const std::string& name, int64_t out, int64_t in) {
    matrix(name, out, in, {Init::Kind::kNormal, std_});
  }
  void matrix(const std::string& name, int64_t out, int64_t in, Init init) {
    add(name, {out, in}, init, true);
    specs.back().half = true;
  }
  void linear(const std::string& name, int64_t out, int64_t in) {
    linear(name, out, in, {Init::Kind::kNormal, std_});
  }
  void linear(const std::string& name, int64_t out, int64_t in, Init init) {
    matrix(name + ".weight", out, in, init);
    zeros(name + ".bias", {out});
    specs.back().half = true;
  }
  void zeros(const std::string& name, Shape shape) { add(name, shape, {}, false); }
  void ones(const std::string& name, Shape shape) {
    add(name, shape, {Init::Kind::kOne, 1}, false);
  }
  void fast(const std::string& name, Shape shape, Init init) {
    add(name, shape, init, false);
    specs.back().fast = true;
  }
  void add(const std::string& name, Shape shape, Init init, bool decay) {
    specs.push_back({name, shape, init, decay, false, false});
  }

  std::vector<ParameterSpec> specs;

 private:
  double std_;
};

Init normal(double std) {
  return {Init::Kind::kNormal, std};
}

Init uniform(double bound) {
  return {Init::Kind::kUniform, bound};
}

void attention_specs(const ModelConfig& c, const std::string& at, Table* table) {
  const int64_t d = c.hidden_size, width = c.attention.head_dim;
  table->matrix(at + "q_proj.weight", 2 * c.attention.heads * width, d);
  table->matrix(at + "k_proj.weight", c.attention.kv_heads * width, d);
  table->matrix(at + "v_proj.weight", c.attention.kv_heads * width, d);
  table->matrix(at + "o_proj.weight", d, c.attention.heads * width);
  table->zeros(at + "q_norm.weight", {width});
  table->zeros(at + "k_norm.weight", {width});
}

void gdn_specs(const ModelConfig& c, const std::string& at, Table* table) {
  const int64_t d = c.hidden_size, keys = c.gdn.key_heads * c.gdn.key_dim,
                values = c.gdn.value_heads * c.gdn.value_dim;
  table->matrix(at + "in_proj_qkvz.weight", 2 * keys + 2 * values, d);
  table->matrix(at + "in_proj_ba.weight", 2 * c.gdn.value_heads, d);
  table->add(at + "conv1d.weight", {2 * keys + values, 1, c.gdn.conv}, normal(c.init_std), true);
  table->ones(at + "dt_bias", {c.gdn.value_heads});
  table->add(at + "A_log", {c.gdn.value_heads}, {Init::Kind::kLogUniform, 16}, false);
  table->ones(at + "norm.weight", {c.gdn.value_dim});
  table->matrix(at + "out_proj.weight", d, values);
}

void pkm_specs(const ModelConfig& c, const std::string& at, Table* table) {
  const PkmConfig& p = c.pkm;
  const int64_t d = c.hidden_size, width = p.heads * p.key_dim;
  const double out_std = 1 / std::sqrt(static_cast<double>(d));
  table->matrix(at + "keys", 2 * p.heads * p.n_subkeys, p.key_dim / 2,
                uniform(1 / std::sqrt(static_cast<double>(p.key_dim))));
  // Looked up, not multiplied, but so often that 16 bits are worth a copy.
  table->matrix(at + "values.weight", p.slots(), p.value_dim,
                normal(1 / std::sqrt(static_cast<double>(p.value_dim))));
  table->linear(at + "value_proj", d, p.value_dim, normal(out_std));
  table->linear(at + "swilu_projection", p.value_dim, d, normal(out_std));
  table->linear(at + "query_proj.query_mlps.0", width, d,
                uniform(std::sqrt(6.0 / static_cast<double>(width + d))));
  if (p.query_norm) {
    table->ones(at + "query_proj.norm.weight", {width});
  }
}

// What FwPKM and FwMLP share: queries, values, gate and output.
void memory_path_specs(const ModelConfig& c, const std::string& at, int64_t queries, int64_t values,
                       bool gating, Table* table) {
  const int64_t d = c.hidden_size;
  table->zeros(at + "fw_q_norm.weight", {d});
  table->linear(at + "fw_q_proj", queries, d);
  table->zeros(at + "fw_v_norm.weight", {d});
  table->linear(at + "fw_v_proj", values, d);
  if (gating) {
    table->zeros(at + "fw_out_gate_norm.weight", {d});
    table->linear(at + "fw_out_gate", 8, d);
  }
  table->zeros(at + "fw_out_norm.weight", {values});
  table->linear(at + "fw_out_proj", d, values);
}

void fwpkm_specs(const ModelConfig& c, const std::string& at, Table* table) {
  const FwpkmConfig& f = c.fwpkm;
  memory_path_specs(c, at, f.heads * f.key_dim, f.value_dim, f.gating, table);
  table->fast(at + "fwpkm.keys", {2 * f.heads * f.n_subkeys, f.key_dim / 2},
              uniform(1 / std::sqrt(static_cast<double>(f.key_dim))));
  table->fast(at + "fwpkm.values", {f.slots(), f.value_dim},
              normal(1 / std::sqrt(static_cast<double>(f.value_dim))));
}

void fwmlp_specs(const ModelConfig& c, const std::string& at, Table* table) {
  const FwmlpConfig& f = c.fwmlp;
  memory_path_specs(c, at, f.key_dim, f.value_dim, f.gating, table);
  const Init in = normal(1 / std::sqrt(static_cast<double>(f.key_dim)));
  table->fast(at + "fwpkm.w_up", {f.hidden, f.key_dim}, in);
  table->fast(at + "fwpkm.b_up", {f.hidden}, {});
  table->fast(at + "fwpkm.w_gate", {f.hidden, f.key_dim}, in);
  table->fast(at + "fwpkm.b_gate", {f.hidden}, {});
  table->fast(at + "fwpkm.w_down", {f.value_dim, f.hidden},
              normal(1 / std::sqrt(static_cast<double>(f.hidden))));
  table->fast(at + "fwpkm.b_down", {f.value_dim}, {});
}

// LaCT's fast weights start from slow parameters that are trained like any other.
void lact_specs(const ModelConfig& c, const std::string& layer, Table* table) {
  const int64_t d = c.hidden_size, heads = c.lact.heads, width = d / heads, rank = c.lact.low_rank;
  const std::string at = layer + "attn.";
  table->ones(layer + "attn_norm.weight", {d});
  table->matrix(at + "qkv.weight", 3 * d, d);
  table->matrix(at + "o_proj.weight", d, d);
  for (const char* name : {"w0", "w2"}) {
    table->add(at + name + ".w_left", {heads, width, rank},
               normal(c.lact.init_gain / std::sqrt(static_cast<double>(rank))), true);
    table->add(at + name + ".w_right", {heads, rank, width},
               normal(c.lact.init_gain / std::sqrt(static_cast<double>(width))), true);
  }
  table->add(at + "w1", {heads, width, width}, normal(1 / std::sqrt(static_cast<double>(width))),
             true);
  table->linear(at + "lr_proj", 3 * heads, d);
  table->ones(at + "qk_scale", {d, 2});
  table->zeros(at + "qk_offset", {d, 2});
  table->linear(at + "ttt_scale_proj", heads, d);
  table->ones(at + "ttt_norm.weight", {width});
  table->linear(at + "momentum_proj.0", heads, d);
  table->ones(layer + "mlp_norm.weight", {d});
}

void mlp_specs(const ModelConfig& c, const std::string& at, Table* table) {
  table->matrix(at + "gate_proj.weight", c.mlp.hidden, c.hidden_size);
  table->matrix(at + "up_proj.weight", c.mlp.hidden, c.hidden_size);
  table->matrix(at + "down_proj.weight", c.hidden_size, c.mlp.hidden);
}

constexpr size_t kAlignElements = 64;

size_t padded(int64_t elements) {
  return (static_cast<size_t>(elements) + kAlignElements - 1) / kAlignElements * kAlignElements;
}

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& c) {
  Table table(c.init_std);
  const bool lact = c.architecture == Architecture::kLact;
  table.matrix(lact ? "model.embeddings.weight" : "model.embed_tokens.weight", c.vocab_size,
               c.hidden_size);
  for (int l = 0; l < c.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    if (lact) {
      lact_specs(c, at, &table);
      mlp_specs(c, at + "mlp.", &table);
      continue;
    }
    if (c.has_fwpkm(l)) {
      fwpkm_specs(c, at, &table);
    }
    if (c.has_fwmlp(l)) {
      fwmlp_specs(c, at, &table);
    }
    table.zeros(at + "input_layernorm.weight", {c.hidden_size});
    if (c.mixer(l) == Mixer::kGdn) {
      gdn_specs(c, at + "linear_attn.", &table);
    } else {
      attention_specs(c, at + "self_attn.", &table);
    }
    table.zeros(at + "post_attention_layernorm.weight", {c.hidden_size});
    if (c.has_pkm(l)) {
      pkm_specs(c, at + "pkm.", &table);
    } else {
      mlp_specs(c, at + "mlp.", &table);
    }
  }
  if (lact) {
    table.ones("model.norm.weight", {c.hidden_size});
  } else {
    table.zeros("model.norm.weight", {c.hidden_size});
  }
  return std::move(table.specs);
}

Parameters::Parameters(const ModelConfig& config, Device device, bool gradients, bool dry,
                       std::shared_ptr<const SafeTensors> file, size_t beside)
    : device_(device), file_(std::move(file)), pool_(device), specs_(parameter_specs(config)) {
  require(!gradients || file_ == nullptr, "parameters",
          "weights that get gradients are written, so they cannot stay in {}",
          file_ == nullptr ? "" : file_->path().string());
  pool_.set_dry(dry);
  rounded_from_.resize(specs_.size());
  // Where a weight lies: in the file, or in one of the blocks. A half one of a model in training
  // lies in both.
  const DType wide = device.wide();
  std::vector<void*> in_file;
  const auto is_half = [&](const ParameterSpec& spec) { return spec.half && wide != device.real; };
  const auto in_values = [&](size_t p) {
    return in_file[p] == nullptr && (gradients || !is_half(specs_[p]));
  };
  const auto is_table = [&](const ParameterSpec& spec) {
    return spec.fast && spec.name.ends_with("fwpkm.values");
  };
  size_t values = 0, halves = 0, grads = 0, tables = 0;
  for (size_t p = 0; p < specs_.size(); ++p) {
    const size_t size = padded(specs_[p].shape.size());
    in_file.push_back(find_mapped(specs_[p]));
    mapped_.push_back(in_file[p] != nullptr);
    mapped_bytes_ +=
        mapped_[p] ? static_cast<size_t>(specs_[p].shape.size()) * dtype_size(wide) : 0;
    values += in_values(p) ? size : 0;
    halves += is_half(specs_[p]) ? size : 0;
    grads += specs_[p].fast ? 0 : size;
    tables += is_table(specs_[p]) ? size : 0;
  }
  if (device.kind == DeviceKind::kCuda && !dry && tables > 0) {
    // Gradients come with two more numbers of the optimizer.
    const size_t all = (values + (gradients ? 3 * grads : 0)) * dtype_size(wide) +
                       halves * dtype_size(device.real) + beside;
    place_tables(tables * dtype_size(wide), all);
    values -= tables_ ? tables : 0;
  }
  // Hands out the parts of a block in order.
  struct Parts {
    std::shared_ptr<Block> block;
    DType dtype;
    size_t used = 0;

    Parts(Pool& pool, size_t elements, DType type) : dtype(type) {
      if (elements > 0) {
        block = pool.allocate(elements * dtype_size(type));
      }
    }
    View next(const ParameterSpec& spec, DeviceKind kind) {
      void* at = static_cast<char*>(block->data()) + used;
      used += padded(spec.shape.size()) * dtype_size(dtype);
      return View(spec.name.c_str(), at, dtype, kind, spec.shape);
    }
  };
  void* table = tables_.get();
  Parts wide_parts(pool_, values, wide), half_parts(pool_, halves, device.real),
      grad_parts(pool_, gradients ? grads : 0, wide);
  values_ = wide_parts.block;
  halves_ = half_parts.block;
  grads_ = grad_parts.block;
  for (size_t p = 0; p < specs_.size(); ++p) {
    const ParameterSpec& spec = specs_[p];
    index_[spec.name] = p;
    View value, grad;
    if (mapped_[p]) {
      value = View(spec.name.c_str(), in_file[p], wide, device.kind, spec.shape);
    } else if (tables_ && is_table(spec)) {
      value = View(spec.name.c_str(), table, wide, device.kind, spec.shape);
      table = static_cast<std::byte*>(table) + padded(spec.shape.size()) * dtype_size(wide);
    } else if (in_values(p)) {
      value = wide_parts.next(spec, device.kind);
    }
    stored_.push_back(value);
    if (is_half(spec)) {
      value = half_parts.next(spec, device.kind);
      stored_[p] = gradients ? stored_[p] : value;
    }
    if (gradients && !spec.fast) {
      grad = grad_parts.next(spec, device.kind);
    }
    tensors_.push_back(Tensor::parameter(value, grad));
  }
  squares_.resize(specs_.size());
  if (!dry) {
    if (gradients && device.kind == DeviceKind::kCuda) {
      make_squares();
    }
    zero_gradients();
  }
}

void Parameters::make_squares() {
  const auto wanted = [](const ParameterSpec& spec) {
    return spec.name.ends_with(".pkm.values.weight");
  };
  const auto count = static_cast<size_t>(std::count_if(specs_.begin(), specs_.end(), wanted));
  if (count == 0) {
    return;
  }
  sums_ = pool_.allocate(count * kPkmSquares * sizeof(double));
  auto* at = static_cast<double*>(sums_->data());
  for (size_t p = 0; p < specs_.size(); ++p) {
    if (wanted(specs_[p])) {
      squares_[p] = at;
      at += kPkmSquares;
    }
  }
}

void Parameters::drop_squares(size_t index) {
  if (squares_[index] != nullptr) {
    cuda::fill(squares_[index], 0, sizeof(double));
  }
}

void Parameters::place_tables(size_t bytes, size_t all) {
  const size_t free = cuda::free_bytes();
  if (all < free) {
    return;
  }
  void* data = cuda::allocate_pinned(bytes);
  if (data == nullptr) {
    throw OutOfMemory(fmt::format(
        "[memory] the tables of fast weights have {} MiB; neither the GPU ({} MiB free) nor the "
        "host has room for them; use fewer sub-keys or layers",
        bytes >> 20, free >> 20));
  }
  tables_ = std::shared_ptr<void>(data, &cuda::release_pinned);
  host_bytes_ = bytes;
  fmt::print(stderr,
             "note: {} MiB are needed, {} MiB are free on the GPU; the tables of fast weights ({} "
             "MiB) stay in the host's memory, which is slower\n",
             all >> 20, free >> 20, bytes >> 20);
}

void* Parameters::find_mapped(const ParameterSpec& spec) const {
  if (file_ == nullptr || device_.kind == DeviceKind::kCuda || !file_->has(spec.name)) {
    return nullptr;
  }
  const TensorInfo& info = file_->info(spec.name);
  const std::byte* data = file_->data(spec.name).data();
  const bool aligned = reinterpret_cast<uintptr_t>(data) % dtype_size(device_.wide()) == 0;
  // Views have no const, but the pages cannot be written.
  return aligned && info.dtype == device_.wide() && info.shape == spec.shape.list()
             ? const_cast<std::byte*>(data)
             : nullptr;
}

size_t Parameters::index_of(const std::string& name) const {
  const auto it = index_.find(name);
  require(it != index_.end(), "parameters", "this model has no tensor '{}'", name);
  return it->second;
}

const Tensor& Parameters::at(const std::string& name) const {
  return tensors_[index_of(name)];
}

const View& Parameters::writable(const std::string& name) const {
  const size_t index = index_of(name);
  require_writable(index);
  return stored_[index];
}

void Parameters::require_writable(size_t index) const {
  require(
      !mapped_[index], "parameters",
      "{} is read-only: it lies in {}, which others may use too; load the model with weights of "
      "its own to change them",
      specs_[index].name, file_ == nullptr ? "a file" : file_->path().string());
}

void Parameters::initialize(uint64_t seed) {
  for (size_t p = 0; p < specs_.size(); ++p) {
    require_writable(p);
  }
  for (size_t p = 0; p < specs_.size(); ++p) {
    const Init init = specs_[p].init;
    const Random random(seed, p);
    const auto fill = [&]<typename T>(T* to) {
      parallel_ranges(specs_[p].shape.size(), 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto at = static_cast<uint64_t>(i);
          double x = 0;
          switch (init.kind) {
            case Init::Kind::kZero:
              break;
            case Init::Kind::kOne:
              x = 1;
              break;
            case Init::Kind::kNormal:
              x = init.scale * random.normal_at(at);
              break;
            case Init::Kind::kUniform:
              x = init.scale * (2 * random.uniform_at(at) - 1);
              break;
            case Init::Kind::kLogUniform:
              x = std::log(init.scale * (1 - random.uniform_at(at)));
              break;
          }
          // The same start on every device: numbers that fit a float.
          to[i] = static_cast<T>(static_cast<float>(x));
        }
      });
    };
    fill_on_host(stored_[p], [&](const View& host) {
      switch (host.dtype) {
        case DType::kF64:
          return fill(host.ptr<double>());
        case DType::kBF16:
          return fill(host.ptr<Bf16>());
        default:
          return fill(host.ptr<float>());
      }
    });
  }
  refresh();
}

void Parameters::refresh() {
  for (size_t p = 0; p < specs_.size(); ++p) {
    const View& value = tensors_[p].view();
    if (value.data != stored_[p].data) {
      cuda::convert(stored_[p], value);
    }
  }
}

void Parameters::zero_gradients() {
  if (grads_) {
    grads_->zero();
    for (size_t p = 0; p < specs_.size(); ++p) {
      drop_squares(p);
    }
    mark_gradients(true);
  }
}

void Parameters::mark_gradients(bool written) {
  for (const Tensor& t : tensors_) {
    t.node()->grad_written = written;
  }
}

void Parameters::narrow_gradients() {
  for (size_t p = 0; p < specs_.size(); ++p) {
    if (squares_[p] != nullptr) {
      tensors_[p].node()->grad.dtype = device_.real;
    }
  }
}

void Parameters::settle_gradients() {
  for (size_t p = 0; p < specs_.size(); ++p) {
    Node& node = *tensors_[p].node();
    if (node.wants_grad && !node.grad_written) {
      fill_zero(node.grad);
      drop_squares(p);
    }
    node.grad_written = true;
  }
}

}  // namespace fwpkm
