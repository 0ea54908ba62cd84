// ServerLive, ServerReady, ServerMetadata.
#include "api/handlers.h"

#include "open_inference.pb-c.h"

// The requests of these methods have no fields; what is sent must still be a protobuf message.
static bool empty_ok(struct call *call) {
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  if (status != STATUS_OK) call_fail(call, status, err.message);
  return status == STATUS_OK;
}

void server_live(struct call *call, void *app) {
  (void)app;
  if (!empty_ok(call)) return;
  Inference__ServerLiveResponse reply = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
  reply.live = true;
  reply_message(call, &reply.base);
}

void server_ready(struct call *call, void *app) {
  if (!empty_ok(call)) return;
  Inference__ServerReadyResponse reply = INFERENCE__SERVER_READY_RESPONSE__INIT;
  reply.ready = api_ready(app);
  reply_message(call, &reply.base);
}

void server_metadata(struct call *call, void *app) {
  const struct api *api = app;
  if (!empty_ok(call)) return;
  static char name[] = "fusewire", version[] = FUSEWIRE_VERSION, cost[] = "fusewire_cost",
              fusion[] = "fusewire_fusion", fallback[] = "fusewire_auto_device_is_cpu",
              statistics[] = "statistics", configuration[] = "model_configuration",
              repository[] = "model_repository";
  char *extensions[] = {cost, fusion, statistics, configuration, repository, fallback};
  Inference__ServerMetadataResponse reply = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
  reply.name = name;
  reply.version = version;
  reply.extensions = extensions;
  reply.n_extensions = sizeof extensions / sizeof *extensions - !api->fallback[0];
  reply_message(call, &reply.base);
}
