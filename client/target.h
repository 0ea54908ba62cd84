// Where a server is: a URL into an address, the name to check its certificate for, and the
// :authority of its calls.
#ifndef CLIENT_TARGET_H
#define CLIENT_TARGET_H

#include "base/status.h"
#include <sys/socket.h>

#define TARGET_NAME_BYTES 256

struct target {
  struct sockaddr_storage address;
  socklen_t address_bytes;
  char name[TARGET_NAME_BYTES]; // host or literal address; "localhost" for a Unix socket
  char authority[TARGET_NAME_BYTES + 16];
  bool tls;   // the URL's scheme says so
  bool local; // loopback or a Unix socket: nobody reads along
};

// INVALID_ARGUMENT: `url` is not of the form host:port, [v6 address]:port or unix:PATH, with or
// without grpc://, http:// (clear text) or grpcs://, https:// (TLS) in front of a host.
// UNAVAILABLE: the name does not resolve.
MUST_USE enum status target_resolve(const char *url, struct target *out, struct error *err);
// "host:port" without a scheme into its parts. False when it is not of that form. Pure.
bool target_split(const char *text, char host[TARGET_NAME_BYTES], char port[16]);

#endif
