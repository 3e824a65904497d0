#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "base/json_fields.h"
#include "cli/cli.h"
#include "model/checkpoint.h"
#include "model/cost.h"
#include "session/generate.h"
#include "text/tokenizer.h"
#include "train/run_folder.h"

namespace fwpkm::cli {
namespace {

namespace fs = std::filesystem;

// The tokenizer that a model was trained with: tokenizer.json tells, tokenizer.model may hold it.
std::shared_ptr<const Tokenizer> tokenizer_of(const fs::path& model, const std::string& given) {
  const fs::path about = model / "tokenizer.json";
  std::string spec = given;
  if (spec.empty()) {
    require(fs::exists(about), "generate",
            "{} does not say which tokenizer it was trained with; give --tokenizer",
            model.string());
    spec = read_json_file(about).at("kind") == "bytes" ? "bytes"
                                                       : (model / "tokenizer.model").string();
  }
  auto tokenizer = load_tokenizer(spec);
  if (fs::exists(about)) {
    const std::string want = read_json_file(about).at("fingerprint");
    require(tokenizer->fingerprint() == want, "generate",
            "{} is not the tokenizer that {} was trained with; leave --tokenizer out", spec,
            model.string());
  }
  return tokenizer;
}

struct GenerateArguments {
  std::string model, prompt, tokenizer;
  int64_t tokens = 100;
  SamplingSettings sampling;
};

int run_generate(const GenerateArguments& a, const Common& common) {
  const fs::path folder = find_model(a.model);
  const auto tokenizer = tokenizer_of(folder, a.tokenizer);
  const auto model = load_model(folder, common.parsed_device(), false, common.overrides);
  require(tokenizer->vocab_size() <= model->config().vocab_size, "generate",
          "the tokenizer has {} tokens, but the model knows {}; it is another model's",
          tokenizer->vocab_size(), model->config().vocab_size);
  std::string prompt = a.prompt;
  if (prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  std::vector<int32_t> tokens = tokenizer->encode(prompt);
  if (tokens.empty()) {
    tokens.push_back(tokenizer->end_of_text());
  }
  Generator generator(*model, a.sampling);
  generator.feed(tokens);
  say(common, prompt);
  StreamDecoder decoder(tokenizer);
  std::string text;
  int64_t made = 0;
  for (; made < a.tokens; ++made) {
    const int32_t token = generator.next();
    if (token == tokenizer->end_of_text()) {
      break;
    }
    const std::string piece = decoder.push(token);
    text += piece;
    say(common, piece);
  }
  const std::string rest = decoder.finish();
  text += rest;
  say(common, rest + "\n");
  emit(common, {{"prompt", prompt}, {"text", text}, {"tokens", made}});
  return 0;
}

int run_info(const std::string& path, const Common& common) {
  const fs::path folder = find_model(path);
  const ModelConfig config = load_config(folder / "config.json", common.overrides);
  const SafeTensors file = SafeTensors::open(folder / "model.safetensors");
  const Cost cost = count_cost(config, 1, 1);
  int64_t bytes = 0;
  for (const TensorInfo& info : file.tensors()) {
    bytes += static_cast<int64_t>(info.end - info.begin);
  }
  nlohmann::json json = {{"name", config.name},
                         {"folder", folder.string()},
                         {"official", config.official},
                         {"layers", config.layers},
                         {"hidden_size", config.hidden_size},
                         {"vocab_size", config.vocab_size},
                         {"total_params", cost.total_params},
                         {"active_params", cost.active_params},
                         {"tensors", file.tensors().size()},
                         {"bytes", bytes}};
  std::string text = fmt::format(
      "{} in {}\n{} layers of {}, vocabulary {}; {:.2f} M parameters, {:.2f} M active; {} tensors, "
      "{:.1f} MiB\n",
      config.name, folder.string(), config.layers, config.hidden_size, config.vocab_size,
      static_cast<double>(cost.total_params) / 1e6, static_cast<double>(cost.active_params) / 1e6,
      file.tensors().size(), static_cast<double>(bytes) / (1 << 20));
  if (fs::exists(folder / "run.json")) {
    const nlohmann::json run = read_json_file(folder / "run.json");
    json["step"] = run.at("step");
    text += fmt::format("a checkpoint of step {}\n", run.at("step").get<int64_t>());
  }
  if (fs::exists(folder / "tokenizer.json")) {
    json["tokenizer"] = read_json_file(folder / "tokenizer.json");
    text += fmt::format("tokenizer: {}\n", json["tokenizer"].at("kind").get<std::string>());
  }
  say(common, text);
  emit(common, json);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* sub = app.add_subcommand("generate", "Continue a text, token by token");
  sub->add_option("--model", a->model, "A model folder, or the --out of a training run")
      ->type_name("DIR")
      ->required();
  sub->add_option("--prompt", a->prompt, "The text to continue; - reads standard input")
      ->type_name("TEXT");
  sub->add_option("--tokens", a->tokens, "Tokens to make at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  sub->add_option("--temperature", a->sampling.temperature, "0 takes the likeliest token always")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  sub->add_option("--top-p", a->sampling.top_p,
                  "Draw from the likeliest tokens that together have this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--seed", a->sampling.seed, "Seed of the draws")->capture_default_str();
  sub->add_option("--tokenizer", a->tokenizer,
                  "bytes or a SentencePiece model, where the model folder holds none")
      ->type_name("NAME");
  command(sub, [a](const Common& common) { return run_generate(*a, common); });
}

void add_model(CLI::App& app) {
  CLI::App* model = app.add_subcommand("model", "Look at models on disk");
  model->require_subcommand(1);
  auto path = std::make_shared<std::string>();
  CLI::App* info = model->add_subcommand("info", "Sizes, parameters, step and tokenizer");
  info->add_option("folder", *path, "A model folder, or the --out of a training run")
      ->type_name("DIR")
      ->required();
  command(info, [path](const Common& common) { return run_info(*path, common); });
}

}  // namespace fwpkm::cli
