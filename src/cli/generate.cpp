#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json_fields.h"
#include "cli/cli.h"
#include "cli/open.h"
#include "model/checkpoint.h"
#include "model/cost.h"
#include "session/session.h"
#include "train/run_folder.h"

namespace fwpkm::cli {
namespace {

namespace fs = std::filesystem;

struct GenerateArguments {
  std::string model, prompt, tokenizer, session, save;
  int64_t tokens = 100;
  uint64_t seed = 1;
  bool read_only = false;
  SamplingSettings sampling;
};

int run_generate(const GenerateArguments& a, const Common& common) {
  require(!a.session.empty() || !a.model.empty(), "generate",
          "give --model, to begin anew, or --session, to go on");
  std::optional<SessionOnDisk> disk;
  std::optional<Session> fresh;
  OpenModel open;
  if (!a.session.empty()) {
    disk.emplace(a.session, a.model, a.tokenizer, a.save == a.session, common);
    open = disk->open;
  } else {
    open = open_model(a.model, a.tokenizer, common);
    fresh.emplace(open.model, SessionSettings{.seed = a.seed});
  }
  Session& session = disk ? disk->session : *fresh;
  const std::string prompt = text_argument(a.prompt);
  std::vector<int32_t> tokens = open.tokenizer->encode(prompt, session.position() > 0);
  if (tokens.empty() && session.position() == 0) {
    tokens.push_back(open.tokenizer->end_of_text());
  }
  session.feed(tokens, !a.read_only);
  say(common, prompt);
  const Continuation made = write_on(&session, open, a.sampling, a.tokens, !a.read_only,
                                     [&](const std::string& piece) { say(common, piece); });
  say(common, "\n");
  if (!a.save.empty()) {
    session.save(a.save, disk ? disk->about : about_model(open));
  }
  emit(common, {{"prompt", prompt},
                {"text", made.text},
                {"tokens", made.tokens},
                {"position", session.position()}});
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
  add_model_options(sub, ModelOption::kOrSession, &a->model, &a->tokenizer);
  sub->add_option("--session", a->session,
                  "Go on from this session instead (`fwpkm session`); the file stays as it is")
      ->type_name("FILE");
  sub->add_option("--save", a->save,
                  "Save the session afterwards, to this file; may be the one of --session")
      ->type_name("FILE");
  sub->add_flag("--read-only", a->read_only,
                "Memories are read but never written, by the prompt or by what is generated");
  add_continuation(sub, &a->prompt, &a->tokens, &a->sampling);
  sub->add_option("--seed", a->seed, "Seed of the draws; a session has its own")
      ->capture_default_str();
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
