/* fwpkm.h from C. capi_test.cpp makes the models and runs each test:
 *   fwpkm_capi_test TEST FOLDER
 */
#include "capi_test.h"

#include <math.h>
#include <pthread.h>

static const char kText[] = "The heron keeps the lantern. The baker keeps the violin.";
static const char kMore[] = " Nobody knows who keeps the compass, but it is not the heron.";

const char* test_folder = NULL;

const char* in_folder(const char* name) {
  static char paths[4][4096];
  static int next = 0;
  next = (next + 1) % 4;
  snprintf(paths[next], sizeof(paths[next]), "%s/%s", test_folder, name);
  return paths[next];
}

fwpkm_model* open_model(const char* name) {
  fwpkm_model* model = NULL;
  OK(fwpkm_model_open(in_folder(name), NULL, NULL, &model));
  return model;
}

void feed_text(fwpkm_session* session, const fwpkm_model* model, const char* text, int learn) {
  int32_t tokens[256];
  size_t count = 0;
  OK(fwpkm_model_encode(model, text, strlen(text), 1, tokens, 256, &count));
  OK(fwpkm_session_feed(session, tokens, count, learn));
}

fwpkm_session* session_of(const fwpkm_model* model, const char* text) {
  fwpkm_session* session = NULL;
  OK(fwpkm_session_new(model, 7, 1, &session));
  feed_text(session, model, text, 1);
  return session;
}

fwpkm_session_info info_of(const fwpkm_session* session) {
  fwpkm_session_info info;
  OK(fwpkm_session_get_info(session, &info));
  return info;
}

size_t written_in(const fwpkm_session* session) {
  size_t first = 0, second = 0;
  OK(fwpkm_session_written(session, 1, NULL, 0, &first));
  OK(fwpkm_session_written(session, 2, NULL, 0, &second));
  return first + second;
}

double* logits_of(const fwpkm_session* session) {
  size_t count = 0;
  double* logits = malloc(kVocab * sizeof(double));
  CHECK(logits != NULL);
  OK(fwpkm_session_logits(session, logits, kVocab, &count));
  CHECK(count == kVocab);
  return logits;
}

int same_logits(const fwpkm_session* a, const fwpkm_session* b) {
  double* x = logits_of(a);
  double* y = logits_of(b);
  const int same = memcmp(x, y, kVocab * sizeof(double)) == 0;
  free(x);
  free(y);
  return same;
}

static void test_models(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_model* again = open_model("model");
  fwpkm_model* other = open_model("other");
  int32_t size = 0, layers[3] = {-7, -7, -7}, end = 0, tokens[32], back[3];
  int64_t slots = 0;
  size_t count = 0, i;
  char text[64], first[33], second[33];

  printf("%s\n", fwpkm_version());
  OK(fwpkm_model_vocab_size(model, &size));
  CHECK(size == kVocab);
  OK(fwpkm_model_name(model, NULL, 0, &count));
  CHECK(count == strlen("capi"));
  OK(fwpkm_model_name(model, text, count + 1, &count));
  CHECK(strcmp(text, "capi") == 0);
  OK(fwpkm_model_memory_layers(model, layers, 3, &count));
  CHECK(count == 2 && layers[0] == 1 && layers[1] == 2 && layers[2] == -7);
  OK(fwpkm_model_slots(model, &slots));
  CHECK(slots == kSlots);

  OK(fwpkm_model_fingerprint(model, first, sizeof(first), &count));
  CHECK(count == 32 && strspn(first, "0123456789abcdef") == 32);
  OK(fwpkm_model_fingerprint(again, second, sizeof(second), &count));
  CHECK(strcmp(first, second) == 0);
  OK(fwpkm_model_fingerprint(other, second, sizeof(second), &count));
  CHECK(strcmp(first, second) != 0);

  /* Text, also with a zero in it. */
  OK(fwpkm_model_end_of_text(model, &end));
  CHECK(end == 256);
  OK(fwpkm_model_encode(model, "h\xc3\xa9\0!", 5, 0, NULL, 0, &count));
  CHECK(count == 5);
  OK(fwpkm_model_encode(model, "h\xc3\xa9\0!", 5, 0, tokens, 5, &count));
  CHECK(tokens[0] == 'h' && tokens[1] == 0xc3 && tokens[2] == 0xa9 && tokens[3] == 0);
  OK(fwpkm_model_decode(model, tokens, 5, NULL, 0, &count));
  CHECK(count == 5);
  memset(text, 'x', sizeof(text));
  OK(fwpkm_model_decode(model, tokens, 5, text, 6, &count));
  CHECK(memcmp(text, "h\xc3\xa9\0!\0x", 7) == 0);
  OK(fwpkm_model_encode(model, NULL, 0, 0, tokens, 5, &count));
  CHECK(count == 0);
  OK(fwpkm_model_decode(model, NULL, 0, text, 1, &count));
  CHECK(count == 0 && text[0] == '\0');

  /* Buffers that are too small are left alone, and the size is told. */
  memset(text, 'x', sizeof(text));
  FAILS(fwpkm_model_decode(model, tokens, 5, text, 5, &count), FWPKM_ERROR_SIZE, "6 are needed");
  CHECK(count == 5 && text[0] == 'x');
  for (i = 0; i < 3; ++i) {
    back[i] = -9;
  }
  FAILS(fwpkm_model_encode(model, "four", 4, 0, back, 3, &count), FWPKM_ERROR_SIZE,
        "holds 3, but 4");
  CHECK(count == 4 && back[0] == -9);

  fwpkm_model_close(other);
  fwpkm_model_close(again);
  fwpkm_model_close(model);
}

static void test_sessions(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_session* a = session_of(model, kText);
  fwpkm_session* loaded = NULL;
  fwpkm_session* fork = NULL;
  fwpkm_session_info info = info_of(a);
  fwpkm_session_bytes bytes;
  int32_t token = 0, other = 0;
  size_t written, i;

  CHECK(info.position == (int64_t)strlen(kText) && info.in_stream == info.position);
  CHECK(info.seed == 7 && info.history == 1);
  CHECK(info.queued > 0 && info.updates > 0);
  OK(fwpkm_session_get_bytes(a, &bytes));
  CHECK(bytes.rows == written_in(a) * 10 * sizeof(float)); /* rows of 10 numbers */
  CHECK(bytes.fixed > 0 && bytes.history > 0 && bytes.index > 0);

  /* A saved session goes on as if nothing had happened, with the same draws. */
  OK(fwpkm_session_save(a, in_folder("talk.session")));
  OK(fwpkm_session_load(model, in_folder("talk.session"), &loaded));
  CHECK(info_of(loaded).position == info.position && info_of(loaded).queued == info.queued);
  CHECK(same_logits(a, loaded));
  for (i = 0; i < 30; ++i) {
    OK(fwpkm_session_next(a, 1.0, 0.95, 1, &token));
    OK(fwpkm_session_next(loaded, 1.0, 0.95, 1, &other));
    CHECK(token == other);
  }
  CHECK(same_logits(a, loaded));
  CHECK(info_of(loaded).position == info.position + 30);
  fwpkm_session_free(loaded);

  /* Forks go apart; what one learns, the other does not. */
  OK(fwpkm_session_fork(a, &fork));
  CHECK(same_logits(a, fork));
  written = written_in(a);
  info = info_of(a);
  feed_text(fork, model, kMore, 1);
  CHECK(written_in(a) == written && info_of(a).position == info.position);
  CHECK(info_of(fork).updates > info.updates && !same_logits(a, fork));
  feed_text(a, model, kMore, 1);
  CHECK(same_logits(a, fork));
  fwpkm_session_free(a);
  feed_text(fork, model, kMore, 1); /* the other half may go */
  fwpkm_session_free(fork);

  /* Temperature 0 takes the likeliest. */
  a = session_of(model, kText);
  for (i = 0; i < 5; ++i) {
    double* logits = logits_of(a);
    int32_t best = 0, each;
    for (each = 1; each < kVocab; ++each) {
      best = logits[each] > logits[best] ? each : best;
    }
    free(logits);
    OK(fwpkm_session_next(a, 0, 1, 1, &token));
    CHECK(token == best);
  }

  /* Reading without learning writes nothing, then or later. */
  OK(fwpkm_session_flush(a));
  info = info_of(a);
  feed_text(a, model, kMore, 0);
  CHECK(info_of(a).updates == info.updates && info_of(a).queued == info.queued);
  OK(fwpkm_session_feed(a, NULL, 0, 1));
  CHECK(info_of(a).position == info.position + (int64_t)strlen(kMore));

  OK(fwpkm_session_reset_tokens(a));
  CHECK(info_of(a).in_stream == 0 && info_of(a).position > 0 && written_in(a) > 0);
  FAILS(fwpkm_session_next(a, 0, 1, 1, &token), FWPKM_ERROR_STATE, "nothing was read");
  OK(fwpkm_session_reset_memory(a));
  CHECK(written_in(a) == 0 && info_of(a).queued == 0);
  feed_text(a, model, kText, 1);
  fork = session_of(model, kText);
  CHECK(same_logits(a, fork)); /* as new */
  fwpkm_session_free(fork);
  fwpkm_session_free(a);
  fwpkm_model_close(model);
}

static void test_together(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_session* one[3];
  fwpkm_session* all[3];
  int32_t tokens[3][100];
  const int32_t* texts[3];
  size_t counts[3] = {100, 0, 41}, i, j;

  for (i = 0; i < 3; ++i) {
    for (j = 0; j < counts[i]; ++j) {
      tokens[i][j] = (int32_t)((i * 91 + j * j * 7) % 256);
    }
    texts[i] = counts[i] > 0 ? tokens[i] : NULL;
    one[i] = session_of(model, kText);
    all[i] = session_of(model, kText);
    OK(fwpkm_session_feed(one[i], texts[i], counts[i], 1));
  }
  OK(fwpkm_session_feed_together(all, texts, counts, 3, 1));
  for (i = 0; i < 3; ++i) {
    double* x = logits_of(one[i]);
    double* y = logits_of(all[i]);
    CHECK(info_of(all[i]).position == info_of(one[i]).position);
    CHECK(info_of(all[i]).updates == info_of(one[i]).updates);
    for (j = 0; j < kVocab; ++j) {
      CHECK(fabs(x[j] - y[j]) <= 1e-3 * (1 + fabs(x[j])));
    }
    free(x);
    free(y);
  }
  OK(fwpkm_session_feed_together(all, texts, counts, 0, 1));
  fwpkm_session_free(all[1]);
  all[1] = all[0];
  FAILS(fwpkm_session_feed_together(all, texts, counts, 3, 1), FWPKM_ERROR_ARGUMENT, "twice");
  all[1] = NULL;
  FAILS(fwpkm_session_feed_together(all, texts, counts, 3, 1), FWPKM_ERROR_ARGUMENT,
        "number 1 is NULL");
  counts[1] = 1;
  all[1] = one[1];
  FAILS(fwpkm_session_feed_together(all, texts, counts, 3, 1), FWPKM_ERROR_ARGUMENT,
        "tokens is NULL");
  fwpkm_session_free(all[0]);
  fwpkm_session_free(all[2]);
  for (i = 0; i < 3; ++i) {
    fwpkm_session_free(one[i]);
  }
  fwpkm_model_close(model);
}

static void test_marks(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_session* a = session_of(model, kText);
  fwpkm_session* before = NULL;
  fwpkm_session* at = NULL;
  fwpkm_session* none = a;
  char name[8];
  size_t count = 9, length = 0;

  OK(fwpkm_session_mark_count(a, &count));
  CHECK(count == 0);
  OK(fwpkm_session_fork(a, &before));
  OK(fwpkm_session_mark(a, "then"));
  feed_text(a, model, kMore, 1);
  OK(fwpkm_session_mark(a, "later"));
  CHECK(!same_logits(a, before));
  OK(fwpkm_session_mark_count(a, &count));
  CHECK(count == 2);
  OK(fwpkm_session_mark_name(a, 0, name, sizeof(name), &length));
  CHECK(length == 5 && strcmp(name, "later") == 0);
  OK(fwpkm_session_mark_name(a, 1, name, 5, &length));
  CHECK(strcmp(name, "then") == 0);

  OK(fwpkm_session_at_mark(a, "then", &at));
  CHECK(same_logits(at, before) && !same_logits(a, before));
  OK(fwpkm_session_rollback(a, "then"));
  CHECK(same_logits(a, before) && info_of(a).position == info_of(before).position);
  OK(fwpkm_session_rollback(a, "later"));
  CHECK(!same_logits(a, before));
  OK(fwpkm_session_remove_mark(a, "then"));
  OK(fwpkm_session_mark_count(a, &count));
  CHECK(count == 1);
  FAILS(fwpkm_session_rollback(a, "then"), FWPKM_ERROR_ARGUMENT, "no mark 'then'; marks: later");
  FAILS(fwpkm_session_remove_mark(a, "then"), FWPKM_ERROR_ARGUMENT, "no mark 'then'");
  FAILS(fwpkm_session_at_mark(a, "then", &none), FWPKM_ERROR_ARGUMENT, "no mark 'then'");
  CHECK(none == NULL);
  FAILS(fwpkm_session_mark(a, ""), FWPKM_ERROR_ARGUMENT, "1 to 200 bytes");
  FAILS(fwpkm_session_mark(a, "\xff"), FWPKM_ERROR_ARGUMENT, "UTF-8");
  FAILS(fwpkm_session_mark_name(a, 1, name, sizeof(name), &length), FWPKM_ERROR_ARGUMENT,
        "no number 1");
  fwpkm_session_free(at);
  fwpkm_session_free(before);
  fwpkm_session_free(a);
  fwpkm_model_close(model);
}

/* Each write that is kept must stand in the tokens that were fed. */
static int64_t check_writes(const fwpkm_session* session, int32_t layer, int32_t slot,
                            const char* text) {
  const int64_t length = (int64_t)strlen(text);
  fwpkm_slot_write writes[FWPKM_SLOT_WRITES];
  int64_t total = 0;
  size_t count = 0, i;
  int j;
  OK(fwpkm_session_history(session, layer, slot, writes, FWPKM_SLOT_WRITES, &count, &total));
  CHECK((int64_t)count == (total < FWPKM_SLOT_WRITES ? total : FWPKM_SLOT_WRITES));
  for (i = 0; i < count; ++i) {
    const int64_t at = writes[i].position;
    CHECK(at >= 0 && at + 1 < length && (i == 0 || at <= writes[i - 1].position));
    CHECK(writes[i].query == text[at] && writes[i].target == text[at + 1]);
    CHECK(isfinite(writes[i].strength) && writes[i].strength != 0);
    for (j = 0; j < FWPKM_TOKENS_BEFORE + 1 + FWPKM_TOKENS_AFTER; ++j) {
      const int64_t place = at + j - FWPKM_TOKENS_BEFORE;
      const int32_t token = writes[i].tokens[j];
      CHECK(token == (place >= 0 && place < length ? text[place] : -1) ||
            (token == -1 && j > FWPKM_TOKENS_BEFORE)); /* not read yet when it was written */
    }
  }
  return total;
}

static void test_slots(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_session* a = session_of(model, kText);
  fwpkm_session* b = NULL;
  fwpkm_slot_change changes[2 * kSlots];
  fwpkm_key_change keys[3];
  fwpkm_slot_write writes[FWPKM_SLOT_WRITES];
  int32_t slots[kSlots], layer;
  int64_t total = 0, sum = 0;
  size_t count = 0, changed = 0, i;
  int forgotten = -1;

  OK(fwpkm_session_flush(a));
  CHECK(info_of(a).queued == 1); /* the last token has no target yet */
  for (layer = 1; layer <= 2; ++layer) {
    OK(fwpkm_session_written(a, layer, slots, kSlots, &count));
    CHECK(count > 0);
    sum = 0;
    for (i = 0; i < count; ++i) {
      CHECK(slots[i] >= 0 && slots[i] < kSlots && (i == 0 || slots[i] > slots[i - 1]));
      sum += check_writes(a, layer, slots[i], kText);
    }
    CHECK(sum == 3 * ((int64_t)strlen(kText) - 1)); /* topk 3: each pair writes three slots */
  }

  /* Nothing changed, then something did. */
  OK(fwpkm_session_fork(a, &b));
  OK(fwpkm_session_diff(a, b, NULL, 0, &count));
  CHECK(count == 0);
  feed_text(b, model, "Who?", 1);
  OK(fwpkm_session_flush(b));
  OK(fwpkm_session_diff(a, b, changes, 2 * kSlots, &changed));
  CHECK(changed > 0);
  for (i = 0; i < changed; ++i) {
    CHECK(changes[i].layer == 1 || changes[i].layer == 2);
    CHECK(changes[i].slot >= 0 && changes[i].slot < kSlots && changes[i].written == 1);
    CHECK(changes[i].change > 0 && changes[i].base > 0);
    OK(fwpkm_session_history(b, changes[i].layer, changes[i].slot, writes, FWPKM_SLOT_WRITES,
                             &count, &total));
    CHECK(count > 0 && writes[0].position >= (int64_t)strlen(kText) - 1);
  }
  OK(fwpkm_session_diff_keys(a, b, keys, 3, &count));
  CHECK(count == 2 && keys[0].layer == 1 && keys[1].layer == 2);
  CHECK(keys[0].moved > 0 && keys[0].furthest > 0);
  FAILS(fwpkm_session_diff(a, b, changes, changed - 1, &count), FWPKM_ERROR_SIZE, "are needed");
  CHECK(count == changed);

  /* Forgetting one slot. */
  layer = changes[0].layer;
  OK(fwpkm_session_forget_slot(b, layer, changes[0].slot, &forgotten));
  CHECK(forgotten == 1);
  OK(fwpkm_session_forget_slot(b, layer, changes[0].slot, &forgotten));
  CHECK(forgotten == 0);
  CHECK(check_writes(b, layer, changes[0].slot, kText) == 0);
  OK(fwpkm_session_written(b, layer, slots, kSlots, &count));
  for (i = 0; i < count; ++i) {
    CHECK(slots[i] != changes[0].slot);
  }
  fwpkm_session_free(b);

  /* Forgetting a text. */
  OK(fwpkm_session_forget_text(a, "a text that was never read", 26, &count));
  CHECK(count == 0);
  changed = written_in(a);
  OK(fwpkm_session_forget_text(a, "the violin.", 11, &count));
  CHECK(count > 0 && written_in(a) == changed - count);
  OK(fwpkm_session_forget_text(a, "the violin.", 11, &count));
  CHECK(count == 0);
  feed_text(a, model, "the violin.", 1);
  FAILS(fwpkm_session_forget_text(a, "the violin.", 11, &count), FWPKM_ERROR_STATE, "flush first");
  fwpkm_session_free(a);

  /* Without history. */
  OK(fwpkm_session_new(model, 7, 0, &a));
  feed_text(a, model, kText, 1);
  CHECK(info_of(a).history == 0 && written_in(a) > 0);
  OK(fwpkm_session_written(a, 1, slots, kSlots, &count));
  OK(fwpkm_session_history(a, 1, slots[0], writes, FWPKM_SLOT_WRITES, &count, &total));
  CHECK(count == 0 && total == 0);
  FAILS(fwpkm_session_forget_text(a, "the violin.", 11, &count), FWPKM_ERROR_STATE, "no history");
  fwpkm_session_free(a);
  fwpkm_model_close(model);
}

enum { kDraws = 40, kThreads = 2 };

struct Work {
  const fwpkm_model* model;
  fwpkm_session* session;
  int number;
  int32_t tokens[kDraws];
  double logits[kVocab];
};

static void* work(void* argument) {
  struct Work* w = argument;
  char path[32];
  size_t count = 0;
  int i;
  CHECK(strcmp(fwpkm_last_error(), "") == 0);
  for (i = 0; i < kDraws; ++i) {
    if (i % 10 == 0) {
      feed_text(w->session, w->model, w->number == 0 ? kMore : kText, 1);
    }
    OK(fwpkm_session_next(w->session, 0.9, 1, 1, &w->tokens[i]));
  }
  OK(fwpkm_session_logits(w->session, w->logits, kVocab, &count));
  /* Each thread has its own last error. */
  snprintf(path, sizeof(path), "/nowhere/%d", w->number);
  CHECK(fwpkm_session_save(w->session, path) == FWPKM_ERROR_FILE);
  CHECK(strstr(fwpkm_last_error(), path) != NULL);
  fwpkm_session_free(w->session);
  return NULL;
}

static void test_threads(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_session* base = session_of(model, kMore);
  struct Work alone[kThreads], together[kThreads];
  pthread_t threads[kThreads];
  int i;

  CHECK(fwpkm_model_open(NULL, NULL, NULL, NULL) == FWPKM_ERROR_ARGUMENT);
  for (i = 0; i < kThreads; ++i) {
    memset(&alone[i], 0, sizeof(alone[i]));
    alone[i].model = model;
    alone[i].number = i;
    together[i] = alone[i];
    OK(fwpkm_session_fork(base, &alone[i].session));
    OK(fwpkm_session_fork(base, &together[i].session));
  }
  for (i = 0; i < kThreads; ++i) {
    CHECK(pthread_create(&threads[i], NULL, work, &alone[i]) == 0);
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  for (i = 0; i < kThreads; ++i) {
    CHECK(pthread_create(&threads[i], NULL, work, &together[i]) == 0);
  }
  for (i = 0; i < kThreads; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  for (i = 0; i < kThreads; ++i) {
    CHECK(memcmp(alone[i].tokens, together[i].tokens, sizeof(alone[i].tokens)) == 0);
    CHECK(memcmp(alone[i].logits, together[i].logits, sizeof(alone[i].logits)) == 0);
  }
  CHECK(memcmp(alone[0].tokens, alone[1].tokens, sizeof(alone[0].tokens)) != 0);
  CHECK(strstr(fwpkm_last_error(), "folder is NULL") != NULL); /* still this thread's own */
  fwpkm_session_free(base);
  fwpkm_model_close(model);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } tests[] = {{"models", test_models}, {"sessions", test_sessions}, {"together", test_together},
               {"marks", test_marks},   {"slots", test_slots},       {"threads", test_threads},
               {"errors", test_errors}, {"files", test_files},       {"memory", test_memory}};
  size_t i;
  if (argc == 3) {
    test_folder = argv[2];
    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); ++i) {
      if (strcmp(tests[i].name, argv[1]) == 0) {
        tests[i].run();
        return 0;
      }
    }
  }
  fprintf(stderr, "usage: %s TEST FOLDER\n", argv[0]);
  return 2;
}
