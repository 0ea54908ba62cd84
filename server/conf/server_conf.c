// config/server.yaml: the rows of keys.def as defaults, parser and documented default file.
#include "conf/server_conf.h"
#include "conf/places.h"
#include "conf/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum key_type { TYPE_INT, TYPE_REAL, TYPE_STR, TYPE_ENUM, TYPE_BOOL };

struct key {
  const char *path; // "section.name"
  enum key_type type;
  size_t offset;
  int64_t def, min, max;
  const char *text; // default of a string, words of an enum
  const char *unit, *help;
  double real_def, real_min, real_max;
};

#define AT(field) offsetof(struct server_conf, field)
static const struct key keys[] = {
#define KEY_INT(path, field, def, min, max, unit, help)                                            \
  {#path, TYPE_INT, AT(field), def, min, max, NULL, unit, help, 0, 0, 0},
#define KEY_REAL(path, field, def, min, max, help)                                                 \
  {#path, TYPE_REAL, AT(field), 0, 0, 0, NULL, "", help, def, min, max},
#define KEY_STR(path, field, def, help)                                                            \
  {#path, TYPE_STR, AT(field), 0, 0, 0, def, "", help, 0, 0, 0},
#define KEY_ENUM(path, field, def, words, help)                                                    \
  {#path, TYPE_ENUM, AT(field), def, 0, 0, words, "", help, 0, 0, 0},
#define KEY_BOOL(path, field, def, help)                                                           \
  {#path, TYPE_BOOL, AT(field), def, 0, 0, NULL, "", help, 0, 0, 0},
#include "conf/keys.def"
#undef KEY_INT
#undef KEY_REAL
#undef KEY_STR
#undef KEY_ENUM
#undef KEY_BOOL
};
enum { N_KEYS = SERVER_CONF_KEYS, STR_BYTES = sizeof((struct server_conf *)0)->listen };
_Static_assert(sizeof keys / sizeof *keys == N_KEYS, "one row for each key");

static void *field_of(struct server_conf *conf, const struct key *key) {
  return (char *)conf + key->offset;
}

void server_conf_defaults(struct server_conf *conf) {
  memset(conf, 0, sizeof *conf);
  for (int i = 0; i < N_KEYS; i++) {
    const struct key *key = &keys[i];
    void *field = field_of(conf, key);
    switch (key->type) {
    case TYPE_INT:
      *(int64_t *)field = key->def;
      break;
    case TYPE_REAL:
      *(double *)field = key->real_def;
      break;
    case TYPE_STR:
      snprintf(field, STR_BYTES, "%s", key->text);
      break;
    case TYPE_ENUM:
      *(int *)field = (int)key->def;
      break;
    case TYPE_BOOL:
      *(bool *)field = key->def != 0;
      break;
    }
  }
}

static void read_value(struct conf_report *report, const struct key *key,
                       const struct conf_node *node, struct server_conf *conf) {
  void *field = field_of(conf, key);
  const char *text;
  switch (key->type) {
  case TYPE_INT:
    (void)conf_int(report, node, key->min, key->max, field);
    break;
  case TYPE_REAL:
    (void)conf_float(report, node, key->real_min, key->real_max, field);
    break;
  case TYPE_STR:
    if (conf_text(report, node, STR_BYTES, true, &text)) snprintf(field, STR_BYTES, "%s", text);
    break;
  case TYPE_ENUM:
    (void)conf_enum(report, node, key->text, field);
    break;
  case TYPE_BOOL:
    (void)conf_bool(report, node, field);
    break;
  }
}

// ---- sections: the part of a path before its dot --------------------------------------------

static size_t section_bytes(const struct key *key) {
  return strcspn(key->path, ".");
}

static bool same_section(const struct key *a, const struct key *b) {
  size_t n = section_bytes(a);
  return n == section_bytes(b) && memcmp(a->path, b->path, n) == 0;
}

// "a|b|c": the names of the section of keys[first], or all sections when first < 0.
static void words_of(int first, char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = '\0';
  for (int i = first < 0 ? 0 : first; i < N_KEYS && used < out_bytes; i++) {
    const struct key *key = &keys[i];
    size_t n = section_bytes(key);
    if (first >= 0 ? !same_section(&keys[first], key) : i > 0 && same_section(&keys[i - 1], key))
      continue;
    const char *word = first < 0 ? key->path : key->path + n + 1;
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%.*s", used != 0 ? "|" : "",
                             first < 0 ? (int)n : 64, word);
  }
}

static void read_section(struct conf_report *report, const struct conf_node *root, int first,
                         struct server_conf *conf) {
  char name[64], words[1024];
  snprintf(name, sizeof name, "%.*s", (int)section_bytes(&keys[first]), keys[first].path);
  const struct conf_node *map = conf_find(root, name);
  if (map == NULL) return;
  if (map->kind == CONF_SCALAR && map->text[0] == '\0' && !map->quoted) return; // only comments
  if (!conf_is_map(report, map)) return;
  words_of(first, words, sizeof words);
  (void)conf_check_keys(report, map, words);
  for (int i = first; i < N_KEYS && same_section(&keys[first], &keys[i]); i++) {
    const struct conf_node *node = conf_find(map, keys[i].path + section_bytes(&keys[i]) + 1);
    if (node == NULL) continue;
    read_value(report, &keys[i], node, conf);
    conf->places[i] = (struct conf_place){node->line, node->column};
  }
}

// Model paths are relative to the folder of the server file.
static void read_models(struct conf_report *report, const struct conf_node *root, const char *path,
                        struct server_conf *conf) {
  const struct conf_node *list = conf_find(root, "models");
  if (list != NULL) conf->models_place = (struct conf_place){list->key_line, list->key_column};
  if (list == NULL || (list->kind == CONF_SCALAR && list->text[0] == '\0' && !list->quoted)) return;
  if (!conf_is_list(report, list)) return;
  const char *slash = strrchr(path, '/');
  int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
  for (int i = 0; i < list->n_items; i++) {
    const char *text;
    if (i == LIMIT_MODELS) {
      conf_fail(report, list->items[i], "more than %d models", LIMIT_MODELS);
      return;
    }
    char *out = conf->models[conf->n_models];
    size_t size = sizeof conf->models[0];
    if (!conf_text(report, list->items[i], size, false, &text)) continue;
    int n = snprintf(out, size, "%.*s%s", text[0] == '/' ? 0 : folder, path, text);
    if ((size_t)n >= size)
      conf_fail(report, list->items[i], "a path of %d bytes; at most %zu", n, size - 1);
    else
      conf->model_places[conf->n_models++] =
          (struct conf_place){list->items[i]->line, list->items[i]->column};
  }
}

// "0,2": numbers below LIMIT_DEVICES, each once.
static bool is_card_list(const char *text) {
  unsigned seen = 0;
  for (const char *at = text; *at;) {
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || digits > 2) return false;
    long card = strtol(at, NULL, 10);
    if (card >= LIMIT_DEVICES || (seen >> card & 1) != 0) return false;
    seen |= 1u << card;
    at += digits;
    if (*at == ',' && at[1] == '\0') return false;
    if (*at != '\0' && *at++ != ',') return false;
  }
  return true;
}

static void check_cards(struct conf_report *report, const struct conf_node *root,
                        const struct server_conf *conf) {
  const struct conf_node *section = conf_find(root, "device");
  const struct conf_node *node = section != NULL ? conf_find(section, "gpus") : NULL;
  if (node == NULL || is_card_list(conf->gpus)) return;
  conf_fail(report, node,
            "expected numbers of GPUs from 0 to %d, each once, as in \"0,2\", found \"%.100s\"",
            LIMIT_DEVICES - 1, conf->gpus);
}

// The rest of it is the exporter's to understand (fusewired asks it).
static void check_endpoint(struct conf_report *report, const struct conf_node *root,
                           const struct server_conf *conf) {
  const struct conf_node *section = conf_find(root, "trace");
  const struct conf_node *node = section != NULL ? conf_find(section, "endpoint") : NULL;
  const char *text = conf->trace_endpoint;
  if (node == NULL || text[0] == '\0' || strncmp(text, "http://", 7) == 0 ||
      strncmp(text, "https://", 8) == 0)
    return;
  conf_fail(report, node, "expected http:// or https:// and a host, found \"%.100s\"", text);
}

// What no single key's range can say.
static void check_together(struct conf_report *report, const struct conf_node *root,
                           const struct server_conf *conf) {
  const struct conf_node *limits = conf_find(root, "limits");
  if (limits == NULL) limits = root;
  if (conf->max_message_bytes > conf->connection_bytes)
    conf_fail(report, limits,
              "limits.message_bytes (%lld) is more than limits.connection_bytes (%lld): such a "
              "message could never be taken",
              (long long)conf->max_message_bytes, (long long)conf->connection_bytes);
  if (conf->connection_bytes > conf->total_bytes)
    conf_fail(report, limits,
              "limits.connection_bytes (%lld) is more than limits.total_bytes (%lld)",
              (long long)conf->connection_bytes, (long long)conf->total_bytes);
  enum { SAMPLED = 1 }; // of audit.mode in keys.def
  const struct conf_node *audit = conf_find(root, "audit");
  if (conf->audit_mode == SAMPLED && conf->audit_window_ms > conf->audit_period_ms)
    conf_fail(report, audit != NULL ? audit : root,
              "audit.window (%lld ms) is longer than audit.period (%lld ms), which it is a part of",
              (long long)conf->audit_window_ms, (long long)conf->audit_period_ms);
}

enum status server_conf_load(const char *path, struct server_conf *conf,
                             void (*report_fn)(const struct error *err, void *arg), void *arg) {
  struct conf_report report = {.fn = report_fn, .arg = arg};
  enum status code;
  server_conf_defaults(conf);
  snprintf(conf->path, sizeof conf->path, "%s", path);
  struct conf_doc *doc = conf_load(path, &report, &code);
  if (doc == NULL) return code;
  const struct conf_node *root = conf_root(doc);
  if (conf_find(root, "graph") != NULL && conf_find(root, "inputs") != NULL) {
    conf_fail(&report, root,
              "a model file (it has a graph), where settings are expected; models are "
              "given without --config, or listed under models");
    conf_free(doc);
    return STATUS_INVALID_ARGUMENT;
  }
  char words[512];
  words_of(-1, words, sizeof words);
  size_t used = strlen(words);
  snprintf(words + used, sizeof words - used, "|models");
  (void)conf_check_keys(&report, root, words);
  for (int i = 0; i < N_KEYS; i++)
    if (i == 0 || !same_section(&keys[i - 1], &keys[i])) read_section(&report, root, i, conf);
  read_models(&report, root, path, conf);
  places_check(&report, root, conf);
  check_cards(&report, root, conf);
  check_endpoint(&report, root, conf);
  if (report.n_errors == 0) check_together(&report, root, conf);
  conf_free(doc);
  return report.n_errors == 0 ? STATUS_OK : STATUS_INVALID_ARGUMENT;
}

// ---- where a value stands ----

static void locate(const struct server_conf *conf, struct conf_place place, struct error *err) {
  if (place.line == 0 || err->line != 0) return;
  struct error located;
  (void)error_set_at(&located, err->code, conf->path, place.line, place.column, "%s", err->message);
  *err = located;
}

void server_conf_locate(const struct server_conf *conf, struct error *err) {
  const size_t bytes = strcspn(err->message, ":");
  for (int i = 0; i < N_KEYS; i++)
    if (strlen(keys[i].path) == bytes && memcmp(keys[i].path, err->message, bytes) == 0)
      locate(conf, conf->places[i], err);
}

void server_conf_locate_model(const struct server_conf *conf, int model, struct error *err) {
  locate(conf, conf->model_places[model], err);
}

void server_conf_forget_place(struct server_conf *conf, const void *field) {
  const size_t offset = (size_t)((const char *)field - (const char *)conf);
  for (int i = 0; i < N_KEYS; i++)
    if (keys[i].offset == offset) conf->places[i] = (struct conf_place){0};
}

static bool same(const struct key *key, const void *a, const void *b) {
  switch (key->type) {
  case TYPE_INT:
    return *(const int64_t *)a == *(const int64_t *)b;
  case TYPE_REAL:
    return *(const double *)a == *(const double *)b;
  case TYPE_STR:
    return strcmp(a, b) == 0;
  case TYPE_ENUM:
    return *(const int *)a == *(const int *)b;
  case TYPE_BOOL:
    return *(const bool *)a == *(const bool *)b;
  }
  return true;
}

int server_conf_compare(const struct server_conf *a, const struct server_conf *b,
                        void (*changed)(const char *path)) {
  int n = 0;
  for (int i = 0; i < N_KEYS; i++) {
    const struct key *key = &keys[i];
    if (same(key, (const char *)a + key->offset, (const char *)b + key->offset)) continue;
    changed(key->path);
    n++;
  }
  return n;
}

// ---- the documented default file ------------------------------------------------------------

struct text {
  char *out;
  size_t size, used; // used may pass size: it counts what would be needed
};

static void put(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3);
static void put(struct text *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  size_t room = text->used < text->size ? text->size - text->used : 0;
  int n = vsnprintf(room != 0 ? text->out + text->used : NULL, room, format, args);
  va_end(args);
  if (n > 0) text->used += (size_t)n;
}

static void put_word(struct text *text, const char *words, int64_t index) {
  while (index-- > 0)
    words += strcspn(words, "|") + 1;
  put(text, "%.*s", (int)strcspn(words, "|"), words);
}

static void put_key(struct text *text, const struct key *key) {
  const char *help = key->help, *gap = help[0] != '\0' ? "; " : "";
  switch (key->type) {
  case TYPE_INT:
    put(text, "  # %s%s%lld..%lld %s\n", help, gap, (long long)key->min, (long long)key->max,
        key->unit);
    break;
  case TYPE_REAL:
    put(text, "  # %s%s%g..%g\n", help, gap, key->real_min, key->real_max);
    break;
  case TYPE_ENUM:
    put(text, "  # %s%sone of %s\n", help, gap, key->text);
    break;
  case TYPE_BOOL:
    put(text, "  # %s%strue or false\n", help, gap);
    break;
  case TYPE_STR:
    put(text, "  # %s\n", help);
    break;
  }
  put(text, "  %s: ", key->path + section_bytes(key) + 1);
  if (key->type == TYPE_INT)
    put(text, "%lld\n", (long long)key->def);
  else if (key->type == TYPE_REAL)
    put(text, "%.1f\n", key->real_def);
  else if (key->type == TYPE_STR)
    put(text, "\"%s\"\n", key->text);
  else if (key->type == TYPE_BOOL)
    put(text, "%s\n", key->def != 0 ? "true" : "false");
  else {
    put_word(text, key->text, key->def);
    put(text, "\n");
  }
}

size_t server_conf_print(char *out, size_t out_bytes) {
  struct text text = {out, out_bytes, 0};
  put(&text,
      "# Configuration of fusewired: every key with its default, unit and range. Keys may be\n"
      "# left out. Written by `fusewired --print-config`; checked by `fusewired --check`.\n");
  for (int i = 0; i < N_KEYS; i++) {
    if (i == 0 || !same_section(&keys[i - 1], &keys[i]))
      put(&text, "\n%.*s:\n", (int)section_bytes(&keys[i]), keys[i].path);
    put_key(&text, &keys[i]);
  }
  put(&text,
      "\n# Model files, relative to this file; those of the command line are added.\nmodels: []\n");
  return text.used;
}
