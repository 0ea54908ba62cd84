// ModelReady.
#include "api/handlers.h"

#include "open_inference.pb-c.h"

void model_ready(struct call *call, void *app) {
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  struct model *model =
      status == STATUS_OK ? model_find(app, names.first, names.second, &status, &err) : NULL;
  // A model that is not there yet is an answer, not an error; one that nobody configured is an
  // error.
  if (!model && status != STATUS_UNAVAILABLE) {
    call_fail(call, status, err.message);
    return;
  }
  Inference__ModelReadyResponse reply = INFERENCE__MODEL_READY_RESPONSE__INIT;
  reply.ready = model && api_ready(app);
  reply_message(call, &reply.base);
}
