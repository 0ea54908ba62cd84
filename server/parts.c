#include "parts.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon.h"
#include "sched/needs.h"

#include <stdio.h>

void daemon_report(const struct error *err, void *arg) {
  char text[ERROR_MESSAGE_BYTES + 320];
  fprintf(stderr, "error: %s\n", error_text(err, text, sizeof text));
  ++*(int *)arg;
}

void daemon_report_setting(const struct server_conf *conf, struct error *err, int *n_errors) {
  server_conf_locate(conf, err);
  daemon_report(err, n_errors);
}

enum status parts_open_devices(struct parts *parts, struct error *err) {
  return devices_open(parts->conf, &parts->devices, err);
}

static void parse_model(struct parts *parts, int i, int *n_errors) {
  const char *path = parts->conf->models[i];
  struct model *model = NULL;
  struct error err;
  int before = *n_errors;
  const bool opened = parts->devices.n > 0; // else the file alone is looked at
  struct plan_caps caps;
  if (opened) caps = devices_plan_caps(&parts->devices);
  enum status status =
      model_parse(path, parts->conf, opened ? &caps : NULL, daemon_report, n_errors, &model);
  if (status == STATUS_OK) {
    if (registry_add(parts->registry, model, &err) == STATUS_OK) return;
    model_put(model);
  } else if (*n_errors > before) {
    return; // reported
  } else {
    (void)error_set(&err, status, "model %s: %s", path, status_name(status));
  }
  server_conf_locate_model(parts->conf, i, &err);
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
    parse_model(parts, i, &n_errors);
  return n_errors;
}

static enum status bind_one(struct parts *parts, struct model *model, struct error *err) {
  struct devices *devices = &parts->devices;
  int64_t began_ns = clock_now_ns();
  enum status status = model_bind(model, devices->backend, devices->list, devices->n, err);
  if (status == STATUS_OK) status = audits_fill(&parts->audits, model, err);
  if (status != STATUS_OK) return status;
  needs_fill(model);
  model->graveyard = &parts->graveyard;
  log_info("model_loaded", "model %s version %s from %s in %lld ms", model->name, model->version,
           model->path, (long long)((clock_now_ns() - began_ns) / NS_PER_MS));
  return STATUS_OK;
}

enum status parts_bind(struct parts *parts, struct error *err) {
  enum status status = audits_open(parts->conf, &parts->devices, &parts->audits, err);
  for (int i = 0; i < registry_count(parts->registry) && status == STATUS_OK; i++)
    status = bind_one(parts, registry_at(parts->registry, i), err);
  return status;
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
