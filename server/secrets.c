#include "secrets.h"
#include "daemon.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

// Half of what TLS needs is a mistake, not clear text.
static enum status complete(const struct tls_files *tls, struct error *err) {
  bool certificate = tls->certificate[0], key = tls->key[0];
  if (certificate == key && (certificate || !tls->client_ca[0])) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "tls.%s: tls.%s is missing beside it",
                   certificate ? "certificate"
                   : key       ? "key"
                               : "client_ca",
                   certificate ? "key" : "certificate");
}

static struct tls_files files_of(const struct server_conf *conf) {
  return (struct tls_files){conf->tls_certificate, conf->tls_key, conf->tls_client_ca};
}

enum status secrets_open(const struct server_conf *conf, struct secrets *out, struct error *err) {
  *out = (struct secrets){.tls = files_of(conf)};
  enum status status = complete(&out->tls, err);
  if (status == STATUS_OK && conf->token_file[0])
    status = auth_open(conf->token_file, &out->auth, err);
  return status;
}

void secrets_close(struct secrets *secrets) {
  auth_close(secrets->auth);
  secrets->auth = NULL;
}

const struct tls_files *secrets_tls(const struct secrets *secrets) {
  return secrets->tls.certificate[0] ? &secrets->tls : NULL;
}

// Each file that cannot be read; false: there is one.
static bool readable(const struct server_conf *conf, const struct tls_files *tls, int *n_errors) {
  const char *const files[][2] = {
      {"certificate", tls->certificate}, {"key", tls->key}, {"client_ca", tls->client_ca}};
  bool all = true;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    struct error err;
    if (!files[i][1][0] || access(files[i][1], R_OK) == 0) continue;
    (void)error_set(&err, STATUS_INVALID_ARGUMENT, "tls.%s: %s: %s", files[i][0], files[i][1],
                    strerror(errno));
    daemon_report_setting(conf, &err, n_errors);
    all = false;
  }
  return all;
}

static void check_tls(const struct server_conf *conf, const struct tls_files *tls, int *n_errors) {
  struct error err;
  struct tls_server *server = NULL;
  enum status status = complete(tls, &err);
  if (!readable(conf, tls, n_errors) && status == STATUS_OK) return;
  if (status == STATUS_OK && tls->certificate[0]) status = tls_server_open(tls, &server, &err);
  if (status != STATUS_OK) daemon_report_setting(conf, &err, n_errors);
  tls_server_close(server);
}

void secrets_check(const struct server_conf *conf, int *n_errors) {
  const struct tls_files tls = files_of(conf);
  struct error err;
  struct auth *auth = NULL;
  check_tls(conf, &tls, n_errors);
  if (conf->token_file[0] && auth_open(conf->token_file, &auth, &err) != STATUS_OK)
    daemon_report_setting(conf, &err, n_errors);
  auth_close(auth);
}
