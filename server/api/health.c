// grpc.health.v1: Check, List and Watch.
//
// Names: "" is the whole server; a gRPC service, which has the same health, since a server that
// cannot infer serves nobody; a model, as "name" (any version of it) or "name/version". A model is
// NOT_SERVING while the server is, or while nothing serves under its name.
#include "api/handlers.h"

#include "health.pb-c.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Grpc__Health__V1__HealthCheckResponse response;
enum {
  SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING,
  NOT_SERVING = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING,
  SERVICE_UNKNOWN = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN,
};

static const char *const services[] = {
// with repeats, next to each other
#define METHOD(service, name, handler) service,
#define STREAM(service, name, handler) service,
#include "api/methods.def"
#undef METHOD
#undef STREAM
};
#define N_SERVICES ((int)(sizeof services / sizeof *services))
#define NAME_BYTES (LIMIT_NAME_BYTES + 34) // name/version

static const char *entry_name(const struct registry_entry *entry, char out[NAME_BYTES]) {
  snprintf(out, NAME_BYTES, "%s/%s", entry->name, entry->version);
  return out;
}

static bool is(struct slice name, const char *text) {
  return slice_is(name, text, strlen(text));
}

// SERVICE_UNKNOWN: nobody of that name is here.
static int model_health(const struct api *api, struct slice name) {
  const struct registry_table *table = registry_table(api->registry);
  int health = SERVICE_UNKNOWN;
  for (int i = 0; i < table->n; i++) {
    const struct registry_entry *entry = &table->entries[i];
    char full[NAME_BYTES];
    if (!is(name, entry->name) && !is(name, entry_name(entry, full))) continue;
    if (entry->model && api_ready(api)) return SERVING;
    health = NOT_SERVING;
  }
  return health;
}

static int health_of(const struct api *api, struct slice name) {
  bool known = name.bytes == 0;
  for (int i = 0; i < N_SERVICES && !known; i++)
    known = is(name, services[i]);
  if (!known) return model_health(api, name);
  return api_ready(api) ? SERVING : NOT_SERVING;
}

void health_check(struct call *call, void *app) {
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  int health = status == STATUS_OK ? health_of(app, names.first) : SERVICE_UNKNOWN;
  if (status == STATUS_OK && health == SERVICE_UNKNOWN)
    status = error_set(&err, STATUS_NOT_FOUND, "service: no service or model \"%.*s\" here",
                       TEXT_ARGS(names.first));
  if (status != STATUS_OK) {
    call_fail(call, status, err.message);
    return;
  }
  response reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
  reply.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)health;
  reply_message(call, &reply.base);
}

// ---- List ----
struct list_entry {
  Grpc__Health__V1__HealthListResponse__StatusesEntry message;
  response health;
  char name[NAME_BYTES];
};

struct list {
  struct list_entry *entries;
  Grpc__Health__V1__HealthListResponse__StatusesEntry **pointers;
  size_t n;
};

static void list_add(struct list *list, const struct api *api, const char *name) {
  for (size_t i = 0; i < list->n; i++) // two versions of one model have one name
    if (strcmp(list->entries[i].name, name) == 0) return;
  struct list_entry *entry = &list->entries[list->n];
  grpc__health__v1__health_list_response__statuses_entry__init(&entry->message);
  grpc__health__v1__health_check_response__init(&entry->health);
  snprintf(entry->name, sizeof entry->name, "%s", name);
  entry->health.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)health_of(
      api, (struct slice){(const uint8_t *)name, strlen(name)});
  entry->message.key = entry->name;
  entry->message.value = &entry->health;
  list->pointers[list->n++] = &entry->message;
}

void health_list(struct call *call, void *app) {
  const struct api *api = app;
  const struct registry_table *table = registry_table(api->registry);
  size_t most = 1 + N_SERVICES + 2 * (size_t)table->n;
  // NOLINTNEXTLINE(bugprone-sizeof-expression): protobuf-c wants an array of pointers
  struct list list = {calloc(most, sizeof *list.entries), calloc(most, sizeof *list.pointers), 0};
  if (list.entries && list.pointers) {
    list_add(&list, api, "");
    for (int i = 0; i < N_SERVICES; i++)
      list_add(&list, api, services[i]);
    for (int i = 0; i < table->n; i++) {
      char full[NAME_BYTES];
      list_add(&list, api, table->entries[i].name);
      list_add(&list, api, entry_name(&table->entries[i], full));
    }
    Grpc__Health__V1__HealthListResponse reply = GRPC__HEALTH__V1__HEALTH_LIST_RESPONSE__INIT;
    reply.statuses = list.pointers;
    reply.n_statuses = list.n;
    reply_message(call, &reply.base);
  } else {
    call_fail(call, STATUS_RESOURCE_EXHAUSTED, "out of memory for the reply");
  }
  free(list.entries);
  free(list.pointers);
}

// ---- Watch ----
struct watcher {
  struct watcher *next, *previous;
  struct api_loop *loop;
  struct call_ref call;
  int told;
  size_t name_bytes;
  uint8_t name[NAME_BYTES];
};

// The call is gone, or its connection is being drained.
static void watcher_free(void *arg, enum status why) {
  (void)why;
  struct watcher *watcher = arg;
  if (watcher->next) watcher->next->previous = watcher->previous;
  if (watcher->previous)
    watcher->previous->next = watcher->next;
  else
    watcher->loop->watchers = watcher->next;
  free(watcher);
}

// Two bytes: field 1, a varint. False: the call ended for want of memory, and the watcher with it.
static bool tell(struct call *call, struct watcher *watcher, int health) {
  const uint8_t message[] = {1 << 3, (uint8_t)health};
  watcher->told = health;
  return call_send(call, message, sizeof message, NULL, 0, NULL, NULL);
}

// A client that does not read is told the newest only: what waits for its window is one message.
static void told(struct call *call, void *arg) {
  struct watcher *watcher = arg;
  const struct api *api = call_app(call);
  int health = health_of(api, (struct slice){watcher->name, watcher->name_bytes});
  if (health != watcher->told && call_queued(call) == 0) (void)tell(call, watcher, health);
}

void health_watch(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  // Nothing can ever have a longer name.
  if (status == STATUS_OK && names.first.bytes > NAME_BYTES)
    status = error_set(&err, STATUS_INVALID_ARGUMENT, "service: longer than %d bytes", NAME_BYTES);
  struct watcher *watcher = status == STATUS_OK ? malloc(sizeof *watcher) : NULL;
  if (status == STATUS_OK && !watcher)
    status = error_set(&err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a watch");
  if (!watcher) {
    call_fail(call, status, err.message);
    return;
  }
  struct api_loop *loop = &api->loops[call_loop(call)];
  *watcher = (struct watcher){.loop = loop, .call = call_ref_of(call), .next = loop->watchers};
  watcher->name_bytes = names.first.bytes;
  if (watcher->name_bytes) memcpy(watcher->name, names.first.data, watcher->name_bytes);
  if (watcher->next) watcher->next->previous = watcher;
  loop->watchers = watcher;
  call_on_cancel(call, watcher_free, watcher);
  call_on_sent(call, told, watcher);
  (void)tell(call, watcher, health_of(api, names.first));
}

// Draining ends it UNAVAILABLE behind the news, so that the client looks for another server.
const struct method_stream health_watch_stream = {.many_in = false};

void health_push(struct api *api, struct rpc *rpc, int loop) {
  for (struct watcher *watcher = api->loops[loop].watchers, *next; watcher; watcher = next) {
    next = watcher->next;
    struct call *call = call_find(rpc, watcher->call);
    if (!call) continue; // its cancel hook is on its way
    int health = health_of(api, (struct slice){watcher->name, watcher->name_bytes});
    if (health != watcher->told && call_queued(call) == 0) (void)tell(call, watcher, health);
  }
}
