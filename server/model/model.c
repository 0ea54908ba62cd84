// Life of a model: parse (file -> graph -> plans), bind (plans -> devices), counts. See model.h.
#include "model/model.h"
#include "base/log.h"
#include "model/model_conf.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- what it holds ----
static enum status memory_count(struct model *model, const char *device,
                                struct model_memory *memory, struct error *err) {
  memory->metrics = metrics_memory_add(model->name, model->version, device);
  if (memory->metrics == NULL)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "model \"%s\" version %s: no room for its metrics: too many names and "
                     "versions since the process started",
                     model->name, model->version);
  atomic_fetch_add_explicit(&memory->metrics->weights, memory->weights, memory_order_relaxed);
  atomic_fetch_add_explicit(&memory->metrics->arena, memory->arena, memory_order_relaxed);
  return STATUS_OK;
}

static void memory_uncount(const struct model_memory *memory) {
  if (memory->metrics == NULL) return;
  atomic_fetch_sub_explicit(&memory->metrics->weights, memory->weights, memory_order_relaxed);
  atomic_fetch_sub_explicit(&memory->metrics->arena, memory->arena, memory_order_relaxed);
}

static enum status count_all_memory(struct model *model, struct error *err) {
  const struct backend_ops *backend = model->backend;
  int64_t arena = 0;
  for (int m = 0; m < FUSION_MODES; m++)
    if (model->fusion_available[m] && model->plans[m]->arena_bytes > arena)
      arena = model->plans[m]->arena_bytes;
  model->host_memory.weights = weights_bytes(model->weights_owner);
  enum status code = memory_count(model, "host", &model->host_memory, err);
  for (int d = 0; d < model->n_devices && code == STATUS_OK; d++) {
    struct device *device = model->devices[d];
    struct model_memory *memory = &model->memory[d];
    char name[16];
    snprintf(name, sizeof name, "%s:%d", backend->name,
             backend->caps ? backend->caps(device)->index : d);
    memory->arena = arena;
    if (backend->weight_bytes) memory->weights = backend->weight_bytes(device, &model->weights);
    code = memory_count(model, name, memory, err);
  }
  return code;
}

void model_free(struct model *model) {
  memory_uncount(&model->host_memory);
  for (int d = 0; d < model->n_devices; d++)
    memory_uncount(&model->memory[d]);
  for (int d = 0; d < model->n_devices; d++)
    for (int m = 0; m < FUSION_MODES; m++)
      if (model->bound[d][m] != NULL) model->backend->unload(model->devices[d], model->bound[d][m]);
  for (int d = 0; d < model->n_devices; d++)
    for (int m = 0; m < FUSION_MODES; m++)
      free(model->audit[d][m]);
  for (int m = 0; m < FUSION_MODES; m++)
    if (model->plans[m] != NULL) plan_free(model->plans[m]);
  weights_close(model->weights_owner);
  graph_deinit(&model->graph);
  free(model);
}

void model_get(struct model *model) {
  int before = atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
  FW_ASSERT(before > 0);
}

void model_put(struct model *model) {
  // Release: what this thread did with the model comes before the free; acquire: the freeing thread
  // sees it.
  int before = atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel);
  FW_ASSERT(before > 0);
  if (before > 1) return;
  struct graveyard *graveyard = model->graveyard;
  if (!graveyard) {
    model_free(model);
    return;
  }
  // Release: whoever takes it sees all that was done with it.
  model->next_dead = atomic_load_explicit(&graveyard->first, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&graveyard->first, &model->next_dead, model,
                                                memory_order_release, memory_order_relaxed)) {
  }
  if (graveyard->on_arrival) graveyard->on_arrival(graveyard->arg);
}

struct model *graveyard_take(struct graveyard *graveyard) {
  return atomic_exchange_explicit(&graveyard->first, NULL, memory_order_acquire);
}

// The largest batch that the executor may form. A sequence has at least one token unless its mask
// is empty, so as many sequences as tokens is no narrower limit in practice.
static struct plan_limits limits_of(const struct model *model) {
  return (struct plan_limits){model->batch.max_tokens, model->batch.max_tokens, model->max_seqlen};
}

// FUSION_AUTO as a mode that is bound: another's, where both run the same kernels.
static void resolve_auto(struct model *model) {
  struct plan *plan = model->plans[FUSION_AUTO];
  bool wanted = model->fusion_available[FUSION_AUTO];
  model->auto_is = plan_same(plan, model->plans[FUSION_ON])    ? FUSION_ON
                   : plan_same(plan, model->plans[FUSION_OFF]) ? FUSION_OFF
                                                               : FUSION_AUTO;
  model->fusion_available[FUSION_AUTO] = false;
  if (wanted) model->fusion_available[model->auto_is] = true;
  if (model->fusion_default == FUSION_AUTO) model->fusion_default = model->auto_is;
}

// A step that nothing leads on from is legal, and most often a wrong name in another one's `in`.
static void tell_unused(const struct model *model) {
  const struct graph *graph = &model->graph;
  int32_t first = -1, n = 0;
  for (int32_t i = graph->n_nodes - 1; i >= 0; i--) {
    if (graph->nodes[i].op == OP_IDENTITY || plan_runs(model->plans[FUSION_OFF], i)) continue;
    first = i;
    n++;
  }
  if (n == 0) return;
  log_warn("step_unused", "%s:%d: no output needs \"%s\", so it is never computed%s", model->path,
           graph->nodes[first].line, graph->tensors[graph->nodes[first].out].name,
           n > 1 ? "; nor are others (explain has them)" : "");
}

static bool build_plans(struct model *model, const struct plan_caps *device_caps,
                        struct conf_report *report) {
  struct plan_limits limits = limits_of(model);
  struct plan_caps caps = *device_caps;
  caps.usual_tokens = model->fusion_tokens;
  for (int m = 0; m < FUSION_MODES; m++) {
    struct error err;
    if (plan_build(&model->graph, (enum fusion_mode)m, &caps, &limits, &model->plans[m], &err) ==
        STATUS_OK)
      continue;
    conf_fail_at(report, err.line, err.line != 0, "fusion %s: %s", fusion_name((enum fusion_mode)m),
                 err.message);
    return false;
  }
  resolve_auto(model);
  tell_unused(model);
  return true;
}

static enum status parse_into(struct model *model, const char *path, const struct server_conf *conf,
                              const struct plan_caps *caps, struct conf_report *report) {
  enum status code;
  if (strlen(path) >= sizeof model->path) {
    conf_fail_at(report, 0, 0, "a path of %zu bytes", strlen(path));
    return STATUS_INVALID_ARGUMENT;
  }
  memcpy(model->path, path, strlen(path) + 1);
  if (!model_conf_load(path, conf, caps, report, model, &code)) return code;
  model->weights = weights_table(model->weights_owner);
  if (caps != NULL && !build_plans(model, caps, report)) return STATUS_INVALID_ARGUMENT;
  return STATUS_OK;
}

enum status model_parse(const char *path, const struct server_conf *conf,
                        const struct plan_caps *caps, error_report report_fn, void *arg,
                        struct model **out) {
  struct conf_report report = {.file = path, .fn = report_fn, .arg = arg};
  struct model *model = calloc(1, sizeof *model);
  if (model == NULL || graph_init(&model->graph) != STATUS_OK) {
    conf_fail_at(&report, 0, 0, "out of memory");
    free(model);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  atomic_init(&model->refs, 1);
  enum status code = parse_into(model, path, conf, caps, &report);
  if (code == STATUS_OK)
    *out = model;
  else
    model_free(model);
  return code;
}

// Where its shadows are counted.
static enum status bind_shadow(struct model *model, struct error *err) {
  struct model_shadow *shadow = &model->shadow;
  if (shadow->share <= 0) return STATUS_OK;
  shadow->metrics = metrics_shadow_add(model->name, model->version, model->backend->name);
  bool ok = shadow->metrics != NULL;
  for (int o = 0; ok && o < model->n_outputs; o++) {
    if (model->plans[FUSION_OFF]->output_is_input[o] >= 0) continue; // nothing to compare
    shadow->outputs[o] = metrics_shadow_output(shadow->metrics, model->outputs[o].name);
    ok = shadow->outputs[o] != NULL;
  }
  if (ok) return STATUS_OK;
  return error_set(
      err, STATUS_RESOURCE_EXHAUSTED,
      "model \"%s\" version %s: no room for the metrics of its shadows: too many names "
      "since the process started",
      model->name, model->version);
}

enum status model_bind(struct model *model, const struct backend_ops *backend,
                       struct device **devices, int n_devices, struct error *err) {
  FW_ASSERT(model->n_devices == 0 && n_devices >= 1 && n_devices <= LIMIT_DEVICES);
  FW_ASSERT(model->plans[FUSION_ON] != NULL); // parsed with the caps of these devices
  enum status code = weights_fill(model->weights_owner, err);
  if (code != STATUS_OK) return code;
  model->weights = weights_table(model->weights_owner);
  model->backend = backend;
  model->devices = devices;
  model->n_devices = n_devices;
  // The most fused first: its side-by-side weights also hold what the others read one by one, and a
  // device that keeps weights in memory of its own shares them.
  static const enum fusion_mode order[FUSION_MODES] = {FUSION_ON, FUSION_AUTO, FUSION_OFF};
  for (int d = 0; d < n_devices; d++) {
    for (int i = 0; i < FUSION_MODES; i++) {
      enum fusion_mode m = order[i];
      if (!model->fusion_available[m]) continue;
      code = backend->load(devices[d], model->plans[m], &model->weights, &model->bound[d][m], err);
      if (code != STATUS_OK) return code; // model_put unloads what is bound
    }
  }
  weights_let_go(model->weights_owner);
  for (int m = 0; m < FUSION_MODES; m++) {
    if (!model->fusion_available[m]) continue;
    model->metrics[m] = metrics_model_add(model->name, model->version,
                                          fusion_name((enum fusion_mode)m), backend->name);
    // Serving uncounted is no option, and series are never taken back.
    if (model->metrics[m] == NULL)
      return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                       "model \"%s\" version %s: no room for its metrics: too many names and "
                       "versions since the process started",
                       model->name, model->version);
  }
  code = bind_shadow(model, err);
  return code == STATUS_OK ? count_all_memory(model, err) : code;
}
