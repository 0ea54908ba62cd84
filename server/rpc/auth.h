// Bearer tokens: who may call. Read once from a file, one token a line.
#ifndef RPC_AUTH_H
#define RPC_AUTH_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_MAX_TOKENS 64
#define AUTH_MAX_TOKEN_BYTES 4096

struct auth;
// INVALID_ARGUMENT: the file cannot be read, or holds no token, or one that no header can carry.
MUST_USE enum status auth_open(const char *path, struct auth **out, struct error *err);
void auth_close(struct auth *auth);
// `value` of the header `authorization`: "Bearer " and one of the tokens. Takes as long for a wrong
// token as for a right one. Any thread.
bool auth_ok(const struct auth *auth, const uint8_t *value, size_t bytes);

#endif
