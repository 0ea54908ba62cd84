// A line for a request: which it was, what became of it and where its time went.
#include "api/infer.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static enum infer_log logged = INFER_LOG_NONE; // set before the loops run

void infer_log_setup(enum infer_log what) {
  logged = what;
}

static bool wanted(enum status status) {
  if (status == STATUS_OK) return logged == INFER_LOG_ALL;
  // Whoever cancels knows of it.
  return logged == INFER_LOG_ALL || (logged == INFER_LOG_FAILED && status != STATUS_CANCELLED);
}

// What the client can mend is news; what it cannot is a warning.
static enum log_level level_of(enum status status) {
  switch (status) {
  case STATUS_UNKNOWN:
  case STATUS_RESOURCE_EXHAUSTED:
  case STATUS_INTERNAL:
  case STATUS_UNAVAILABLE:
  case STATUS_DATA_LOSS:
    return LOG_WARN;
  default:
    return LOG_INFO;
  }
}

static int64_t us_between(const struct request *request, int from, int to) {
  if (request->t_ns[from] == 0 || request->t_ns[to] < request->t_ns[from]) return 0;
  return (request->t_ns[to] - request->t_ns[from]) / NS_PER_US;
}

void infer_log(const struct request *request, enum status status, const char *message) {
  if (!wanted(status) || !log_wants(level_of(status))) return;
  char id[LIMIT_REQUEST_ID_BYTES + 1];
  memcpy(id, request->id, request->id_bytes);
  id[request->id_bytes] = 0;
  bool ran = status == STATUS_OK;
  const struct log_field fields[] = {
      {"model", request->model->name, 0},
      {"version", request->model->version, 0},
      {"id", id, 0},
      {"traceparent", request->traceparent, 0},
      {"status", status_name(status), 0},
      {"total_us", NULL, us_between(request, STAGE_MESSAGE, STAGE_DONE)},
      {"queue_us", NULL, ran ? request->cost.queue_ns / NS_PER_US : 0},
      {"compute_us", NULL, ran ? request->cost.compute_ns / NS_PER_US : 0},
      {"batch_requests", NULL, ran ? request->cost.batch_requests : 0},
  };
  log_fields(level_of(status), ran ? "request" : "request_failed", fields,
             sizeof fields / sizeof *fields, "%s", ran ? "answered" : message);
}

void infer_log_refused(const struct call *call, enum status status, const char *message) {
  if (!wanted(status) || !log_wants(level_of(status))) return;
  const struct log_field fields[] = {{"traceparent", call_traceparent(call), 0},
                                     {"status", status_name(status), 0}};
  log_fields(level_of(status), "request_failed", fields, sizeof fields / sizeof *fields, "%s",
             message);
}
