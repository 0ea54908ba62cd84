#include "api/api.h"
#include "api/descriptors.h"
#include "api/handlers.h"
#include "api/infer.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct method api_methods[] = {
#define METHOD(service, name, handler) {"/" service "/" name, handler, NULL},
#define STREAM(service, name, handler) {"/" service "/" name, handler, &handler##_stream},
#include "api/methods.def"
#undef METHOD
#undef STREAM
};
const int api_n_methods = sizeof api_methods / sizeof *api_methods;

enum status api_open(struct api *api, const struct api_options *options, struct error *err) {
  FW_ASSERT(options->n_loops > 0 && options->n_loops <= LIMIT_LOOPS);
  *api =
      (struct api){.registry = options->registry,
                   .n_loops = options->n_loops,
                   .stream_requests = options->stream_requests > 0 ? options->stream_requests : 64,
                   .device_name = options->device_name ? options->device_name : "",
                   .fallback = options->fallback ? options->fallback : "",
                   .audits = options->audits,
                   .rates_measured = options->rates_measured};
  api->model_control = options->model_control;
  api->loader = options->loader;
  api->explainer = options->explainer;
  infer_reply_setup();
  infer_log_setup((enum infer_log)options->log_requests);
  descriptors_setup();
  for (int i = 0; i < options->n_loops; i++) {
    enum status status = request_pool_open(options->requests_per_loop, &api->pools[i]);
    if (status == STATUS_OK) status = ring_init(&api->loops[i].asked, API_JOBS);
    if (status == STATUS_OK) status = ring_init(&api->loops[i].done, API_JOBS);
    if (status == STATUS_OK) status = ring_init(&api->loops[i].to_explain, API_EXPLAINS);
    if (status == STATUS_OK) status = ring_init(&api->loops[i].explained, API_EXPLAINS);
    if (status == STATUS_OK) continue;
    api_close(api);
    return error_set(err, status, "out of memory for %d requests", options->requests_per_loop);
  }
  return STATUS_OK;
}

void api_close(struct api *api) {
  for (int i = 0; i < api->n_loops; i++) {
    request_pool_close(api->pools[i]);
    api->pools[i] = NULL;
    repository_close(&api->loops[i]);
    explain_close(&api->loops[i]);
  }
}

void api_serve(struct api *api, struct executor *const *executors, int n_executors,
               const char *device) {
  FW_ASSERT(n_executors > 0 && n_executors <= LIMIT_DEVICES);
  for (int i = 0; i < n_executors; i++)
    api->executors[i] = executors[i];
  api->n_executors = n_executors;
  snprintf(api->device, sizeof api->device, "%s", device);
  // Release: a loop that reads SERVING sees the executors. Only LOADING becomes SERVING: a drain
  // that came first stays.
  int loading = API_LOADING;
  atomic_compare_exchange_strong(&api->state, &loading, API_SERVING);
  api_changed(api);
}

void api_connect(struct api *api, struct wake *const *wakes) {
  for (int i = 0; i < api->n_loops; i++)
    api->wakes[i] = wakes[i];
}

void api_changed(struct api *api) {
  atomic_fetch_add(&api->epoch, 1);
  for (int i = 0; i < api->n_loops; i++)
    if (api->wakes[i]) wake_signal(api->wakes[i]);
}

static bool has_passed(const struct api *api, int loop, uint32_t epoch) {
  uint32_t passed = atomic_load_explicit(&api->loops[loop].passed, memory_order_acquire);
  return (int32_t)(passed - epoch) >= 0;
}

bool api_pulse(struct api *api) {
  bool all = true;
  for (int i = 0; i < api->n_loops; i++)
    all = all && has_passed(api, i, api->pulse);
  if (!all) return false;
  api_changed(api);
  api->pulse = atomic_load(&api->epoch);
  return true;
}

bool api_quiesce(struct api *api, const _Atomic bool *give_up) {
  api_changed(api);
  uint32_t epoch = atomic_load(&api->epoch);
  for (int i = 0; i < api->n_loops; i++)
    while (!has_passed(api, i, epoch)) {
      if (atomic_load(give_up)) return false;
      usleep(200);
    }
  return true;
}

void api_drain(struct api *api) {
  int state = atomic_load(&api->state);
  // While models load there is nothing to drain, and no request may ever meet a missing executor.
  while (state == API_SERVING && !atomic_compare_exchange_weak(&api->state, &state, API_DRAINING)) {
  }
  api_changed(api);
}

void api_stuck(struct api *api, bool stuck) {
  if (atomic_exchange(&api->stuck, stuck) != stuck) api_changed(api);
}

bool api_ready(const struct api *api) {
  if (atomic_load(&api->state) != API_SERVING || atomic_load(&api->stuck)) return false;
  for (int i = 0; i < api->n_executors; i++)
    if (executor_lost(api->executors[i])) return false;
  return true;
}

void api_reap(struct rpc *rpc, int loop, void *app) {
  struct api *api = app;
  struct api_loop *mine = &api->loops[loop];
  uint32_t epoch = atomic_load(&api->epoch);
  if (epoch != mine->seen) {
    mine->seen = epoch;
    health_push(api, rpc, loop);
    // Release: whatever this loop did with a table of the registry lies before.
    atomic_store_explicit(&mine->passed, epoch, memory_order_release);
  }
  if (atomic_load(&api->state) == API_LOADING) return;
  repository_answer(api, rpc, loop);
  explain_answer(api, rpc, loop);
  for (int i = 0; i < api->n_executors; i++) {
    struct request *request;
    while ((request = executor_reap(api->executors[i], loop)))
      infer_finished(api, rpc, request);
  }
}

bool api_busy(int loop, void *app) {
  const struct api *api = app;
  if (atomic_load(&api->state) == API_LOADING) return true;
  for (int i = 0; i < api->n_executors; i++)
    if (executor_outstanding(api->executors[i], loop) > 0) return true;
  return false;
}

// ---- helpers of cold methods ----
void reply_message(struct call *call, const ProtobufCMessage *message) {
  uint8_t small[1024], *packed = small;
  size_t bytes = protobuf_c_message_get_packed_size(message);
  if (bytes > sizeof small && !(packed = malloc(bytes))) {
    call_fail(call, STATUS_RESOURCE_EXHAUSTED, "out of memory for the reply");
    return;
  }
  protobuf_c_message_pack(message, packed);
  call_reply(call, packed, bytes, NULL, 0, NULL, NULL);
  if (packed != small) free(packed);
}

// An entry of that name that serves nothing now.
static const struct registry_entry *known_entry(const struct api *api, struct slice name,
                                                struct slice version) {
  const struct registry_table *table = registry_table(api->registry);
  for (int i = table->n - 1; i >= 0; i--) {
    const struct registry_entry *entry = &table->entries[i];
    if (!entry->model && slice_is(name, entry->name, strlen(entry->name)) &&
        (version.bytes == 0 || slice_is(version, entry->version, strlen(entry->version))))
      return entry;
  }
  return NULL;
}

static enum status not_served(const struct api *api, struct slice name, struct error *err) {
  const char *near = registry_nearest(api->registry, name);
  return error_set(err, STATUS_NOT_FOUND, "model_name: no model \"%.*s\" is served%s%s%s",
                   TEXT_ARGS(name), near ? "; did you mean \"" : "", near ? near : "",
                   near ? "\"?" : "");
}

struct model *model_find(struct api *api, struct slice name, struct slice version,
                         enum status *status, struct error *err) {
  if (atomic_load(&api->state) == API_LOADING) {
    *status = error_set(err, STATUS_UNAVAILABLE, "models are still loading");
    return NULL;
  }
  struct model *model = registry_find(api->registry, name, version);
  if (model) return model;
  const struct registry_entry *known = known_entry(api, name, version);
  if (known) {
    *status = error_set(err, STATUS_UNAVAILABLE, "model \"%s\" version %s does not serve: %s%s%s",
                        known->name, known->version, model_state_name(known->state),
                        known->reason[0] ? ", " : "", known->reason);
    return NULL;
  }
  if (version.bytes > 0 &&
      (model = registry_find(api->registry, name, (struct slice){name.data, 0})))
    *status = error_set(err, STATUS_NOT_FOUND,
                        "model_version: model \"%.*s\" has no version \"%.*s\"; it has \"%s\"",
                        TEXT_ARGS(name), TEXT_ARGS(version), model->version);
  else
    *status = not_served(api, name, err);
  return NULL;
}

const char *datatype_name(enum dtype dtype) {
  static const char *const names[DTYPE_COUNT] = {"", "FP32", "FP16", "BF16", "INT64", "INT32"};
  return dtype < DTYPE_COUNT ? names[dtype] : "";
}
