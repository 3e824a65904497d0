#include "model/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/file.h"
#include "base/hash.h"
#include "tensor/convert.h"

namespace fwpkm {
namespace {

// A copy of the tied output weights that some exports hold beside the table.
constexpr const char* kTiedHead = "lm_head.weight";

void check_shape(const SafeTensors& file, const TensorInfo& info, const ParameterSpec& spec,
                 const ModelConfig& config) {
  const std::span<const int64_t> wanted(spec.shape.dims.data(),
                                        static_cast<size_t>(spec.shape.rank));
  if (std::equal(wanted.begin(), wanted.end(), info.shape.begin(), info.shape.end())) {
    return;
  }
  const bool vocabulary = spec.name.find("embed") != std::string::npos && info.shape.size() == 2 &&
                          info.shape[1] == spec.shape[1];
  fail("model", "{}: tensor {} is [{}], but the config asks for {}{}", file.path().string(),
       info.name, fmt::join(info.shape, ", "), spec.shape.str(),
       vocabulary ? fmt::format("; the config's vocab_size={} does not match the {} tokens there",
                                config.vocab_size, info.shape[0])
                  : "");
}

}  // namespace

void load_parameters(const SafeTensors& file, const std::string& prefix, const ModelConfig& config,
                     Parameters* parameters) {
  std::set<std::string> known;
  for (size_t p = 0; p < parameters->specs().size(); ++p) {
    const ParameterSpec& spec = parameters->specs()[p];
    const std::string name = prefix + spec.name;
    known.insert(name);
    const TensorInfo& info = file.info(name);
    require(is_float(info.dtype), "model",
            "{}: tensor {} holds {}, but weights must be F64, F32, "
            "F16 or BF16",
            file.path().string(), name, dtype_name(info.dtype));
    check_shape(file, info, spec, config);
    if (parameters->mapped(p) && parameters->at(p).view().data == file.data(name).data()) {
      continue;
    }
    const View& to = parameters->writable(spec.name);
    read_view(file, name, to);
    if (to.dtype == DType::kBF16) {
      std::vector<float> values(static_cast<size_t>(to.size()));
      file.read(name, values.data(), values.size());
      parameters->set_rounded_from(p, hash_wide(values.data(), values.size() * sizeof(float)));
    }
  }
  parameters->refresh();
  for (const TensorInfo& info : file.tensors()) {
    if (!info.name.starts_with(prefix) || known.contains(info.name)) {
      continue;
    }
    require(info.name == prefix + kTiedHead, "model",
            "{}: tensor {} belongs to no layer of the config '{}'; the config is of another model",
            file.path().string(), info.name, config.name);
  }
}

std::unique_ptr<Model> load_model(const std::filesystem::path& folder, Device device,
                                  bool gradients, std::span<const std::string> overrides,
                                  Weights weights) {
  require(std::filesystem::is_directory(folder), "model",
          "{} is not a folder; a model is a folder with config.json and model.safetensors",
          folder.string());
  ModelConfig config = load_config(folder / "config.json", overrides);
  const bool map = weights == Weights::kMapped && !gradients;
  const auto file = std::make_shared<const SafeTensors>(
      SafeTensors::open(folder / "model.safetensors", /*huge_pages=*/map));
  auto model = std::make_unique<Model>(std::move(config), device, gradients, /*dry=*/false,
                                       map ? file : nullptr);
  load_parameters(*file, "", model->config(), &model->parameters());
  return model;
}

void append_view(SafeTensorsWriter* writer, const std::string& name, const View& view) {
  require(view.contiguous(), "model", "{} is not contiguous and cannot be written", name);
  read_on_host(view, [&](const View& host) {
    const auto count = static_cast<size_t>(host.size());
    if (host.dtype == DType::kF64) {
      writer->append(name, std::span<const double>(host.ptr<double>(), count));
    } else if (host.dtype == DType::kF32) {
      writer->append(name, std::span<const float>(host.ptr<float>(), count));
    } else {
      std::vector<float> values(count);
      load_elements(host.dtype, static_cast<const std::byte*>(host.data), count, values.data());
      writer->append(name, std::span<const float>(values));
    }
  });
}

void read_view(const SafeTensors& file, const std::string& name, const View& to) {
  const auto count = static_cast<size_t>(to.size());
  fill_on_host(to, [&](const View& host) {
    if (host.dtype == DType::kF64) {
      file.read(name, host.ptr<double>(), count);
    } else if (host.dtype == DType::kF32) {
      file.read(name, host.ptr<float>(), count);
    } else {
      std::vector<float> values(count);
      file.read(name, values.data(), count);
      store_elements(host.dtype, values.data(), count, static_cast<std::byte*>(host.data));
    }
  });
}

void save_model(const Model& model, const std::filesystem::path& folder, DType dtype) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "model", "cannot make the folder {}: {}", folder.string(), error.message());
  const Parameters& parameters = model.parameters();
  require(!parameters.tables_lent(), "model",
          "the tables of the memories are lent to training steps: settle those first");
  SafeTensorsWriter writer(folder / "model.safetensors");
  writer.set_metadata("format", "pt");
  const auto& specs = parameters.specs();
  // Those that fill whole cache lines first: they all begin at one, and when they are mapped their
  // vectors lie across no border.
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t p) {
    return static_cast<size_t>(specs[p].shape.size()) * dtype_size(dtype) % kDataAlignment == 0;
  });
  for (const size_t p : order) {
    writer.declare(specs[p].name, dtype, specs[p].shape.list());
  }
  for (const size_t p : order) {
    append_view(&writer, specs[p].name, parameters.stored(p));
  }
  const ModelConfig& config = model.config();
  const nlohmann::json json = config.official ? config.official_json : config_to_json(config);
  write_text_atomic(folder / "config.json", json.dump(2) + "\n");
  writer.commit();
}

}  // namespace fwpkm
