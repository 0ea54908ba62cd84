#include "audits.h"
#include "base/clock.h"

enum status audits_open(const struct server_conf *conf, const struct devices *devices,
                        struct audits *audits, struct error *err) {
  enum status status = STATUS_OK;
  for (int d = 0; conf->audit_mode != AUDIT_OFF && d < devices->n && status == STATUS_OK; d++) {
    struct audit_options options = {.mode = (enum audit_mode)conf->audit_mode,
                                    .backend = devices->backend,
                                    .device = devices->list[d],
                                    .name = devices->names[d],
                                    .interval_ns = conf->audit_interval_us * NS_PER_US,
                                    .window_ns = conf->audit_window_ms * NS_PER_MS,
                                    .period_ns = conf->audit_period_ms * NS_PER_MS,
                                    .wait_ns = conf->audit_wait_ms * NS_PER_MS,
                                    .band = (double)conf->audit_band / 100,
                                    .cpu = (double)conf->audit_cpu / 100};
    status = audit_open(&options, &audits->list[d], err);
    audits->n += status == STATUS_OK;
  }
  if (status == STATUS_OK && audits->n > 0) audit_metrics(audits);
  return status;
}

enum status audits_fill(const struct audits *audits, struct model *model, struct error *err) {
  enum status status = STATUS_OK;
  for (int d = 0; d < audits->n && status == STATUS_OK; d++)
    status = audit_targets_fill(model, d, audits->list[d]->options.name, err);
  return status;
}

enum status audits_start(const struct audits *audits, struct error *err) {
  enum status status = STATUS_OK;
  for (int d = 0; d < audits->n && status == STATUS_OK; d++)
    status = audit_start(audits->list[d], err);
  return status;
}

void audits_stop(const struct audits *audits) {
  for (int d = 0; d < audits->n; d++)
    audit_stop(audits->list[d]);
}

void audits_close(struct audits *audits) {
  for (int d = 0; d < audits->n; d++)
    audit_close(audits->list[d]);
  audits->n = 0;
}
