// Models, sessions and texts as commands take them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "base/file.h"
#include "cli/cli.h"
#include "session/open.h"
#include "session/session.h"

namespace fwpkm::cli {

// A model folder or the --out of a training run. `tokenizer`: "" takes the one it was trained with;
// there must be one.
OpenModel open_model(const std::string& folder, const std::string& tokenizer, const Common& common);

// A session file that is open, and the model that belongs to it.
struct SessionOnDisk {
  // `model`, `tokenizer`: "" takes those of the file. `change`: the file will be saved again; a
  // second process that would do so is refused.
  SessionOnDisk(const std::string& file, const std::string& model, const std::string& tokenizer,
                bool change, const Common& common);
  void save() const { session.save(path, about); }

  std::filesystem::path path;
  FileLock lock;
  std::map<std::string, std::string> about;
  OpenModel open;
  Session session;
};

// The text itself; "-" reads standard input.
std::string text_argument(const std::string& text);

struct Continuation {
  std::string text;
  int64_t tokens = 0;
};
// What a session says next, up to the end of the text; `say` gets it as it comes.
Continuation write_on(Session* session, const OpenModel& open, const SamplingSettings& sampling,
                      int64_t tokens, bool learn,
                      const std::function<void(const std::string&)>& say);

// --model and --tokenizer. What --model means: the model to open, the one of the session that the
// command opens, or either.
enum class ModelOption { kRequired, kMoved, kOrSession };
void add_model_options(CLI::App* app, ModelOption kind, std::string* model, std::string* tokenizer);
// --prompt, --tokens, --temperature and --top-p.
void add_continuation(CLI::App* app, std::string* prompt, int64_t* tokens,
                      SamplingSettings* sampling);

}  // namespace fwpkm::cli
