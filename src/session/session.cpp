#include "session/session.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <unordered_map>

#include "ops/lm_loss/lm_loss.h"

namespace fwpkm {
namespace {

// Tokens that go through the model at once.
constexpr size_t kPiece = 512;

// A device whose "numbers" are bytes, for overlays of plain structs.
constexpr Device kBytes = {DeviceKind::kCpu, DType::kU8};

}  // namespace

Session::Session(std::shared_ptr<const Model> model, const SessionSettings& settings)
    : model_(std::move(model)), settings_(settings) {
  const ModelConfig& config = model_->config();
  const PoolSet::Loan pool(model_->pools());
  Run run(*pool);
  now_.state = model_->start(run);
  now_.random = Random(settings.seed);
  now_.history.resize(static_cast<size_t>(config.layers));
  for (int l = 0; l < config.layers && keeps_history(); ++l) {
    if (config.has_fwpkm(l)) {
      now_.history[static_cast<size_t>(l)] =
          Overlay(1, config.fwpkm.n_subkeys, sizeof(SlotHistory), kBytes);
    }
  }
}

void Session::feed(std::span<const int32_t> tokens, bool learn, const Watch& watch) {
  Session* const self[] = {this};
  const std::span<const int32_t> all[] = {tokens};
  feed_together(self, all, learn, watch);
}

void Session::feed_together(std::span<Session* const> sessions,
                            std::span<const std::span<const int32_t>> tokens, bool learn,
                            const Watch& watch) {
  require(sessions.size() == tokens.size(), "session", "{} sessions, but {} texts to read",
          sessions.size(), tokens.size());
  require(std::set<const Session*>(sessions.begin(), sessions.end()).size() == sessions.size(),
          "session", "a session is given twice; fork it first");
  for (size_t i = 0; i < sessions.size(); ++i) {
    require(sessions[i]->model_ == sessions[0]->model_, "session",
            "sessions that are to be read together must be of one model; number {} is of another",
            i);
    require_tokens(tokens[i], sessions[i]->model_->config(), false);
  }
  // The shortest rest decides how many tokens all of them read at once.
  std::vector<Session*> now(sessions.begin(), sessions.end());
  std::vector<std::span<const int32_t>> rest(tokens.begin(), tokens.end());
  std::vector<size_t> numbers(sessions.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  while (true) {
    for (size_t i = rest.size(); i-- > 0;) {
      if (rest[i].empty()) {
        rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
        now.erase(now.begin() + static_cast<ptrdiff_t>(i));
        numbers.erase(numbers.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    if (now.empty()) {
      return;
    }
    size_t count = std::max<size_t>(1, kPiece / now.size());
    for (const auto& r : rest) {
      count = std::min(count, r.size());
    }
    std::vector<std::span<const int32_t>> piece;
    for (auto& r : rest) {
      piece.push_back(r.subspan(0, count));
      r = r.subspan(count);
    }
    read(now, piece, learn, watch, numbers);
  }
}

void Session::read(std::span<Session* const> sessions,
                   std::span<const std::span<const int32_t>> tokens, bool learn, const Watch& watch,
                   std::span<const size_t> numbers) {
  const Model& model = *sessions[0]->model_;
  const auto batch = static_cast<int64_t>(sessions.size());
  const auto count = static_cast<int64_t>(tokens[0].size());
  std::vector<int32_t> all;
  const PoolSet::Loan pool(model.pools());
  Run run(*pool);
  std::vector<MemoryRecord> records;  // of the pool's memory: gone before it goes back
  ForwardOptions options;
  options.write_memory = learn;
  bool history = false;
  for (size_t i = 0; i < sessions.size(); ++i) {
    all.insert(all.end(), tokens[i].begin(), tokens[i].end());
    options.states.push_back(&sessions[i]->now_.state);
    history = history || sessions[i]->keeps_history();
  }
  options.records = watch.memory || (history && learn) ? &records : nullptr;
  TokenGraph* const graph =
      all.size() == 1 && !watch.memory && !watch.losses ? sessions[0]->token_graph() : nullptr;
  const Tensor h = graph != nullptr
                       ? graph->read(sessions[0]->now_.state, all[0], learn, options.records)
                       : model.hidden(run, run.from_host("tokens", {batch, count}, all), options);
  if (watch.losses) {
    watch_losses(run, sessions, tokens, h, watch, numbers);
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& session = *sessions[i];
    const auto row = static_cast<int64_t>(i);
    session.now_.last = run.keep(h.view().slice(0, row, row + 1).slice(1, count - 1, count));
    session.remember(tokens[i], learn);
    session.now_.read += count;
  }
  for (const MemoryRecord& record : records) {
    if (watch.memory) {
      watch.memory(record, numbers);
    }
    if (record.update && record.fwpkm.slots) {
      sessions[static_cast<size_t>(record.row)]->record(record);
    }
  }
  for (Session* session : sessions) {
    session->forget_old_tokens();
  }
}

// What reads single tokens fastest; null where nothing is faster than the model itself.
TokenGraph* Session::token_graph() {
  if (!graph_ && TokenGraph::can(*model_)) {
    graph_ = std::make_unique<TokenGraph>(*model_);
  }
  return graph_.get();
}

// Losses of tokens that were just read, whose hidden states are h: each is expected by the state
// before it, the first by what the session read last.
void Session::watch_losses(Run& run, std::span<Session* const> sessions,
                           std::span<const std::span<const int32_t>> tokens, const Tensor& h,
                           const Watch& watch, std::span<const size_t> numbers) {
  const Model& model = *sessions[0]->model_;
  const int64_t batch = h.dim(0), count = h.dim(1);
  const Tensor before = run.make("session.before", h.shape());
  std::vector<int32_t> labels;
  for (int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<size_t>(b);
    const View row = before.view().slice(0, b, b + 1);
    const Tensor& last = sessions[i]->now_.last;
    labels.insert(labels.end(), tokens[i].begin(), tokens[i].end());
    if (last) {
      copy_view(last.view(), row.slice(1, 0, 1));
    } else {
      fill_zero(row.slice(1, 0, 1));
      labels[i * static_cast<size_t>(count)] = -1;
    }
    if (count > 1) {
      copy_view(h.view().slice(0, b, b + 1).slice(1, 0, count - 1), row.slice(1, 1, count));
    }
  }
  const Tensor label = run.from_host("labels", {batch, count}, labels);
  std::vector<double> losses =
      to_host(lm_loss(run, before, model.embedding_table(), label).nll.view());
  for (size_t i = 0; i < sessions.size(); ++i) {
    const auto own = std::span(losses).subspan(i * static_cast<size_t>(count), tokens[i].size());
    if (!sessions[i]->now_.last) {
      own[0] = std::numeric_limits<double>::quiet_NaN();
    }
    watch.losses(numbers[i], own);
  }
}

// Tokens that went into the queues.
void Session::remember(std::span<const int32_t> tokens, bool learn) {
  for (size_t i = 0; i < tokens.size() && learn && keeps_history(); ++i) {
    now_.tokens.push_back(tokens[i]);
    now_.places.push_back(now_.read + static_cast<int64_t>(i));
  }
}

// One update of a layer's memory: who wrote what where.
void Session::record(const MemoryRecord& record) {
  if (!keeps_history()) {
    return;
  }
  const auto layer = static_cast<size_t>(record.layer);
  const FwpkmSettings step = fwpkm_settings(model_->config());
  const int64_t pairs = record.fwpkm.slots.dim(1), reads = record.fwpkm.slots.dim(2);
  const std::vector<int32_t> slots = ints_to_host(record.fwpkm.slots.view());
  const std::vector<double> weights = to_host(record.fwpkm.weights.view());
  const std::vector<double> gates =
      record.strengths ? to_host(record.strengths.view()) : std::vector<double>();
  std::unordered_map<int32_t, int> reads_of;
  for (int64_t i = 0; i < pairs * reads; ++i) {
    ++reads_of[slots[static_cast<size_t>(i)]];
  }
  // Tokens that were read when the update came, however the stream was cut into calls.
  const int64_t known = record.first + pairs + model_->config().fwpkm.lookahead - now_.first;
  for (int64_t t = 0; t < pairs; ++t) {
    const double* w = weights.data() + t * reads;
    double eta = step.step;
    if (step.rewrite) {
      double squares = 0;
      for (int64_t i = 0; i < reads; ++i) {
        squares += w[i] * w[i];
      }
      eta = 1 / squares;
    }
    const double gate = gates.empty() ? 1 : gates[static_cast<size_t>(t)];
    const int64_t at = record.first + t - now_.first;  // in now_.tokens
    SlotWrite write;
    write.position = now_.places[static_cast<size_t>(at)];
    for (size_t i = 0; i < write.tokens.size(); ++i) {
      const int64_t place = at + static_cast<int64_t>(i) - SlotWrite::kBefore;
      const bool there = place >= 0 && place < known;
      write.tokens[i] = there ? now_.tokens[static_cast<size_t>(place)] : -1;
    }
    for (int64_t i = 0; i < reads; ++i) {
      const int32_t slot = slots[static_cast<size_t>(t * reads + i)];
      write.strength = static_cast<float>(eta * gate * w[i] / reads_of[slot]);
      SlotHistory history = SlotHistory::at(now_.history[layer].find(0, slot));
      history.push(write);
      now_.history[layer].put(0, slot, &history);
    }
  }
}

// Keeps the tokens that some layer has yet to write, and those just before them.
void Session::forget_old_tokens() {
  if (!keeps_history()) {
    return;
  }
  int64_t oldest = now_.first + static_cast<int64_t>(now_.tokens.size());
  for (const int layer : model_->config().fwpkm.layers) {
    oldest = std::min(oldest, now_.state.layers[static_cast<size_t>(layer)].fast[0].written);
  }
  const int64_t drop = oldest - SlotWrite::kBefore - now_.first;
  if (drop > 0) {
    now_.tokens.erase(now_.tokens.begin(), now_.tokens.begin() + drop);
    now_.places.erase(now_.places.begin(), now_.places.begin() + drop);
    now_.first += drop;
  }
}

std::vector<double> Session::logits() const {
  require(static_cast<bool>(now_.last), "session",
          "nothing was read yet; feed at least one token first");
  const PoolSet::Loan pool(model_->pools());
  Run run(*pool);
  return to_host(model_->logits(run, now_.last).view());
}

int32_t Session::next(const SamplingSettings& sampling, bool learn) {
  const int32_t token[] = {sample_token(logits(), sampling, now_.random.uniform())};
  feed(token, learn);
  return token[0];
}

void Session::flush(const Watch& watch) {
  const PoolSet::Loan pool(model_->pools());
  Run run(*pool);
  std::vector<MemoryRecord> records;
  model_->flush(run, &now_.state, watch.memory || keeps_history() ? &records : nullptr);
  for (const MemoryRecord& each : records) {
    if (watch.memory) {
      watch.memory(each, std::array{size_t{0}});
    }
    if (each.fwpkm.slots) {
      record(each);
    }
  }
  forget_old_tokens();
}

void Session::reset_tokens() {
  const PoolSet::Loan pool(model_->pools());
  Run run(*pool);
  now_.state.reset_mixers(model_->config(), run);
  now_.last = Tensor();
}

void Session::reset_memory() {
  const PoolSet::Loan pool(model_->pools());
  Run run(*pool);
  now_.state.reset_memory(model_->config(), run);
  for (Overlay& history : now_.history) {
    if (history.owners() > 0) {
      history.clear(0);
    }
  }
  now_.tokens.clear();
  now_.places.clear();
  now_.first = 0;
}

Session Session::with(Snapshot now) const {
  Session other;
  other.model_ = model_;
  other.settings_ = settings_;
  other.now_ = std::move(now);
  return other;
}

Session Session::fork() const {
  Session other = with(now_);
  other.marks_ = marks_;
  return other;
}

void Session::mark(const std::string& name) {
  require(!name.empty() && name.size() <= 200, "session",
          "a mark needs a name of 1 to 200 bytes, not {}", name.size());
  marks_[name] = now_;
}

const Session::Snapshot& Session::marked(const std::string& name) const {
  const auto it = marks_.find(name);
  require(it != marks_.end(), "session", "there is no mark '{}'; marks: {}", name,
          marks_.empty() ? "none" : fmt::format("{}", fmt::join(marks(), ", ")));
  return it->second;
}

void Session::rollback(const std::string& name) {
  now_ = marked(name);
}

void Session::remove_mark(const std::string& name) {
  marked(name);
  marks_.erase(name);
}

Session Session::at_mark(const std::string& name) const {
  return with(marked(name));
}

std::vector<std::string> Session::marks() const {
  std::vector<std::string> names;
  for (const auto& [name, snapshot] : marks_) {
    names.push_back(name);
  }
  return names;
}

int64_t Session::most(int64_t FastStream::*count) const {
  int64_t most = 0;
  for (const LayerState& layer : now_.state.layers) {
    for (const FastStream& stream : layer.fast) {
      most = std::max(most, stream.*count);
    }
  }
  return most;
}

int64_t Session::slots(int layer) const {
  check_layer(layer);
  const auto& fast = now_.state.layers[static_cast<size_t>(layer)].fast;
  return fast.empty() ? 0 : fast[0].overlay.rows();
}

}  // namespace fwpkm
