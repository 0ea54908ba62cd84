// grpc.health.v1 Check. "" is the whole server; each service that we have has the same health,
// since a server that cannot infer serves nobody. Watch and List come with streaming calls.
#include "api/handlers.h"

#include "health.pb-c.h"
#include <string.h>

static bool service_known(struct slice name) {
  static const char *const services[] = {
#define METHOD(service, name, handler) service,
#include "api/methods.def"
#undef METHOD
  };
  if (name.bytes == 0) return true;
  for (size_t i = 0; i < sizeof services / sizeof *services; i++)
    if (slice_is(name, services[i], strlen(services[i]))) return true;
  return false;
}

void health_check(struct call *call, void *app) {
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  if (status == STATUS_OK && !service_known(names.first))
    status = error_set(&err, STATUS_NOT_FOUND, "service: no service \"%.*s\" here",
                       TEXT_ARGS(names.first));
  if (status != STATUS_OK) {
    call_fail(call, status, err.message);
    return;
  }
  Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
  reply.status = api_ready(app)
                     ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                     : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
  reply_message(call, &reply.base);
}
