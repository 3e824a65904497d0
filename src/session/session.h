// A running model: weights that it shares with others, and everything that it has read.
//
//   auto model = std::shared_ptr<const Model>(load_model("run", Device::cpu(), false));
//   Session session(model);
//   session.feed(tokens);                   // reads, and learns by writing into its memory
//   Session other = session.fork();         // costs almost nothing; the two go on apart
//   int32_t token = other.next({.temperature = 0.8});
//   session.save("talk.session");
//   Session again = Session::load(model, "talk.session");   // goes on bit for bit as `session`
//
// A session owns its state: sub-keys and value rows that its memories wrote, tokens that wait to be
// written, GDN matrices, convolution tails, attention caches, position, random numbers, marks. It
// costs what it wrote. Forks and marks share all of that until one of them changes it.
//
// Threads: one session is used by one thread at a time. Different sessions, forks of each other
// too, may be used in different threads at the same time; the model is only read.
//
// Errors are exceptions of type Error. After one from feed, next or flush the session may have read
// a part of the tokens; position() tells how many.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "memory/slot_history.h"
#include "model/model.h"
#include "model/token_graph.h"
#include "session/sampling.h"

namespace fwpkm {

struct SessionSettings {
  uint64_t seed = 1;    // of the tokens that next() draws
  bool history = true;  // keep, for each written slot, what text wrote it
};

// Which slots two sessions hold different rows in, and by how much.
struct SlotChange {
  int layer = 0;
  int32_t slot = 0;
  double change = 0;     // length of the difference of the two rows
  double base = 0;       // length of the row before
  bool written = false;  // in the session after; if not, it is back at the model's row
  SlotHistory before, after;
};
struct SessionDiff {
  std::vector<SlotChange> slots;  // by layer and slot
  struct Keys {
    int layer = 0;
    int64_t moved = 0;    // sub-keys that differ
    double furthest = 0;  // the longest way that one went
  };
  std::vector<Keys> keys;  // of each FwPKM layer
};

// What a session consists of, in bytes.
struct SessionBytes {
  size_t rows = 0;     // value rows that its memories wrote
  size_t fixed = 0;    // all that does not grow with what was written
  size_t history = 0;  // what is kept of the text that wrote them
  size_t index = 0;    // where rows are
};

// What can be watched while sessions read.
struct Watch {
  // Of the tokens that session number `session` just read: the loss of each, in nats, given all
  // that the stream had read before it. NaN for the first token of a stream.
  std::function<void(size_t session, std::span<const double> losses)> losses;
  // What memories read and wrote; sessions[row] is the number of the session in a row of the batch.
  // The tensors are gone afterwards.
  std::function<void(const MemoryRecord& record, std::span<const size_t> sessions)> memory;
};

class Session {
 public:
  explicit Session(std::shared_ptr<const Model> model, const SessionSettings& settings = {});
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const SessionSettings& settings() const { return settings_; }

  // Reads tokens. `learn`: memories write; otherwise they are only read, and what is read now is
  // never written later.
  void feed(std::span<const int32_t> tokens, bool learn = true, const Watch& watch = {});
  // Reads tokens[i] into *sessions[i], all in one call of the model as long as there are several:
  // faster than one after the other. All sessions must be of one model and different.
  static void feed_together(std::span<Session* const> sessions,
                            std::span<const std::span<const int32_t>> tokens, bool learn = true,
                            const Watch& watch = {});
  // Draws a token, reads it and returns it. Something must have been read before.
  int32_t next(const SamplingSettings& sampling, bool learn = true);
  // For each token of the vocabulary, how likely it comes next: logits after the last token read.
  std::vector<double> logits() const;

  // Writes what waits in the memories' queues now, but for the last tokens, whose values to
  // predict are not known yet.
  void flush(const Watch& watch = {});
  // Forgets the tokens but not what memories learned: attention, GDN, position of the stream.
  void reset_tokens();
  // Forgets what memories learned, and what waits to be written.
  void reset_memory();

  Session fork() const;
  // Names the state as it is now, to come back to; an older mark of the same name is replaced.
  void mark(const std::string& name);
  // Goes back to a mark, which stays. Marks made later stay too.
  void rollback(const std::string& name);
  void remove_mark(const std::string& name);
  std::vector<std::string> marks() const;
  // The state at a mark as a session of its own, without marks.
  Session at_mark(const std::string& name) const;

  int64_t position() const { return now_.read; }             // tokens read, from the first on
  int64_t in_stream() const { return now_.state.position; }  // since the last reset_tokens
  // Tokens that wait to be written, and writes so far: of the memory layer that has most.
  int64_t queued() const { return most(&FastStream::queued); }
  int64_t updates() const { return most(&FastStream::updates); }
  int64_t slots(int layer) const;  // written slots of a layer
  SessionBytes bytes() const;

  // What wrote a slot; a count of 0: nobody, or there is no history.
  SlotHistory history(int layer, int32_t slot) const;
  // All written slots of a layer.
  std::vector<int32_t> written(int layer) const;
  // Slots that a text wrote, by history: the query stands in the text, and the tokens around it
  // agree. Texts of several spellings (see encode's `continues`) may be given.
  std::vector<std::pair<int, int32_t>> written_by(
      std::span<const std::vector<int32_t>> spellings) const;
  // Tokens of the text that wait to be written.
  bool queued_from(std::span<const std::vector<int32_t>> spellings) const;
  // Puts a slot back to the model's row. False if nobody had written it.
  bool forget(int layer, int32_t slot);
  // From `before` to `after`, which are of one model.
  static SessionDiff diff(const Session& before, const Session& after);

  // Writes all of it, marks too, to a file that appears whole or not at all. `about` comes back
  // from load_about. docs/sessions.md has the format.
  void save(const std::filesystem::path& path,
            const std::map<std::string, std::string>& about = {}) const;
  // Refuses a file that is damaged, or was made with other weights, by name. Rows are mapped, not
  // read.
  static Session load(std::shared_ptr<const Model> model, const std::filesystem::path& path);
  // What was given to save, without the model.
  static std::map<std::string, std::string> load_about(const std::filesystem::path& path);

 private:
  friend struct SessionFile;

  // All that changes as tokens are read. Copies share memory.
  struct Snapshot {
    State state;
    std::vector<Overlay> history;  // of each layer; rows are SlotHistory
    Random random{0};
    int64_t read = 0;  // tokens, from the first on
    Tensor last;       // [1, 1, D]: hidden state after the last token, or empty
    // Tokens that went into the queues, in order, from number `first` on: those still queued, and
    // a few before them. And where in the session each stood.
    std::vector<int32_t> tokens;
    std::vector<int64_t> places;
    int64_t first = 0;
  };

  Session() = default;
  // One call of the model for sessions of equally many tokens.
  static void read(std::span<Session* const> sessions,
                   std::span<const std::span<const int32_t>> tokens, bool learn, const Watch& watch,
                   std::span<const size_t> numbers);
  static void watch_losses(Run& run, std::span<Session* const> sessions,
                           std::span<const std::span<const int32_t>> tokens, const Tensor& h,
                           const Watch& watch, std::span<const size_t> numbers);
  TokenGraph* token_graph();
  void remember(std::span<const int32_t> tokens, bool learn);
  void record(const MemoryRecord& record);
  void forget_old_tokens();
  int64_t most(int64_t FastStream::*count) const;
  Session with(Snapshot now) const;  // without marks
  const Snapshot& marked(const std::string& name) const;
  void check_layer(int layer) const;
  void check_slot(int layer, int32_t slot) const;
  bool keeps_history() const { return settings_.history && model_->config().has_any_fwpkm(); }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<TokenGraph> graph_;  // of this session's own tensors
  SessionSettings settings_;
  Snapshot now_;
  std::map<std::string, Snapshot> marks_;
};

}  // namespace fwpkm
