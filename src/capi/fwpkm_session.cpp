// Sessions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "capi/call.h"
#include "capi/fwpkm.h"

using fwpkm::Session;
using fwpkm::SlotWrite;
using fwpkm::capi::Call;
using fwpkm::capi::guarded;

static_assert(FWPKM_SLOT_WRITES == fwpkm::SlotHistory::kWrites &&
              FWPKM_TOKENS_BEFORE == SlotWrite::kBefore && FWPKM_TOKENS_AFTER == SlotWrite::kAfter);

namespace {

template <typename T>
void clear(T** result) {
  if (result != nullptr) {
    *result = nullptr;
  }
}

std::span<const int32_t> tokens_of(const Call& call, const int32_t* tokens, size_t count) {
  call.check(tokens != nullptr || count == 0, FWPKM_ERROR_ARGUMENT,
             "tokens is NULL, but there are {} of them", count);
  return {tokens, count};
}

void check_layer(const Call& call, const Session& session, int32_t layer) {
  const fwpkm::ModelConfig& config = session.model().config();
  call.check(layer >= 0 && layer < config.layers && config.has_fwpkm(layer), FWPKM_ERROR_ARGUMENT,
             "layer {} has no memory; memories are in layers [{}]", layer,
             fmt::join(config.fwpkm.layers, ", "));
}

void check_slot(const Call& call, const Session& session, int32_t layer, int32_t slot) {
  check_layer(call, session, layer);
  const int64_t slots = session.model().config().fwpkm.slots();
  call.check(slot >= 0 && slot < slots, FWPKM_ERROR_ARGUMENT, "slot {} is outside 0..{}", slot,
             slots - 1);
}

void check_read(const Call& call, const Session& session) {
  call.check(session.in_stream() > 0, FWPKM_ERROR_STATE,
             "nothing was read yet; feed at least one token first");
}

fwpkm_slot_write write_of(const SlotWrite& from, int64_t lookahead) {
  fwpkm_slot_write write{};
  write.position = from.position;
  write.strength = from.strength;
  write.query = from.query();
  write.target = from.target(lookahead);
  std::copy(from.tokens.begin(), from.tokens.end(), write.tokens);
  return write;
}

}  // namespace

fwpkm_status fwpkm_session_new(const fwpkm_model* model, uint64_t seed, int history,
                               fwpkm_session** session) {
  clear(session);
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const auto& open = call.given(model, "model").open;
    call.given(session, "session");
    *session = new fwpkm_session{open, about_model(*open),
                                 Session(open->model, {.seed = seed, .history = history != 0})};
  });
}

fwpkm_status fwpkm_session_load(const fwpkm_model* model, const char* path,
                                fwpkm_session** session) {
  clear(session);
  return guarded(__func__, FWPKM_ERROR_FILE, [&](const Call& call) {
    const auto& open = call.given(model, "model").open;
    call.given(path, "path");
    call.given(session, "session");
    auto about = about_model(*open);
    about.merge(Session::load_about(path));  // what others put there stays
    *session = new fwpkm_session{open, std::move(about), Session::load(open->model, path)};
  });
}

fwpkm_status fwpkm_session_save(const fwpkm_session* session, const char* path) {
  return guarded(__func__, FWPKM_ERROR_FILE, [&](const Call& call) {
    const fwpkm_session& from = call.given(session, "session");
    call.given(path, "path");
    from.session.save(path, from.about);
  });
}

fwpkm_status fwpkm_session_fork(const fwpkm_session* session, fwpkm_session** fork) {
  clear(fork);
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const fwpkm_session& from = call.given(session, "session");
    call.given(fork, "fork");
    *fork = new fwpkm_session{from.open, from.about, from.session.fork()};
  });
}

void fwpkm_session_free(fwpkm_session* session) {
  delete session;
}

fwpkm_status fwpkm_session_feed(fwpkm_session* session, const int32_t* tokens, size_t count,
                                int learn) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    call.given(session, "session").session.feed(tokens_of(call, tokens, count), learn != 0);
  });
}

fwpkm_status fwpkm_session_feed_together(fwpkm_session* const* sessions,
                                         const int32_t* const* tokens, const size_t* counts,
                                         size_t session_count, int learn) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    call.given(sessions, "sessions");
    call.given(tokens, "tokens");
    call.given(counts, "counts");
    std::vector<Session*> all;
    std::vector<std::span<const int32_t>> texts;
    for (size_t i = 0; i < session_count; ++i) {
      call.check(sessions[i] != nullptr, FWPKM_ERROR_ARGUMENT, "session number {} is NULL", i);
      all.push_back(&sessions[i]->session);
      texts.push_back(tokens_of(call, tokens[i], counts[i]));
    }
    Session::feed_together(all, texts, learn != 0);
  });
}

fwpkm_status fwpkm_session_next(fwpkm_session* session, double temperature, double top_p, int learn,
                                int32_t* token) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    Session& from = call.given(session, "session").session;
    call.given(token, "token");
    call.check(std::isfinite(temperature) && temperature >= 0, FWPKM_ERROR_ARGUMENT,
               "temperature={} must be 0 or more", temperature);
    call.check(top_p >= 0 && top_p <= 1, FWPKM_ERROR_ARGUMENT, "top_p={} must be from 0 to 1",
               top_p);
    check_read(call, from);
    *token = from.next({.temperature = temperature, .top_p = top_p}, learn != 0);
  });
}

fwpkm_status fwpkm_session_logits(const fwpkm_session* session, double* logits, size_t capacity,
                                  size_t* count) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const Session& from = call.given(session, "session").session;
    check_read(call, from);
    call.fill(logits, capacity, count, static_cast<size_t>(from.model().config().vocab_size), [&] {
      const std::vector<double> values = from.logits();
      std::copy(values.begin(), values.end(), logits);
    });
  });
}

fwpkm_status fwpkm_session_flush(fwpkm_session* session) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL,
                 [&](const Call& call) { call.given(session, "session").session.flush(); });
}

fwpkm_status fwpkm_session_reset_tokens(fwpkm_session* session) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL,
                 [&](const Call& call) { call.given(session, "session").session.reset_tokens(); });
}

fwpkm_status fwpkm_session_reset_memory(fwpkm_session* session) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL,
                 [&](const Call& call) { call.given(session, "session").session.reset_memory(); });
}

fwpkm_status fwpkm_session_mark(fwpkm_session* session, const char* name) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    Session& of = call.given(session, "session").session;
    call.given(name, "name");
    call.text(name, std::strlen(name));
    of.mark(name);
  });
}

fwpkm_status fwpkm_session_rollback(fwpkm_session* session, const char* name) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    call.given(session, "session").session.rollback(&call.given(name, "name"));
  });
}

fwpkm_status fwpkm_session_remove_mark(fwpkm_session* session, const char* name) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    call.given(session, "session").session.remove_mark(&call.given(name, "name"));
  });
}

fwpkm_status fwpkm_session_at_mark(const fwpkm_session* session, const char* name,
                                   fwpkm_session** at) {
  clear(at);
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    const fwpkm_session& from = call.given(session, "session");
    call.given(name, "name");
    call.given(at, "at");
    *at = new fwpkm_session{from.open, from.about, from.session.at_mark(name)};
  });
}

fwpkm_status fwpkm_session_mark_count(const fwpkm_session* session, size_t* count) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const Session& of = call.given(session, "session").session;
    call.given(count, "count") = of.marks().size();
  });
}

fwpkm_status fwpkm_session_mark_name(const fwpkm_session* session, size_t index, char* text,
                                     size_t capacity, size_t* length) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const std::vector<std::string> marks = call.given(session, "session").session.marks();
    call.check(index < marks.size(), FWPKM_ERROR_ARGUMENT, "there are {} marks, but no number {}",
               marks.size(), index);
    call.fill_text(text, capacity, length, marks[index]);
  });
}

fwpkm_status fwpkm_session_get_info(const fwpkm_session* session, fwpkm_session_info* info) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const Session& of = call.given(session, "session").session;
    call.given(info, "info") = {.position = of.position(),
                                .in_stream = of.in_stream(),
                                .queued = of.queued(),
                                .updates = of.updates(),
                                .seed = of.settings().seed,
                                .history = of.settings().history};
  });
}

fwpkm_status fwpkm_session_get_bytes(const fwpkm_session* session, fwpkm_session_bytes* bytes) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const fwpkm::SessionBytes of = call.given(session, "session").session.bytes();
    call.given(bytes, "bytes") = {
        .rows = of.rows, .fixed = of.fixed, .history = of.history, .index = of.index};
  });
}

fwpkm_status fwpkm_session_written(const fwpkm_session* session, int32_t layer, int32_t* slots,
                                   size_t capacity, size_t* count) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const Session& of = call.given(session, "session").session;
    check_layer(call, of, layer);
    const std::vector<int32_t> list = of.written(layer);
    call.fill(slots, capacity, count, list.size(),
              [&] { std::copy(list.begin(), list.end(), slots); });
  });
}

fwpkm_status fwpkm_session_history(const fwpkm_session* session, int32_t layer, int32_t slot,
                                   fwpkm_slot_write* writes, size_t capacity, size_t* count,
                                   int64_t* total) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    const Session& of = call.given(session, "session").session;
    check_slot(call, of, layer, slot);
    const fwpkm::SlotHistory history = of.history(layer, slot);
    call.given(total, "total") = history.count;
    const auto kept = history.kept();
    call.fill(writes, capacity, count, kept.size(), [&] {
      const int64_t lookahead = of.model().config().fwpkm.lookahead;
      std::transform(kept.begin(), kept.end(), writes,
                     [&](const SlotWrite& write) { return write_of(write, lookahead); });
    });
  });
}

fwpkm_status fwpkm_session_forget_slot(fwpkm_session* session, int32_t layer, int32_t slot,
                                       int* forgotten) {
  return guarded(__func__, FWPKM_ERROR_INTERNAL, [&](const Call& call) {
    Session& of = call.given(session, "session").session;
    call.given(forgotten, "forgotten");
    check_slot(call, of, layer, slot);
    *forgotten = of.forget(layer, slot) ? 1 : 0;
  });
}

fwpkm_status fwpkm_session_forget_text(fwpkm_session* session, const char* text, size_t bytes,
                                       size_t* forgotten) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    fwpkm_session& of = call.given(session, "session");
    call.given(forgotten, "forgotten");
    call.check(of.session.settings().history, FWPKM_ERROR_STATE,
               "the session keeps no history, so nobody knows what text wrote which slot");
    const auto spellings = spellings_of(call.text(text, bytes), call.tokenizer(*of.open));
    call.check(!of.session.queued_from(spellings), FWPKM_ERROR_STATE,
               "some of this text still waits to be written; flush first");
    size_t count = 0;
    for (const auto& [layer, slot] : of.session.written_by(spellings)) {
      count += of.session.forget(layer, slot) ? 1 : 0;
    }
    *forgotten = count;
  });
}

fwpkm_status fwpkm_session_diff(const fwpkm_session* before, const fwpkm_session* after,
                                fwpkm_slot_change* changes, size_t capacity, size_t* count) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    const auto slots =
        Session::diff(call.given(before, "before").session, call.given(after, "after").session)
            .slots;
    call.fill(changes, capacity, count, slots.size(), [&] {
      std::transform(slots.begin(), slots.end(), changes, [](const fwpkm::SlotChange& c) {
        return fwpkm_slot_change{.layer = c.layer,
                                 .slot = c.slot,
                                 .change = c.change,
                                 .base = c.base,
                                 .written = c.written};
      });
    });
  });
}

fwpkm_status fwpkm_session_diff_keys(const fwpkm_session* before, const fwpkm_session* after,
                                     fwpkm_key_change* changes, size_t capacity, size_t* count) {
  return guarded(__func__, FWPKM_ERROR_ARGUMENT, [&](const Call& call) {
    const auto keys =
        Session::diff(call.given(before, "before").session, call.given(after, "after").session)
            .keys;
    call.fill(changes, capacity, count, keys.size(), [&] {
      std::transform(keys.begin(), keys.end(), changes, [](const fwpkm::SessionDiff::Keys& k) {
        return fwpkm_key_change{.layer = k.layer, .moved = k.moved, .furthest = k.furthest};
      });
    });
  });
}
