#include "cli/open.h"

#include <iostream>
#include <iterator>

#include "base/error.h"
#include "train/run_folder.h"

namespace fwpkm::cli {
namespace {

namespace fs = std::filesystem;

// A session's file must be there, and its model where it says.
std::map<std::string, std::string> about_session(const fs::path& path, const std::string& model) {
  require(fs::exists(path), "session", "there is no session {}; `fwpkm session new` makes one",
          path.string());
  auto about = Session::load_about(path);
  if (!model.empty()) {
    about["model"] = fs::absolute(model).lexically_normal().string();
  }
  require(fs::exists(about["model"]), "session",
          "{} belongs to the model in '{}', which is not there; tell where it is with --model",
          path.string(), about["model"]);
  return about;
}

// Waits for nobody: a second process is refused, because one of the two would lose what it learned.
void take_lock(const fs::path& path, FileLock* lock) {
  require(lock->take(path), "session", "another process is changing {}; wait for it, or fork it",
          path.string());
}

}  // namespace

OpenModel open_model(const std::string& folder, const std::string& tokenizer,
                     const Common& common) {
  OpenModel open =
      fwpkm::open_model(find_model(folder), common.parsed_device(), tokenizer, common.overrides);
  open.text();  // all commands need it
  return open;
}

SessionOnDisk::SessionOnDisk(const std::string& file, const std::string& model,
                             const std::string& tokenizer, bool change, const Common& common)
    : path(file),
      about(about_session(path, model)),
      open(open_model(about["model"], tokenizer.empty() ? about["tokenizer"] : tokenizer, common)),
      session((change ? take_lock(path, &lock) : void(), Session::load(open.model, path))) {}

std::string text_argument(const std::string& text) {
  return text == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : text;
}

Continuation write_on(Session* session, const OpenModel& open, const SamplingSettings& sampling,
                      int64_t tokens, bool learn,
                      const std::function<void(const std::string&)>& say) {
  Continuation made;
  StreamDecoder decoder(open.tokenizer);
  const auto put = [&](const std::string& piece) {
    made.text += piece;
    say(piece);
  };
  for (; made.tokens < tokens; ++made.tokens) {
    const int32_t token = session->next(sampling, learn);
    if (token == open.tokenizer->end_of_text()) {
      break;
    }
    put(decoder.push(token));
  }
  put(decoder.finish());
  return made;
}

void add_model_options(CLI::App* app, ModelOption kind, std::string* model,
                       std::string* tokenizer) {
  const std::string folder = "A model folder, or the --out of a training run";
  app->add_option("--model", *model,
                  kind == ModelOption::kRequired ? folder
                  : kind == ModelOption::kMoved
                      ? "Where the session's model is now, if it moved"
                      : folder + "; with --session, where its model is now, if it moved")
      ->type_name("DIR")
      ->required(kind == ModelOption::kRequired);
  app->add_option("--tokenizer", *tokenizer,
                  "bytes, recall or a SentencePiece model, where the model folder holds none")
      ->type_name("NAME");
}

void add_continuation(CLI::App* app, std::string* prompt, int64_t* tokens,
                      SamplingSettings* sampling) {
  app->add_option("--prompt", *prompt, "The text to continue; - reads standard input")
      ->type_name("TEXT");
  app->add_option("--tokens", *tokens, "Tokens to make at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app->add_option("--temperature", sampling->temperature, "0 takes the likeliest token always")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--top-p", sampling->top_p,
                  "Draw from the likeliest tokens that together have this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace fwpkm::cli
