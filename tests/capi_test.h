/* What the C tests of fwpkm.h share. */
#ifndef FWPKM_TESTS_CAPI_TEST_H
#define FWPKM_TESTS_CAPI_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi/fwpkm.h"

static inline void stop_here(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: %s\nlast error: %s\n", file, line, what, fwpkm_last_error());
  exit(1);
}

#define CHECK(condition)                         \
  do {                                           \
    if (!(condition)) {                          \
      stop_here(__FILE__, __LINE__, #condition); \
    }                                            \
  } while (0)

#define OK(call) CHECK((call) == FWPKM_OK)

/* The call must give this status, and the message must contain the text. */
#define FAILS(call, status, text)                                      \
  do {                                                                 \
    CHECK((call) == (status));                                         \
    if (strstr(fwpkm_last_error(), text) == NULL) {                    \
      stop_here(__FILE__, __LINE__, "the message lacks \"" text "\""); \
    }                                                                  \
  } while (0)

/* The folder that capi_test.cpp made holds the models `model` (bytes tokenizer, memories in layers
 * 1 and 2), `other` (the same with other weights), `plain` (no tokenizer) and `huge` (more weights
 * than any machine holds). */
extern const char* test_folder;

/* A path in that folder; good until the fourth call from here. */
const char* in_folder(const char* name);
fwpkm_model* open_model(const char* name);
/* A session with history that has read a text. */
fwpkm_session* session_of(const fwpkm_model* model, const char* text);
void feed_text(fwpkm_session* session, const fwpkm_model* model, const char* text, int learn);
fwpkm_session_info info_of(const fwpkm_session* session);
/* Slots that were written in both memory layers. */
size_t written_in(const fwpkm_session* session);
/* All logits; to be freed. */
double* logits_of(const fwpkm_session* session);
int same_logits(const fwpkm_session* a, const fwpkm_session* b);

enum { kVocab = 257, kSlots = 36 };

void test_errors(void);
void test_files(void);
void test_memory(void);

#endif
