// RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload. Loading is long work of a thread of
// its own: a call becomes a job there and is answered when the job comes back.
#include "api/handlers.h"
#include "base/log.h"
#include "rpc/wire.h"

#include "open_inference.pb-c.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Names that protobuf-c has unpacked are C strings, which a NUL byte would make those of others:
// fields 1 and 2, where all three requests have their names, are looked at before.
static ProtobufCMessage *unpack(struct call *call, const ProtobufCMessageDescriptor *type) {
  struct slice message = call_message(call);
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(message, &names, &err);
  if (status != STATUS_OK) {
    call_fail(call, status,
              status == STATUS_INVALID_ARGUMENT
                  ? "repository_name or model_name contains a NUL byte; names have none"
                  : "the message is not a valid protobuf message, or a name is not UTF-8");
    return NULL;
  }
  ProtobufCMessage *request = protobuf_c_message_unpack(type, NULL, message.bytes, message.data);
  if (!request) call_fail(call, STATUS_INTERNAL, "the message is not a valid protobuf message");
  return request;
}

static bool repository_ok(struct call *call, const char *name) {
  if (name[0] == 0) return true;
  call_fail(call, STATUS_INVALID_ARGUMENT,
            "repository_name: there is one repository only, and its name is empty");
  return false;
}

// ---- index ----
typedef Inference__RepositoryIndexResponse__ModelIndex model_index;

static void index_fill(const struct api *api, const struct registry_entry *entry,
                       model_index *out) {
  bool loading = atomic_load(&api->state) == API_LOADING;
  inference__repository_index_response__model_index__init(out);
  out->name = (char *)(uintptr_t)entry->name; // packing only reads
  out->version = (char *)(uintptr_t)entry->version;
  out->state = (char *)(uintptr_t)model_state_name(loading ? MODEL_LOADING : entry->state);
  out->reason = (char *)(uintptr_t)entry->reason;
}

void repository_index(struct call *call, void *app) {
  const struct api *api = app;
  ProtobufCMessage *message = unpack(call, &inference__repository_index_request__descriptor);
  if (!message) return;
  const Inference__RepositoryIndexRequest *request = (const void *)message;
  const struct registry_table *table = registry_table(api->registry);
  model_index entries[LIMIT_MODELS], *list[LIMIT_MODELS];
  Inference__RepositoryIndexResponse reply = INFERENCE__REPOSITORY_INDEX_RESPONSE__INIT;
  bool ok = repository_ok(call, request->repository_name);
  for (int i = 0; i < table->n && ok; i++) {
    if (request->ready && (!table->entries[i].model || !api_ready(api))) continue;
    index_fill(api, &table->entries[i], &entries[i]);
    list[reply.n_models++] = &entries[i];
  }
  reply.models = list;
  protobuf_c_message_free_unpacked(message, NULL);
  if (ok) reply_message(call, &reply.base);
}

// ---- load and unload ----
static enum status may_ask(const struct api *api, const char *name, struct error *err) {
  int state = atomic_load(&api->state);
  if (!api->model_control || !api->loader)
    return error_set(err, STATUS_PERMISSION_DENIED,
                     "models are not loaded or unloaded by clients here (server.model_control)");
  if (state == API_LOADING) return error_set(err, STATUS_UNAVAILABLE, "models are still loading");
  if (state != API_SERVING)
    return error_set(err, STATUS_UNAVAILABLE, "the server is shutting down");
  if (name[0] == 0 || strlen(name) >= LIMIT_NAME_BYTES)
    return error_set(err, STATUS_INVALID_ARGUMENT, "model_name: found %zu bytes, expected 1 to %d",
                     strlen(name), LIMIT_NAME_BYTES - 1);
  return STATUS_OK;
}

static void ask(struct api *api, struct call *call, bool load, const char *name) {
  struct error err;
  struct api_loop *loop = &api->loops[call_loop(call)];
  enum status status = may_ask(api, name, &err);
  struct api_job *job = NULL;
  if (status == STATUS_OK && (loop->n_jobs == API_JOBS || !(job = calloc(1, sizeof *job))))
    status = error_set(&err, STATUS_RESOURCE_EXHAUSTED, "too many models are to be loaded at once");
  if (!job) {
    call_fail(call, status, err.message);
    return;
  }
  job->load = load;
  job->call = call_ref_of(call);
  snprintf(job->name, sizeof job->name, "%s", name);
  loop->n_jobs++;
  bool pushed = ring_push(&loop->asked, job);
  FW_ASSERT(pushed);
  wake_signal(api->loader);
}

void repository_model_load(struct call *call, void *app) {
  ProtobufCMessage *message = unpack(call, &inference__repository_model_load_request__descriptor);
  if (!message) return;
  const Inference__RepositoryModelLoadRequest *request = (const void *)message;
  // Triton's "config" and "file:..." would bring a model's files along.
  if (request->n_parameters > 0)
    call_fail(call, STATUS_INVALID_ARGUMENT,
              "parameters: none is taken; what is loaded is the model's file as it is");
  else if (repository_ok(call, request->repository_name))
    ask(app, call, true, request->model_name);
  protobuf_c_message_free_unpacked(message, NULL);
}

void repository_model_unload(struct call *call, void *app) {
  ProtobufCMessage *message = unpack(call, &inference__repository_model_unload_request__descriptor);
  if (!message) return;
  const Inference__RepositoryModelUnloadRequest *request = (const void *)message;
  bool ok = true;
  for (size_t i = 0; i < request->n_parameters && ok; i++)
    ok = strcmp(request->parameters[i]->key, "unload_dependents") == 0;
  if (!ok)
    call_fail(call, STATUS_INVALID_ARGUMENT,
              "parameters: expected none, or \"unload_dependents\", which changes nothing");
  else if (repository_ok(call, request->repository_name))
    ask(app, call, false, request->model_name);
  protobuf_c_message_free_unpacked(message, NULL);
}

// ---- to the thread that loads, and back ----
struct api_job *api_job_next(struct api *api) {
  for (int i = 0; i < api->n_loops; i++) {
    struct api_job *job = ring_pop(&api->loops[i].asked);
    if (job) return job;
  }
  return NULL;
}

void api_job_done(struct api *api, struct api_job *job) {
  int loop = job->call.loop;
  bool pushed = ring_push(&api->loops[loop].done, job); // no more than API_JOBS are about
  FW_ASSERT(pushed);
  if (api->wakes[loop]) wake_signal(api->wakes[loop]);
}

void repository_answer(struct api *api, struct rpc *rpc, int loop) {
  struct api_job *job;
  while ((job = ring_pop(&api->loops[loop].done))) {
    struct call *call = call_find(rpc, job->call);
    if (call && job->status == STATUS_OK)
      call_reply(call, NULL, 0, NULL, 0, NULL, NULL); // both replies have no fields
    else if (call)
      call_fail(call, job->status, job->err.message);
    api->loops[loop].n_jobs--;
    free(job);
  }
}

void repository_close(struct api_loop *loop) {
  void *job;
  while (loop->asked.slots && (job = ring_pop(&loop->asked)))
    free(job);
  while (loop->done.slots && (job = ring_pop(&loop->done)))
    free(job);
  ring_deinit(&loop->asked);
  ring_deinit(&loop->done);
}
