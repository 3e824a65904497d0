#include "bench/session.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/timer.h"
#include "bench/products.h"
#include "session/session.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

// A file that goes when this does.
struct Temporary {
  fs::path path = fs::temp_directory_path() / fmt::format("fwpkm-bench-{}.session", ::getpid());
  ~Temporary() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

}  // namespace

SessionBenchRow bench_session(const ModelConfig& config, const SessionBenchOptions& options,
                              const BenchProgress& progress) {
  auto fresh = std::make_shared<Model>(config, options.device, false);
  fresh->parameters().initialize(1);
  const std::shared_ptr<const Model> model = fresh;
  Session session(model);
  const Random random(7, 0);
  constexpr int64_t kPiece = 512;
  for (int64_t at = 0; at < options.tokens; at += kPiece) {
    progress(fmt::format("{}: reading token {} of {}", config.name, at, options.tokens),
             0.5 * static_cast<double>(at) / static_cast<double>(options.tokens));
    std::vector<int32_t> piece;
    for (int64_t i = at; i < std::min(at + kPiece, options.tokens); ++i) {
      piece.push_back(static_cast<int32_t>(random.uniform_at(static_cast<uint64_t>(i)) *
                                           static_cast<double>(config.vocab_size)));
    }
    session.feed(piece);
  }
  const Temporary file;
  std::vector<double> save, restore, fork, token, first;
  const auto timed = [](std::vector<double>* times, auto&& fn) {
    const double start = now_seconds();
    fn();
    times->push_back(1e3 * (now_seconds() - start));
  };
  model->fingerprint();  // once for a model, not for each session
  for (int i = 0; i < options.repeats; ++i) {
    progress(fmt::format("{}: save, restore, fork: {} of {}", config.name, i, options.repeats),
             0.5 + 0.4 * i / options.repeats);
    // The session itself reads on: an update that falls due hits one repeat, not all.
    timed(&token, [&] { session.next({.temperature = 0}); });
    timed(&save, [&] { session.save(file.path); });
    std::unique_ptr<Session> again, other;
    timed(&restore, [&] { again = std::make_unique<Session>(Session::load(model, file.path)); });
    timed(&first, [&] { again->next({.temperature = 0}); });
    timed(&fork, [&] { other = std::make_unique<Session>(session.fork()); });
  }
  progress(fmt::format("{}: {} forks", config.name, options.forks), 0.9);
  std::vector<Session> forks;
  const int64_t before = resident_memory();
  for (int i = 0; i < options.forks; ++i) {
    forks.push_back(session.fork());
    forks.back().next({.temperature = 1});
  }
  const double grown = static_cast<double>(resident_memory() - before);
  progress("done", 1);

  const SessionBytes bytes = session.bytes();
  SessionBenchRow row;
  row.row_bytes = static_cast<double>(bytes.rows);
  row.fixed_bytes = static_cast<double>(bytes.fixed);
  row.history_bytes = static_cast<double>(bytes.history);
  row.file_bytes = static_cast<double>(fs::file_size(file.path));
  row.save_ms = median(save);
  row.restore_ms = median(restore);
  row.fork_ms = median(fork);
  row.token_ms = median(token);
  row.first_token_ms = median(first);
  row.fork_bytes = options.forks > 0 ? grown / options.forks : 0;
  return row;
}

}  // namespace fwpkm
