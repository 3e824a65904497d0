/* Goes on with a session: reads a text, answers with COUNT tokens, and saves the session.
 *   go_on MODEL FILE.session TEXT COUNT
 * If there is no such file, the session begins here.
 */
#include <fwpkm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the library's message if a call failed. */
static void ok(fwpkm_status status) {
  if (status != FWPKM_OK) {
    fprintf(stderr, "%s\n", fwpkm_last_error());
    exit(1);
  }
}

static void* make(size_t bytes) {
  void* memory = malloc(bytes > 0 ? bytes : 1);
  if (memory == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return memory;
}

int main(int argc, char** argv) {
  fwpkm_model* model = NULL;
  fwpkm_session *session = NULL, *before = NULL;
  fwpkm_session_info info;
  if (argc != 5) {
    fprintf(stderr, "usage: %s MODEL FILE.session TEXT COUNT\n", argv[0]);
    return 2;
  }
  ok(fwpkm_model_open(argv[1], "cpu", NULL, &model));
  FILE* file = fopen(argv[2], "rb");
  if (file != NULL) {
    fclose(file);
    ok(fwpkm_session_load(model, argv[2], &session));
  } else {
    ok(fwpkm_session_new(model, 1, 1, &session));
  }
  ok(fwpkm_session_get_info(session, &info));
  printf("%lld tokens were read before\n", (long long)info.position);
  ok(fwpkm_session_fork(session, &before)); /* to compare with; costs almost nothing */

  /* Ask for the size, then for the tokens. */
  size_t count = 0;
  ok(fwpkm_model_encode(model, argv[3], strlen(argv[3]), info.position > 0, NULL, 0, &count));
  int32_t* tokens = make(count * sizeof(int32_t));
  ok(fwpkm_model_encode(model, argv[3], strlen(argv[3]), info.position > 0, tokens, count, &count));
  ok(fwpkm_session_feed(session, tokens, count, 1));
  free(tokens);

  /* The answer is read, but not learned. */
  size_t wanted = strtoul(argv[4], NULL, 10), made = 0, length = 0;
  int32_t end = 0;
  int32_t* answer = make(wanted * sizeof(int32_t));
  ok(fwpkm_model_end_of_text(model, &end));
  while (made < wanted) {
    ok(fwpkm_session_next(session, 0, 1, 0, &answer[made]));
    if (answer[made] == end) {
      break;
    }
    ++made;
  }
  ok(fwpkm_model_decode(model, answer, made, NULL, 0, &length));
  char* text = make(length + 1);
  ok(fwpkm_model_decode(model, answer, made, text, length + 1, &length));
  if (wanted > 0) {
    printf("answer: %s\n", text);
  }
  free(text);
  free(answer);

  ok(fwpkm_session_diff(before, session, NULL, 0, &count));
  ok(fwpkm_session_get_info(session, &info));
  printf("%zu slots changed; %lld tokens wait to be written\n", count, (long long)info.queued);
  ok(fwpkm_session_save(session, argv[2]));
  fwpkm_session_free(before);
  fwpkm_session_free(session);
  fwpkm_model_close(model);
  return 0;
}
