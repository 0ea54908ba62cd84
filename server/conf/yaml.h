// Configuration files as a small tree in which every value knows its line, its column and its key
// path.
//
// libyaml does the scanning; this module keeps what it must not decide: limits (bytes, depth,
// values after aliases), no duplicate keys, no tags, one document, regular files only. Values stay
// text until a typed getter is asked, so that `on` or `1e3` mean what the key says they mean.
// Control thread only; the tree is read-only after it is built.
//
// All errors go to a `struct conf_report`, so that one run shows every mistake of a file.
#ifndef CONF_YAML_H
#define CONF_YAML_H

#include "base/status.h"
#include "bounds.h"
#include <stdint.h>

enum conf_kind { CONF_SCALAR, CONF_LIST, CONF_MAP };

struct conf_node {
  enum conf_kind kind;
  int line, column; // of the value; counted from 1
  const struct conf_node
      *parent;     // NULL: the root. An alias's children keep the parent of the anchored value
  const char *key; // value of a map: its key; else NULL
  int key_line, key_column;
  int index;        // value of a list: its position
  bool quoted;      // scalar in quotes or a block scalar: never a number, a truth value or null
  const char *text; // scalar: NUL-terminated UTF-8 without inner NULs
  struct conf_node **items; // list and map: [n_items]
  int n_items;
  int n_nodes, height; // of this subtree, aliases expanded
};

struct conf_doc;

// Where errors go. `file` is the name shown; n_errors counts them, also those that are not passed
// on: beyond LIMIT_CONF_ERRORS, and those told before (an alias brings the mistakes of its value
// again).
struct conf_report {
  const char *file;
  void (*fn)(const struct error *err, void *arg); // NULL: only count
  void *arg;
  int n_errors;
  int n_told;
  uint64_t told[LIMIT_CONF_ERRORS]; // hashes of place and message
};

// Reads and parses `path` (report->file is set to it). NULL: it could not be read or is no YAML;
// said in the report. A tree may come back although there were errors (duplicate keys): look at
// n_errors before using the result.
// `*code` (may be NULL) is NOT_FOUND when the file is not there, else INVALID_ARGUMENT or
// RESOURCE_EXHAUSTED.
struct conf_doc *conf_load(const char *path, struct conf_report *report, enum status *code);
// The same from memory. The text is not kept.
struct conf_doc *conf_parse(const char *text, size_t bytes, struct conf_report *report);
const struct conf_node *conf_root(const struct conf_doc *doc); // a map; empty for an empty file
void conf_free(struct conf_doc *doc);                          // NULL is fine

// ---- getters: each says on failure what was expected and what was found, and returns false
// ------------------------ Report an error at a value ("file:line:column: key.path: message"); at
// its key; or at a map for what it lacks.
void conf_fail(struct conf_report *report, const struct conf_node *node, const char *format, ...)
    PRINTF_LIKE(3, 4);
void conf_fail_key(struct conf_report *report, const struct conf_node *node, const char *format,
                   ...) PRINTF_LIKE(3, 4);
void conf_fail_at(struct conf_report *report, int line, int column, const char *format, ...)
    PRINTF_LIKE(4, 5);

const struct conf_node *conf_find(const struct conf_node *map, const char *key); // NULL: absent
const struct conf_node *conf_need(struct conf_report *report, const struct conf_node *map,
                                  const char *key);
bool conf_is_map(struct conf_report *report, const struct conf_node *node);
bool conf_is_list(struct conf_report *report, const struct conf_node *node);
bool conf_int(struct conf_report *report, const struct conf_node *node, int64_t min, int64_t max,
              int64_t *out);
bool conf_float(struct conf_report *report, const struct conf_node *node, double min, double max,
                double *out);
bool conf_bool(struct conf_report *report, const struct conf_node *node, bool *out);
// Borrowed text of 1 .. max_bytes - 1 bytes; `allow_empty` also takes "".
bool conf_text(struct conf_report *report, const struct conf_node *node, size_t max_bytes,
               bool allow_empty, const char **out);
// `words` is "a|b|c"; out is the index.
bool conf_enum(struct conf_report *report, const struct conf_node *node, const char *words,
               int *out);
// Every key of `map` must be one of `words`; unknown ones are reported with the nearest known one.
bool conf_check_keys(struct conf_report *report, const struct conf_node *map, const char *words);

// "graph[3].linear.features"; returns `out`.
const char *conf_path(const struct conf_node *node, char *out, size_t out_bytes);
// What a value is, for messages: text "abc", a list, a map, nothing. Returns `out`.
const char *conf_describe(const struct conf_node *node, char *out, size_t out_bytes);
// Edits (insert, delete, replace, swap of neighbours) from a to b; CONF_FAR for texts of CONF_FAR
// bytes and more.
#define CONF_FAR 128
int conf_distance(const char *a, const char *b);
// The same of two ranges of bytes, in time of the longer one's length times `most`: more than
// `most` when they are farther apart than that.
int conf_distance_within(const char *a, size_t a_bytes, const char *b, size_t b_bytes, int most);
// Edits at which a word of so many bytes is still taken for a misspelt one.
int conf_near(size_t bytes);
// The word of "a|b|c" that `word` most likely meant, copied into `out`; NULL when none is near.
const char *conf_nearest(const char *word, const char *words, char *out, size_t out_bytes);

#endif
