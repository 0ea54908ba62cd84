// Loading with every single allocation failing in turn: settings, model files, plans, binding,
// scheduler. Each failure must come back as a status (never a crash, never a leak under a
// sanitizer), or be harmless.
#include "base/log.h"
#include "conf/server_conf.h"
#include "fault/alloc.h"
#include "model/model.h"
#include "sched/executor.h"
#include "sched/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server_conf conf;
static int n_reported;

static void report(const struct error *err, void *arg) {
  (void)err;
  (void)arg;
  n_reported++;
}

static enum status bind_and_open(struct model *model, struct device *device, struct error *err) {
  static struct device *devices[1];
  devices[0] = device;
  enum status status = model_bind(model, &backend_cpu, devices, 1, err);
  if (status != STATUS_OK) return status;
  needs_fill(model);
  struct executor *executor;
  struct wake wake;
  wake_init(&wake, NULL, NULL);
  struct executor_options options = {.backend = &backend_cpu,
                                     .device = device,
                                     .n_loops = 1,
                                     .loop_wakes = {&wake},
                                     .queue_requests = 4,
                                     .lanes = 1,
                                     .arena_bytes = model->plans[FUSION_OFF]->arena_bytes +
                                                    model->plans[FUSION_ON]->arena_bytes,
                                     .max_tokens = 32,
                                     .max_seqs = 32,
                                     .models = &model,
                                     .n_models = 1};
  status = executor_open(&options, &executor, err);
  if (status == STATUS_OK) executor_close(executor);
  return status;
}

// One load from nothing to a model that has run, and down again.
static enum status load(const char *path) {
  struct error err;
  struct device *device;
  struct backend_options options = {.threads = 1};
  server_conf_defaults(&conf);
  enum status status = server_conf_load("config/server.yaml", &conf, report, NULL);
  if (status != STATUS_OK) return status;
  if ((status = backend_cpu.open(&options, &device, &err)) != STATUS_OK) return status;
  struct registry *registry = NULL;
  struct model *model = NULL;
  status = registry_open(&registry);
  if (status == STATUS_OK)
    status = model_parse(path, &conf, &backend_cpu.caps(device)->plan, report, NULL, &model);
  if (status == STATUS_OK && (status = registry_add(registry, model, &err)) != STATUS_OK)
    model_put(model);
  if (status == STATUS_OK) status = bind_and_open(model, device, &err);
  registry_close(registry);
  backend_cpu.close(device);
  return status;
}

static int failures(const char *path) {
  int64_t n = 0, refused = 0;
  for (bool fired = true; fired; n++) {
    n_reported = 0;
    fault_arm(n);
    enum status status = load(path);
    fired = fault_disarm();
    if (!fired && status != STATUS_OK) {
      fprintf(stderr, "%s: allocation %lld: nothing failed, but the load ended %s\n", path,
              (long long)n, status_name(status));
      return 1;
    }
    refused += status != STATUS_OK;
  }
  printf("%s: %lld allocations failed in turn, %lld loads refused\n", path, (long long)n - 1,
         (long long)refused);
  // Most allocations are needed: if hardly any failure shows, failures are swallowed.
  if (n < 20 || refused < (n - 1) / 2) return fprintf(stderr, "%s: too few refusals\n", path), 1;
  return 0;
}

int main(void) {
  log_setup(LOG_ERROR, LOG_TEXT);
  if (load("tests/fault/tiny.yaml") != STATUS_OK)
    return fprintf(stderr, "the model does not load at all\n"), 1;
  return failures("tests/fault/tiny.yaml");
}
