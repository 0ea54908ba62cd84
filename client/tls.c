#include "client/tls.h"
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define NAMES_BYTES 256

struct tls_context {
  SSL_CTX *ssl;
  BIO_METHOD *method;
  char ca[256]; // the file's name, for messages
};

struct tls {
  SSL *ssl;
  const struct tls_context *context;
  int fd;
  bool is_ready, over, hopeless, wants_write;
  char name[256];
  char error[512];
};

// ---- OpenSSL's input and output: its own for sockets raises SIGPIPE -----------------------------

static bool for_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static int bio_read(BIO *bio, char *out, int bytes) {
  const struct tls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(tls->fd, out, (size_t)bytes, MSG_DONTWAIT);
  if (n < 0 && for_now(errno)) BIO_set_retry_read(bio);
  return (int)n;
}

static int bio_write(BIO *bio, const char *data, int bytes) {
  const struct tls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(tls->fd, data, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && for_now(errno)) BIO_set_retry_write(bio);
  return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
  (void)bio, (void)number, (void)pointer;
  return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *make_bio_method(void) {
  BIO_METHOD *method =
      BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
  if (method && BIO_meth_set_read(method, bio_read) == 1 &&
      BIO_meth_set_write(method, bio_write) == 1 && BIO_meth_set_ctrl(method, bio_ctrl) == 1)
    return method;
  BIO_meth_free(method);
  return NULL;
}

// ---- why it failed, in words --------------------------------------------------------------------

static size_t add_text(char *out, size_t at, const char *text) {
  const int n = snprintf(out + at, NAMES_BYTES - at, "%s%s", at ? ", " : "", text);
  return at + (size_t)n < NAMES_BYTES ? at + (size_t)n : NAMES_BYTES - 1;
}

// The host names and addresses that a certificate is for, as text.
static void names_of(const X509 *certificate, char out[NAMES_BYTES]) {
  size_t at = 0;
  out[0] = 0;
  GENERAL_NAMES *names =
      certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL) : NULL;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
    const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
    char text[INET6_ADDRSTRLEN] = "";
    if (name->type == GEN_DNS) {
      at = add_text(out, at, (const char *)ASN1_STRING_get0_data(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      const int bytes = ASN1_STRING_length(name->d.iPAddress);
      const int family = bytes == 4 ? AF_INET : bytes == 16 ? AF_INET6 : -1;
      if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text))
        at = add_text(out, at, text);
    }
  }
  GENERAL_NAMES_free(names);
  for (char *c = out; *c; c++) // what a certificate says must not drive a terminal
    if ((uint8_t)*c < 0x20 || (uint8_t)*c == 0x7f) *c = '?';
  if (at == 0) snprintf(out, NAMES_BYTES, "no name at all");
}

static void time_text(const ASN1_TIME *time, char out[64]) {
  struct tm at;
  if (ASN1_TIME_to_tm(time, &at) != 1 || strftime(out, 64, "%Y-%m-%d %H:%M:%S UTC", &at) == 0)
    snprintf(out, 64, "an unreadable time");
}

static void explain_verdict(struct tls *tls, int verdict, int depth, const X509 *certificate) {
  char names[NAMES_BYTES], when[64];
  const char *whose = depth ? "its authority's" : "the server's";
  switch (verdict) {
  case X509_V_ERR_HOSTNAME_MISMATCH:
  case X509_V_ERR_IP_ADDRESS_MISMATCH:
    names_of(certificate, names);
    snprintf(tls->error, sizeof tls->error,
             "the server's certificate is for %s, not for %s (--server-name NAME checks another)",
             names, tls->name);
    return;
  case X509_V_ERR_CERT_HAS_EXPIRED:
  case X509_V_ERR_CERT_NOT_YET_VALID: {
    const bool past = verdict == X509_V_ERR_CERT_HAS_EXPIRED;
    time_text(past ? X509_get0_notAfter(certificate) : X509_get0_notBefore(certificate), when);
    snprintf(tls->error, sizeof tls->error, "%s certificate %s %s", whose,
             past ? "has expired: it was good until" : "is not yet valid: it is good from", when);
    return;
  }
  case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
  case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
  case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
  case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
  case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
  case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    snprintf(tls->error, sizeof tls->error,
             "the server's certificate is not signed by an authority in %s (%s)%s",
             tls->context->ca[0] ? tls->context->ca : "the system's list",
             X509_verify_cert_error_string(verdict),
             tls->context->ca[0] ? "" : "; --cacert FILE names one");
    return;
  default:
    snprintf(tls->error, sizeof tls->error, "%s certificate: %s", whose,
             X509_verify_cert_error_string(verdict));
  }
}

// Asked about every certificate of the chain. A refused one is not kept, so its names and times are
// read here.
static int on_verdict(int ok, X509_STORE_CTX *store) {
  SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
  struct tls *tls = SSL_get_app_data(ssl);
  if (ok) return 1;
  tls->hopeless = true;
  explain_verdict(tls, X509_STORE_CTX_get_error(store), X509_STORE_CTX_get_error_depth(store),
                  X509_STORE_CTX_get_current_cert(store));
  return 0;
}

// What a peer or OpenSSL says, as far as a person can do something about it.
static const char *reason_words(int reason, bool shows_certificate) {
  switch (reason) {
  case SSL_R_WRONG_VERSION_NUMBER:
  case SSL_R_PACKET_LENGTH_TOO_LONG:
  case SSL_R_UNEXPECTED_MESSAGE:
    return "the server does not speak TLS here (clear text needs no --tls)";
  case SSL_R_UNEXPECTED_EOF_WHILE_READING:
    return "the server closed the connection without an end of TLS";
  case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    return "the server asks for a client certificate: --cert and --key";
  case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    return shows_certificate ? "the server refused the handshake"
                             : "the server refused the handshake; if it asks for a client "
                               "certificate: --cert and --key";
  case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    return "the server does not know the authority of the certificate in --cert";
  case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    return "the server says that the certificate in --cert has expired";
  case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    return "the server does not accept the certificate in --cert";
  case SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL:
    return "the server does not speak HTTP/2 over TLS";
  case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
  case SSL_R_UNSUPPORTED_PROTOCOL:
    return "the server speaks neither TLS 1.2 nor 1.3";
  default:
    return NULL;
  }
}

static ssize_t give_up(struct tls *tls, int code, int error) {
  const unsigned long queued = ERR_peek_last_error();
  tls->over = true;
  ERR_clear_error();
  if (tls->hopeless) return -1; // on_verdict has said why
  if (code == SSL_ERROR_ZERO_RETURN) {
    snprintf(tls->error, sizeof tls->error, "the server closed the connection");
  } else if (code == SSL_ERROR_SSL && queued) {
    const int reason = ERR_GET_REASON(queued);
    const char *words = reason_words(reason, SSL_get_certificate(tls->ssl) != NULL);
    if (!words) words = ERR_reason_error_string(queued);
    tls->hopeless = reason != SSL_R_UNEXPECTED_EOF_WHILE_READING;
    snprintf(tls->error, sizeof tls->error, "%s", words ? words : "the TLS handshake failed");
  } else {
    snprintf(tls->error, sizeof tls->error, "%s",
             error ? strerror(error) : "the server closed the connection");
  }
  return -1;
}

// ---- files --------------------------------------------------------------------------------------

// The first error in the queue is the cause; the later ones only say that a library failed.
static enum status bad_file(const char *option, const char *path, struct error *err) {
  const unsigned long code = ERR_peek_error();
  const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : NULL;
  if (!text) text = ERR_reason_error_string(code);
  ERR_clear_error();
  return error_set(err, STATUS_INVALID_ARGUMENT, "%s %s: %s", option, path,
                   text ? text : "not a PEM file of that kind");
}

// A prompt on the terminal would stop a script; a key under a passphrase is refused.
static int no_passphrase(char *out, int bytes, int writing, void *arg) {
  (void)out, (void)bytes, (void)writing;
  if (arg) *(bool *)arg = true;
  return -1;
}

static enum status load_own(SSL_CTX *ssl, const struct tls_files *files, struct error *err) {
  bool locked = false;
  if (SSL_CTX_use_certificate_chain_file(ssl, files->certificate) != 1)
    return bad_file("--cert", files->certificate, err);
  SSL_CTX_set_default_passwd_cb_userdata(ssl, &locked);
  const bool loaded = SSL_CTX_use_PrivateKey_file(ssl, files->key, SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(ssl, NULL);
  if (locked) {
    ERR_clear_error();
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--key %s: is under a passphrase; expected a key without one", files->key);
  }
  return loaded ? STATUS_OK : bad_file("--key", files->key, err);
}

static enum status load_files(SSL_CTX *ssl, const struct tls_files *files, struct error *err) {
  ERR_clear_error();
  SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
  if (files->ca && SSL_CTX_load_verify_locations(ssl, files->ca, NULL) != 1)
    return bad_file("--cacert", files->ca, err);
  if (!files->ca && SSL_CTX_set_default_verify_paths(ssl) != 1)
    return bad_file("--tls", "the system's authorities", err);
  return files->certificate ? load_own(ssl, files, err) : STATUS_OK;
}

enum status tls_context_open(const struct tls_files *files, struct tls_context **out,
                             struct error *err) {
  static const uint8_t h2[] = {2, 'h', '2'};
  struct tls_context *context = calloc(1, sizeof *context);
  enum status status = STATUS_RESOURCE_EXHAUSTED;
  if (!context) return error_set(err, status, "no memory for TLS");
  context->ssl = SSL_CTX_new(TLS_client_method());
  context->method = make_bio_method();
  if (!context->ssl || !context->method ||
      SSL_CTX_set_min_proto_version(context->ssl, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_alpn_protos(context->ssl, h2, sizeof h2) != 0) {
    status = error_set(err, status, "no memory for TLS");
    goto fail;
  }
  SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER, on_verdict);
  SSL_CTX_set_mode(context->ssl,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context->ssl, 1); // a read for many records instead of two for each
  SSL_CTX_set_default_read_buffer_len(context->ssl, 64 * 1024);
  snprintf(context->ca, sizeof context->ca, "%s", files->ca ? files->ca : "");
  status = load_files(context->ssl, files, err);
  if (status != STATUS_OK) goto fail;
  *out = context;
  return STATUS_OK;
fail:
  tls_context_close(context);
  return status;
}

void tls_context_close(struct tls_context *context) {
  if (!context) return;
  SSL_CTX_free(context->ssl);
  BIO_meth_free(context->method);
  free(context);
}

// ---- a connection -------------------------------------------------------------------------------

static bool expect_name(SSL *ssl, const char *name) {
  struct in6_addr address;
  const bool literal =
      inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
  if (literal) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

struct tls *tls_open(struct tls_context *context, int fd, const char *name) {
  struct tls *tls = calloc(1, sizeof *tls);
  BIO *bio = tls ? BIO_new(context->method) : NULL;
  if (tls) tls->ssl = SSL_new(context->ssl);
  if (!bio || !tls->ssl || !expect_name(tls->ssl, name)) {
    BIO_free(bio);
    if (tls) SSL_free(tls->ssl);
    free(tls);
    return NULL;
  }
  SSL_set_app_data(tls->ssl, tls);
  tls->context = context;
  tls->fd = fd;
  snprintf(tls->name, sizeof tls->name, "%s", name);
  BIO_set_data(bio, tls);
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl, bio, bio);
  SSL_set_connect_state(tls->ssl);
  return tls;
}

void tls_close(struct tls *tls) {
  if (!tls) return;
  if (tls->is_ready && !tls->over) (void)SSL_shutdown(tls->ssl);
  ERR_clear_error();
  SSL_free(tls->ssl);
  free(tls);
}

static bool chose_h2(const struct tls *tls) {
  const unsigned char *name;
  unsigned bytes;
  SSL_get0_alpn_selected(tls->ssl, &name, &bytes);
  return bytes == 2 && memcmp(name, "h2", 2) == 0;
}

// What a read or write came to: n bytes, 0 or -1, as the header says.
static ssize_t outcome(struct tls *tls, int rv, size_t bytes) {
  const int error = errno;
  tls->wants_write = false;
  if (!tls->is_ready && SSL_is_init_finished(tls->ssl)) {
    if (!chose_h2(tls)) {
      tls->over = tls->hopeless = true;
      snprintf(tls->error, sizeof tls->error, "the server does not speak HTTP/2 over TLS");
      return -1;
    }
    tls->is_ready = true;
  }
  if (rv == 1) return (ssize_t)bytes;
  const int code = SSL_get_error(tls->ssl, rv);
  tls->wants_write = code == SSL_ERROR_WANT_WRITE;
  if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) return 0;
  return give_up(tls, code, code == SSL_ERROR_SYSCALL ? error : 0);
}

ssize_t tls_read(struct tls *tls, uint8_t *out, size_t out_bytes) {
  size_t bytes = 0;
  if (tls->over) return -1;
  ERR_clear_error();
  errno = 0;
  const int rv = SSL_read_ex(tls->ssl, out, out_bytes, &bytes);
  return outcome(tls, rv, bytes);
}

ssize_t tls_write(struct tls *tls, const uint8_t *data, size_t bytes) {
  size_t written = 0;
  if (tls->over) return -1;
  ERR_clear_error();
  errno = 0;
  const int rv = SSL_write_ex(tls->ssl, data, bytes, &written);
  const ssize_t n = outcome(tls, rv, written);
  if (n >= 0) return n;
  // Whoever refuses us may have said why before the connection went: the reason counts, not the
  // broken pipe.
  uint8_t unused[64];
  ERR_clear_error();
  if (!tls->hopeless && SSL_read_ex(tls->ssl, unused, sizeof unused, &written) != 1 &&
      ERR_GET_LIB(ERR_peek_last_error()) == ERR_LIB_SSL)
    (void)give_up(tls, SSL_ERROR_SSL, 0);
  ERR_clear_error();
  return -1;
}

bool tls_wants_write(const struct tls *tls) {
  return tls->wants_write;
}

const char *tls_error(const struct tls *tls) {
  return tls->error;
}

bool tls_hopeless(const struct tls *tls) {
  return tls->hopeless;
}
