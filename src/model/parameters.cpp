#include "model/parameters.h"

#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"

namespace fwpkm {
namespace {

// Collects specs; the helpers name the kinds of tensors that layers are made of.
class Table {
 public:
  explicit Table(double std) : std_(std) {}

  void matrix(const std::string& name, int64_t out, int64_t in) {
    add(name, {out, in}, {Init::Kind::kNormal, std_}, true);
  }
  void matrix(const std::string& name, int64_t out, int64_t in, Init init) {
    add(name, {out, in}, init, true);
  }
  void linear(const std::string& name, int64_t out, int64_t in) {
    matrix(name + ".weight", out, in);
    zeros(name + ".bias", {out});
  }
  void linear(const std::string& name, int64_t out, int64_t in, Init init) {
    matrix(name + ".weight", out, in, init);
    zeros(name + ".bias", {out});
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
    specs.push_back({name, shape, init, decay, false});
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
                       std::shared_ptr<const SafeTensors> file)
    : device_(device), file_(std::move(file)), pool_(device), specs_(parameter_specs(config)) {
  require(!gradients || file_ == nullptr, "parameters",
          "weights that get gradients are written, so they cannot stay in {}",
          file_ == nullptr ? "" : file_->path().string());
  pool_.set_dry(dry);
  const size_t element = dtype_size(device.real);
  std::vector<void*> in_file;
  size_t values = 0, grads = 0;
  for (const ParameterSpec& spec : specs_) {
    in_file.push_back(find_mapped(spec));
    mapped_.push_back(in_file.back() != nullptr);
    if (mapped_.back()) {
      mapped_bytes_ += static_cast<size_t>(spec.shape.size()) * element;
    } else {
      values += padded(spec.shape.size());
    }
    grads += spec.fast ? 0 : padded(spec.shape.size());
  }
  if (values > 0) {
    values_ = pool_.allocate(values * element);
  }
  if (gradients) {
    grads_ = pool_.allocate(grads * element);
  }
  auto* value_at = values_ ? static_cast<char*>(values_->data()) : nullptr;
  auto* grad_at = gradients ? static_cast<char*>(grads_->data()) : nullptr;
  for (const ParameterSpec& spec : specs_) {
    const size_t index = tensors_.size();
    index_[spec.name] = index;
    const char* name = spec.name.c_str();
    View grad;
    if (gradients && !spec.fast) {
      grad = View(name, grad_at, device.real, device.kind, spec.shape);
      grad_at += padded(spec.shape.size()) * element;
    }
    void* value = in_file[index];
    if (value == nullptr) {
      value = value_at;
      value_at += padded(spec.shape.size()) * element;
    }
    tensors_.push_back(
        Tensor::parameter(View(name, value, device.real, device.kind, spec.shape), grad));
  }
  if (!dry) {
    zero_gradients();
  }
}

void* Parameters::find_mapped(const ParameterSpec& spec) const {
  if (file_ == nullptr || device_.kind == DeviceKind::kCuda || !file_->has(spec.name)) {
    return nullptr;
  }
  const TensorInfo& info = file_->info(spec.name);
  const std::byte* data = file_->data(spec.name).data();
  const bool aligned = reinterpret_cast<uintptr_t>(data) % dtype_size(device_.real) == 0;
  // Views have no const, but the pages cannot be written.
  return aligned && info.dtype == device_.real && info.shape == spec.shape.list()
             ? const_cast<std::byte*>(data)
             : nullptr;
}

const Tensor& Parameters::at(const std::string& name) const {
  const auto it = index_.find(name);
  require(it != index_.end(), "parameters", "this model has no tensor '{}'", name);
  return tensors_[it->second];
}

const View& Parameters::writable(const std::string& name) const {
  const View& view = at(name).view();
  require_writable(index_.at(name));
  return view;
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
  const auto fill = [&]<typename T>(T*) {
    for (size_t p = 0; p < specs_.size(); ++p) {
      const Init init = specs_[p].init;
      const Random random(seed, p);
      fill_on_host(tensors_[p].view(), [&](const View& host) {
        T* to = host.ptr<T>();
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
      });
    }
  };
  device_.real == DType::kF64 ? fill(static_cast<double*>(nullptr))
                              : fill(static_cast<float*>(nullptr));
}

void Parameters::zero_gradients() {
  if (grads_) {
    grads_->zero();
  }
}

}  // namespace fwpkm
