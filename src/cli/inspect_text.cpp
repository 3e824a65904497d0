// Texts with what memories did at each token: gates, and slots that were read.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/inspect.h"
#include "cli/open.h"
#include "cli/slots.h"
#include "eval/probe.h"
#include "eval/reading.h"
#include "report/memory.h"

namespace fwpkm::cli {
namespace {

using nlohmann::json;

std::string file_text(const std::string& path) {
  return path == "-" ? text_argument(path) : read_text(path);
}

void write_page(const report::Page& page, const std::string& path, const Common& common) {
  page.write(path);
  say(common,
      fmt::format("page: {}\n", std::filesystem::absolute(path).lexically_normal().string()));
}

struct GateArguments {
  std::string model, tokenizer, text, page;
  int64_t chunk = 0, tokens = 4096;
  bool freeze = false;
};

int run_gates(const GateArguments& a, const Common& common) {
  OpenModel open = open_model(a.model, a.tokenizer, common);
  if (a.chunk > 0) {
    Common with = common;
    for (const std::string& more : chunk_overrides(open.model->config(), a.chunk)) {
      with.overrides.push_back(more);
    }
    open = open_model(a.model, a.tokenizer, with);
  }
  std::vector<int32_t> tokens = open.tokenizer->encode(file_text(a.text));
  const size_t all = tokens.size();
  tokens.resize(std::min(all, static_cast<size_t>(a.tokens)));
  require(!tokens.empty(), "inspect", "the text is empty");
  Session session(open.model, {.seed = 1, .history = false});
  const GateTrace trace = trace_gates(&session, tokens, !a.freeze);
  require(!trace.layers.empty(), "inspect", "{} has no memory with a gate",
          open.model->config().name);

  std::vector<std::vector<std::string>> rows = {
      {"layer", "mean gate", "above 0.5", "tokens with the highest gates"}};
  json layers = json::object();
  for (size_t l = 0; l < trace.layers.size(); ++l) {
    const std::vector<double>& gates = trace.gates[l];
    const auto count = static_cast<double>(gates.size());
    std::vector<size_t> order(gates.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const size_t shown = std::min<size_t>(8, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(shown), order.end(),
                      [&](size_t x, size_t y) { return gates[x] > gates[y]; });
    std::string highest;
    for (size_t i = 0; i < shown; ++i) {
      highest += (i == 0 ? "" : " | ") + readable({&tokens[order[i]], 1}, open);
    }
    rows.push_back(
        {std::to_string(trace.layers[l]),
         fmt::format("{:.3f}", std::accumulate(gates.begin(), gates.end(), 0.0) / count),
         fmt::format("{:.3f}", static_cast<double>(std::count_if(
                                   gates.begin(), gates.end(), [](double g) { return g > 0.5; })) /
                                   count),
         highest});
    layers[std::to_string(trace.layers[l])] = gates;
  }
  json updates = json::array();
  for (const GateTrace::Update& update : trace.updates) {
    updates.push_back(update.before);
  }
  say(common, fmt::format("{} tokens{}, {} updates\n\n{}", tokens.size(),
                          all > tokens.size() ? fmt::format(" of {}", all) : "", updates.size(),
                          table(rows)));
  if (!a.page.empty()) {
    report::Page page("Gates: " + open.model->config().name,
                      "How much each token relied on the memory (1) or on slow weights (0)");
    page.add(report::gate_text(trace, tokens, *open.tokenizer));
    write_page(page, a.page, common);
  }
  emit(common, {{"name", open.model->config().name},
                {"tokens", tokens},
                {"gates", layers},
                {"updates", updates}});
  return 0;
}

}  // namespace

int run_probe(const ProbeArguments& a, const Common& common) {
  require(!a.session.empty() || (!a.model.empty() && !a.read.empty()), "inspect",
          "give --session, or --model and a text to --read");
  std::optional<SessionOnDisk> disk;
  OpenModel open;
  if (!a.session.empty()) {
    disk.emplace(a.session, a.model, a.tokenizer, false, common);
    open = disk->open;
  } else {
    open = open_model(a.model, a.tokenizer, common);
  }
  Session session = disk ? disk->session.fork() : Session(open.model);
  require(session.settings().history, "inspect",
          "{} keeps no history: it was made with --no-history", a.session);
  std::vector<int32_t> source;
  int64_t first = 0;
  if (!a.read.empty()) {
    source = open.tokenizer->encode(file_text(a.read));
    for (int64_t i = 0; i < a.readings; ++i) {
      session.reset_tokens();
      first = session.position();
      session.feed(source);
      session.flush();
    }
  }
  const bool inside = session.in_stream() > 0;
  const std::vector<int32_t> prompt = open.tokenizer->encode(text_argument(a.prompt), inside);
  std::vector<int32_t> expected;
  if (!a.expect.empty()) {
    expected = open.tokenizer->encode(a.expect, true);
  }
  const int64_t count = expected.empty() ? a.tokens : std::ssize(expected);
  const std::vector<Probe> probes = probe_slots(&session, prompt, count, expected);

  const int64_t lookahead = open.model->config().fwpkm.lookahead;
  std::vector<std::vector<std::string>> rows = {
      {"says", "layer:slot", "weight", "query", "target", "", "text"}};
  json made = json::array();
  int64_t hits = 0, reads = 0;
  for (const Probe& probe : probes) {
    json list = json::array();
    int64_t shown = 0;
    for (const Probe::Read& read : probe.reads) {
      const auto kept = read.history.kept();
      const json write = kept.empty() ? json() : write_json(kept[0], open);
      list.push_back({{"layer", read.layer},
                      {"slot", read.slot},
                      {"weight", read.weight},
                      {"hit", read.hit},
                      {"count", read.history.count},
                      {"write", write}});
      hits += read.hit ? 1 : 0;
      ++reads;
      if (shown++ < a.top) {
        const auto cell = [&](const char* key) {
          return write.is_null() ? std::string("-") : write.at(key).get<std::string>();
        };
        rows.push_back({shown == 1 ? readable({&probe.said, 1}, open) : "",
                        fmt::format("{}:{}", read.layer, read.slot),
                        fmt::format("{:.3f}", read.weight), cell("query"), cell("target"),
                        read.hit ? "HIT" : "", cell("text")});
      }
    }
    made.push_back({{"token", probe.said},
                    {"text", readable({&probe.said, 1}, open)},
                    {"needs", probe.needs},
                    {"position", probe.position},
                    {"reads", std::move(list)}});
  }
  say(common, fmt::format("{}\n{} of {} reads hit: the slot's last write stored the token that "
                          "was needed\n",
                          table(rows), hits, reads));
  if (!a.page.empty()) {
    report::Page page("Slots: " + open.model->config().name,
                      "Which slots each token was made from, and what text wrote them");
    page.add(report::Paragraph{.text = "Prompt: " + a.prompt});
    page.add(report::probe_text(probes, lookahead, *open.tokenizer));
    if (!source.empty()) {
      page.add(report::source_text(source, first, *open.tokenizer));
    }
    write_page(page, a.page, common);
  }
  emit(common, {{"tokens", made}, {"hits", hits}, {"reads", reads}});
  return 0;
}

void add_probe_options(CLI::App* slots, ProbeArguments* a) {
  slots
      ->add_option("--prompt", a->prompt,
                   "Instead: continue this text, and show the slots that each token is made from; "
                   "- reads standard input")
      ->type_name("TEXT");
  slots->add_option("--expect", a->expect, "With --prompt: what should be said, for HIT marks")
      ->type_name("TEXT");
  slots
      ->add_option("--read", a->read,
                   "With --prompt: let it read and learn this text first; the session's file "
                   "stays as it is")
      ->type_name("FILE");
  slots->add_option("--readings", a->readings, "How often it reads it")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  slots->add_option("--tokens", a->tokens, "With --prompt: tokens to make, without --expect")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  slots->add_option("--page", a->page, "With --prompt: write an HTML page")->type_name("FILE");
}

void add_inspect_gates(CLI::App* inspect) {
  auto a = std::make_shared<GateArguments>();
  CLI::App* gates = inspect->add_subcommand(
      "gates", "How open the gates of the memories are at each token of a text");
  add_model_options(gates, ModelOption::kRequired, &a->model, &a->tokenizer);
  gates->add_option("text", a->text, "A text file; - reads standard input")
      ->type_name("FILE")
      ->required();
  gates->add_option("--chunk", a->chunk, "Tokens between updates; 0: as the model says")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  gates->add_option("--tokens", a->tokens, "Tokens to read at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  gates->add_flag("--freeze", a->freeze, "Memories are only read, never written");
  gates->add_option("--page", a->page, "Write an HTML page")->type_name("FILE");
  command(gates, [a](const Common& common) { return run_gates(*a, common); });
}

}  // namespace fwpkm::cli
