// "host:port" -> a bound, listening, non-blocking socket.
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include "base/status.h"
#include <stdbool.h>

// "0.0.0.0:8001", "localhost:0", "[::1]:8001", ":8001" (every address). INVALID_ARGUMENT: does not
// parse or resolve; UNAVAILABLE: in use or not ours; RESOURCE_EXHAUSTED: no descriptor. `err` names
// the address. *port: the bound one.
// `shared`: other sockets of this process listen there too (SO_REUSEPORT). `port_0`: the port to
// take instead of 0.
MUST_USE enum status address_listen(const char *address, bool shared, int port_0, int *fd,
                                    int *port, struct error *err);
// A Unix socket. What is left of a dead server there is removed; UNAVAILABLE if a living one has
// it, or something that is no socket.
MUST_USE enum status address_listen_unix(const char *path, int *fd, struct error *err);

#endif
