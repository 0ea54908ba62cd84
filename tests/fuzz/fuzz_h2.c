// A whole connection. First byte: piece size, preface, slow socket; then what a client sends.
// links: fw_rpc fw_obs fw_base
#include "base/log.h"
#include "rpc/h2.h"
#include "rpc/method.h"
#include <stdlib.h>
#include <string.h>

struct fuzz_app {
  struct call_ref kept[64];
  unsigned n_kept;
  int n_owed; // answers whose payload is not given back yet
};

static void ignore_dirty(void *owner) {
  (void)owner;
}

static void payload_done(void *arg) {
  ((struct fuzz_app *)arg)->n_owed--;
}

static void handle_echo(struct call *call, void *arg) {
  struct fuzz_app *app = arg;
  struct slice message =
      call_message(call); // the slab stays the call's: the payload must be static
  static const uint8_t payload[3000];
  const struct slice slices[2] = {{payload, message.bytes % sizeof payload}, {payload, 700}};
  app->n_owed++;
  call_reply(call, message.data, message.bytes < 100 ? message.bytes : 100, slices, 2, payload_done,
             app);
}

static void handle_keep(struct call *call, void *arg) {
  struct fuzz_app *app = arg;
  app->kept[app->n_kept++ % 64] = call_ref_of(call);
}

static void handle_fail(struct call *call, void *arg) {
  (void)arg;
  call_fail(call, STATUS_INVALID_ARGUMENT, "no \xFF good\n");
}

static void handle_count(struct call *call, void *arg) {
  (void)arg;
  struct slice message = call_message(call);
  for (uint8_t i = 0; message.bytes > 0 && i < message.data[0] % 8; i++)
    if (!call_send(call, &i, 1, NULL, 0, NULL, NULL)) return;
  if (message.bytes == 0 || message.data[0] < 128) call_finish(call, STATUS_OK, "");
}

static void chat_sent(struct call *call, void *arg) {
  (void)arg;
  if (call_queued(call) < 2) call_let_go(call);
}

static void handle_chat(struct call *call, void *arg) {
  (void)arg;
  struct slice message = call_message(call);
  call_on_sent(call, chat_sent, NULL);
  if (message.bytes > 0 && message.data[0] == 'q')
    call_finish(call, STATUS_ABORTED, "q");
  else if (call_send(call, message.data, message.bytes < 100 ? message.bytes : 100, NULL, 0, NULL,
                     NULL) &&
           call_queued(call) >= 2)
    call_hold(call);
}

static const struct method_stream count_stream = {.many_in = false};
static const struct method_stream chat_stream = {.many_in = true};
static const struct method methods[] = {{"/t.T/Count", handle_count, &count_stream},
                                        {"/t.T/Chat", handle_chat, &chat_stream},
                                        {"/t.T/Echo", handle_echo, NULL},
                                        {"/t.T/Keep", handle_keep, NULL},
                                        {"/t.T/Fail", handle_fail, NULL}};

static void drain_output(struct h2 *h2, bool slow) {
  struct iovec iov[8];
  for (int turn = 0; turn < (slow ? 1 : 64); turn++) {
    int n = h2_pull(h2, iov, slow ? 1 : 8);
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
      bytes += iov[i].iov_len;
    if (n == 0) return;
    h2_sent(h2, slow ? (bytes + 1) / 2 : bytes);
  }
}

static void feed_all(struct rpc *rpc, struct h2 *h2, struct fuzz_app *app, const uint8_t *data,
                     size_t size, uint8_t options) {
  static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
  int64_t now_ns = 1000 * NS_PER_S;
  if (options & 1) h2_feed(h2, preface, 33, now_ns);
  size_t piece = options & 2 ? (size_t)(options >> 4) + 1 : size;
  for (size_t at = 0; at < size && h2_want_read(h2); at += piece < size - at ? piece : size - at) {
    now_ns += NS_PER_MS;
    h2_feed(h2, data + at, piece < size - at ? piece : size - at, now_ns);
    drain_output(h2, options & 4);
    rpc_expire(rpc, now_ns);
    struct call *call = app->n_kept ? call_find(rpc, app->kept[(app->n_kept - 1) % 64]) : NULL;
    if (call && at % 2) handle_echo(call, app);
  }
  if (options & 8) h2_drain(h2, now_ns);
  h2_tick(h2, now_ns + 20 * NS_PER_S);
  drain_output(h2, options & 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  struct fuzz_app app = {0};
  struct budget budget = {.limit_bytes = 4 << 20};
  const struct rpc_limits limits = {.max_message_bytes = 1 << 20,
                                    .max_calls = 100,
                                    .connection_bytes = 2 << 20,
                                    .total_bytes = 4 << 20,
                                    .header_bytes = 4096,
                                    .ping_interval_ms = 5000,
                                    .handshake_timeout_ms = 1000,
                                    .request_timeout_ms = 5000,
                                    .idle_timeout_ms = 5000,
                                    .stream_window_bytes = 65535,
                                    .connection_window_bytes = 65535};
  struct method_table *table = NULL;
  FW_ASSERT(method_table_open(methods, 5, &table, NULL) == STATUS_OK);
  const struct rpc_options options = {
      .limits = &limits, .methods = table, .app = &app, .total = &budget, .dirty = ignore_dirty};
  struct rpc *rpc = NULL;
  struct h2 *h2 = NULL;
  FW_ASSERT(rpc_open(&options, &rpc, NULL) == STATUS_OK);
  FW_ASSERT(h2_open(rpc, NULL, 1000 * NS_PER_S, &h2) == STATUS_OK);
  feed_all(rpc, h2, &app, data + 1, size - 1, data[0]);
  h2_close(h2);
  FW_ASSERT(app.n_owed == 0 && budget.used_bytes == 0);
  rpc_close(rpc);
  method_table_close(table);
  return 0;
}
