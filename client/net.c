#include "client/net.h"
#include "base/clock.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES (256 * 1024)
#define EXPIRE_MS 5 // how often time limits are looked at
#define RECONNECT_NS (2 * NS_PER_S)

struct net {
  uv_loop_t loop;
  uv_prepare_t prepare;
  uv_timer_t expire;
  struct conn *conns[NET_CONNS_MAX];
  int n_conns;
  struct target target;
  struct h2_headers headers;
  char server_name[TARGET_NAME_BYTES];
  char authorization[NET_TOKEN_BYTES + 16];
  struct tls_context *tls; // NULL: clear text
  bool dirty;              // some connection has something to flush
  void (*on_state)(void *arg);
  void *arg;
  struct call_method method; // of net_call; here because queued bytes may outlive an early answer
  uint8_t message[5 + 1024]; // likewise
  uint8_t read_buffer[READ_BYTES];
};

static void on_dirty(struct conn *conn, void *arg) {
  struct net *net = arg;
  (void)conn;
  net->dirty = true;
}

static void on_conn_state(struct conn *conn, void *arg) {
  struct net *net = arg;
  (void)conn;
  if (net->on_state) net->on_state(net->arg);
}

// Just before the loop sleeps: one write per connection for all that this turn queued.
static void on_prepare(uv_prepare_t *prepare) {
  struct net *net = prepare->data;
  while (net->dirty) { // a flush that fails may start calls elsewhere
    net->dirty = false;
    for (int i = 0; i < net->n_conns; i++)
      conn_flush(net->conns[i]);
  }
}

static void on_expire(uv_timer_t *timer) {
  struct net *net = timer->data;
  const int64_t now = clock_now_ns();
  for (int i = 0; i < net->n_conns; i++)
    conn_expire(net->conns[i], now);
}

const char *net_error(const struct net *net) {
  for (int i = 0; i < net->n_conns; i++) {
    if (conn_error(net->conns[i])[0]) return conn_error(net->conns[i]);
  }
  return "";
}

static bool all_in_state(const struct net *net, enum conn_state state) {
  for (int i = 0; i < net->n_conns; i++) {
    if (conn_state(net->conns[i]) != state) return false;
  }
  return true;
}

static bool any_dead(const struct net *net) {
  for (int i = 0; i < net->n_conns; i++) {
    if (conn_state(net->conns[i]) == CONN_DEAD) return true;
  }
  return false;
}

bool net_dead(const struct net *net) {
  return all_in_state(net, CONN_DEAD);
}

static void init_loop(struct net *net) {
  uv_loop_init(&net->loop);
  uv_prepare_init(&net->loop, &net->prepare);
  net->prepare.data = net;
  uv_prepare_start(&net->prepare, on_prepare);
  uv_timer_init(&net->loop, &net->expire);
  net->expire.data = net;
  uv_timer_start(&net->expire, on_expire, EXPIRE_MS, EXPIRE_MS);
}

// Where to and as whom: all that connections and calls have in common.
static enum status set_peer(struct net *net, const struct net_options *options, struct error *err) {
  enum status status = target_resolve(options->url, &net->target, err);
  if (status != STATUS_OK) return status;
  const bool tls = options->tls || net->target.tls;
  if (tls) status = tls_context_open(&options->files, &net->tls, err);
  if (status != STATUS_OK) return status;
  snprintf(net->server_name, sizeof net->server_name, "%s",
           options->server_name ? options->server_name : net->target.name);
  if (options->token)
    snprintf(net->authorization, sizeof net->authorization, "Bearer %s", options->token);
  net->headers = (struct h2_headers){.scheme = tls ? "https" : "http",
                                     .authority = net->target.authority,
                                     .authorization = net->authorization};
  return STATUS_OK;
}

static struct conn_options conn_options_of(struct net *net, const struct net_options *options) {
  return (struct conn_options){.loop = &net->loop,
                               .target = &net->target,
                               .headers = &net->headers,
                               .tls = net->tls,
                               .tls_name = net->server_name,
                               .first_give_up_ns = options->wait_ns,
                               .give_up_ns = RECONNECT_NS,
                               .read_buffer = net->read_buffer,
                               .read_bytes = sizeof net->read_buffer,
                               .on_dirty = on_dirty,
                               .on_state = on_conn_state,
                               .arg = net};
}

enum status net_open(const struct net_options *options, struct net **out, struct error *err) {
  FW_ASSERT(options->n_conns >= 1 && options->n_conns <= NET_CONNS_MAX);
  struct net *net = malloc(sizeof *net);
  if (!net) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  memset(net, 0, offsetof(struct net, read_buffer));
  init_loop(net);
  enum status status = set_peer(net, options, err);
  if (status != STATUS_OK) goto fail;
  const struct conn_options conn = conn_options_of(net, options);
  for (; net->n_conns < options->n_conns; net->n_conns++) {
    status = conn_open(&conn, &net->conns[net->n_conns]);
    if (status != STATUS_OK) goto fail;
  }
  while (!all_in_state(net, CONN_READY)) {
    if (any_dead(net)) {
      status = error_set(err, STATUS_UNAVAILABLE, "cannot connect to %s: %s", options->url,
                         net_error(net));
      goto fail;
    }
    uv_run(&net->loop, UV_RUN_ONCE);
  }
  *out = net;
  return STATUS_OK;
fail:
  net_close(net);
  return status;
}

void net_close(struct net *net) {
  if (!net) return;
  net->on_state = NULL;
  for (int i = 0; i < net->n_conns; i++)
    conn_close(net->conns[i]);
  net->n_conns = 0;
  uv_close((uv_handle_t *)&net->prepare, NULL);
  uv_close((uv_handle_t *)&net->expire, NULL);
  uv_run(&net->loop, UV_RUN_DEFAULT);
  const int error = uv_loop_close(&net->loop);
  FW_ASSERT(error == 0);
  tls_context_close(net->tls);
  free(net);
}

bool net_token_in_clear(const struct net *net) {
  return net->authorization[0] && !net->tls && !net->target.local;
}

uv_loop_t *net_loop(struct net *net) {
  return &net->loop;
}

int net_n_conns(const struct net *net) {
  return net->n_conns;
}

struct conn *net_conn(struct net *net, int index) {
  FW_ASSERT(index >= 0 && index < net->n_conns);
  return net->conns[index];
}

void net_watch(struct net *net, void (*on_state)(void *arg), void *arg) {
  net->on_state = on_state;
  net->arg = arg;
}

static void on_call_done(struct call *call) {
  *(bool *)call->arg = true;
}

enum status net_call_parts(struct net *net, const struct call_method *method,
                           const struct slice part[CALL_PARTS], int64_t timeout_ns,
                           struct slice *reply, struct error *err) {
  bool done = false;
  struct call call = {.method = method,
                      .part = {part[0], part[1]},
                      .expire_ns = clock_now_ns() + timeout_ns,
                      .grow = true,
                      .done = on_call_done,
                      .arg = &done};
  *reply = (struct slice){0};
  if (!conn_start(net->conns[0], &call)) {
    return error_set(err, STATUS_UNAVAILABLE, "no connection: %s", conn_error(net->conns[0]));
  }
  while (!done)
    uv_run(&net->loop, UV_RUN_ONCE);
  if (call.status != STATUS_OK) {
    free(call.reply);
    return error_set(err, call.status, "%s", call.message);
  }
  if (!call.reply) call.reply = malloc(1); // an empty message
  *reply = (struct slice){call.reply, call.reply_bytes};
  return STATUS_OK;
}

enum status net_call(struct net *net, const char *path, struct slice message, int64_t timeout_ns,
                     struct slice *reply, struct error *err) {
  struct call_method *method = &net->method;
  uint8_t *small = net->message;
  if (message.bytes > sizeof net->message - 5) {
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request of %zu bytes is too long",
                     message.bytes);
  }
  snprintf(method->path, sizeof method->path, "%s", path);
  call_timeout_text(timeout_ns, method->timeout);
  memset(small, 0, 5);
  small[3] = (uint8_t)(message.bytes >> 8);
  small[4] = (uint8_t)message.bytes;
  if (message.bytes) memcpy(small + 5, message.data, message.bytes);
  const struct slice parts[CALL_PARTS] = {{small, message.bytes + 5}, {small, 0}};
  return net_call_parts(net, method, parts, timeout_ns, reply, err);
}
