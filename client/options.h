// Command-line options as rows of a table: parsing, defaults in the target struct, help text,
// nearest option for a mistyped one. Accepted: --name value, --name=value, --flag. Pure but for the
// help, which goes to a FILE.
#ifndef CLIENT_OPTIONS_H
#define CLIENT_OPTIONS_H

#include "base/status.h"
#include <stdint.h>
#include <stdio.h>

#define OPTION_LIST_MAX 64

struct text_list { // a repeatable option
  const char *items[OPTION_LIST_MAX];
  int n;
};

enum option_kind {
  OPTION_FLAG,     // bool
  OPTION_TEXT,     // const char *, borrowed from argv
  OPTION_COUNT,    // int64_t within [min, max]
  OPTION_REAL,     // double > 0
  OPTION_DURATION, // int64_t ns; "250ms", "10s", "2m", a bare number is seconds
  OPTION_LIST,     // struct text_list
};

struct option_row {
  const char *name; // without the dashes; NULL with `help` set: a heading
  enum option_kind kind;
  size_t offset; // of the field in the target struct
  const char *value_name;
  const char *help; // with the default in words
  int64_t min, max; // OPTION_COUNT only
};

// Fills `target`, whose fields hold the defaults. INVALID_ARGUMENT names the option, the value and
// what is expected.
MUST_USE enum status options_parse(const struct option_row *rows, int n_rows, int argc, char **argv,
                                   void *target, struct error *err);
// The same with one word that is no option, such as a model's name, anywhere between them; NULL
// where there is none.
MUST_USE enum status options_parse_word(const struct option_row *rows, int n_rows, int argc,
                                        char **argv, void *target, const char **word,
                                        struct error *err);
void options_help(const struct option_row *rows, int n_rows, FILE *out);
// The row name closest to `word` by edit distance, or NULL when none is near (more than half the
// word differs).
const char *options_nearest(const struct option_row *rows, int n_rows, const char *word);
int edit_distance(const char *a,
                  const char *b); // Levenshtein; words over 63 characters count as far away

#endif
