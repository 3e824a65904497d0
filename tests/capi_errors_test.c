/* What fwpkm.h does with bad input: codes and messages, never a crash. */
#include "capi_test.h"

#define NULL_IS_REFUSED(call) FAILS(call, FWPKM_ERROR_ARGUMENT, "NULL")

static void refuse_null_models(const fwpkm_model* model) {
  fwpkm_model* opened = NULL;
  char text[64];
  int32_t number = 0, token = 1;
  int64_t slots = 0;
  size_t count = 0;

  NULL_IS_REFUSED(fwpkm_model_open(NULL, NULL, NULL, &opened));
  NULL_IS_REFUSED(fwpkm_model_open(in_folder("model"), NULL, NULL, NULL));
  NULL_IS_REFUSED(fwpkm_model_vocab_size(NULL, &number));
  NULL_IS_REFUSED(fwpkm_model_vocab_size(model, NULL));
  NULL_IS_REFUSED(fwpkm_model_name(NULL, text, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_name(model, text, 64, NULL));
  NULL_IS_REFUSED(fwpkm_model_name(model, NULL, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_fingerprint(NULL, text, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_fingerprint(model, text, 64, NULL));
  NULL_IS_REFUSED(fwpkm_model_fingerprint(model, NULL, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_memory_layers(NULL, &number, 1, &count));
  NULL_IS_REFUSED(fwpkm_model_memory_layers(model, NULL, 1, &count));
  NULL_IS_REFUSED(fwpkm_model_memory_layers(model, &number, 1, NULL));
  NULL_IS_REFUSED(fwpkm_model_slots(NULL, &slots));
  NULL_IS_REFUSED(fwpkm_model_slots(model, NULL));
  NULL_IS_REFUSED(fwpkm_model_end_of_text(NULL, &number));
  NULL_IS_REFUSED(fwpkm_model_end_of_text(model, NULL));
  NULL_IS_REFUSED(fwpkm_model_encode(NULL, "a", 1, 0, &number, 1, &count));
  NULL_IS_REFUSED(fwpkm_model_encode(model, NULL, 1, 0, &number, 1, &count));
  NULL_IS_REFUSED(fwpkm_model_encode(model, "a", 1, 0, NULL, 1, &count));
  NULL_IS_REFUSED(fwpkm_model_encode(model, "a", 1, 0, &number, 1, NULL));
  NULL_IS_REFUSED(fwpkm_model_decode(NULL, &token, 1, text, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_decode(model, NULL, 1, text, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_decode(model, &token, 1, NULL, 64, &count));
  NULL_IS_REFUSED(fwpkm_model_decode(model, &token, 1, text, 64, NULL));
  fwpkm_model_close(NULL);
}

static void refuse_null_sessions(const fwpkm_model* model, fwpkm_session* session) {
  fwpkm_session* made = NULL;
  fwpkm_session* sessions[1];
  const int32_t token = 1;
  const int32_t* tokens[1];
  const size_t counts[1] = {1};
  double logits[kVocab];
  int32_t number = 0;
  size_t count = 0;

  sessions[0] = session;
  tokens[0] = &token;
  NULL_IS_REFUSED(fwpkm_session_new(NULL, 1, 1, &made));
  NULL_IS_REFUSED(fwpkm_session_new(model, 1, 1, NULL));
  NULL_IS_REFUSED(fwpkm_session_load(NULL, "a", &made));
  NULL_IS_REFUSED(fwpkm_session_load(model, NULL, &made));
  NULL_IS_REFUSED(fwpkm_session_load(model, "a", NULL));
  NULL_IS_REFUSED(fwpkm_session_save(NULL, "a"));
  NULL_IS_REFUSED(fwpkm_session_save(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_fork(NULL, &made));
  NULL_IS_REFUSED(fwpkm_session_fork(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_feed(NULL, &token, 1, 1));
  NULL_IS_REFUSED(fwpkm_session_feed(session, NULL, 1, 1));
  NULL_IS_REFUSED(fwpkm_session_feed_together(NULL, tokens, counts, 1, 1));
  NULL_IS_REFUSED(fwpkm_session_feed_together(sessions, NULL, counts, 1, 1));
  NULL_IS_REFUSED(fwpkm_session_feed_together(sessions, tokens, NULL, 1, 1));
  NULL_IS_REFUSED(fwpkm_session_next(NULL, 0, 1, 1, &number));
  NULL_IS_REFUSED(fwpkm_session_next(session, 0, 1, 1, NULL));
  NULL_IS_REFUSED(fwpkm_session_logits(NULL, logits, kVocab, &count));
  NULL_IS_REFUSED(fwpkm_session_logits(session, NULL, kVocab, &count));
  NULL_IS_REFUSED(fwpkm_session_logits(session, logits, kVocab, NULL));
  NULL_IS_REFUSED(fwpkm_session_flush(NULL));
  NULL_IS_REFUSED(fwpkm_session_reset_tokens(NULL));
  NULL_IS_REFUSED(fwpkm_session_reset_memory(NULL));
  fwpkm_session_free(NULL);
}

static void refuse_null_insights(fwpkm_session* session) {
  fwpkm_session* made = NULL;
  fwpkm_session_info info;
  fwpkm_session_bytes bytes;
  fwpkm_slot_write writes[FWPKM_SLOT_WRITES];
  fwpkm_slot_change change;
  fwpkm_key_change keys[2];
  char text[64];
  int32_t slots[kSlots];
  int64_t total = 0;
  size_t count = 0;
  int forgotten = 0;

  NULL_IS_REFUSED(fwpkm_session_mark(NULL, "m"));
  NULL_IS_REFUSED(fwpkm_session_mark(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_rollback(NULL, "m"));
  NULL_IS_REFUSED(fwpkm_session_rollback(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_remove_mark(NULL, "m"));
  NULL_IS_REFUSED(fwpkm_session_remove_mark(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_at_mark(NULL, "m", &made));
  NULL_IS_REFUSED(fwpkm_session_at_mark(session, NULL, &made));
  NULL_IS_REFUSED(fwpkm_session_at_mark(session, "m", NULL));
  NULL_IS_REFUSED(fwpkm_session_mark_count(NULL, &count));
  NULL_IS_REFUSED(fwpkm_session_mark_count(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_mark_name(NULL, 0, text, 64, &count));
  OK(fwpkm_session_mark(session, "m"));
  NULL_IS_REFUSED(fwpkm_session_mark_name(session, 0, NULL, 64, &count));
  NULL_IS_REFUSED(fwpkm_session_mark_name(session, 0, text, 64, NULL));
  NULL_IS_REFUSED(fwpkm_session_get_info(NULL, &info));
  NULL_IS_REFUSED(fwpkm_session_get_info(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_get_bytes(NULL, &bytes));
  NULL_IS_REFUSED(fwpkm_session_get_bytes(session, NULL));
  NULL_IS_REFUSED(fwpkm_session_written(NULL, 1, slots, kSlots, &count));
  NULL_IS_REFUSED(fwpkm_session_written(session, 1, NULL, kSlots, &count));
  NULL_IS_REFUSED(fwpkm_session_written(session, 1, slots, kSlots, NULL));
  NULL_IS_REFUSED(fwpkm_session_history(NULL, 1, 0, writes, 4, &count, &total));
  NULL_IS_REFUSED(fwpkm_session_history(session, 1, 0, NULL, 4, &count, &total));
  NULL_IS_REFUSED(fwpkm_session_history(session, 1, 0, writes, 4, NULL, &total));
  NULL_IS_REFUSED(fwpkm_session_history(session, 1, 0, writes, 4, &count, NULL));
  NULL_IS_REFUSED(fwpkm_session_forget_slot(NULL, 1, 0, &forgotten));
  NULL_IS_REFUSED(fwpkm_session_forget_slot(session, 1, 0, NULL));
  NULL_IS_REFUSED(fwpkm_session_forget_text(NULL, "a", 1, &count));
  NULL_IS_REFUSED(fwpkm_session_forget_text(session, NULL, 1, &count));
  NULL_IS_REFUSED(fwpkm_session_forget_text(session, "a", 1, NULL));
  NULL_IS_REFUSED(fwpkm_session_diff(NULL, session, &change, 1, &count));
  NULL_IS_REFUSED(fwpkm_session_diff(session, NULL, &change, 1, &count));
  NULL_IS_REFUSED(fwpkm_session_diff(session, session, NULL, 1, &count));
  NULL_IS_REFUSED(fwpkm_session_diff(session, session, &change, 1, NULL));
  NULL_IS_REFUSED(fwpkm_session_diff_keys(NULL, session, keys, 2, &count));
  NULL_IS_REFUSED(fwpkm_session_diff_keys(session, NULL, keys, 2, &count));
  NULL_IS_REFUSED(fwpkm_session_diff_keys(session, session, NULL, 2, &count));
  NULL_IS_REFUSED(fwpkm_session_diff_keys(session, session, keys, 2, NULL));
}

static void refuse_bad_values(const fwpkm_model* model, fwpkm_session* session) {
  static const int32_t outside[2] = {3, kVocab};
  static const int32_t negative = -1;
  const double undefined = strtod("nan", NULL), endless = strtod("inf", NULL);
  const fwpkm_session_info before = info_of(session);
  fwpkm_session* fresh = NULL;
  double logits[kVocab];
  int32_t token = 0, slots[kSlots];
  size_t count = 0;
  int64_t total = 0;
  int forgotten = 0;
  char text[4];

  FAILS(fwpkm_session_feed(session, outside, 2, 1), FWPKM_ERROR_ARGUMENT, "257");
  FAILS(fwpkm_session_feed(session, &negative, 1, 1), FWPKM_ERROR_ARGUMENT, "-1");
  FAILS(fwpkm_session_next(session, -0.5, 1, 1, &token), FWPKM_ERROR_ARGUMENT, "temperature=-0.5");
  FAILS(fwpkm_session_next(session, undefined, 1, 1, &token), FWPKM_ERROR_ARGUMENT,
        "temperature=nan");
  FAILS(fwpkm_session_next(session, endless, 1, 1, &token), FWPKM_ERROR_ARGUMENT, "inf");
  FAILS(fwpkm_session_next(session, 1, 1.5, 1, &token), FWPKM_ERROR_ARGUMENT, "top_p=1.5");
  FAILS(fwpkm_session_next(session, 1, undefined, 1, &token), FWPKM_ERROR_ARGUMENT, "top_p=nan");
  CHECK(info_of(session).position == before.position);

  FAILS(fwpkm_session_written(session, 0, slots, kSlots, &count), FWPKM_ERROR_ARGUMENT,
        "layer 0 has no memory; memories are in layers [1, 2]");
  FAILS(fwpkm_session_written(session, -1, slots, kSlots, &count), FWPKM_ERROR_ARGUMENT, "-1");
  FAILS(fwpkm_session_written(session, 99, slots, kSlots, &count), FWPKM_ERROR_ARGUMENT, "99");
  FAILS(fwpkm_session_history(session, 3, 0, NULL, 0, &count, &total), FWPKM_ERROR_ARGUMENT,
        "layer 3");
  FAILS(fwpkm_session_history(session, 1, kSlots, NULL, 0, &count, &total), FWPKM_ERROR_ARGUMENT,
        "slot 36 is outside 0..35");
  FAILS(fwpkm_session_forget_slot(session, 1, kSlots, &forgotten), FWPKM_ERROR_ARGUMENT, "0..35");
  FAILS(fwpkm_session_forget_slot(session, 1, -1, &forgotten), FWPKM_ERROR_ARGUMENT, "slot -1");
  FAILS(fwpkm_session_forget_slot(session, 0, 0, &forgotten), FWPKM_ERROR_ARGUMENT, "layer 0");
  FAILS(fwpkm_session_written(session, 1, slots, 1, &count), FWPKM_ERROR_SIZE, "holds 1");
  CHECK(count > 1);
  FAILS(fwpkm_session_logits(session, logits, kVocab - 1, &count), FWPKM_ERROR_SIZE, "257");
  CHECK(count == kVocab);

  FAILS(fwpkm_model_encode(model, "a\xff", 2, 0, NULL, 0, &count), FWPKM_ERROR_ARGUMENT,
        "not UTF-8 at byte 1");
  FAILS(fwpkm_session_forget_text(session, "\xff", 1, &count), FWPKM_ERROR_ARGUMENT, "UTF-8");
  FAILS(fwpkm_model_decode(model, outside, 2, text, 4, &count), FWPKM_ERROR_ARGUMENT, "257");

  OK(fwpkm_session_new(model, 1, 1, &fresh));
  FAILS(fwpkm_session_logits(fresh, logits, kVocab, &count), FWPKM_ERROR_STATE, "nothing was read");
  FAILS(fwpkm_session_next(fresh, 0, 1, 1, &token), FWPKM_ERROR_STATE, "nothing was read");
  OK(fwpkm_session_flush(fresh));
  fwpkm_session_free(fresh);
}

/* Two handles are two models, even of one folder; and sessions outlive theirs. */
static void use_two_models(fwpkm_session* session) {
  fwpkm_model* model = open_model("model");
  fwpkm_model* second = open_model("model");
  fwpkm_session* sessions[2];
  const int32_t token = 5;
  const int32_t* tokens[2];
  const size_t counts[2] = {1, 1};
  size_t count = 0;
  int i;

  tokens[0] = tokens[1] = &token;
  sessions[0] = session_of(model, "one of them");
  sessions[1] = session_of(second, "one of them");
  FAILS(fwpkm_session_feed_together(sessions, tokens, counts, 2, 1), FWPKM_ERROR_ARGUMENT,
        "of one model");
  FAILS(fwpkm_session_diff(sessions[0], sessions[1], NULL, 0, &count), FWPKM_ERROR_ARGUMENT,
        "different models");
  FAILS(fwpkm_session_diff_keys(sessions[0], session, NULL, 0, &count), FWPKM_ERROR_ARGUMENT,
        "different models");
  fwpkm_model_close(model);
  for (i = 0; i < 2; ++i) { /* one of a closed model, one of an open one */
    feed_text(sessions[i], second, " and the other", 1);
    OK(fwpkm_session_flush(sessions[i]));
    OK(fwpkm_session_forget_text(sessions[i], "the other", 9, &count));
    CHECK(count > 0);
    OK(fwpkm_session_save(sessions[i], in_folder("closed.session")));
  }
  CHECK(same_logits(sessions[0], sessions[1]));
  fwpkm_session_free(sessions[0]);
  OK(fwpkm_session_load(second, in_folder("closed.session"), &sessions[0]));
  CHECK(same_logits(sessions[0], sessions[1]));
  fwpkm_session_free(sessions[0]);
  fwpkm_session_free(sessions[1]);
  fwpkm_model_close(second);
}

void test_errors(void) {
  fwpkm_model* model = NULL;
  fwpkm_session* session = NULL;
  CHECK(strcmp(fwpkm_last_error(), "") == 0);
  model = open_model("model");
  session = session_of(model, "a session to be misused");
  OK(fwpkm_session_flush(session));
  refuse_null_models(model);
  refuse_null_sessions(model, session);
  refuse_null_insights(session);
  refuse_bad_values(model, session);
  use_two_models(session);
  fwpkm_session_free(session);
  fwpkm_model_close(model);
}

static unsigned char* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  unsigned char* bytes = NULL;
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  bytes = malloc(*size);
  CHECK(bytes != NULL && fseek(file, 0, SEEK_SET) == 0);
  CHECK(fread(bytes, 1, *size, file) == *size && fclose(file) == 0);
  return bytes;
}

static void write_file(const char* path, const unsigned char* bytes, size_t size) {
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* Files and folders that are missing, damaged, or somebody else's. */
void test_files(void) {
  fwpkm_model* model = open_model("model");
  fwpkm_model* other = open_model("other");
  fwpkm_model* plain = open_model("plain");
  fwpkm_model* none = model;
  fwpkm_session* session = session_of(model, "a session on the disk");
  fwpkm_session* bad = session;
  char path[4096], spoiled[4096 + 16];
  unsigned char* bytes = NULL;
  size_t size = 0, count = 0, i;
  int32_t token = 0, size_of_plain = 0;

  snprintf(path, sizeof(path), "%s/kept.session", test_folder);
  snprintf(spoiled, sizeof(spoiled), "%s.spoiled", path);
  FAILS(fwpkm_model_open("/nowhere", NULL, NULL, &none), FWPKM_ERROR_FILE, "/nowhere");
  CHECK(none == NULL); /* whatever it was before */
  FAILS(fwpkm_model_open(test_folder, NULL, NULL, &none), FWPKM_ERROR_FILE, "config.json");
  FAILS(fwpkm_model_open(in_folder("model"), "abacus", NULL, &none), FWPKM_ERROR_ARGUMENT,
        "abacus");
  FAILS(fwpkm_model_open(in_folder("model"), NULL, "recall", &none), FWPKM_ERROR_FILE,
        "is not the tokenizer");
  FAILS(fwpkm_model_open(in_folder("plain"), NULL, "/nowhere.model", &none), FWPKM_ERROR_FILE,
        "/nowhere.model");

  FAILS(fwpkm_session_save(session, "/nowhere/a.session"), FWPKM_ERROR_FILE, "/nowhere/a.session");
  FAILS(fwpkm_session_load(model, "/nowhere/a.session", &bad), FWPKM_ERROR_FILE, "/nowhere");
  CHECK(bad == NULL);
  FAILS(fwpkm_session_load(model, in_folder("model/config.json"), &bad), FWPKM_ERROR_FILE,
        "config.json");
  OK(fwpkm_session_save(session, path));
  FAILS(fwpkm_session_load(other, path, &bad), FWPKM_ERROR_FILE, "other weights");

  /* A changed byte anywhere in the front, the header and the last section, and a cut. */
  bytes = read_file(path, &size);
  for (i = 0; i < size; i = i < 300 ? i + 7 : i < size - 1 ? size - 1 : size) {
    bytes[i] ^= 0x10;
    write_file(spoiled, bytes, size);
    FAILS(fwpkm_session_load(model, spoiled, &bad), FWPKM_ERROR_FILE, "spoiled");
    CHECK(bad == NULL);
    bytes[i] ^= 0x10;
  }
  write_file(spoiled, bytes, size / 2);
  FAILS(fwpkm_session_load(model, spoiled, &bad), FWPKM_ERROR_FILE, "spoiled");
  write_file(spoiled, bytes, size);
  OK(fwpkm_session_load(model, spoiled, &bad)); /* it was the change that was refused */
  CHECK(same_logits(session, bad));
  fwpkm_session_free(bad);
  free(bytes);

  /* A model that does not tell its tokenizer does all but text; naming one helps. */
  OK(fwpkm_model_vocab_size(plain, &size_of_plain));
  CHECK(size_of_plain == kVocab);
  FAILS(fwpkm_model_encode(plain, "a", 1, 0, NULL, 0, &count), FWPKM_ERROR_STATE, "tokenizer");
  FAILS(fwpkm_model_decode(plain, &token, 1, NULL, 0, &count), FWPKM_ERROR_STATE, "tokenizer");
  FAILS(fwpkm_model_end_of_text(plain, &token), FWPKM_ERROR_STATE, "tokenizer");
  OK(fwpkm_session_new(plain, 1, 1, &bad));
  OK(fwpkm_session_feed(bad, &token, 1, 1));
  OK(fwpkm_session_next(bad, 0, 1, 1, &token));
  FAILS(fwpkm_session_forget_text(bad, "a", 1, &count), FWPKM_ERROR_STATE, "tokenizer");
  fwpkm_session_free(bad);
  fwpkm_model_close(plain);
  OK(fwpkm_model_open(in_folder("plain"), "reference", "bytes", &plain));
  OK(fwpkm_model_encode(plain, "a", 1, 0, &token, 1, &count));
  CHECK(count == 1 && token == 'a');
  FAILS(fwpkm_session_load(plain, path, &bad), FWPKM_ERROR_FILE, "device");

  fwpkm_session_free(session);
  fwpkm_model_close(plain);
  fwpkm_model_close(other);
  fwpkm_model_close(model);
}

void test_memory(void) {
  fwpkm_model* model = NULL;
  FAILS(fwpkm_model_open(in_folder("huge"), NULL, NULL, &model), FWPKM_ERROR_MEMORY,
        "out of memory");
  CHECK(model == NULL);
}
