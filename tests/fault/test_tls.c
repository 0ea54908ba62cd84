// TLS with every single allocation failing in turn, OpenSSL's own included: reading certificates,
// reading them again, handshakes, bytes both ways. What was hit may fail; the next is right, and
// nothing is left (a sanitizer says so). FW_FAULT_STEP of the environment: every how manieth (61;
// 1: each).
#include "base/clock.h"
#include "base/log.h"
#include "fault/alloc.h"
#include "net/tls.h"
#include "unit/net/tls_files.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>

// The linker wraps these calls of malloc and realloc as all others of ours.
static void *ssl_malloc(size_t bytes, const char *file, int line) {
  (void)file, (void)line;
  return malloc(bytes);
}
static void *ssl_realloc(void *memory, size_t bytes, const char *file, int line) {
  (void)file, (void)line;
  return realloc(memory, bytes);
}
static void ssl_free(void *memory, const char *file, int line) {
  (void)file, (void)line;
  free(memory);
}

static SSL_CTX *client_context; // made while nothing fails
static struct tls_server *server;
static long serial;

struct pair {
  struct tls *tls;
  SSL *client;
  BIO *to_client, *from_client;
};

// Every piece that the client has said, and ours back. False: one side has given up.
static bool exchange(struct pair *pair, uint8_t *out, size_t out_bytes, size_t *got) {
  uint8_t wire[4096];
  int n;
  while ((n = BIO_read(pair->from_client, wire, sizeof wire)) > 0) {
    tls_feed(pair->tls, wire, (size_t)n);
    ssize_t bytes;
    while ((bytes = tls_read(pair->tls, out + *got, out_bytes - *got)) > 0)
      *got += (size_t)bytes;
    if (bytes < 0) return false;
  }
  struct slice output = tls_output(pair->tls);
  if (output.bytes == 0) return true;
  n = BIO_write(pair->to_client, output.data, (int)output.bytes);
  if (n > 0) tls_sent(pair->tls, (size_t)n);
  return n > 0;
}

static bool talk(struct pair *pair) {
  uint8_t got[64], back[64];
  size_t n_got = 0;
  for (int i = 0; i < 6; i++) {
    (void)SSL_do_handshake(pair->client);
    if (!exchange(pair, got, sizeof got, &n_got)) return false;
  }
  if (!tls_ready(pair->tls) || SSL_write(pair->client, "question", 8) != 8 ||
      !exchange(pair, got, sizeof got, &n_got) || n_got != 8 || memcmp(got, "question", 8) != 0)
    return false;
  struct iovec answer = {back, 6};
  memcpy(back, "answer", 6);
  if (tls_write(pair->tls, &answer, 1) != 6 || !exchange(pair, got, sizeof got, &n_got))
    return false;
  return SSL_read(pair->client, got, sizeof got) == 6 && memcmp(got, "answer", 6) == 0;
}

// One connection from its beginning to its end.
static bool connection(void) {
  struct pair pair = {0};
  bool good = false;
  if (tls_open(server, &pair.tls) != STATUS_OK) return false;
  pair.client = SSL_new(client_context);
  pair.to_client = BIO_new(BIO_s_mem());
  pair.from_client = BIO_new(BIO_s_mem());
  if (pair.client && pair.to_client && pair.from_client) {
    SSL_set_bio(pair.client, pair.to_client, pair.from_client);
    SSL_set_connect_state(pair.client);
    good = talk(&pair);
    tls_goodbye(pair.tls);
    SSL_free(pair.client);
  } else {
    SSL_free(pair.client);
    BIO_free(pair.to_client);
    BIO_free(pair.from_client);
  }
  tls_close(pair.tls);
  return good;
}

static bool opening(void) {
  struct tls_server *another;
  struct error err;
  if (tls_server_open(&files, &another, &err) != STATUS_OK) {
    assert_true(err.message[0] != 0);
    return false;
  }
  tls_server_close(another);
  return true;
}

// New files, and a second later. It serves whatever comes of it; good: the new certificate is in
// use, as far as a connection shows.
static bool refresh(void) {
  static int64_t now_ns = 1000 * NS_PER_S;
  now_ns += 2 * NS_PER_S;
  tls_server_refresh(server, now_ns);
  return true;
}

static void prepare_refresh(void) {
  write_files(++serial);
}

static void nothing(void) {}

static void every_allocation(const char *name, bool (*operation)(void), void (*prepare)(void)) {
  const char *text = getenv("FW_FAULT_STEP");
  int64_t step = text ? strtoll(text, NULL, 10) : 61, n = 0, hit = 0, failed = 0;
  for (bool fired = true; fired; n += step) {
    prepare();
    fault_arm(n);
    bool good = operation();
    fired = fault_disarm();
    assert_true(fired || good);
    hit += fired;
    failed += fired && !good;
    assert_true(connection());
  }
  print_message("%s: %lld allocations, %lld failed in turn, %lld operations with them\n", name,
                (long long)(n - step), (long long)hit, (long long)failed);
  assert_true(hit > 5);
}

static void certificates_that_are_read(void **state) {
  (void)state;
  every_allocation("open", opening, nothing);
}

static void certificates_that_are_read_again(void **state) {
  (void)state;
  every_allocation("refresh", refresh, prepare_refresh);
}

static void handshakes_and_bytes(void **state) {
  (void)state;
  every_allocation("connection", connection, nothing);
}

static int up(void **state) {
  (void)state;
  struct error err;
  make_folder();
  write_files(++serial);
  client_context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_alpn_protos(client_context, (const unsigned char *)"\2h2", 3);
  assert_int_equal(tls_server_open(&files, &server, &err), STATUS_OK);
  for (int i = 0; i < 3; i++)
    assert_true(connection()); // what is made once is made
  return 0;
}

static int down(void **state) {
  (void)state;
  tls_server_close(server);
  SSL_CTX_free(client_context);
  remove_folder();
  return 0;
}

int main(void) {
  if (CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free) != 1) return 1;
  log_setup(LOG_ERROR, LOG_TEXT);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(certificates_that_are_read, up, down),
      cmocka_unit_test_setup_teardown(certificates_that_are_read_again, up, down),
      cmocka_unit_test_setup_teardown(handshakes_and_bytes, up, down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
