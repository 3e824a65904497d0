/* fwpkm in C: models with fast-weight memories, and sessions, which are models at work.
 *
 *   fwpkm_model* model = NULL;
 *   fwpkm_session* session = NULL;
 *   if (fwpkm_model_open("run", "cpu", NULL, &model) != FWPKM_OK ||
 *       fwpkm_session_new(model, 1, 1, &session) != FWPKM_OK) {
 *     fprintf(stderr, "%s\n", fwpkm_last_error());
 *   }
 *   ...
 *   fwpkm_session_free(session);
 *   fwpkm_model_close(model);
 *
 * Errors. A function that can fail returns a fwpkm_status, and fwpkm_last_error() tells what was
 * wrong. No pointer may be NULL unless it says so; NULL is an error and never a crash. After an
 * error nothing has changed, but that fwpkm_session_feed, _feed_together, _next and _flush may have
 * read a part of the tokens (fwpkm_session_get_info tells how many).
 *
 * Buffers. Functions with `capacity` and `count` set *count to the number of elements that there
 * are. With a NULL buffer and a capacity of 0 that is all they do. With a capacity that is too
 * small they return FWPKM_ERROR_SIZE and write no element. Text (`length` instead of `count`) is
 * counted in bytes; it gets a zero at its end, which is not counted but needs its byte of the
 * capacity.
 *
 * Threads. A model may be used by any number of threads at once. A session is used by one thread at
 * a time; different sessions, forks of each other too, may be used by different threads at the same
 * time. A handle must not be closed or freed while another thread uses it. The last error is each
 * thread's own.
 *
 * Text is UTF-8. Tokens are numbers from 0 to vocab_size - 1. Layers are counted from 0.
 */
#ifndef FWPKM_H
#define FWPKM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fwpkm_status {
  FWPKM_OK = 0,
  FWPKM_ERROR_ARGUMENT = 1, /* NULL, a value out of range, a name that is not known */
  FWPKM_ERROR_SIZE = 2,     /* the buffer is too small; *count or *length tells what is needed */
  FWPKM_ERROR_FILE = 3,     /* cannot be read or written, is damaged, or is of another model */
  FWPKM_ERROR_STATE = 4,    /* not now, or not with this model: nothing read yet, no tokenizer.. */
  FWPKM_ERROR_MEMORY = 5,   /* the system has no more */
  FWPKM_ERROR_INTERNAL = 6  /* a fault of the library */
} fwpkm_status;

typedef struct fwpkm_model fwpkm_model;
typedef struct fwpkm_session fwpkm_session;

/* The library's version, as in "0.1.0". */
const char* fwpkm_version(void);

/* What was wrong when a function last failed in this thread, ready to be shown; "" before the first
 * failure. Stays as it is until the next failure in this thread. */
const char* fwpkm_last_error(void);

/* ---------------------------------------------------------------------------------------- models
 */

/* Opens a model folder, or the newest checkpoint of a training run's folder. `device`: "cpu",
 * "reference" (double, slow), or NULL for "cpu". `tokenizer`: NULL takes the one that the model was
 * trained with; else "bytes", "recall" or the path of a SentencePiece model. A folder that does not
 * tell its tokenizer opens without one: all works then but functions that take or give text. */
fwpkm_status fwpkm_model_open(const char* folder, const char* device, const char* tokenizer,
                              fwpkm_model** model);

/* Lets go of a model; NULL does nothing. Its sessions stay as they are, and keep the weights. */
void fwpkm_model_close(fwpkm_model* model);

/* How many tokens the model knows. */
fwpkm_status fwpkm_model_vocab_size(const fwpkm_model* model, int32_t* size);

/* The name that its config gives it. */
fwpkm_status fwpkm_model_name(const fwpkm_model* model, char* text, size_t capacity,
                              size_t* length);

/* 32 hexadecimal digits that tell it from models of other settings or weights. The first call reads
 * all weights. */
fwpkm_status fwpkm_model_fingerprint(const fwpkm_model* model, char* text, size_t capacity,
                                     size_t* length);

/* The layers that have a memory with slots (FwPKM), in order. */
fwpkm_status fwpkm_model_memory_layers(const fwpkm_model* model, int32_t* layers, size_t capacity,
                                       size_t* count);

/* How many slots each of these layers has; 0 for a model without them. */
fwpkm_status fwpkm_model_slots(const fwpkm_model* model, int64_t* slots);

/* The token that ends a text. Needs a tokenizer. */
fwpkm_status fwpkm_model_end_of_text(const fwpkm_model* model, int32_t* token);

/* Tokens of `bytes` bytes of text, without an end of text. `continues`: the text goes on with one
 * that was read before, so no mark of a beginning is put first. Needs a tokenizer. */
fwpkm_status fwpkm_model_encode(const fwpkm_model* model, const char* text, size_t bytes,
                                int continues, int32_t* tokens, size_t capacity, size_t* count);

/* The text of `token_count` tokens. It may end inside a character if the tokens do; tokens that
 * stand for any bytes may stand for zeros too. Needs a tokenizer. */
fwpkm_status fwpkm_model_decode(const fwpkm_model* model, const int32_t* tokens, size_t token_count,
                                char* text, size_t capacity, size_t* length);

/* -------------------------------------------------------------------------------------- sessions
 */

/* A session that has read nothing yet. `seed`: of the tokens that fwpkm_session_next draws.
 * `history`: keep, for each slot that is written, what text wrote it; the session and its file then
 * hold pieces of the text. */
fwpkm_status fwpkm_session_new(const fwpkm_model* model, uint64_t seed, int history,
                               fwpkm_session** session);

/* A session from a file that fwpkm_session_save made with the same model. It goes on bit for bit as
 * the saved one would have. Another model's file is refused, and a damaged one. */
fwpkm_status fwpkm_session_load(const fwpkm_model* model, const char* path,
                                fwpkm_session** session);

/* Writes all of it, marks too; the file appears whole or not at all. `fwpkm session` reads it. */
fwpkm_status fwpkm_session_save(const fwpkm_session* session, const char* path);

/* A second session that goes on from here on its own, with the marks of the first. The two share
 * memory until one of them changes it. */
fwpkm_status fwpkm_session_fork(const fwpkm_session* session, fwpkm_session** fork);

/* Lets go of a session; NULL does nothing. */
void fwpkm_session_free(fwpkm_session* session);

/* Reads tokens; `tokens` may be NULL if count is 0. `learn`: memories write; with 0 they are only
 * read, and what is read now is never written later. */
fwpkm_status fwpkm_session_feed(fwpkm_session* session, const int32_t* tokens, size_t count,
                                int learn);

/* Reads tokens[i] (counts[i] of them) into sessions[i] for each i below session_count, all in one
 * call of the model: faster than one after the other. The sessions must be different ones of one
 * opened model; tokens[i] may be NULL if counts[i] is 0. */
fwpkm_status fwpkm_session_feed_together(fwpkm_session* const* sessions,
                                         const int32_t* const* tokens, const size_t* counts,
                                         size_t session_count, int learn);

/* Draws a token, reads it (`learn` as in feed) and sets *token. `temperature` 0 takes the likeliest
 * always; `top_p` from 0 to 1 draws from the likeliest tokens that together have this probability.
 * Something must have been read before. */
fwpkm_status fwpkm_session_next(fwpkm_session* session, double temperature, double top_p, int learn,
                                int32_t* token);

/* For each token of the vocabulary, how likely it comes next: logits after the last token read.
 * Something must have been read before. */
fwpkm_status fwpkm_session_logits(const fwpkm_session* session, double* logits, size_t capacity,
                                  size_t* count);

/* Writes now what waits to be written, but for the last tokens, whose values to predict are not
 * known yet. */
fwpkm_status fwpkm_session_flush(fwpkm_session* session);

/* Forgets the tokens (attention, GDN) but not what memories learned. */
fwpkm_status fwpkm_session_reset_tokens(fwpkm_session* session);

/* Forgets what memories learned, and what waits to be written. */
fwpkm_status fwpkm_session_reset_memory(fwpkm_session* session);

/* ----------------------------------------------------------------------------------------- marks
 */

/* Names the state as it is now, to come back to; an older mark of this name is replaced. */
fwpkm_status fwpkm_session_mark(fwpkm_session* session, const char* name);

/* Goes back to a mark, which stays. */
fwpkm_status fwpkm_session_rollback(fwpkm_session* session, const char* name);

fwpkm_status fwpkm_session_remove_mark(fwpkm_session* session, const char* name);

/* The state at a mark as a session of its own, without marks. */
fwpkm_status fwpkm_session_at_mark(const fwpkm_session* session, const char* name,
                                   fwpkm_session** at);

/* How many marks there are, and the name of one of them (they are sorted). */
fwpkm_status fwpkm_session_mark_count(const fwpkm_session* session, size_t* count);
fwpkm_status fwpkm_session_mark_name(const fwpkm_session* session, size_t index, char* text,
                                     size_t capacity, size_t* length);

/* ------------------------------------------------------------------------------ looking into them
 */

typedef struct fwpkm_session_info {
  int64_t position;  /* tokens read, from the first on */
  int64_t in_stream; /* since the last reset_tokens */
  int64_t queued;    /* tokens that wait to be written */
  int64_t updates;   /* writes of a memory layer so far */
  uint64_t seed;     /* as given to fwpkm_session_new */
  int32_t history;   /* whether it is kept */
} fwpkm_session_info;

fwpkm_status fwpkm_session_get_info(const fwpkm_session* session, fwpkm_session_info* info);

/* What a session consists of, in bytes, as if it shared nothing. */
typedef struct fwpkm_session_bytes {
  uint64_t rows;    /* value rows that its memories wrote */
  uint64_t fixed;   /* all that does not grow with what was written */
  uint64_t history; /* what is kept of the text that wrote them */
  uint64_t index;   /* where rows are */
} fwpkm_session_bytes;

fwpkm_status fwpkm_session_get_bytes(const fwpkm_session* session, fwpkm_session_bytes* bytes);

/* The slots of a layer's memory that were written, in order. */
fwpkm_status fwpkm_session_written(const fwpkm_session* session, int32_t layer, int32_t* slots,
                                   size_t capacity, size_t* count);

#define FWPKM_SLOT_WRITES 4   /* writes of a slot that are kept */
#define FWPKM_TOKENS_BEFORE 4 /* tokens kept before the query of a write, and after it */
#define FWPKM_TOKENS_AFTER 5

/* A write into a slot. A token's query found the slot, which was moved towards the value of a token
 * that came soon after, the target. Tokens that there are not, or that are not kept, are -1. */
typedef struct fwpkm_slot_write {
  int64_t position; /* of the query's token, counted from the session's first */
  float strength;   /* the part of the error that the write put onto the slot */
  int32_t query;
  int32_t target;
  int32_t tokens[FWPKM_TOKENS_BEFORE + 1 + FWPKM_TOKENS_AFTER]; /* the query in the middle */
} fwpkm_slot_write;

/* The last writes of a slot, the newest first; at most FWPKM_SLOT_WRITES. *total: all writes that
 * it has seen. Both are 0 for a slot that nobody wrote, and for a session without history. */
fwpkm_status fwpkm_session_history(const fwpkm_session* session, int32_t layer, int32_t slot,
                                   fwpkm_slot_write* writes, size_t capacity, size_t* count,
                                   int64_t* total);

/* Puts a slot back to the model's row. *forgotten: 1, or 0 if nobody had written it. */
fwpkm_status fwpkm_session_forget_slot(fwpkm_session* session, int32_t layer, int32_t slot,
                                       int* forgotten);

/* Puts back all slots that are known to be written by this text. *forgotten: how many. Needs a
 * tokenizer and a session with history; text that still waits to be written (fwpkm_session_flush)
 * is FWPKM_ERROR_STATE. */
fwpkm_status fwpkm_session_forget_text(fwpkm_session* session, const char* text, size_t bytes,
                                       size_t* forgotten);

/* A slot in which two sessions hold different rows. */
typedef struct fwpkm_slot_change {
  int32_t layer;
  int32_t slot;
  double change;   /* length of the difference of the two rows */
  double base;     /* length of the row before */
  int32_t written; /* in the session after; 0: it is back at the model's row */
} fwpkm_slot_change;

/* What changed from one session to another of the same opened model, by layer and slot. */
fwpkm_status fwpkm_session_diff(const fwpkm_session* before, const fwpkm_session* after,
                                fwpkm_slot_change* changes, size_t capacity, size_t* count);

/* How the sub-keys of a layer's memory, by which slots are found, moved. */
typedef struct fwpkm_key_change {
  int32_t layer;
  int64_t moved;   /* sub-keys that differ */
  double furthest; /* the longest way that one went */
} fwpkm_key_change;

/* The same for sub-keys: one entry for each memory layer. */
fwpkm_status fwpkm_session_diff_keys(const fwpkm_session* before, const fwpkm_session* after,
                                     fwpkm_key_change* changes, size_t capacity, size_t* count);

#ifdef __cplusplus
}
#endif

#endif /* FWPKM_H */
