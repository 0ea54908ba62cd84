#include "rpc/auth.h"
#include "base/regular.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

struct auth {
  int n;
  size_t bytes[AUTH_MAX_TOKENS];
  char *tokens[AUTH_MAX_TOKENS];
};

void auth_close(struct auth *auth) {
  if (!auth) return;
  for (int i = 0; i < auth->n; i++)
    free(auth->tokens[i]);
  free(auth);
}

static bool visible(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (text[i] <= ' ' || text[i] > '~') return false;
  return true;
}

// `bytes` may be more than strlen says: a NUL is no visible character, and ends no token.
static enum status add(struct auth *auth, const char *path, int line, char *text, size_t bytes,
                       struct error *err) {
  if (bytes > 0 && text[bytes - 1] == '\n') bytes--;
  if (bytes > 0 && text[bytes - 1] == '\r') bytes--;
  text[bytes] = 0;
  if (bytes == 0 || text[0] == '#') return STATUS_OK;
  if (bytes >= AUTH_MAX_TOKEN_BYTES || !visible(text, bytes))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "auth.token_file: %s:%d: expected a token of less than %d visible characters",
                     path, line, AUTH_MAX_TOKEN_BYTES);
  if (auth->n == AUTH_MAX_TOKENS)
    return error_set(err, STATUS_INVALID_ARGUMENT, "auth.token_file: %s: more than %d tokens", path,
                     AUTH_MAX_TOKENS);
  if (!(auth->tokens[auth->n] = strdup(text)))
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the tokens");
  auth->bytes[auth->n++] = bytes;
  return STATUS_OK;
}

enum status auth_open(const char *path, struct auth **out, struct error *err) {
  if (regular_file("auth.token_file", path, err) != STATUS_OK) return STATUS_INVALID_ARGUMENT;
  FILE *file = fopen(path, "re");
  if (!file)
    return error_set(err, STATUS_INVALID_ARGUMENT, "auth.token_file: %s: %s", path,
                     strerror(errno));
  struct auth *auth = calloc(1, sizeof *auth);
  if (!auth) {
    fclose(file);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the tokens");
  }
  enum status status = STATUS_OK;
  char *line = NULL; // whole lines: what follows in a long comment is no token
  size_t room = 0;
  ssize_t bytes;
  for (int n = 1; status == STATUS_OK && (bytes = getline(&line, &room, file)) >= 0; n++)
    status = add(auth, path, n, line, (size_t)bytes, err);
  if (status == STATUS_OK && ferror(file))
    status =
        error_set(err, STATUS_INVALID_ARGUMENT, "auth.token_file: %s: %s", path, strerror(errno));
  else if (status == STATUS_OK && auth->n == 0)
    status = error_set(err, STATUS_INVALID_ARGUMENT, "auth.token_file: %s: no token in it", path);
  free(line);
  fclose(file);
  if (status == STATUS_OK)
    *out = auth;
  else
    auth_close(auth);
  return status;
}

bool auth_ok(const struct auth *auth, const uint8_t *value, size_t bytes) {
  static const char scheme[] = "Bearer ";
  if (bytes < sizeof scheme - 1 || strncasecmp((const char *)value, scheme, sizeof scheme - 1) != 0)
    return false;
  value += sizeof scheme - 1;
  bytes -= sizeof scheme - 1;
  bool any = false;
  for (int i = 0; i < auth->n; i++) {
    unsigned differ = auth->bytes[i] != bytes;
    for (size_t j = 0; j < bytes; j++) // every byte is looked at, against some byte of the token
      differ |= (unsigned)(value[j] ^ (uint8_t)auth->tokens[i][j % auth->bytes[i]]);
    any |= differ == 0;
  }
  return any;
}
