// --check: everything that a start would read, and nothing that it would take.
#include "daemon.h"
#include "parts.h"
#include "secrets.h"
#include "traces.h"

#include <stdio.h>

enum exit_code daemon_check(const struct server_conf *conf, int n_errors) {
  struct parts parts = {.conf = conf};
  struct error err;
  secrets_check(conf, &n_errors);
  traces_check(conf, &n_errors);
  if (parts_open_devices(&parts, &err) != STATUS_OK) daemon_report_setting(conf, &err, &n_errors);
  n_errors += parts_parse_models(&parts);
  if (n_errors == 0) {
    int n_models = registry_count(parts.registry);
    printf("ok: %d model%s, device %s\n", n_models, n_models == 1 ? "" : "s",
           parts.devices.backend->name);
  } else {
    fprintf(stderr, "%d error%s\n", n_errors, n_errors == 1 ? "" : "s");
  }
  parts_close(&parts);
  return n_errors == 0 ? EXIT_GOOD : EXIT_BAD_INPUT;
}
