// TLS of the client over a non-blocking socket: 1.2 and 1.3, ALPN "h2", the server's chain and name
// always checked. Only tls.c sees OpenSSL. Loop thread only.
#ifndef CLIENT_TLS_H
#define CLIENT_TLS_H

#include "base/status.h"
#include <stdint.h>
#include <sys/types.h>

struct tls_files {               // PEM; NULL or a path
  const char *ca;                // whom to trust; NULL: the system's authorities
  const char *certificate, *key; // what to show to servers that ask; both or none
};

struct tls_context;
// INVALID_ARGUMENT: a file cannot be read, or they do not fit together; `err` names it.
MUST_USE enum status tls_context_open(const struct tls_files *files, struct tls_context **out,
                                      struct error *err);
void tls_context_close(struct tls_context *context);

struct tls;
// `name`: a host name or a literal address that the certificate must be for. NULL: no memory.
MUST_USE struct tls *tls_open(struct tls_context *context, int fd, const char *name);
void tls_close(struct tls *tls); // close_notify goes out if it can; the socket stays open
// Both shake hands by themselves first. Bytes; 0: not now, wait for the socket to be readable, and
// writable if tls_wants_write; -1: over, tls_error says why.
ssize_t tls_read(struct tls *tls, uint8_t *out, size_t out_bytes);
ssize_t tls_write(struct tls *tls, const uint8_t *data, size_t bytes);
bool tls_wants_write(const struct tls *tls);
const char *tls_error(const struct tls *tls); // a sentence
bool tls_hopeless(const struct tls *tls);     // trying again would end the same way

#endif
