// The serving front over real sockets on free ports: serve, reap, limits, admin, drain.
#include "base/clock.h"
#include "net/address.h"
#include "net/net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_KEPT 64

struct app {
  struct net *net;
  pthread_mutex_t lock;
  struct call_ref kept[MAX_KEPT];
  int n_kept;
  atomic_int n_cancelled, n_reaped;
  bool release;
  atomic_bool ready;
};

// ---- handlers ----

static void slab_done(void *arg) {
  void **pair = arg;
  slab_put(pair[0], pair[1]);
  free(pair);
}

static void handle_echo(struct call *call, void *arg) {
  (void)arg;
  struct slice message = call_message(call);
  void **pair = malloc(2 * sizeof *pair);
  pair[0] = call_pool(call);
  pair[1] = call_take_message(call);
  call_reply(call, NULL, 0, &message, 1, slab_done, pair);
}

static void on_cancel(void *arg, enum status why) {
  (void)why;
  ((struct app *)arg)->n_cancelled++;
}

static void handle_keep(struct call *call, void *arg) {
  struct app *app = arg;
  pthread_mutex_lock(&app->lock);
  if (app->n_kept < MAX_KEPT) app->kept[app->n_kept++] = call_ref_of(call);
  pthread_mutex_unlock(&app->lock);
  call_on_cancel(call, on_cancel, app);
}

static void reap(struct rpc *rpc, int loop, void *arg) {
  struct app *app = arg;
  pthread_mutex_lock(&app->lock);
  app->n_reaped++;
  for (int i = 0; app->release && i < app->n_kept; i++) {
    if (app->kept[i].loop != loop) continue;
    struct call *call = call_find(rpc, app->kept[i]);
    if (call) call_reply(call, "late", 4, NULL, 0, NULL, NULL);
  }
  pthread_mutex_unlock(&app->lock);
}

static size_t metrics(char *out, size_t out_bytes, void *arg) {
  (void)arg;
  size_t bytes = 200000; // more than the first buffer
  if (bytes <= out_bytes) memset(out, 'm', bytes);
  return bytes;
}

static bool ready(void *arg) {
  return ((struct app *)arg)->ready;
}

static const struct method methods[] = {{"/t.T/Echo", handle_echo, NULL},
                                        {"/t.T/Keep", handle_keep, NULL}};

static struct app *start(int n_loops, int max_connections, const char *admin) {
  struct app *app = calloc(1, sizeof *app);
  pthread_mutex_init(&app->lock, NULL);
  struct net_options options = {
      .listen = "127.0.0.1:0",
      .admin = admin,
      .n_loops = n_loops,
      .limits = {.max_message_bytes = 1 << 20,
                 .max_connections = max_connections,
                 .max_calls = 100,
                 .connection_bytes = 4 << 20,
                 .total_bytes = 16 << 20,
                 .header_bytes = 8192,
                 .handshake_timeout_ms = 10000,
                 .stream_window_bytes = 1 << 20,
                 .connection_window_bytes = 1 << 20},
      .methods = methods,
      .n_methods = 2,
      .app = app,
      .reap = reap,
      .metrics = metrics,
      .ready = ready,
  };
  struct error err = {0};
  if (net_open(&options, &app->net, &err) != STATUS_OK || net_start(app->net, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return app;
}

static int stop(struct app *app, int64_t drain_ms) {
  net_drain(app->net, drain_ms);
  int cut = net_join(app->net);
  net_close(app->net);
  free(app);
  return cut;
}

// ---- a client of raw frames ----

static int connect_to(int port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct timeval patience = {.tv_sec = 20};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
  close(fd);
  return -1;
}

static size_t put_frame(uint8_t *out, uint8_t type, uint8_t flags, uint32_t stream,
                        const void *payload, size_t bytes) {
  uint8_t head[9] = {0, (uint8_t)(bytes >> 8),  (uint8_t)bytes, type, flags, 0,
                     0, (uint8_t)(stream >> 8), (uint8_t)stream};
  memcpy(out, head, 9);
  memcpy(out + 9, payload, bytes);
  return bytes + 9;
}

static size_t put_field(uint8_t *out, const char *name, const char *value) {
  size_t name_bytes = strlen(name), value_bytes = strlen(value);
  out[0] = 0;
  out[1] = (uint8_t)name_bytes;
  memcpy(out + 2, name, name_bytes);
  out[2 + name_bytes] = (uint8_t)value_bytes;
  memcpy(out + 3 + name_bytes, value, value_bytes);
  return 3 + name_bytes + value_bytes;
}

static void send_preface(int fd) {
  static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
  assert_int_equal(write(fd, preface, 33), 33);
}

static void send_call(int fd, uint32_t stream, const char *path, const char *timeout) {
  uint8_t block[400], out[600];
  size_t n = put_field(block, ":method", "POST");
  n += put_field(block + n, ":scheme", "http");
  n += put_field(block + n, ":authority", "x");
  n += put_field(block + n, ":path", path);
  n += put_field(block + n, "content-type", "application/grpc");
  if (timeout) n += put_field(block + n, "grpc-timeout", timeout);
  size_t bytes = put_frame(out, 1, 4, stream, block, n);
  bytes += put_frame(out + bytes, 0, 1, stream, "\0\0\0\0\5hello", 10);
  assert_int_equal(write(fd, out, bytes), bytes);
}

// The loops' io_uring (libuv 1.45 and newer) belongs to the thread that made them, this one: it
// interrupts our calls.
static ssize_t read_some(int fd, void *out, size_t bytes) {
  ssize_t n;
  do
    n = read(fd, out, bytes);
  while (n < 0 && errno == EINTR);
  return n;
}

static bool read_exactly(int fd, uint8_t *out, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    ssize_t n = read_some(fd, out + at, bytes - at);
    if (n <= 0) return false;
    at += (size_t)n;
  }
  return true;
}

struct frame {
  uint8_t type, flags;
  uint32_t stream, bytes;
  uint8_t payload[20000];
};

// False: EOF. Answers PING by itself.
static bool next_frame(int fd, struct frame *frame) {
  uint8_t head[9];
  if (!read_exactly(fd, head, 9)) return false;
  frame->bytes = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
  frame->type = head[3];
  frame->flags = head[4];
  frame->stream = (uint32_t)head[7] << 8 | head[8];
  assert_true(frame->bytes <= sizeof frame->payload);
  if (!read_exactly(fd, frame->payload, frame->bytes)) return false;
  if (frame->type == 6 && !(frame->flags & 1)) {
    uint8_t out[32];
    size_t bytes = put_frame(out, 6, 1, 0, frame->payload, 8);
    assert_int_equal(write(fd, out, bytes), bytes);
  }
  return true;
}

// Reads until the stream has ended; the DATA bytes go to `out`. Returns their number, or -1 at EOF.
static int read_answer(int fd, uint32_t stream, uint8_t *out) {
  static struct frame frame;
  int bytes = 0;
  while (next_frame(fd, &frame)) {
    if (frame.stream != stream) continue;
    if (frame.type == 0) {
      memcpy(out + bytes, frame.payload, frame.bytes);
      bytes += (int)frame.bytes;
    }
    if (frame.type == 1 && frame.flags & 1) return bytes;
  }
  return -1;
}

static void expect_echo(int fd, uint32_t stream) {
  uint8_t out[100];
  send_call(fd, stream, "/t.T/Echo", NULL);
  assert_int_equal(read_answer(fd, stream, out), 10);
  assert_memory_equal(out, "\0\0\0\0\5hello", 10);
}

static void wait_kept(struct app *app, int n) {
  for (int i = 0; i < 4000; i++) {
    pthread_mutex_lock(&app->lock);
    int kept = app->n_kept;
    pthread_mutex_unlock(&app->lock);
    if (kept >= n) return;
    usleep(5000);
  }
  fail_msg("the handler never saw call %d", n);
}

// ---- tests ----

static void connections_of_every_loop_are_served(void **state) {
  (void)state;
  struct app *app = start(3, 100, NULL);
  int fds[7];
  for (int i = 0; i < 7; i++) {
    fds[i] = connect_to(net_port(app->net));
    assert_true(fds[i] >= 0);
    send_preface(fds[i]);
  }
  for (uint32_t round = 0; round < 3; round++)
    for (int i = 0; i < 7; i++)
      expect_echo(fds[i], 1 + 2 * round);
  assert_int_equal(net_connections(app->net), 7);
  for (int i = 0; i < 7; i++)
    close(fds[i]);
  assert_int_equal(stop(app, 5000), 0);
}

static void finished_work_is_reaped_on_its_loop(void **state) {
  (void)state;
  struct app *app = start(2, 100, NULL);
  int fds[2];
  uint8_t out[100];
  for (int i = 0; i < 2; i++) {
    fds[i] = connect_to(net_port(app->net));
    send_preface(fds[i]);
    send_call(fds[i], 1, "/t.T/Keep", NULL);
  }
  wait_kept(app, 2);
  pthread_mutex_lock(&app->lock);
  app->release = true;
  pthread_mutex_unlock(&app->lock);
  for (int i = 0; i < 2; i++)
    wake_signal(net_loop_wake(app->net, i));
  for (int i = 0; i < 2; i++) {
    assert_int_equal(read_answer(fds[i], 1, out), 9);
    assert_memory_equal(out, "\0\0\0\0\4late", 9);
    close(fds[i]);
  }
  assert_int_equal(stop(app, 5000), 0);
}

static void deadline_fires_without_other_traffic(void **state) {
  (void)state;
  struct app *app = start(1, 100, NULL);
  int fd = connect_to(net_port(app->net));
  uint8_t out[100];
  send_preface(fd);
  send_call(fd, 1, "/t.T/Keep", "30m");
  assert_int_equal(read_answer(fd, 1, out), 0); // Trailers-Only
  assert_int_equal(app->n_cancelled, 1);
  expect_echo(fd, 3);
  close(fd);
  assert_int_equal(stop(app, 5000), 0);
}

static void vanished_client_cancels_its_calls(void **state) {
  (void)state;
  struct app *app = start(1, 100, NULL);
  int fd = connect_to(net_port(app->net));
  send_preface(fd);
  send_call(fd, 1, "/t.T/Keep", NULL);
  send_call(fd, 3, "/t.T/Keep", NULL);
  wait_kept(app, 2);
  close(fd);
  for (int i = 0; i < 4000 && net_connections(app->net) > 0; i++)
    usleep(5000);
  assert_int_equal(net_connections(app->net), 0);
  assert_int_equal(app->n_cancelled, 2);
  assert_int_equal(stop(app, 5000), 0);
}

static void connections_over_the_limit_are_refused(void **state) {
  (void)state;
  struct app *app = start(1, 2, NULL);
  int a = connect_to(net_port(app->net)), b = connect_to(net_port(app->net));
  send_preface(a);
  send_preface(b);
  expect_echo(a, 1);
  expect_echo(b, 1);
  int c = connect_to(net_port(app->net));
  uint8_t byte;
  assert_true(read_some(c, &byte, 1) <= 0); // closed at once
  close(c);
  close(a);
  for (int i = 0; i < 4000 && net_connections(app->net) > 1; i++)
    usleep(5000);
  int d = connect_to(net_port(app->net)); // there is room again
  send_preface(d);
  expect_echo(d, 1);
  close(b);
  close(d);
  stop(app, 5000);
}

static void drain_finishes_the_running_call_and_then_closes(void **state) {
  (void)state;
  struct app *app = start(2, 100, NULL);
  int port = net_port(app->net), busy = connect_to(port), idle = connect_to(port),
      silent = connect_to(port);
  send_preface(busy);
  send_preface(idle);
  expect_echo(idle, 1);
  send_call(busy, 1, "/t.T/Keep", NULL);
  wait_kept(app, 1);
  net_drain(app->net, 20000);
  static struct frame frame;
  int goaways = 0;
  while (next_frame(idle, &frame))
    goaways += frame.type == 7;
  assert_int_equal(goaways, 2); // and then EOF, at once
  uint8_t byte;
  assert_int_equal(read_some(silent, &byte, 1), 0);
  assert_int_equal(connect_to(port), -1);
  pthread_mutex_lock(&app->lock);
  app->release = true;
  pthread_mutex_unlock(&app->lock);
  wake_signal(net_loop_wake(app->net, 0));
  wake_signal(net_loop_wake(app->net, 1));
  uint8_t out[100];
  assert_int_equal(read_answer(busy, 1, out), 9);
  while (next_frame(busy, &frame)) // the second GOAWAY may come behind the answer; then EOF
    assert_int_not_equal(frame.type, 1);
  close(busy);
  close(idle);
  close(silent);
  assert_int_equal(stop(app, 20000), 0);
}

static void drain_is_bounded_and_counts_what_it_cut_off(void **state) {
  (void)state;
  struct app *app = start(1, 100, NULL);
  int fd = connect_to(net_port(app->net));
  send_preface(fd);
  send_call(fd, 1, "/t.T/Keep", NULL);
  wait_kept(app, 1);
  int64_t before = clock_now_ns();
  net_drain(app->net, 60000);
  net_drain(app->net, 50); // the shorter one wins
  assert_int_equal(net_join(app->net), 1);
  assert_true(clock_now_ns() - before < 30 * NS_PER_S);
  assert_int_equal(app->n_cancelled, 1);
  int reaped = app->n_reaped;
  net_close(app->net);
  assert_int_equal(app->n_reaped, reaped + 1); // what came back late is picked up
  free(app);
  close(fd);
}

static void open_without_start_closes_cleanly(void **state) {
  (void)state;
  struct net_options options = {
      .listen = "127.0.0.1:0", .n_loops = 2, .limits = {.total_bytes = 1 << 20}};
  struct error err = {0};
  struct net *net;
  assert_int_equal(net_open(&options, &net, &err), STATUS_OK);
  assert_int_not_equal(net_port(net), 0);
  net_close(net);
}

static void address_errors_name_the_address(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "8001",
                                    "127.0.0.1",
                                    "127.0.0.1:",
                                    "127.0.0.1:x",
                                    "127.0.0.1:65536",
                                    "127.0.0.1:-1",
                                    "::1:80",
                                    "[::1]",
                                    "[]:1",
                                    "127.0.0.1:80 "};
  struct error err;
  int fd, port;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    err = (struct error){0};
    if (address_listen(bad[i], false, 0, &fd, &port, &err) != STATUS_INVALID_ARGUMENT)
      fail_msg("'%s' was taken", bad[i]);
    assert_non_null(strstr(err.message, bad[i]));
  }
  assert_int_equal(address_listen("localhost:0", false, 0, &fd, &port, &err), STATUS_OK);
  char taken[32];
  snprintf(taken, sizeof taken, "localhost:%d", port);
  int other;
  assert_int_equal(address_listen(taken, false, 0, &other, &port, &err), STATUS_UNAVAILABLE);
  assert_non_null(strstr(err.message, taken));
  close(fd);
}

// ---- admin ----

static int http_get(int port, const char *request, char *out, size_t out_bytes) {
  int fd = connect_to(port);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, request, strlen(request)), strlen(request));
  size_t at = 0;
  ssize_t n;
  while (at < out_bytes - 1 && (n = read_some(fd, out + at, out_bytes - 1 - at)) > 0)
    at += (size_t)n;
  out[at] = 0;
  close(fd);
  return (int)strtol(out + 9, NULL, 10);
}

static void admin_port_serves_health_and_metrics(void **state) {
  (void)state;
  struct app *app = start(1, 10, "127.0.0.1:0");
  int port = net_admin_port(app->net);
  static char out[300000];
#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
  assert_int_equal(http_get(port, GET("/v2/health/live"), out, sizeof out), 200);
  assert_int_equal(http_get(port, GET("/v2/health/ready"), out, sizeof out), 503);
  app->ready = true;
  assert_int_equal(http_get(port, GET("/v2/health/ready"), out, sizeof out), 200);
  assert_int_equal(http_get(port, GET("/metrics"), out, sizeof out), 200);
  assert_true(strlen(out) > 200000);
  assert_non_null(strstr(out, "version=0.0.4"));
  assert_int_equal(http_get(port, GET("/other"), out, sizeof out), 404);
  static const char post[] = "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                             "Content-Length: 3\r\n\r\nabc";
  assert_int_equal(http_get(port, post, out, sizeof out), 405);
  stop(app, 5000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(connections_of_every_loop_are_served),
      cmocka_unit_test(finished_work_is_reaped_on_its_loop),
      cmocka_unit_test(deadline_fires_without_other_traffic),
      cmocka_unit_test(vanished_client_cancels_its_calls),
      cmocka_unit_test(connections_over_the_limit_are_refused),
      cmocka_unit_test(drain_finishes_the_running_call_and_then_closes),
      cmocka_unit_test(drain_is_bounded_and_counts_what_it_cut_off),
      cmocka_unit_test(open_without_start_closes_cleanly),
      cmocka_unit_test(address_errors_name_the_address),
      cmocka_unit_test(admin_port_serves_health_and_metrics),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
