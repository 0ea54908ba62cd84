// TLS between memory and memory: our server's side against OpenSSL's client.
#include "base/clock.h"
#include "harness/cmocka_all.h"
#include "net/tls.h"
#include "unit/net/tls_files.h"
#include <openssl/ssl.h>
#include <stdlib.h>
#include <unistd.h>

struct pair {
  struct tls_server *server;
  struct tls *tls;
  SSL_CTX *context;
  SSL *client;
  BIO *to_client, *from_client;
  uint8_t got[1 << 20]; // plain text at our side
  size_t n_got;
  bool failed;
};

static void connect_pair(struct pair *pair, const char *alpn) {
  assert_int_equal(tls_open(pair->server, &pair->tls), STATUS_OK);
  pair->context = SSL_CTX_new(TLS_client_method());
  pair->client = SSL_new(pair->context);
  if (alpn) SSL_set_alpn_protos(pair->client, (const unsigned char *)alpn, (unsigned)strlen(alpn));
  pair->to_client = BIO_new(BIO_s_mem());
  pair->from_client = BIO_new(BIO_s_mem());
  SSL_set_bio(pair->client, pair->to_client, pair->from_client);
  SSL_set_connect_state(pair->client);
}

static void disconnect_pair(struct pair *pair) {
  SSL_free(pair->client);
  SSL_CTX_free(pair->context);
  tls_close(pair->tls);
  pair->n_got = 0;
  pair->failed = false;
}

// The client's bytes to us, `step` at a time.
static void client_to_us(struct pair *pair, size_t step) {
  uint8_t wire[4096];
  int n;
  while (!pair->failed && (n = BIO_read(pair->from_client, wire,
                                        (int)(step < sizeof wire ? step : sizeof wire))) > 0) {
    tls_feed(pair->tls, wire, (size_t)n);
    ssize_t bytes;
    while ((bytes = tls_read(pair->tls, pair->got + pair->n_got, sizeof pair->got - pair->n_got)) >
           0)
      pair->n_got += (size_t)bytes;
    pair->failed = bytes < 0;
  }
}

// Ours to the client; the output may be sent in any pieces.
static void us_to_client(struct pair *pair, size_t step) {
  struct slice out;
  while ((out = tls_output(pair->tls)).bytes > 0) {
    size_t n = out.bytes < step ? out.bytes : step;
    assert_int_equal(BIO_write(pair->to_client, out.data, (int)n), n);
    tls_sent(pair->tls, n);
  }
}

static void handshake(struct pair *pair, size_t step) {
  for (int i = 0; i < 20 && !pair->failed; i++) {
    (void)SSL_do_handshake(pair->client);
    client_to_us(pair, step);
    us_to_client(pair, step);
  }
}

static int up(void **state) {
  struct pair *pair = calloc(1, sizeof *pair);
  struct error err;
  make_folder();
  write_files(1);
  assert_int_equal(tls_server_open(&files, &pair->server, &err), STATUS_OK);
  *state = pair;
  return 0;
}

static int down(void **state) {
  struct pair *pair = *state;
  tls_server_close(pair->server);
  free(pair);
  remove_folder();
  return 0;
}

static void bytes_pass_both_ways_in_any_pieces(void **state) {
  struct pair *pair = *state;
  static uint8_t data[600000], back[600000];
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (uint8_t)(i * 2654435761U >> 13);
  const size_t steps[] = {1, 7, 1000, 1 << 20};
  for (size_t s = 0; s < 4; s++) {
    size_t bytes = s == 0 ? 3000 : sizeof data;
    connect_pair(pair, "\2h2");
    assert_false(tls_ready(pair->tls));
    handshake(pair, steps[s]);
    assert_true(tls_ready(pair->tls));
    assert_int_equal(SSL_write(pair->client, data, (int)bytes), bytes);
    client_to_us(pair, steps[s]);
    assert_int_equal(pair->n_got, bytes);
    assert_memory_equal(pair->got, data, bytes);
    // Out: slices of unlike sizes, of which it takes as much as one turn is.
    size_t done = 0, read = 0;
    while (done < bytes) {
      struct iovec iov[3] = {{data + done, 0}, {NULL, 0}, {NULL, 0}};
      size_t left = bytes - done;
      iov[0].iov_len = left / 3;
      iov[1] = (struct iovec){data + done + left / 3, left / 5};
      iov[2] = (struct iovec){data + done + left / 3 + left / 5, left - left / 3 - left / 5};
      size_t taken = tls_write(pair->tls, iov, 3);
      assert_in_range(taken, 1, left);
      done += taken;
      assert_true(tls_backlog(pair->tls) > taken);
      us_to_client(pair, steps[s]);
      int n;
      while (read < done &&
             (n = SSL_read(pair->client, back + read, (int)(sizeof back - read))) > 0)
        read += (size_t)n;
    }
    assert_int_equal(read, bytes);
    assert_memory_equal(back, data, bytes);
    disconnect_pair(pair);
  }
}

// libuv may be reading from the output while the handshake or a renewal adds to it.
static void output_stays_where_it_is_until_it_is_sent(void **state) {
  struct pair *pair = *state;
  connect_pair(pair, "\2h2");
  handshake(pair, 4096);
  uint8_t data[20000] = {1};
  struct iovec iov = {data, sizeof data};
  assert_int_equal(tls_write(pair->tls, &iov, 1), sizeof data);
  struct slice first = tls_output(pair->tls);
  for (int i = 0; i < 50; i++)
    assert_int_equal(tls_write(pair->tls, &iov, 1), sizeof data);
  struct slice again = tls_output(pair->tls);
  assert_ptr_equal(again.data, first.data);
  assert_int_equal(again.bytes, first.bytes);
  disconnect_pair(pair);
}

static void only_clients_that_offer_h2_get_in(void **state) {
  struct pair *pair = *state;
  const char *offers[] = {NULL, "\10http/1.1", "\2h1"};
  for (int i = 0; i < 3; i++) {
    connect_pair(pair, offers[i]);
    handshake(pair, 4096);
    assert_true(pair->failed);
    assert_false(tls_ready(pair->tls));
    assert_true(strlen(tls_error(pair->tls)) > 0);
    disconnect_pair(pair);
  }
  connect_pair(pair, "\10http/1.1\2h2");
  handshake(pair, 4096);
  assert_true(tls_ready(pair->tls));
  disconnect_pair(pair);
}

static void garbage_fails_and_a_goodbye_ends_in_peace(void **state) {
  struct pair *pair = *state;
  connect_pair(pair, "\2h2");
  BIO_write(pair->from_client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  client_to_us(pair, 4096);
  assert_true(pair->failed);
  disconnect_pair(pair);
  connect_pair(pair, "\2h2");
  handshake(pair, 4096);
  BIO_write(pair->from_client, "\x17\x03\x03\x00\x20 thirty-two bytes of no record.. ", 37);
  client_to_us(pair, 4096);
  assert_true(pair->failed);
  disconnect_pair(pair);
  connect_pair(pair, "\2h2");
  handshake(pair, 4096);
  (void)SSL_shutdown(pair->client);
  client_to_us(pair, 4096);
  assert_true(pair->failed);
  assert_string_equal(tls_error(pair->tls), "");
  disconnect_pair(pair);
  connect_pair(pair, "\2h2");
  handshake(pair, 4096);
  tls_goodbye(pair->tls);
  tls_goodbye(pair->tls);
  us_to_client(pair, 4096);
  char byte;
  assert_int_equal(SSL_get_error(pair->client, SSL_read(pair->client, &byte, 1)),
                   SSL_ERROR_ZERO_RETURN);
  disconnect_pair(pair);
}

static long serial_seen(struct pair *pair) {
  connect_pair(pair, "\2h2");
  handshake(pair, 4096);
  X509 *certificate = SSL_get1_peer_certificate(pair->client);
  long serial = certificate ? ASN1_INTEGER_get(X509_get0_serialNumber(certificate)) : -1;
  X509_free(certificate);
  disconnect_pair(pair);
  return serial;
}

static void new_files_are_taken_and_broken_ones_are_not(void **state) {
  struct pair *pair = *state;
  int64_t now_ns = clock_now_ns();
  tls_server_refresh(pair->server, now_ns);
  assert_int_equal(serial_seen(pair), 1);
  write_files(2);
  tls_server_refresh(pair->server, now_ns + NS_PER_S / 2); // too soon to look
  assert_int_equal(serial_seen(pair), 1);
  tls_server_refresh(pair->server, now_ns + 2 * NS_PER_S);
  assert_int_equal(serial_seen(pair), 2);
  FILE *file = fopen(key_path, "w");
  fputs("not a key\n", file);
  fclose(file);
  tls_server_refresh(pair->server, now_ns + 4 * NS_PER_S);
  assert_int_equal(serial_seen(pair), 2);
  unlink(key_path);
  tls_server_refresh(pair->server, now_ns + 6 * NS_PER_S);
  assert_int_equal(serial_seen(pair), 2);
  write_files(3);
  tls_server_refresh(pair->server, now_ns + 8 * NS_PER_S);
  assert_int_equal(serial_seen(pair), 3);
}

static void files_that_do_not_load_are_named(void **state) {
  (void)state;
  struct error err;
  struct tls_server *server = NULL;
  struct tls_files wrong = files;
  wrong.certificate = "/nowhere.pem";
  assert_int_equal(tls_server_open(&wrong, &server, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "/nowhere.pem"));
  wrong = files;
  wrong.client_ca = key_path;
  assert_int_equal(tls_server_open(&wrong, &server, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "tls.client_ca"));
  assert_null(server);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(bytes_pass_both_ways_in_any_pieces),
      TEST(output_stays_where_it_is_until_it_is_sent),
      TEST(only_clients_that_offer_h2_get_in),
      TEST(garbage_fails_and_a_goodbye_ends_in_peace),
      TEST(new_files_are_taken_and_broken_ones_are_not),
      TEST(files_that_do_not_load_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
