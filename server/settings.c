#include "settings.h"

#include <string.h>

typedef void (*report_fn)(const struct error *err, void *n_errors);

static bool set_text(char *out, size_t out_bytes, const char *value, const char *what,
                     report_fn report, int *n_errors) {
  if (!value) return true;
  size_t bytes = strlen(value);
  if (bytes < out_bytes) {
    memcpy(out, value, bytes + 1);
    return true;
  }
  struct error err;
  (void)error_set(&err, STATUS_INVALID_ARGUMENT, "%s: longer than %zu bytes", what, out_bytes - 1);
  report(&err, n_errors);
  return false;
}

int settings_read(const struct args *args, struct server_conf *conf, report_fn report) {
  int n_errors = 0;
  server_conf_defaults(conf);
  if (args->config && server_conf_load(args->config, conf, report, &n_errors) != STATUS_OK &&
      n_errors == 0)
    n_errors = 1;
  set_text(conf->listen, sizeof conf->listen, args->listen, "--listen", report, &n_errors);
  if (args->listen) server_conf_forget_place(conf, conf->listen);
  set_text(conf->admin, sizeof conf->admin, args->admin, "--admin", report, &n_errors);
  if (args->admin) server_conf_forget_place(conf, conf->admin);
  for (int i = 0; i < args->n_models; i++) {
    if (conf->n_models == LIMIT_MODELS) {
      struct error err;
      (void)error_set(&err, STATUS_INVALID_ARGUMENT, "more than %d models", LIMIT_MODELS);
      report(&err, &n_errors);
      break;
    }
    if (args->models[i][0] == '\0') {
      struct error err;
      (void)error_set(&err, STATUS_INVALID_ARGUMENT, "--model: the path is empty");
      report(&err, &n_errors);
    } else if (set_text(conf->models[conf->n_models], sizeof conf->models[0], args->models[i],
                        "--model", report, &n_errors))
      conf->n_models++;
  }
  return n_errors;
}
