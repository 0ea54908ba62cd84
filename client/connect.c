#include "client/connect.h"
#include "base/clock.h"
#include "client/commands.h"
#include "client/file.h"
#include "client/oip.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define READY_PAUSE_NS (20 * NS_PER_MS)

static bool is_space(uint8_t c) {
  return c == ' ' || c == '\t' || c == '\r';
}

static struct slice trimmed(struct slice line) {
  while (line.bytes && is_space(line.data[0])) {
    line.data++;
    line.bytes--;
  }
  while (line.bytes && is_space(line.data[line.bytes - 1]))
    line.bytes--;
  return line;
}

static enum status check_token(struct slice token, const char *source, char out[NET_TOKEN_BYTES],
                               struct error *err) {
  if (token.bytes >= NET_TOKEN_BYTES) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: a token of %zu bytes; at most %d", source,
                     token.bytes, NET_TOKEN_BYTES - 1);
  }
  for (size_t i = 0; i < token.bytes; i++) {
    if (token.data[i] > 0x20 && token.data[i] < 0x7f) continue;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: byte %zu of the token is 0x%02x; expected visible ASCII", source, i + 1,
                     token.data[i]);
  }
  memcpy(out, token.data, token.bytes);
  out[token.bytes] = 0;
  return STATUS_OK;
}

enum status connect_token(struct slice text, const char *source, char out[NET_TOKEN_BYTES],
                          struct error *err) {
  while (text.bytes) {
    const uint8_t *end = memchr(text.data, '\n', text.bytes);
    const size_t bytes = end ? (size_t)(end - text.data) : text.bytes;
    const struct slice line = trimmed((struct slice){text.data, bytes});
    if (line.bytes && line.data[0] != '#') return check_token(line, source, out, err);
    text.data += bytes + (end != NULL);
    text.bytes -= bytes + (end != NULL);
  }
  return error_set(err, STATUS_INVALID_ARGUMENT, "%s: no token in it", source);
}

// Not an option of the command line: every user of a machine sees those of every process.
static enum status find_token(const struct connect_options *options, char out[NET_TOKEN_BYTES],
                              struct error *err) {
  const char *variable = getenv(CONNECT_TOKEN_VARIABLE);
  struct slice text = {(const uint8_t *)variable, variable ? strlen(variable) : 0};
  out[0] = 0;
  if (!options->token_file && text.bytes == 0) return STATUS_OK;
  if (!options->token_file) return connect_token(text, CONNECT_TOKEN_VARIABLE, out, err);
  enum status status = file_read(options->token_file, &text, err);
  if (status != STATUS_OK) return status;
  status = connect_token(text, options->token_file, out, err);
  file_free(&text);
  return status;
}

static enum status check_together(const struct connect_options *o, struct error *err) {
  const bool tls =
      o->tls || strncmp(o->url, "https://", 8) == 0 || strncmp(o->url, "grpcs://", 8) == 0;
  const char *needs_tls = o->ca            ? "cacert"
                          : o->certificate ? "cert"
                          : o->key         ? "key"
                          : o->server_name ? "server-name"
                                           : NULL;
  if (!tls && needs_tls)
    return error_set(err, STATUS_INVALID_ARGUMENT, "--%s needs --tls", needs_tls);
  if (!o->certificate != !o->key) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "--%s needs --%s", o->key ? "key" : "cert",
                     o->key ? "cert" : "key");
  }
  return STATUS_OK;
}

// A server takes connections before its models are loaded. What it answers at the end of the wait
// is for the command to tell.
static void wait_ready(struct net *net, int64_t until_ns) {
  const struct timespec pause = {.tv_nsec = READY_PAUSE_NS};
  bool ready = false;
  struct error err = {0};
  while (clock_now_ns() < until_ns) {
    const enum status status = oip_server_ready(net, &ready, &err);
    if (ready || (status != STATUS_OK && status != STATUS_UNAVAILABLE)) return;
    nanosleep(&pause, NULL);
  }
}

int connect_open(const char *command, const struct connect_options *o, int n_conns,
                 struct net **net) {
  struct error err = {0};
  char token[NET_TOKEN_BYTES];
  const int64_t until_ns = clock_now_ns() + o->wait_ns;
  enum status status = check_together(o, &err);
  if (status == STATUS_OK) status = find_token(o, token, &err);
  if (status != STATUS_OK) return command_usage_error(command, &err);
  const struct net_options options = {
      .url = o->url,
      .n_conns = n_conns,
      .wait_ns = o->wait_ns,
      .tls = o->tls,
      .files = {o->ca, o->certificate, o->key},
      .server_name = o->server_name,
      .token = token[0] ? token : NULL,
  };
  status = net_open(&options, net, &err);
  memset(token, 0, sizeof token);
  if (status == STATUS_INVALID_ARGUMENT) return command_usage_error(command, &err);
  if (status != STATUS_OK) {
    command_failure(command, &err);
    return EXIT_UNREACHABLE;
  }
  if (net_token_in_clear(*net))
    fputs("note: the token travels in clear text; --tls hides it\n", stderr);
  wait_ready(*net, until_ns);
  return EXIT_ALL_OK;
}
