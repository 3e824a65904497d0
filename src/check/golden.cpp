#include "check/golden.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "base/file.h"
#include "base/json_fields.h"
#include "check/compare.h"
#include "model/checkpoint.h"
#include "ops/lm_loss/lm_loss.h"
#include "tensor/safetensors.h"
#include "tensor/tape.h"
#include "train/step.h"

namespace fwpkm {
namespace {

// What fast weights are called after the run.
constexpr std::string_view kAfter = "fast_after.";

// What a run of a model gives, by the names of the file.
struct Outputs {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::vector<int64_t>> shapes;
  std::vector<MemoryRecord> records;  // what the memories wrote; nothing is kept yet
};

Outputs run_model(Model& model, Pool& pool, std::span<const int32_t> tokens, int64_t batch,
                  int64_t seq, bool gradients, std::span<const FwpkmSelection> selections = {}) {
  require_tokens(tokens, model.config(), false);
  const InputsAndLabels split = split_labels(tokens, batch, seq);
  Outputs outputs;
  Tape tape;
  Run run(pool, gradients ? &tape : nullptr);
  const auto keep = [&](const std::string& name, const Tensor& value) {
    outputs.values[name] = to_host(value.view());
    outputs.shapes[name] = value.shape().list();
  };
  run.trace = keep;
  ForwardOptions options;
  options.records = &outputs.records;
  options.selections = selections;
  const Shape shape = {batch, seq};
  const Tensor inputs = run.from_host("tokens", shape, split.inputs);
  const Tensor labels = run.from_host("labels", shape, split.labels);
  Tensor loss;
  {
    const Tensor h = model.hidden(run, inputs, options);
    Run plain(pool);  // logits are looked at, not differentiated
    keep("logits", model.logits(plain, h));
    loss = lm_loss(run, h, model.embedding_table(), labels).loss;
  }
  keep("loss", loss);
  if (gradients) {
    const double one[] = {1.0};
    tape.backward(pool, loss, run.from_host("seed", {1}, one));
  }
  return outputs;
}

// What the tokens of the file took, layer by layer.
std::vector<FwpkmSelection> read_selections(const SafeTensors& file, const ModelConfig& config,
                                            Run& run) {
  std::vector<FwpkmSelection> all(static_cast<size_t>(config.layers));
  for (const int layer : config.fwpkm.layers) {
    const auto read = [&](const char* what, int64_t limit) {
      const std::string name = fmt::format("selection.{}.{}", layer, what);
      require(file.has(name), "golden",
              "{} has no '{}', so there is nothing to replay; `fwpkm run --dump` writes it",
              file.path().string(), name);
      std::vector<double> numbers(file.info(name).count());
      file.read(name, numbers.data(), numbers.size());
      std::vector<int32_t> list;
      for (const double x : numbers) {
        require(x >= 0 && x < static_cast<double>(limit) && x == std::floor(x), "golden",
                "{}: {} holds {}, which is not a number below {}", file.path().string(), name, x,
                limit);
        list.push_back(static_cast<int32_t>(x));
      }
      return run.from_host("selection", Shape(std::span(file.info(name).shape)), list);
    };
    const FwpkmConfig& f = config.fwpkm;
    all[static_cast<size_t>(layer)] = {read("ids", f.n_subkeys), read("picks", f.topk * f.topk)};
  }
  return all;
}

// Adds up how many of the slots that heads of tokens read are among those that the file's did.
void count_slots(const SafeTensors& file, const ModelConfig& config, const Outputs& outputs,
                 GoldenResult* result) {
  for (const int layer : config.fwpkm.layers) {
    const std::string name = fmt::format("trace.{}.slots", layer);
    const std::vector<double>& ours = outputs.values.at(name);
    std::vector<double> theirs(file.info(name).count());
    file.read(name, theirs.data(), theirs.size());
    require(ours.size() == theirs.size(), "golden", "{}: {} has {} slots, but the model reads {}",
            file.path().string(), name, theirs.size(), ours.size());
    const int64_t k = config.fwpkm.topk;
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto first = theirs.begin() + static_cast<int64_t>(i) / k * k;
      result->equal_slots += std::find(first, first + k, ours[i]) != first + k ? 1 : 0;
      ++result->slots;
    }
  }
}

class Comparison {
 public:
  explicit Comparison(const SafeTensors& file) : file_(file) {}

  void add(const std::string& name, const std::vector<double>& ours) {
    const TensorInfo& info = file_.info(name);
    std::vector<double> theirs(info.count());
    file_.read(name, theirs.data(), theirs.size());
    double error = 0;
    if (theirs.size() == 1 && theirs[0] == 0 && ours.size() > 1) {
      // A single 0 stands for a gradient that is zero everywhere.
      for (const double x : ours) {
        error = std::max(error,
                         std::isfinite(x) ? std::fabs(x) : std::numeric_limits<double>::infinity());
      }
    } else {
      require(ours.size() == theirs.size(), "golden",
              "{}: {} has {} numbers, but the model gives {}", file_.path().string(), name,
              theirs.size(), ours.size());
      error = relative_error(ours, theirs);
    }
    GoldenGroup& group = groups_[name.substr(0, name.find('.'))];
    ++group.tensors;
    if (group.worst.empty() || error > group.error) {
      group.error = error;
      group.worst = name;
    }
  }

  std::vector<GoldenGroup> groups() const {
    std::vector<GoldenGroup> list;
    for (const auto& [name, group] : groups_) {
      list.push_back(group);
      list.back().name = name;
    }
    return list;
  }

 private:
  const SafeTensors& file_;
  std::map<std::string, GoldenGroup> groups_;
};

}  // namespace

TokenRows read_token_rows(const std::filesystem::path& path) {
  TokenRows rows;
  if (path.extension() == ".safetensors") {
    const SafeTensors file = SafeTensors::open(path);
    const TensorInfo& info = file.info("token_ids");
    require(info.shape.size() == 2, "tokens", "{}: token_ids must be [rows, length]",
            path.string());
    rows.rows = info.shape[0];
    rows.length = info.shape[1];
    std::vector<int64_t> wide(info.count());
    file.read_as_i64("token_ids", wide.data(), wide.size());
    for (const int64_t token : wide) {
      require(token >= std::numeric_limits<int32_t>::min() &&
                  token <= std::numeric_limits<int32_t>::max(),
              "tokens", "{}: token {} does not fit 32 bits", path.string(), token);
      rows.tokens.push_back(static_cast<int32_t>(token));
    }
  } else {
    const std::string text = read_text(path);
    size_t at = 0;
    int64_t line = 0, length = 0;
    const auto end_line = [&] {
      ++line;
      if (length > 0) {
        require(rows.length == 0 || length == rows.length, "tokens",
                "{}: line {} has {} tokens, but the lines before have {}; all rows must be of one "
                "length",
                path.string(), line, length, rows.length);
        rows.length = length;
        ++rows.rows;
      }
      length = 0;
    };
    while (at < text.size()) {
      if (std::isspace(static_cast<unsigned char>(text[at])) != 0) {
        if (text[at] == '\n') {
          end_line();
        }
        ++at;
        continue;
      }
      size_t end = at;
      while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) == 0) {
        ++end;
      }
      int32_t token = 0;
      const auto [stop, code] = std::from_chars(text.data() + at, text.data() + end, token);
      require(code == std::errc() && stop == text.data() + end, "tokens",
              "{}: line {}: '{}' is not a token number", path.string(), line + 1,
              text.substr(at, std::min<size_t>(end - at, 32)));
      rows.tokens.push_back(token);
      ++length;
      at = end;
    }
    end_line();
  }
  require(
      rows.rows > 0 && rows.length >= 2, "tokens",
      "{}: at least one row of two tokens is needed (the last one is a label only), but {} rows "
      "of {} were found",
      path.string(), rows.rows, rows.length);
  return rows;
}

GoldenResult run_golden(const std::filesystem::path& path, Device device,
                        const GoldenOptions& options) {
  const SafeTensors file = SafeTensors::open(path);
  const auto config_text = file.metadata().find("config");
  require(config_text != file.metadata().end(), "golden",
          "{} has no metadata 'config'; it is not a file of this kind", path.string());
  ModelConfig config = parse_config(parse_json_text(config_text->second, path.string()),
                                    path.string(), options.overrides);
  const TokenRows rows = read_token_rows(path);
  GoldenResult result;
  result.config_name = config.name;
  result.limit = device.real == DType::kF64 ? 1e-9 : 1e-4;

  const bool gradients = std::any_of(file.tensors().begin(), file.tensors().end(),
                                     [](const auto& t) { return t.name.starts_with("grad."); });
  Model model(std::move(config), device, gradients);
  load_parameters(file, "weight.", model.config(), &model.parameters());
  Pool pool(device);
  const auto run = [&](bool with_gradients, std::span<const FwpkmSelection> selections) {
    return run_model(model, pool, rows.tokens, rows.rows, rows.length - 1, with_gradients,
                     selections);
  };
  std::vector<FwpkmSelection> selections;
  Run plain(pool);
  if (options.replay) {
    selections = read_selections(file, model.config(), plain);
    count_slots(file, model.config(), run(false, {}), &result);
  }
  const Outputs outputs = run(gradients, selections);
  commit(outputs.records, model.config(), &model.parameters());

  Comparison comparison(file);
  for (const TensorInfo& info : file.tensors()) {
    const std::string& name = info.name;
    if (name.starts_with("weight.") || name.starts_with("selection.") || name == "token_ids") {
      continue;
    }
    if (name.starts_with("grad.")) {
      comparison.add(name, to_host(model.parameters().at(name.substr(5)).node()->grad));
      continue;
    }
    if (name.starts_with(kAfter)) {
      comparison.add(name, to_host(model.parameters().at(name.substr(kAfter.size())).view()));
      continue;
    }
    const auto ours = outputs.values.find(name);
    require(ours != outputs.values.end(), "golden",
            "{}: nothing of this model is called '{}'; the file is of another version",
            path.string(), name);
    comparison.add(name, ours->second);
  }
  result.groups = comparison.groups();
  result.ok = !result.groups.empty() &&
              std::all_of(result.groups.begin(), result.groups.end(),
                          [&](const GoldenGroup& g) { return g.error <= result.limit; }) &&
              static_cast<double>(result.equal_slots) >=
                  GoldenOptions::kEqualSlots * static_cast<double>(result.slots);
  return result;
}

double write_dump(Model& model, std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                  const std::filesystem::path& path, const DumpOptions& options) {
  Pool pool(model.parameters().device());
  model.parameters().zero_gradients();
  const Outputs outputs = run_model(model, pool, tokens, batch, seq, options.gradients);
  const DType dtype = model.parameters().device().real;
  const ModelConfig& config = model.config();

  SafeTensorsWriter writer(path);
  writer.set_metadata("config",
                      (config.official ? config.official_json : config_to_json(config)).dump());
  writer.declare("token_ids", DType::kI64, {batch, seq + 1});
  for (const auto& [name, shape] : outputs.shapes) {
    writer.declare(name, dtype, shape);
  }
  const Parameters& parameters = model.parameters();
  const auto& specs = parameters.specs();
  const auto declare_all = [&](std::string_view prefix, bool slow, bool fast) {
    for (const ParameterSpec& spec : specs) {
      if (spec.fast ? fast : slow) {
        writer.declare(std::string(prefix) + spec.name, dtype, spec.shape.list());
      }
    }
  };
  declare_all("weight.", options.weights, options.weights);
  declare_all("grad.", options.gradients, false);
  declare_all(kAfter, false, true);

  writer.append("token_ids", std::vector<int64_t>(tokens.begin(), tokens.end()));
  for (const auto& [name, values] : outputs.values) {
    writer.append(name, std::span<const double>(values));
  }
  for (size_t p = 0; p < specs.size() && options.weights; ++p) {
    append_view(&writer, "weight." + specs[p].name, parameters.at(p).view());
  }
  for (size_t p = 0; p < specs.size() && options.gradients; ++p) {
    if (!specs[p].fast) {
      append_view(&writer, "grad." + specs[p].name, parameters.at(p).node()->grad);
    }
  }
  commit(outputs.records, config, &model.parameters());
  for (size_t p = 0; p < specs.size(); ++p) {
    if (specs[p].fast) {
      append_view(&writer, std::string(kAfter) + specs[p].name, parameters.at(p).view());
    }
  }
  writer.commit();
  return outputs.values.at("loss")[0];
}

}  // namespace fwpkm
