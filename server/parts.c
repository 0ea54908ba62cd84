#include "parts.h"
#include "daemon.h"

#include <stdio.h>

void daemon_report(const struct error *err, void *arg) {
  char text[ERROR_MESSAGE_BYTES + 320];
  fprintf(stderr, "error: %s\n", error_text(err, text, sizeof text));
  ++*(int *)arg;
}

enum status parts_open_devices(struct parts *parts, struct error *err) {
  return devices_open(parts->conf, &parts->devices, err);
}

static void parse_model(struct parts *parts, const char *path, int *n_errors) {
  struct model *model = NULL;
  struct error err;
  int before = *n_errors;
  struct plan_caps caps = devices_plan_caps(&parts->devices);
  enum status status = model_parse(path, parts->conf, &caps, daemon_report, n_errors, &model);
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
  for (struct model *dead = graveyard_take(&parts->graveyard), *next; dead; dead = next) {
    next = dead->next_dead;
    model_free(dead);
  }
  devices_close(&parts->devices);
  *parts = (struct parts){0};
}
