#include "net/tls.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/regular.h"
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define REFRESH_NS NS_PER_S
#define TURN_BYTES (256 * 1024) // plain text of one tls_write
#define FIRST_BYTES (32 * 1024)

enum { FILE_CERTIFICATE, FILE_KEY, FILE_CLIENT_CA, FILES };

struct tls_server {
  SSL_CTX *context;
  struct tls_files files;
  struct stat seen[FILES];
  int64_t looked_ns;
};

struct bytes {
  uint8_t *data;
  size_t at, end, capacity;
};

struct tls {
  SSL *ssl;
  const uint8_t *in;
  size_t in_bytes;
  struct bytes made, sending; // made: behind `sending`, which does not move
  bool ready, over, said_goodbye;
  char error[160];
};

// ---- OpenSSL's input and output are ours ----

static int bio_read(BIO *bio, char *out, int out_bytes) {
  struct tls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  if (tls->in_bytes == 0) {
    BIO_set_retry_read(bio);
    return -1;
  }
  size_t bytes = tls->in_bytes < (size_t)out_bytes ? tls->in_bytes : (size_t)out_bytes;
  memcpy(out, tls->in, bytes);
  tls->in += bytes;
  tls->in_bytes -= bytes;
  return (int)bytes;
}

static bool append(struct bytes *out, const void *data, size_t bytes) {
  if (out->end + bytes > out->capacity) {
    size_t capacity = out->capacity ? out->capacity : FIRST_BYTES;
    while (capacity < out->end + bytes)
      capacity *= 2;
    uint8_t *larger = realloc(out->data, capacity);
    if (!larger) return false;
    out->data = larger;
    out->capacity = capacity;
  }
  memcpy(out->data + out->end, data, bytes);
  out->end += bytes;
  return true;
}

static int bio_write(BIO *bio, const char *data, int bytes) {
  struct tls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  return append(&tls->made, data, (size_t)bytes) ? bytes : -1;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
  (void)bio, (void)number, (void)pointer;
  return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method; // made once, before any loop runs, and never freed

static bool make_bio_method(void) {
  if (bio_method) return true;
  bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "memory of a connection");
  return bio_method && BIO_meth_set_read(bio_method, bio_read) == 1 &&
         BIO_meth_set_write(bio_method, bio_write) == 1 &&
         BIO_meth_set_ctrl(bio_method, bio_ctrl) == 1;
}

// ---- the server's side ----

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_bytes,
                           const unsigned char *in, unsigned in_bytes, void *arg) {
  (void)ssl, (void)arg;
  static const unsigned char h2[] = {2, 'h', '2'};
  unsigned char *chosen;
  if (SSL_select_next_proto(&chosen, out_bytes, h2, sizeof h2, in, in_bytes) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// The first error in the queue is the cause; behind it stand the callers, which only say that a
// library failed. Errors of the system are errno.
static enum status failed(struct error *err, const char *key, const char *path) {
  char reason[160] = "";
  unsigned long code = ERR_peek_error();
  ERR_error_string_n(code, reason, sizeof reason);
  const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : NULL;
  if (!text) text = ERR_reason_error_string(code);
  bool pem = ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  bool unalike =
      ERR_GET_LIB(code) == ERR_LIB_X509 && ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH;
  ERR_clear_error();
  return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s: %s%s", key, path, text ? text : reason,
                   pem       ? ": not a PEM file"
                   : unalike ? ": not the key of tls.certificate"
                             : "");
}

// What is under a passphrase is refused: OpenSSL would ask for it on the terminal, and wait, at a
// reload even in an event loop.
static int no_passphrase(char *out, int out_bytes, int writing, void *arg) {
  (void)out, (void)out_bytes, (void)writing;
  if (arg) *(bool *)arg = true;
  return -1;
}

static enum status load_key(SSL_CTX *context, const char *path, struct error *err) {
  bool locked = false;
  SSL_CTX_set_default_passwd_cb_userdata(context, &locked);
  bool ok = SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM) == 1 &&
            SSL_CTX_check_private_key(context) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
  if (ok) return STATUS_OK;
  if (!locked) return failed(err, "tls.key", path);
  ERR_clear_error();
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "tls.key: %s: is under a passphrase; expected a key without one", path);
}

static enum status load_files(SSL_CTX *context, const struct tls_files *files, struct error *err) {
  if (regular_file("tls.certificate", files->certificate, err) != STATUS_OK ||
      regular_file("tls.key", files->key, err) != STATUS_OK ||
      regular_file("tls.client_ca", files->client_ca, err) != STATUS_OK)
    return STATUS_INVALID_ARGUMENT;
  ERR_clear_error();
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1)
    return failed(err, "tls.certificate", files->certificate);
  if (load_key(context, files->key, err) != STATUS_OK) return err->code;
  if (!files->client_ca[0]) return STATUS_OK;
  STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(files->client_ca);
  if (!names || SSL_CTX_load_verify_locations(context, files->client_ca, NULL) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return failed(err, "tls.client_ca", files->client_ca);
  }
  SSL_CTX_set_client_CA_list(context, names);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
  return STATUS_OK;
}

static SSL_CTX *make_context(const struct tls_files *files, struct error *err) {
  static const unsigned char id[] = "fusewired";
  SSL_CTX *context = SSL_CTX_new(TLS_server_method());
  if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1 ||
      SSL_CTX_set_session_id_context(context, id, sizeof id - 1) != 1) {
    (void)error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
  } else {
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    if (load_files(context, files, err) == STATUS_OK) return context;
  }
  SSL_CTX_free(context);
  return NULL;
}

// True: some file is another than last time.
static bool look(struct tls_server *server) {
  const char *paths[FILES] = {server->files.certificate, server->files.key,
                              server->files.client_ca};
  bool changed = false;
  for (int i = 0; i < FILES; i++) {
    struct stat now = {0}, *seen = &server->seen[i];
    if (!paths[i][0] || stat(paths[i], &now) != 0) continue; // gone for a moment: not yet changed
    changed |= now.st_ino != seen->st_ino || now.st_size != seen->st_size ||
               now.st_mtim.tv_sec != seen->st_mtim.tv_sec ||
               now.st_mtim.tv_nsec != seen->st_mtim.tv_nsec;
    *seen = now;
  }
  return changed;
}

enum status tls_server_open(const struct tls_files *files, struct tls_server **out,
                            struct error *err) {
  struct tls_server *server = calloc(1, sizeof *server);
  if (!server || !make_bio_method()) {
    free(server);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
  }
  server->files = *files;
  (void)look(server);
  server->context = make_context(files, err);
  if (!server->context) {
    free(server);
    return err->code;
  }
  *out = server;
  return STATUS_OK;
}

void tls_server_close(struct tls_server *server) {
  if (!server) return;
  SSL_CTX_free(server->context);
  free(server);
}

void tls_server_refresh(struct tls_server *server, int64_t now_ns) {
  if (now_ns - server->looked_ns < REFRESH_NS) return;
  server->looked_ns = now_ns;
  if (!look(server)) return;
  struct error err;
  SSL_CTX *context = make_context(&server->files, &err);
  if (!context) {
    log_error("tls_reload", "the old certificate stays: %s", err.message);
    return;
  }
  SSL_CTX_free(server->context); // open connections hold it
  server->context = context;
  log_info("tls_reload", "certificate read again from %s", server->files.certificate);
}

// ---- a connection ----

enum status tls_open(struct tls_server *server, struct tls **out) {
  struct tls *tls = calloc(1, sizeof *tls);
  BIO *bio = tls ? BIO_new(bio_method) : NULL;
  if (bio) {
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    tls->ssl = SSL_new(server->context);
  }
  if (!tls || !tls->ssl) {
    BIO_free(bio);
    free(tls);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  SSL_set_bio(tls->ssl, bio, bio);
  SSL_set_accept_state(tls->ssl);
  *out = tls;
  return STATUS_OK;
}

void tls_close(struct tls *tls) {
  if (!tls) return;
  SSL_free(tls->ssl);
  free(tls->made.data);
  free(tls->sending.data);
  free(tls);
}

void tls_feed(struct tls *tls, const uint8_t *data, size_t bytes) {
  FW_ASSERT(tls->in_bytes == 0);
  tls->in = data;
  tls->in_bytes = bytes;
}

static ssize_t give_up(struct tls *tls, int code) {
  tls->over = true;
  tls->in_bytes = 0;
  unsigned long reason = ERR_peek_last_error();
  const char *text = code == SSL_ERROR_ZERO_RETURN ? "" : ERR_reason_error_string(reason);
  long verdict = SSL_get_verify_result(tls->ssl);
  if (verdict != X509_V_OK && text && text[0]) text = X509_verify_cert_error_string(verdict);
  snprintf(tls->error, sizeof tls->error, "%s", text ? text : "broken off");
  ERR_clear_error();
  return -1;
}

static bool chose_h2(const struct tls *tls) {
  const unsigned char *name;
  unsigned bytes;
  SSL_get0_alpn_selected(tls->ssl, &name, &bytes);
  return bytes == 2 && memcmp(name, "h2", 2) == 0;
}

ssize_t tls_read(struct tls *tls, uint8_t *out, size_t out_bytes) {
  if (tls->over) return -1;
  ERR_clear_error();
  size_t bytes;
  int rv = SSL_read_ex(tls->ssl, out, out_bytes, &bytes);
  if (!tls->ready && SSL_is_init_finished(tls->ssl)) {
    if (!chose_h2(tls)) {
      (void)give_up(tls, SSL_ERROR_SSL);
      snprintf(tls->error, sizeof tls->error, "the client does not offer ALPN h2");
      return -1;
    }
    tls->ready = true;
  }
  if (rv == 1) return (ssize_t)bytes;
  int code = SSL_get_error(tls->ssl, rv);
  return code == SSL_ERROR_WANT_READ ? 0 : give_up(tls, code);
}

bool tls_ready(const struct tls *tls) {
  return tls->ready && !tls->over;
}

// Slices are gathered into whole records: a record for each would cost more than the copy.
size_t tls_write(struct tls *tls, const struct iovec *iov, int n) {
  uint8_t record[SSL3_RT_MAX_PLAIN_LENGTH];
  size_t taken = 0, at = 0;
  ERR_clear_error();
  for (int i = 0; i < n && taken < TURN_BYTES;) {
    size_t filled = 0;
    while (i < n && filled < sizeof record) {
      size_t left = iov[i].iov_len - at;
      size_t bytes = left < sizeof record - filled ? left : sizeof record - filled;
      memcpy(record + filled, (const uint8_t *)iov[i].iov_base + at, bytes);
      filled += bytes;
      at += bytes;
      if (at < iov[i].iov_len) break;
      i++;
      at = 0;
    }
    size_t written;
    if (SSL_write_ex(tls->ssl, record, filled, &written) != 1) {
      (void)give_up(tls, SSL_ERROR_SSL);
      return 0;
    }
    taken += filled;
  }
  return taken;
}

void tls_goodbye(struct tls *tls) {
  if (tls->said_goodbye) return;
  tls->said_goodbye = true;
  if (tls_ready(tls)) (void)SSL_shutdown(tls->ssl);
  ERR_clear_error();
}

struct slice tls_output(struct tls *tls) {
  if (tls->sending.at == tls->sending.end) {
    tls->sending.at = tls->sending.end = 0;
    struct bytes empty = tls->sending;
    tls->sending = tls->made;
    tls->made = empty;
  }
  return (struct slice){tls->sending.data + tls->sending.at, tls->sending.end - tls->sending.at};
}

void tls_sent(struct tls *tls, size_t bytes) {
  tls->sending.at += bytes;
  FW_ASSERT(tls->sending.at <= tls->sending.end);
}

size_t tls_backlog(const struct tls *tls) {
  return tls->sending.end - tls->sending.at + tls->made.end;
}

const char *tls_error(const struct tls *tls) {
  return tls->error;
}
