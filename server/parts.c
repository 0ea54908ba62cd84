#include "parts.h"
#include "base/log.h"
#include "daemon.h"

#include <stdio.h>

void daemon_report(const struct error *err, void *arg) {
  char text[ERROR_MESSAGE_BYTES + 320];
  fprintf(stderr, "error: %s\n", error_text(err, text, sizeof text));
  ++*(int *)arg;
}

// `device.kind`: 0 auto, 1 cpu, 2 cuda (keys.def). auto takes the best that is there; a name is a
// demand.
static const struct backend_ops *choose_backend(const struct server_conf *conf, struct error *err) {
  static const char *const names[] = {NULL, "cpu", "cuda"};
  FW_ASSERT(conf->device_kind >= 0 && conf->device_kind < (int)(sizeof names / sizeof *names));
  const char *name = names[conf->device_kind];
  for (int i = 0; !name && backend_table[i]; i++)
    if (backend_table[i]->probe() > 0) return backend_table[i];
  const struct backend_ops *backend = name ? backend_find(name) : NULL;
  if (!backend) {
    (void)error_set(err, STATUS_UNAVAILABLE,
                    "device.kind: found \"%s\", but this build has no such back end",
                    name ? name : "auto");
    return NULL;
  }
  if (backend->probe() > 0) return backend;
  (void)error_set(err, STATUS_UNAVAILABLE,
                  "device.kind: found \"%s\", but this machine has no such device", name);
  return NULL;
}

enum status parts_open_devices(struct parts *parts, struct error *err) {
  parts->backend = choose_backend(parts->conf, err);
  if (!parts->backend) return STATUS_UNAVAILABLE;
  int n = parts->backend->probe();
  if (n > LIMIT_DEVICES) n = LIMIT_DEVICES;
  for (int i = 0; i < n; i++) {
    struct backend_options options = {.index = i, .threads = (int)parts->conf->threads};
    enum status status = parts->backend->open(&options, &parts->devices[i], err);
    if (status != STATUS_OK) return status;
    parts->n_devices++;
    const struct device_caps *caps = parts->backend->caps(parts->devices[i]);
    log_info("device_open", "device %s:%d: %s, %d threads", parts->backend->name, i,
             caps->description, caps->n_threads);
  }
  return STATUS_OK;
}

static void parse_model(struct parts *parts, const char *path, int *n_errors) {
  struct model *model = NULL;
  struct error err;
  int before = *n_errors;
  const struct plan_caps *caps = &parts->backend->caps(parts->devices[0])->plan;
  enum status status = model_parse(path, parts->conf, caps, daemon_report, n_errors, &model);
  if (status == STATUS_OK) {
    if (registry_add(parts->registry, model, &err) == STATUS_OK) return;
    model_put(model);
  } else if (*n_errors > before) {
    return; // reported
  } else {
    (void)error_set(&err, status, "model %s: %s", path, status_name(status));
  }
  daemon_report(&err, n_errors);
}

int parts_parse_models(struct parts *parts) {
  int n_errors = 0;
  struct error err;
  if (registry_open(&parts->registry) != STATUS_OK) {
    (void)error_set(&err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the models");
    daemon_report(&err, &n_errors);
    return n_errors;
  }
  for (int i = 0; i < parts->conf->n_models; i++)
    parse_model(parts, parts->conf->models[i], &n_errors);
  return n_errors;
}

void parts_close(struct parts *parts) {
  registry_close(parts->registry);
  for (int i = 0; i < parts->n_devices; i++)
    parts->backend->close(parts->devices[i]);
  *parts = (struct parts){0};
}
