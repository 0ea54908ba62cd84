#include "traces.h"
#include "daemon.h"
#include "trace/post.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// server.address of the spans: the host of server.listen or, where that is every address, this
// one's name. Lives as long as the process.
static char address[1024];

static void set_address(const char *listen) {
  const char *colon = strrchr(listen, ':');
  int bytes = colon ? (int)(colon - listen) : 0;
  snprintf(address, sizeof address, "%.*s", bytes, listen);
  bool any = address[0] == 0 || strcmp(address, "0.0.0.0") == 0 || strcmp(address, "[::]") == 0;
  if (any && gethostname(address, sizeof address - 1) != 0) address[0] = 0;
}

enum status traces_open(const struct server_conf *conf, struct exporter **out, struct error *err) {
  *out = NULL;
  if (!conf->trace_endpoint[0]) return STATUS_OK;
  set_address(conf->listen);
  struct exporter_options options = {.endpoint = conf->trace_endpoint,
                                     .ca = conf->trace_ca,
                                     .service = conf->trace_service,
                                     .address = address,
                                     .n_loops = (int)conf->loops,
                                     .queue = (int32_t)conf->trace_queue,
                                     .sampling = conf->trace_sampling,
                                     .delay_ms = conf->trace_delay_ms,
                                     .timeout_ms = conf->trace_timeout_ms};
  return exporter_open(&options, out, err);
}

void traces_check(const struct server_conf *conf, int *n_errors) {
  struct error err;
  const bool http = strncmp(conf->trace_endpoint, "http", 4) == 0; // else it is told already
  if (http && post_check(conf->trace_endpoint, &err) != STATUS_OK)
    daemon_report_setting(conf, &err, n_errors);
  if (conf->trace_ca[0] && access(conf->trace_ca, R_OK) != 0) {
    (void)error_set(&err, STATUS_NOT_FOUND, "trace.ca: cannot read %.200s", conf->trace_ca);
    daemon_report_setting(conf, &err, n_errors);
  }
}
