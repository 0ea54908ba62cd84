// Collects reported errors as lines "line:column: message", so that a test can compare them word
// for word.
#ifndef TESTS_CONF_COLLECT_H
#define TESTS_CONF_COLLECT_H

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> // wants the headers above

struct collect {
  char text[16384];
  size_t used;
  int n;
  char file[256]; // of the last error
};

static inline void collect_error(const struct error *err, void *arg) {
  struct collect *collect = arg;
  size_t room = sizeof collect->text - collect->used;
  int wrote = snprintf(collect->text + collect->used, room, "%d:%d: %s\n", err->line, err->column,
                       err->message);
  if (wrote > 0 && (size_t)wrote < room) collect->used += (size_t)wrote;
  memcpy(collect->file, err->file, sizeof collect->file);
  collect->n++;
}

// A new folder under $TMPDIR; the path lives in static memory of one test program.
static inline const char *temp_folder(void) {
  static char path[256];
  const char *base = getenv("TMPDIR");
  snprintf(path, sizeof path, "%s/fusewire-test-XXXXXX", base != NULL ? base : "/tmp");
  assert_non_null(mkdtemp(path));
  return path;
}

static inline void write_file(const char *path, const void *bytes, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

#endif
