// Typed getters over the tree of conf/yaml.c, and the words of their errors.
#include "base/log.h"
#include "bounds.h"
#include "conf/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- reporting ------------------------------------------------------------------------------

static bool told_before(struct conf_report *report, int line, int column, const char *message) {
  uint64_t hash = ((uint64_t)line << 32 | (uint32_t)column) ^ 0xcbf29ce484222325ull; // FNV-1a
  for (; *message != '\0'; message++)
    hash = (hash ^ (unsigned char)*message) * 0x100000001b3ull;
  for (int i = 0; i < report->n_told; i++)
    if (report->told[i] == hash) return true;
  report->told[report->n_told++] = hash;
  return false;
}

static void report_error(struct conf_report *report, int line, int column, const char *message) {
  report->n_errors++;
  if (report->fn == NULL || report->n_told == LIMIT_CONF_ERRORS ||
      told_before(report, line, column, message))
    return;
  struct error err;
  error_set_at(&err, STATUS_INVALID_ARGUMENT, report->file != NULL ? report->file : "", line,
               column, "%s", message);
  report->fn(&err, report->arg);
}

static void report_path(struct conf_report *report, const struct conf_node *node, int line,
                        int column, const char *format, va_list args) PRINTF_LIKE(5, 0);
static void report_path(struct conf_report *report, const struct conf_node *node, int line,
                        int column, const char *format, va_list args) {
  char message[ERROR_MESSAGE_BYTES], path[512];
  conf_path(node, path, sizeof path);
  int n = path[0] != '\0' ? snprintf(message, sizeof message, "%s: ", path) : 0;
  vsnprintf(message + n, sizeof message - (size_t)n, format, args); // path is shorter than message
  report_error(report, line, column, message);
}

void conf_fail(struct conf_report *report, const struct conf_node *node, const char *format, ...) {
  va_list args;
  va_start(args, format);
  report_path(report, node, node->line, node->column, format, args);
  va_end(args);
}

void conf_fail_key(struct conf_report *report, const struct conf_node *node, const char *format,
                   ...) {
  va_list args;
  va_start(args, format);
  bool keyed = node->key != NULL;
  report_path(report, node, keyed ? node->key_line : node->line,
              keyed ? node->key_column : node->column, format, args);
  va_end(args);
}

void conf_fail_at(struct conf_report *report, int line, int column, const char *format, ...) {
  char message[ERROR_MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  report_error(report, line, column, message);
}

const char *conf_path(const struct conf_node *node, char *out, size_t out_bytes) {
  const struct conf_node *chain[LIMIT_CONF_DEPTH + 1];
  int n = 0;
  size_t used = 0;
  for (; node != NULL && node->parent != NULL && n <= LIMIT_CONF_DEPTH; node = node->parent)
    chain[n++] = node;
  out[0] = '\0';
  while (n-- > 0 && used < out_bytes) {
    const struct conf_node *at = chain[n];
    int wrote = at->key != NULL ? snprintf(out + used, out_bytes - used, "%s%.80s",
                                           used != 0 ? "." : "", at->key)
                                : snprintf(out + used, out_bytes - used, "[%d]", at->index);
    used += (size_t)wrote;
  }
  return out;
}

const char *conf_describe(const struct conf_node *node, char *out, size_t out_bytes) {
  if (node->kind != CONF_SCALAR)
    snprintf(out, out_bytes, "%s", node->kind == CONF_LIST ? "a list" : "a map");
  else if (node->quoted)
    snprintf(out, out_bytes, "the text \"%.100s\"", node->text);
  else if (node->text[0] == '\0' || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0)
    snprintf(out, out_bytes, "nothing");
  else
    snprintf(out, out_bytes, "%.100s", node->text);
  return out;
}

static bool expected(struct conf_report *report, const struct conf_node *node, const char *what) {
  char found[160];
  conf_fail(report, node, "expected %s, found %s", what, conf_describe(node, found, sizeof found));
  return false;
}

// ---- look-up ------------------------------------------------------------------------------------

const struct conf_node *conf_find(const struct conf_node *map, const char *key) {
  if (map->kind != CONF_MAP) return NULL;
  for (int i = 0; i < map->n_items; i++)
    if (strcmp(map->items[i]->key, key) == 0) return map->items[i];
  return NULL;
}

const struct conf_node *conf_need(struct conf_report *report, const struct conf_node *map,
                                  const char *key) {
  const struct conf_node *node = conf_find(map, key);
  if (node == NULL) conf_fail(report, map, "key \"%s\" is missing", key);
  return node;
}

bool conf_is_map(struct conf_report *report, const struct conf_node *node) {
  return node->kind == CONF_MAP || expected(report, node, "a map (key: value)");
}

bool conf_is_list(struct conf_report *report, const struct conf_node *node) {
  return node->kind == CONF_LIST || expected(report, node, "a list");
}

// ---- values ---------------------------------------------------------------------------------

static bool is_null(const struct conf_node *node) {
  return node->kind == CONF_SCALAR && !node->quoted &&
         (node->text[0] == '\0' || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

// A plain scalar that strtoll or strtod would take whole, and nothing that only they would take
// (blanks, hex).
static bool looks_numeric(const struct conf_node *node, const char *alphabet) {
  return node->kind == CONF_SCALAR && !node->quoted && node->text[0] != '\0' &&
         node->text[strspn(node->text, alphabet)] == '\0';
}

bool conf_int(struct conf_report *report, const struct conf_node *node, int64_t min, int64_t max,
              int64_t *out) {
  char what[96], *end = NULL;
  snprintf(what, sizeof what, "an integer from %lld to %lld", (long long)min, (long long)max);
  if (!looks_numeric(node, "+-0123456789")) return expected(report, node, what);
  errno = 0;
  long long value = strtoll(node->text, &end, 10);
  if (end == node->text || *end != '\0' || errno != 0 || value < min || value > max)
    return expected(report, node, what);
  *out = value;
  return true;
}

bool conf_float(struct conf_report *report, const struct conf_node *node, double min, double max,
                double *out) {
  char what[96], *end = NULL;
  snprintf(what, sizeof what, "a number from %g to %g", min, max);
  if (!looks_numeric(node, "+-.eE0123456789")) return expected(report, node, what);
  double value = strtod(node->text, &end);
  if (end == node->text || *end != '\0' || !isfinite(value) || value < min || value > max)
    return expected(report, node, what);
  *out = value;
  return true;
}

bool conf_bool(struct conf_report *report, const struct conf_node *node, bool *out) {
  bool plain = node->kind == CONF_SCALAR && !node->quoted;
  bool yes = plain && strcmp(node->text, "true") == 0;
  if (!yes && !(plain && strcmp(node->text, "false") == 0))
    return expected(report, node, "true or false");
  *out = yes;
  return true;
}

bool conf_text(struct conf_report *report, const struct conf_node *node, size_t max_bytes,
               bool allow_empty, const char **out) {
  if (node->kind != CONF_SCALAR || is_null(node)) return expected(report, node, "text");
  size_t bytes = strlen(node->text);
  if (bytes == 0 && !allow_empty) return expected(report, node, "text");
  if (bytes >= max_bytes) {
    conf_fail(report, node, "text of %zu bytes; at most %zu", bytes, max_bytes - 1);
    return false;
  }
  *out = node->text;
  return true;
}

// ---- words ----------------------------------------------------------------------------------

// Word `index` of "a|b|c" as a borrowed range; false past the end.
static bool word_at(const char *words, int index, const char **word, size_t *bytes) {
  for (; index > 0; index--) {
    words = strchr(words, '|');
    if (words == NULL) return false;
    words++;
  }
  *word = words;
  *bytes = strcspn(words, "|");
  return true;
}

static int word_find(const char *words, const char *text) {
  const char *word;
  size_t bytes;
  for (int i = 0; word_at(words, i, &word, &bytes); i++)
    if (strlen(text) == bytes && memcmp(word, text, bytes) == 0) return i;
  return -1;
}

static int least(int a, int b, int c) {
  int m = a < b ? a : b;
  return m < c ? m : c;
}

// Of the table of distances between beginnings only the cells near the diagonal: farther off, more
// than `most` are inserted or deleted. CONF_FAR stands beside them.
int conf_distance_within(const char *a, size_t a_bytes, const char *b, size_t b_bytes, int most) {
  int rows[3][CONF_FAR + 1], *two = rows[0], *one = rows[1], *row = rows[2];
  if (a_bytes >= CONF_FAR || b_bytes >= CONF_FAR) return CONF_FAR;
  int n = (int)a_bytes, m = (int)b_bytes;
  if (n - m > most || m - n > most) return CONF_FAR;
  for (int j = 0; j <= m; j++) {
    one[j] = j;
    two[j] = row[j] = CONF_FAR;
  }
  for (int i = 1; i <= n; i++) {
    int from = i > most ? i - most : 1, to = i + most < m ? i + most : m;
    row[from - 1] = from == 1 ? i : CONF_FAR;
    for (int j = from; j <= to; j++) {
      row[j] = least(one[j] + 1, row[j - 1] + 1, one[j - 1] + (a[i - 1] != b[j - 1]));
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && two[j - 2] + 1 < row[j]) row[j] = two[j - 2] + 1;
    }
    if (to < m) row[to + 1] = CONF_FAR;
    int *spare = two;
    two = one;
    one = row;
    row = spare;
  }
  return one[m];
}

int conf_distance(const char *a, const char *b) {
  return conf_distance_within(a, strlen(a), b, strlen(b), CONF_FAR);
}

int conf_near(size_t bytes) {
  return bytes < 4 ? 1 : bytes < 12 ? 2 : 3;
}

const char *conf_nearest(const char *word, const char *words, char *out, size_t out_bytes) {
  const char *candidate, *best = NULL;
  size_t bytes, best_bytes = 0, word_bytes = strlen(word);
  int best_distance = 1 + conf_near(word_bytes);
  for (int i = 0; word_at(words, i, &candidate, &bytes); i++) {
    int distance = conf_distance_within(word, word_bytes, candidate, bytes, best_distance - 1);
    if (distance >= best_distance || distance >= (int)bytes) continue;
    best_distance = distance;
    best = candidate;
    best_bytes = bytes;
  }
  if (best == NULL) return NULL;
  snprintf(out, out_bytes, "%.*s", (int)best_bytes, best);
  return out;
}

// "one of a, b, c" for messages.
static const char *list_words(const char *words, char *out, size_t out_bytes) {
  size_t used = (size_t)snprintf(out, out_bytes, "one of ");
  for (const char *at = words; *at != '\0' && used + 3 < out_bytes; at++) {
    if (*at == '|') {
      out[used++] = ',';
      out[used++] = ' ';
    } else {
      out[used++] = *at;
    }
  }
  out[used] = '\0';
  return out;
}

bool conf_enum(struct conf_report *report, const struct conf_node *node, const char *words,
               int *out) {
  char what[512], near[64];
  list_words(words, what, sizeof what);
  if (node->kind != CONF_SCALAR) return expected(report, node, what);
  int index = word_find(words, node->text);
  if (index >= 0) {
    *out = index;
    return true;
  }
  // Of another first letter it is another word: "gpu" is no misspelt "cpu".
  if (is_null(node) || conf_nearest(node->text, words, near, sizeof near) == NULL ||
      near[0] != node->text[0])
    return expected(report, node, what);
  conf_fail(report, node, "expected %s, found %.100s; did you mean \"%s\"?", what, node->text,
            near);
  return false;
}

bool conf_check_keys(struct conf_report *report, const struct conf_node *map, const char *words) {
  bool ok = true;
  for (int i = 0; i < map->n_items; i++) {
    const struct conf_node *node = map->items[i];
    char near[64], what[512];
    if (word_find(words, node->key) >= 0) continue;
    ok = false;
    if (conf_nearest(node->key, words, near, sizeof near) != NULL)
      conf_fail_key(report, node, "unknown key \"%.100s\"; did you mean \"%s\"?", node->key, near);
    else
      conf_fail_key(report, node, "unknown key \"%.100s\"; expected %s", node->key,
                    list_words(words, what, sizeof what));
  }
  return ok;
}
