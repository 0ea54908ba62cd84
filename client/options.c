#include "client/options.h"
#include "client/spec.h"
#include <inttypes.h>
#include <string.h>

#define WORD_MAX 64

int edit_distance(const char *a, const char *b) {
  int row[WORD_MAX + 1];
  const size_t n_a = strlen(a), n_b = strlen(b);
  if (n_a >= WORD_MAX || n_b >= WORD_MAX) return WORD_MAX;
  for (size_t j = 0; j <= n_b; j++)
    row[j] = (int)j;
  for (size_t i = 1; i <= n_a; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= n_b; j++) {
      const int replace = diagonal + (a[i - 1] != b[j - 1]);
      const int insert = row[j - 1] + 1, erase = row[j] + 1;
      diagonal = row[j];
      row[j] = replace;
      if (insert < row[j]) row[j] = insert;
      if (erase < row[j]) row[j] = erase;
    }
  }
  return row[n_b];
}

const char *options_nearest(const struct option_row *rows, int n_rows, const char *word) {
  const char *best = NULL;
  int best_distance = (int)strlen(word) / 2 + 1;
  for (int i = 0; i < n_rows; i++) {
    const int distance = rows[i].name ? edit_distance(word, rows[i].name) : WORD_MAX;
    if (distance < best_distance) {
      best_distance = distance;
      best = rows[i].name;
    }
  }
  return best;
}

static const struct option_row *row_named(const struct option_row *rows, int n_rows,
                                          const char *name, size_t length) {
  for (int i = 0; i < n_rows; i++) {
    if (!rows[i].name) continue;
    if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0) return &rows[i];
  }
  return NULL;
}

static enum status set_count(const struct option_row *row, const char *value, int64_t *field,
                             struct error *err) {
  int64_t number = 0;
  if (!spec_integer(value, &number) || number < row->min || number > row->max) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--%s %s: expected a whole number from %" PRId64 " to %" PRId64, row->name,
                     value, row->min, row->max);
  }
  *field = number;
  return STATUS_OK;
}

static enum status set_value(const struct option_row *row, const char *value, void *target,
                             struct error *err) {
  void *field = (char *)target + row->offset;
  struct text_list *list = field;
  switch (row->kind) {
  case OPTION_FLAG:
    *(bool *)field = true;
    return STATUS_OK;
  case OPTION_TEXT:
    *(const char **)field = value;
    return STATUS_OK;
  case OPTION_COUNT:
    return set_count(row, value, field, err);
  case OPTION_REAL:
    if (spec_real(value, field) && *(double *)field > 0) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT, "--%s %s: expected a number above 0", row->name,
                     value);
  case OPTION_DURATION:
    if (spec_duration(value, field)) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--%s %s: expected a time such as 250ms, 10s or 2m (a bare number is seconds)",
                     row->name, value);
  case OPTION_LIST:
    if (list->n == OPTION_LIST_MAX) {
      return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: given more than %d times", row->name,
                       OPTION_LIST_MAX);
    }
    list->items[list->n++] = value;
    return STATUS_OK;
  }
  return error_set(err, STATUS_INTERNAL, "--%s: unknown kind of option", row->name);
}

static enum status unknown_option(const struct option_row *rows, int n_rows, const char *name,
                                  size_t length, struct error *err) {
  char word[WORD_MAX] = "";
  if (length < sizeof word) memcpy(word, name, length);
  const char *nearest = options_nearest(rows, n_rows, word);
  return error_set(err, STATUS_INVALID_ARGUMENT, "unknown option --%.*s%s%s%s", (int)length, name,
                   nearest ? "; the nearest is --" : "", nearest ? nearest : "",
                   nearest ? "" : "; see --help");
}

enum status options_parse(const struct option_row *rows, int n_rows, int argc, char **argv,
                          void *target, struct error *err) {
  return options_parse_word(rows, n_rows, argc, argv, target, NULL, err);
}

enum status options_parse_word(const struct option_row *rows, int n_rows, int argc, char **argv,
                               void *target, const char **word, struct error *err) {
  if (word) *word = NULL;
  for (int i = 0; i < argc; i++) {
    if (word && !*word && argv[i][0] && argv[i][0] != '-') {
      *word = argv[i];
      continue;
    }
    if (strncmp(argv[i], "--", 2) != 0 || !argv[i][2]) {
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "unexpected argument '%s'; options begin with --", argv[i]);
    }
    const char *name = argv[i] + 2;
    const char *equals = strchr(name, '=');
    const size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option_row *row = row_named(rows, n_rows, name, length);
    const char *value = equals ? equals + 1 : NULL;
    if (!row) return unknown_option(rows, n_rows, name, length, err);
    if (row->kind == OPTION_FLAG && value) {
      return error_set(err, STATUS_INVALID_ARGUMENT, "--%s takes no value, found '%s'", row->name,
                       value);
    }
    if (row->kind != OPTION_FLAG && !value) {
      if (i + 1 == argc) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "--%s needs a value: %s", row->name,
                         row->value_name);
      }
      value = argv[++i];
    }
    const enum status status = set_value(row, value, target, err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

void options_help(const struct option_row *rows, int n_rows, FILE *out) {
  for (int i = 0; i < n_rows; i++) {
    if (!rows[i].name) {
      fprintf(out, "\n%s\n", rows[i].help);
      continue;
    }
    char left[64];
    snprintf(left, sizeof left, "--%s %s", rows[i].name,
             rows[i].value_name ? rows[i].value_name : "");
    const char *text = rows[i].help;
    for (const char *line = text; line;) { // help text may have several lines
      const char *end = strchr(line, '\n');
      fprintf(out, "  %-28s %.*s\n", line == text ? left : "",
              end ? (int)(end - line) : (int)strlen(line), line);
      line = end ? end + 1 : NULL;
    }
  }
}
