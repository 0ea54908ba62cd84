#include "secrets.h"
#include "daemon.h"

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

enum status secrets_open(const struct server_conf *conf, struct secrets *out, struct error *err) {
  *out = (struct secrets){.tls = {conf->tls_certificate, conf->tls_key, conf->tls_client_ca}};
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

void secrets_check(const struct server_conf *conf, int *n_errors) {
  struct error err;
  struct secrets secrets;
  struct tls_server *server = NULL;
  enum status status = secrets_open(conf, &secrets, &err);
  if (status == STATUS_OK && secrets_tls(&secrets))
    status = tls_server_open(&secrets.tls, &server, &err);
  if (status != STATUS_OK) daemon_report_setting(conf, &err, n_errors);
  tls_server_close(server);
  secrets_close(&secrets);
}
