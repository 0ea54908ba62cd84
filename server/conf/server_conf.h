// The server's configuration: config/server.yaml, every key a row of keys.def.
#ifndef CONF_SERVER_CONF_H
#define CONF_SERVER_CONF_H

#include "base/status.h"
#include "bounds.h"
#include <stdint.h>

// How many keys there are.
enum {
  SERVER_CONF_KEYS = 0
#define KEY_INT(path, field, def, min, max, unit, help) +1
#define KEY_REAL(path, field, def, min, max, help) +1
#define KEY_STR(path, field, def, help) +1
#define KEY_ENUM(path, field, def, words, help) +1
#define KEY_BOOL(path, field, def, help) +1
#include "conf/keys.def"
#undef KEY_INT
#undef KEY_REAL
#undef KEY_STR
#undef KEY_ENUM
#undef KEY_BOOL
};

struct server_conf {
#define KEY_INT(path, field, def, min, max, unit, help) int64_t field;
#define KEY_REAL(path, field, def, min, max, help) double field;
#define KEY_STR(path, field, def, help) char field[1024];
#define KEY_ENUM(path, field, def, words, help) int field;
#define KEY_BOOL(path, field, def, help) bool field;
#include "conf/keys.def"
#undef KEY_INT
#undef KEY_REAL
#undef KEY_STR
#undef KEY_ENUM
#undef KEY_BOOL
  // `models:` list of model files (relative to the server file), plus those of the command line.
  char models[LIMIT_MODELS][1024];
  int n_models;
  // Where the file says what, for what is found out later (server_conf_locate): line 0 is a default
  // or comes from the command line.
  struct conf_place {
    int line, column;
  } places[SERVER_CONF_KEYS], models_place, model_places[LIMIT_MODELS]; // models_place: of the list
  char path[1024]; // of the file; "": none was read
};

void server_conf_defaults(struct server_conf *conf);
// Reads and checks `path`. Every error is reported with file:line:column, the key's path, what was
// expected and the nearest key. INVALID_ARGUMENT when there was any; NOT_FOUND when the file cannot
// be read.
MUST_USE enum status server_conf_load(const char *path, struct server_conf *conf,
                                      void (*report)(const struct error *err, void *arg),
                                      void *arg);
// An error found later than the file was read, whose message begins with a key's path and a colon
// ("tls.key: ..."), gets the position of that key's value; others stay as they are.
void server_conf_locate(const struct server_conf *conf, struct error *err);
// The same for models[model].
void server_conf_locate_model(const struct server_conf *conf, int model, struct error *err);
// What the command line sets instead has no position: `field` is a member of `conf`.
void server_conf_forget_place(struct server_conf *conf, const void *field);
// Calls `changed` with the path of each key ("batch.max_tokens") in which the two differ; the lists
// of models are not looked at. Returns how many.
int server_conf_compare(const struct server_conf *a, const struct server_conf *b,
                        void (*changed)(const char *path));
// The documented default file (every key, default, unit, range), for --print-config and the
// committed config/server.yaml. Returns the bytes needed; cut at out_bytes.
size_t server_conf_print(char *out, size_t out_bytes);

#endif
