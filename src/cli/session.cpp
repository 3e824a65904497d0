#include <algorithm>
#include <csignal>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "base/timer.h"
#include "cli/cli.h"
#include "cli/open.h"
#include "cli/slots.h"
#include "text/utf8.h"

namespace fwpkm::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kFeedLimit = uint64_t{4} << 30;

struct Arguments {
  std::string file, model, tokenizer, name, other, prompt, text;
  std::vector<std::string> texts, slots;
  uint64_t seed = 1;
  int64_t tokens = 100, top = 20;
  bool no_history = false, overwrite = false, flush = false, end_of_text = false;
  bool read_only = false, learn = false, remove = false, only_tokens = false, only_memory = false;
  SamplingSettings sampling{.temperature = 0};
};

json facts(const Session& session) {
  const SessionBytes bytes = session.bytes();
  json layers = json::array();
  for (const int layer : session.model().config().fwpkm.layers) {
    layers.push_back({{"layer", layer}, {"slots", session.slots(layer)}});
  }
  return {{"position", session.position()},
          {"in_stream", session.in_stream()},
          {"queued", session.queued()},
          {"updates", session.updates()},
          {"marks", session.marks()},
          {"history", session.settings().history},
          {"memories", layers},
          {"row_bytes", bytes.rows},
          {"fixed_bytes", bytes.fixed},
          {"history_bytes", bytes.history},
          {"index_bytes", bytes.index}};
}

std::string in_words(const Session& session) {
  std::string slots;
  for (const int layer : session.model().config().fwpkm.layers) {
    slots += fmt::format("{}{} slots in layer {}", slots.empty() ? "" : ", ", session.slots(layer),
                         layer);
  }
  return fmt::format("{} tokens read, {} updates{}{}; waiting to be written: {}\n",
                     session.position(), session.updates(), slots.empty() ? "" : "; wrote ", slots,
                     session.queued());
}

// Says how things are, and gives them as JSON.
int report(const Session& session, const Common& common, json more = json::object()) {
  say(common, in_words(session));
  json all = facts(session);
  all.update(more);
  emit(common, all);
  return 0;
}

int run_new(const Arguments& a, const Common& common) {
  require(a.overwrite || !fs::exists(a.file), "session",
          "{} exists; choose another name or give --overwrite", a.file);
  const OpenModel open = open_model(a.model, a.tokenizer, common);
  const Session session(open.model, {.seed = a.seed, .history = !a.no_history});
  session.save(a.file, about_model(open));
  say(common, fmt::format("{}: a session of {}\n", a.file, open.model->config().name));
  return report(session, common, {{"file", a.file}});
}

volatile std::sig_atomic_t g_stop = 0;

// Feeds a text with a progress bar. Ctrl-C ends it between two pieces. -> tokens read.
int64_t feed_text(Session* session, const OpenModel& open, const std::string& text, bool learn,
                  const std::string& title) {
  Utf8Check utf8(title);
  utf8.feed(text);
  utf8.finish();
  const std::vector<int32_t> tokens = open.tokenizer->encode(text, session->position() > 0);
  constexpr size_t kPiece = 512;
  Progress progress("feed");
  const double start = now_seconds();
  size_t at = 0;
  while (at < tokens.size() && g_stop == 0) {
    const size_t count = std::min(kPiece, tokens.size() - at);
    session->feed({tokens.data() + at, count}, learn);
    at += count;
    progress.update(static_cast<double>(at) / static_cast<double>(tokens.size()),
                    fmt::format("{}: {:.0f} tokens/s", title,
                                static_cast<double>(at) / (now_seconds() - start)));
  }
  progress.finish();
  return static_cast<int64_t>(at);
}

int run_feed(const Arguments& a, const Common& common) {
  SessionOnDisk disk(a.file, a.model, a.tokenizer, true, common);
  std::signal(SIGINT, [](int) { g_stop = 1; });
  int64_t read = 0;
  for (const std::string& path : a.texts.empty() ? std::vector<std::string>{"-"} : a.texts) {
    const std::string text = path == "-" ? text_argument("-") : read_text(path, kFeedLimit);
    read += feed_text(&disk.session, disk.open, text, !a.read_only, path);
    if (g_stop != 0) {
      break;
    }
  }
  std::signal(SIGINT, SIG_DFL);
  if (a.end_of_text && g_stop == 0) {
    const int32_t end[] = {disk.open.tokenizer->end_of_text()};
    disk.session.feed(end, !a.read_only);
    ++read;
  }
  if (a.flush) {
    disk.session.flush();
  }
  disk.save();
  say(common, fmt::format("read {} tokens{}; saved {}\n", read,
                          g_stop != 0 ? " before it was stopped" : "", a.file));
  report(disk.session, common, {{"tokens", read}, {"stopped", g_stop != 0}});
  return g_stop != 0 ? 130 : 0;
}

int run_ask(const Arguments& a, const Common& common) {
  SessionOnDisk disk(a.file, a.model, a.tokenizer, a.learn, common);
  Session asked = disk.session.fork();
  const std::string prompt = text_argument(a.prompt);
  const std::vector<int32_t> tokens = disk.open.tokenizer->encode(prompt, asked.position() > 0);
  require(!tokens.empty() || asked.position() > 0, "session",
          "nothing was asked and nothing was read before; give a --prompt");
  asked.feed(tokens, a.learn);
  const Continuation answer = write_on(&asked, disk.open, a.sampling, a.tokens, a.learn,
                                       [&](const std::string& piece) { say(common, piece); });
  say(common, "\n");
  if (a.learn) {
    asked.save(disk.path, disk.about);
  }
  emit(common, {{"prompt", prompt},
                {"text", answer.text},
                {"tokens", answer.tokens},
                {"learned", a.learn},
                {"position", asked.position()}});
  return 0;
}

int run_info(const Arguments& a, const Common& common) {
  const SessionOnDisk disk(a.file, a.model, a.tokenizer, false, common);
  const SessionBytes bytes = disk.session.bytes();
  const auto mib = [](size_t n) {
    return fmt::format("{:.2f}", static_cast<double>(n) / (1 << 20));
  };
  say(common, fmt::format("{}: a session of {} in {}\n", a.file, disk.open.model->config().name,
                          disk.open.folder.string()));
  say(common, fmt::format("MiB: rows {}, fixed {}, history {}, index {}; the file {}\n",
                          mib(bytes.rows), mib(bytes.fixed), mib(bytes.history), mib(bytes.index),
                          mib(fs::file_size(disk.path))));
  const std::vector<std::string> marks = disk.session.marks();
  if (!marks.empty()) {
    say(common, fmt::format("marks: {}\n", fmt::join(marks, ", ")));
  }
  return report(disk.session, common,
                {{"file", a.file},
                 {"file_bytes", fs::file_size(disk.path)},
                 {"model", disk.open.folder.string()},
                 {"fingerprint", disk.open.model->fingerprint().hex()}});
}

int run_mark(const Arguments& a, const Common& common) {
  SessionOnDisk disk(a.file, a.model, a.tokenizer, true, common);
  if (a.remove) {
    disk.session.remove_mark(a.name);
  } else {
    disk.session.mark(a.name);
  }
  disk.save();
  return report(disk.session, common, {{"mark", a.name}});
}

int run_rollback(const Arguments& a, const Common& common) {
  SessionOnDisk disk(a.file, a.model, a.tokenizer, true, common);
  disk.session.rollback(a.name);
  disk.save();
  say(common, fmt::format("{} is again as it was at '{}'\n", a.file, a.name));
  return report(disk.session, common, {{"mark", a.name}});
}

int run_fork(const Arguments& a, const Common& common) {
  require(a.overwrite || !fs::exists(a.other), "session",
          "{} exists; choose another name or give --overwrite", a.other);
  const SessionOnDisk disk(a.file, a.model, a.tokenizer, false, common);
  const Session fork = a.name.empty() ? disk.session.fork() : disk.session.at_mark(a.name);
  fork.save(a.other, disk.about);
  say(common, fmt::format("{} goes on apart from {}\n", a.other, a.file));
  return report(fork, common, {{"file", a.other}});
}

int run_diff(const Arguments& a, const Common& common) {
  const SessionOnDisk disk(a.file, a.model, a.tokenizer, false, common);
  require(a.other.empty() != a.name.empty(), "session",
          "give a second session, or --mark, to compare with");
  const Session before = a.name.empty() ? disk.session.fork() : disk.session.at_mark(a.name);
  const Session after =
      a.name.empty() ? Session::load(disk.open.model, a.other) : disk.session.fork();
  SessionDiff diff = Session::diff(before, after);
  std::stable_sort(diff.slots.begin(), diff.slots.end(),
                   [](const SlotChange& x, const SlotChange& y) { return x.change > y.change; });
  json slots = json::array();
  for (const SlotChange& c : diff.slots) {
    // Writes that came in between, the newest first.
    const auto had = c.before.kept();
    json writes = json::array();
    for (const SlotWrite& write : c.after.kept()) {
      const bool old = std::any_of(had.begin(), had.end(), [&](const SlotWrite& w) {
        return w.position == write.position && w.tokens == write.tokens;
      });
      if (!old) {
        writes.push_back(write_json(write, disk.open));
      }
    }
    slots.push_back({{"layer", c.layer},
                     {"slot", c.slot},
                     {"change", c.change},
                     {"before", c.base},
                     {"written", c.written},
                     {"had", had.empty() ? json() : write_json(had[0], disk.open)},
                     {"writes", std::move(writes)}});
  }
  json keys = json::array();
  for (const SessionDiff::Keys& k : diff.keys) {
    say(common,
        fmt::format("layer {}: {} slots differ, {} sub-keys moved, by {:.3g} at most\n", k.layer,
                    std::count_if(diff.slots.begin(), diff.slots.end(),
                                  [&](const SlotChange& c) { return c.layer == k.layer; }),
                    k.moved, k.furthest));
    keys.push_back({{"layer", k.layer}, {"moved", k.moved}, {"furthest", k.furthest}});
  }
  std::vector<std::vector<std::string>> rows = {
      {"layer:slot", "change", "was", "text that wrote it"}};
  for (size_t i = 0; i < slots.size() && static_cast<int64_t>(i) < a.top; ++i) {
    const json& writes = slots[i].at("writes");
    const SlotChange& c = diff.slots[i];
    const json& had = slots[i].at("had");
    std::string text = writes.empty() ? "-" : writes[0].at("text").get<std::string>();
    if (!c.written) {
      text = "back at the model's row" +
             (had.is_null() ? "" : "; had " + had.at("text").get<std::string>());
    }
    rows.push_back({fmt::format("{}:{}", c.layer, c.slot), fmt::format("{:.3f}", c.change),
                    fmt::format("{:.3f}", c.base), text});
  }
  if (rows.size() > 1) {
    say(common, table(rows));
  }
  if (diff.slots.size() > rows.size() - 1) {
    say(common, fmt::format("and {} more; --top shows them, --json has all\n",
                            diff.slots.size() - rows.size() + 1));
  }
  emit(common, {{"slots", slots}, {"keys", keys}});
  return 0;
}

int run_forget(const Arguments& a, const Common& common) {
  require(a.slots.empty() != a.text.empty(), "session",
          "say what to forget: --slot LAYER:SLOT, or --text");
  SessionOnDisk disk(a.file, a.model, a.tokenizer, true, common);
  std::vector<std::pair<int, int32_t>> chosen;
  for (const std::string& slot : a.slots) {
    chosen.push_back(parse_slot(slot));
  }
  if (!a.text.empty()) {
    require(disk.session.settings().history, "session",
            "{} keeps no history, so nobody knows what text wrote which slot; use --slot", a.file);
    const auto spellings = spellings_of(a.text, disk.open.text());
    require(!disk.session.queued_from(spellings), "session",
            "some of this text still waits to be written; feed with --flush first");
    chosen = disk.session.written_by(spellings);
    require(!chosen.empty(), "session",
            "no slot is known to be written by this text; `fwpkm inspect slots` shows what is");
  }
  json forgotten = json::array();
  for (const auto& [layer, slot] : chosen) {
    if (disk.session.forget(layer, slot)) {
      forgotten.push_back({{"layer", layer}, {"slot", slot}});
    }
  }
  disk.save();
  say(common, fmt::format("{} of {} slots are back at the model's rows\n", forgotten.size(),
                          chosen.size()));
  return report(disk.session, common, {{"forgotten", forgotten}});
}

int run_reset(const Arguments& a, const Common& common) {
  SessionOnDisk disk(a.file, a.model, a.tokenizer, true, common);
  if (!a.only_memory) {
    disk.session.reset_tokens();
  }
  if (!a.only_tokens) {
    disk.session.reset_memory();
  }
  disk.save();
  return report(disk.session, common);
}

using Arg = std::shared_ptr<Arguments>;

CLI::App* add(CLI::App* parent, const char* name, const char* help, const Arg& a,
              int (*body)(const Arguments&, const Common&)) {
  CLI::App* sub = parent->add_subcommand(name, help);
  sub->add_option("file", a->file, "The session's file")->type_name("FILE")->required();
  add_model_options(sub, body == run_new ? ModelOption::kRequired : ModelOption::kMoved, &a->model,
                    &a->tokenizer);
  command(sub, [a, body](const Common& common) { return body(*a, common); });
  return sub;
}

}  // namespace

void add_session(CLI::App& app) {
  CLI::App* session = app.add_subcommand(
      "session", "Keep what a running model has read: save, go on, fork, compare, forget");
  session->require_subcommand(1);
  const auto fresh = [] { return std::make_shared<Arguments>(); };

  Arg a = fresh();
  CLI::App* sub = add(session, "new", "A session that has read nothing yet", a, run_new);
  sub->add_option("--seed", a->seed, "Seed of the tokens that it draws")->capture_default_str();
  sub->add_flag("--no-history", a->no_history,
                "Do not keep what text wrote which slot; otherwise the file holds pieces of the "
                "text that is read");
  sub->add_flag("--overwrite", a->overwrite, "Replace the file if it exists");

  a = fresh();
  sub = add(session, "feed", "Let it read text, and learn it; then save", a, run_feed);
  sub->add_option("text", a->texts, "Files to read, one after the other; - or none: standard input")
      ->type_name("PATH");
  sub->add_flag("--flush", a->flush,
                "Then write what waits in the memory's queue, instead of when its chunk is full");
  sub->add_flag("--end-of-text", a->end_of_text, "Then read the token that ends a text");
  sub->add_flag("--read-only", a->read_only, "Read without writing into the memory");

  a = fresh();
  sub = add(session, "ask", "Continue a prompt; the session stays as it was unless --learn", a,
            run_ask);
  add_continuation(sub, &a->prompt, &a->tokens, &a->sampling);
  sub->add_flag("--learn", a->learn, "Write prompt and answer into the memory, and save");

  a = fresh();
  add(session, "info", "What it has read and what it costs", a, run_info);

  a = fresh();
  sub = add(session, "mark", "Name the state as it is now, to come back to", a, run_mark);
  sub->add_option("name", a->name, "The mark")->type_name("NAME")->required();
  sub->add_flag("--remove", a->remove, "Remove the mark instead");

  a = fresh();
  sub = add(session, "rollback", "Go back to a mark", a, run_rollback);
  sub->add_option("name", a->name, "The mark")->type_name("NAME")->required();

  a = fresh();
  sub = add(session, "fork", "A second session that goes on from here on its own", a, run_fork);
  sub->add_option("to", a->other, "The new session's file")->type_name("FILE")->required();
  sub->add_option("--mark", a->name, "Fork from this mark instead")->type_name("NAME");
  sub->add_flag("--overwrite", a->overwrite, "Replace the file if it exists");

  a = fresh();
  sub = add(session, "diff", "Which slots changed, by how much, and what text wrote them", a,
            run_diff);
  sub->add_option("other", a->other, "The session to compare with: from the first to this one")
      ->type_name("FILE");
  sub->add_option("--mark", a->name, "Compare the session with its own mark instead")
      ->type_name("NAME");
  sub->add_option("--top", a->top, "Slots to show, those that changed most first")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();

  a = fresh();
  sub = add(session, "forget", "Put slots back to the model's own rows", a, run_forget);
  sub->add_option("--slot", a->slots, "A slot, as in 1:4711")
      ->type_name("LAYER:SLOT")
      ->take_all()
      ->expected(1);
  sub->add_option("--text", a->text, "All slots whose kept writes came from this text")
      ->type_name("TEXT");

  a = fresh();
  sub =
      add(session, "reset", "Forget what was read: attention, GDN state and memory", a, run_reset);
  sub->add_flag("--tokens", a->only_tokens, "Keep the memory");
  sub->add_flag("--memory", a->only_memory, "Keep the rest")->excludes("--tokens");
}

}  // namespace fwpkm::cli
