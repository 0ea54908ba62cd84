// What the settings say about who may connect and call: certificates and tokens.
#ifndef SECRETS_H
#define SECRETS_H

#include "conf/server_conf.h"
#include "net/tls.h"
#include "rpc/auth.h"

struct secrets {
  struct tls_files tls; // borrowed from the settings
  struct auth *auth;    // NULL: no token is asked for
};

// INVALID_ARGUMENT: half of what TLS needs, or tokens that cannot be read. Certificates are read by
// net_open.
MUST_USE enum status secrets_open(const struct server_conf *conf, struct secrets *out,
                                  struct error *err);
void secrets_close(struct secrets *secrets);
const struct tls_files *secrets_tls(const struct secrets *secrets); // NULL: clear text
// Reads all of it and reports what is wrong (daemon_report).
void secrets_check(const struct server_conf *conf, int *n_errors);

#endif
