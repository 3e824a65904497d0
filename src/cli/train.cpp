#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/train.h"
#include "session/session.h"
#include "text/data_spec.h"
#include "train/memory_plan.h"

namespace fwpkm::cli {
namespace {

std::atomic<bool> interrupted = false;

void on_signal(int) {
  if (interrupted.exchange(true)) {
    std::_Exit(130);  // the second time: leave at once; the newest checkpoint is whole
  }
}

}  // namespace

ModelConfig configured(const TrainArguments& a, const Common& common) {
  std::vector<std::string> overrides = common.overrides;
  const auto set = [&](const char* key, auto value) {
    overrides.push_back(fmt::format("{}={}", key, value));
  };
  if (a.steps > 0) {
    set("train.steps", a.steps);
  }
  if (a.batch > 0) {
    set("train.batch", a.batch);
    set("train.micro_batch", a.micro > 0 ? a.micro : a.batch);
  } else if (a.micro > 0) {
    set("train.micro_batch", a.micro);
  }
  if (a.seq > 0) {
    set("train.seq", a.seq);
  }
  if (a.seed >= 0) {
    set("train.seed", a.seed);
  }
  if (a.lr > 0) {
    set("train.max_lr", a.lr);
    set("train.min_lr", a.lr / 10);
  }
  return load_config(a.config, overrides);
}

namespace {

// What samples begin with.
std::vector<int32_t> sample_prompt(const Tokenizer& tokenizer, const TrainArguments& a) {
  std::vector<int32_t> tokens =
      tokenizer.encode(a.prompt.value_or(tokenizer.kind() == "recall" ? "fact" : "The "));
  if (tokens.empty()) {
    tokens.push_back(tokenizer.end_of_text());
  }
  return tokens;
}

// Text that the model writes after the prompt `tokens`, as one line.
std::string sample_text(const Model& model, const Tokenizer& tokenizer, std::vector<int32_t> tokens,
                        int64_t count) {
  const std::shared_ptr<const Model> borrowed(std::shared_ptr<const Model>(), &model);
  Session session(borrowed, {.seed = 1, .history = false});
  session.feed(tokens);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(session.next({.temperature = 0.8, .top_p = 0.95}));
    if (tokens.back() == tokenizer.end_of_text()) {
      break;
    }
  }
  std::string text = tokenizer.decode(tokens);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int run_train(const TrainArguments& a, const Common& common) {
  const ModelConfig config = configured(a, common);
  const Device device = common.parsed_device();
  const TrainConfig& t = config.train;
  DataSettings settings;
  settings.data = a.data;
  settings.tokenizer = a.tokenizer;
  settings.seed = static_cast<uint64_t>(t.seed);
  const Data data = open_data(settings);
  require(data.vocab_size == config.vocab_size, "data",
          "the data has {} tokens, but the config says vocab_size={}; give --set vocab_size={}",
          data.vocab_size, config.vocab_size, data.vocab_size);

  BatchSettings batches;
  batches.rows = t.micro();
  batches.seq = t.seq;
  batches.seed = static_cast<uint64_t>(t.seed);
  batches.order = a.order == "streams" ? BatchOrder::kStreams : BatchOrder::kShuffled;
  TrainData training;
  training.train = make_batches(data.sources, batches);
  training.end_of_text = data.end_of_text;

  // Held-out data: what --valid names, or the held-out documents of the built-in corpora.
  DataSettings held_out = settings;
  held_out.split = Split::kValid;
  if (!a.valid.empty()) {
    held_out.data = a.valid;
  }
  const bool builtin_only = std::all_of(a.data.begin(), a.data.end(), [](const std::string& name) {
    return name.starts_with("builtin");
  });
  if (!a.valid.empty() || builtin_only) {
    const Data valid = open_data(held_out);
    require(valid.vocab_size == data.vocab_size, "data", "--valid has {} tokens, but --data has {}",
            valid.vocab_size, data.vocab_size);
    training.valid = [valid, batches] { return make_batches(valid.sources, batches); };
  }
  if (data.tokenizer && a.options.sample_every > 0) {
    training.sample = [&a, tokenizer = data.tokenizer,
                       prompt = sample_prompt(*data.tokenizer, a)](const Model& model) {
      return sample_text(model, *tokenizer, prompt, a.sample_tokens);
    };
  }

  TrainOptions options = a.options;
  options.out = a.out;
  if (data.tokenizer) {
    const nlohmann::json about = {{"kind", data.tokenizer->kind()},
                                  {"fingerprint", data.tokenizer->fingerprint()}};
    options.files.push_back({"tokenizer.json", about.dump(2) + "\n"});
    if (const std::string bytes = data.tokenizer->model_bytes(); !bytes.empty()) {
      options.files.push_back({"tokenizer.model", bytes});
    }
  }

  say(common,
      fmt::format("{}: {} steps of {} rows of {} tokens\n{}", config.name, t.steps, t.batch, t.seq,
                  describe(plan_memory(config, device, t.micro(), t.seq), t.micro())));
  const auto before_interrupt = std::signal(SIGINT, on_signal);
  const auto before_end = std::signal(SIGTERM, on_signal);
  Progress bar("train");
  TrainEvents events;
  events.step = [&](int64_t step, int64_t steps, double loss, double speed,
                    const std::string& memory) {
    bar.update(static_cast<double>(step) / static_cast<double>(steps),
               fmt::format("step {}/{}, loss {:.4f}, {}{}{:.0f} tokens/s", step, steps, loss,
                           memory, memory.empty() ? "" : ", ", speed));
  };
  events.note = [&](const std::string& text) {
    bar.finish();
    say(common, text + "\n");
  };
  events.stop = [] { return interrupted.load(); };
  const TrainResult result = train(config, device, options, std::move(training), events);
  std::signal(SIGINT, before_interrupt);
  std::signal(SIGTERM, before_end);
  bar.finish();
  if (std::isnan(result.loss)) {
    say(common,
        fmt::format("the run in {} was complete already, at step {}; --steps asks for more\n",
                    a.out, result.step));
  } else {
    say(common, fmt::format("{} at step {}, loss {:.4f}, {:.0f} tokens/s; the model is in {}\n",
                            result.stopped ? "stopped and saved" : "done", result.step, result.loss,
                            result.tokens_per_second, a.out));
  }
  const auto number = [](double x) {
    return std::isnan(x) ? nlohmann::json(nullptr) : nlohmann::json(x);
  };
  emit(common, {{"name", config.name},
                {"step", result.step},
                {"steps", t.steps},
                {"stopped", result.stopped},
                {"resumed", result.resumed},
                {"loss", number(result.loss)},
                {"valid_loss", number(result.valid_loss)},
                {"seconds", result.seconds},
                {"tokens_per_second", result.tokens_per_second}});
  return result.stopped ? 130 : 0;
}

void add_train_options(CLI::App* sub, TrainArguments* a) {
  sub->add_option("--data", a->data,
                  "What to train on: builtin, builtin:recall or encoded corpora (`fwpkm data "
                  "encode`); NAME@WEIGHT sets its share")
      ->type_name("NAME...")
      ->required();
  sub->add_option("--valid", a->valid,
                  "Held-out data for validation; the built-in corpora bring their own")
      ->type_name("NAME...");
  sub->add_option("--tokenizer", a->tokenizer,
                  "bytes or a SentencePiece model; encoded and built-in corpora bring their own")
      ->type_name("NAME");
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 40);
  sub->add_option("--steps", a->steps, "Steps in all (train.steps)")->check(count);
  sub->add_option("--batch", a->batch, "Sequences in a step (train.batch)")->check(count);
  sub->add_option("--micro-batch", a->micro, "Sequences at a time (train.micro_batch)")
      ->check(count);
  sub->add_option("--seq", a->seq, "Tokens in a sequence (train.seq)")->check(count);
  sub->add_option("--seed", a->seed, "Seed of weights, data and choices (train.seed)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  sub->add_option("--lr", a->lr, "Highest learning rate; the lowest becomes a tenth of it")
      ->check(CLI::PositiveNumber);
  sub->add_option("--order", a->order,
                  "shuffled: packed sequences; streams: a row goes on with its document")
      ->check(CLI::IsMember({"shuffled", "streams"}))
      ->capture_default_str();
  sub->add_option("--valid-every", a->options.valid_every, "Steps between validations; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  sub->add_option("--valid-batches", a->options.valid_batches, "Batches in a validation")
      ->check(count)
      ->capture_default_str();
}

void add_train(CLI::App& app) {
  auto a = std::make_shared<TrainArguments>();
  CLI::App* sub = app.add_subcommand("train", "Train a model; Ctrl-C saves and leaves");
  sub->add_option("--config", a->config, "Config file")->type_name("FILE")->required();
  sub->add_option("--out", a->out, "Folder for checkpoints and metrics.jsonl")
      ->type_name("DIR")
      ->required();
  add_train_options(sub, a.get());
  sub->add_flag("--resume", a->options.resume,
                "Go on from the newest checkpoint in --out; start over if there is none");
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 40);
  sub->add_option("--save-every", a->options.save_every, "Steps between checkpoints")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--keep", a->options.keep, "Newest checkpoints to keep, beside the best")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--sample-every", a->options.sample_every, "Steps between samples; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  sub->add_option("--prompt", a->prompt,
                  "What samples begin with; by default \"The \", on builtin:recall \"fact\"");
  command(sub, [a](const Common& common) { return run_train(*a, common); });
}

}  // namespace fwpkm::cli
