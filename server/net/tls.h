// TLS, sans-I/O: cipher text in and plain text out, and the other way. Only tls.c sees OpenSSL.
//
// TLS 1.2 and 1.3 with ALPN "h2", which the client must offer (RFC 9113, 3.2); for 1.2 only ciphers
// that HTTP/2 does not forbid; no renegotiation. With `client_ca` clients must show a certificate
// that it signed. Loop thread only, a server of its own for each loop.
#ifndef NET_TLS_H
#define NET_TLS_H

#include "base/slab.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tls_files {                           // PEM; the strings are borrowed for the server's life
  const char *certificate, *key, *client_ca; // client_ca: "" asks for no certificate
};

struct tls_server;
// INVALID_ARGUMENT: a file cannot be read, or they do not fit together; `err` names it.
MUST_USE enum status tls_server_open(const struct tls_files *files, struct tls_server **out,
                                     struct error *err);
void tls_server_close(struct tls_server *server); // connections may go on
// For a new connection: looks at most once a second whether the files have changed. If the new ones
// do not load, the old ones stay and the log says why.
void tls_server_refresh(struct tls_server *server, int64_t now_ns);

struct tls;
MUST_USE enum status tls_open(struct tls_server *server, struct tls **out);
void tls_close(struct tls *tls);
// Cipher text that came; borrowed until tls_read returns 0.
void tls_feed(struct tls *tls, const uint8_t *data, size_t bytes);
// Plain text; 0: all that was fed is used up; -1: the peer has ended it, or broke the protocol
// (tls_error).
ssize_t tls_read(struct tls *tls, uint8_t *out, size_t out_bytes);
bool tls_ready(const struct tls *tls); // the handshake is done, and the protocol is h2
// Encrypts from the front of `iov`; the bytes taken, 0 on failure. Only when tls_ready.
size_t tls_write(struct tls *tls, const struct iovec *iov, int n);
void tls_goodbye(struct tls *tls); // close_notify, behind all that was written. Once.
// Cipher text to send next. It stays where it is until tls_sent, whatever is written meanwhile.
struct slice tls_output(struct tls *tls);
void tls_sent(struct tls *tls, size_t bytes);
size_t tls_backlog(const struct tls *tls); // bytes of it in all
const char *tls_error(const struct tls *tls);

#endif
