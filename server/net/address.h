// "host:port" -> a bound, listening, non-blocking socket.
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include "base/status.h"

// "0.0.0.0:8001", "localhost:0", "[::1]:8001", ":8001" (every address). INVALID_ARGUMENT: does not
// parse or resolve; UNAVAILABLE: in use or not ours; RESOURCE_EXHAUSTED: no descriptor. `err` names
// the address. *port: the bound one.
MUST_USE enum status address_listen(const char *address, int *fd, int *port, struct error *err);

#endif
