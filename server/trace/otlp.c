#include "trace/otlp.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"

#include "otlp_service.pb-c.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

typedef Opentelemetry__Proto__Common__V1__AnyValue Any;
typedef Opentelemetry__Proto__Common__V1__KeyValue KeyValue;
typedef Opentelemetry__Proto__Trace__V1__Span Span;
typedef Opentelemetry__Proto__Trace__V1__Status SpanStatus;

enum { ATTRIBUTES = 20, RESOURCE_ATTRIBUTES = 4, SPANS = 1 + TRACE_STAGES, ID_BYTES = 8 };
// What one call may take of the arena, for everything in it at its longest.
#define CALL_ROOM                                                                                  \
  (SPANS * (sizeof(Span) + ID_BYTES + 16) +                                                        \
   ATTRIBUTES * (sizeof(KeyValue) + sizeof(Any) + sizeof(KeyValue *)) + sizeof(SpanStatus) + 16 +  \
   2 * TRACE_TEXT_BYTES + 3 * TRACE_NAME_BYTES + TRACE_STATE_BYTES + 512)

struct otlp {
  struct otlp_options options;
  struct arena arena;
  Span *spans[OTLP_BATCH * SPANS];
  size_t n_spans, body_bytes;
  uint8_t *body;
  uint64_t random;
  char host[256];
};

// ---- memory ----
static void *take(struct otlp *otlp, size_t bytes) {
  void *at = arena_take(&otlp->arena, bytes, 8);
  FW_ASSERT(at); // CALL_ROOM
  return at;
}

// Bytes of one UTF-8 character, 0: none begins here.
static size_t character_bytes(const uint8_t *at, size_t left) {
  if (at[0] < 0x80) return 1;
  size_t n = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
  if (at[0] < 0xc2 || at[0] > 0xf4 || n > left) return 0;
  for (size_t i = 1; i < n; i++)
    if ((at[i] & 0xc0) != 0x80) return 0;
  bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
  bool beyond = (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf4 && at[1] > 0x8f);
  return overlong || beyond ? 0 : n;
}

// A copy in which every byte that is not UTF-8 is a question mark: one bad byte, or half a
// character at the end, would have the collector refuse the whole body.
static char *text_of(struct otlp *otlp, const char *from, size_t bytes) {
  char *text = take(otlp, bytes + 1);
  for (size_t i = 0; i < bytes;) {
    size_t n = character_bytes((const uint8_t *)from + i, bytes - i);
    if (n == 0) text[i++] = '?';
    for (; n > 0; n--, i++)
      text[i] = from[i];
  }
  text[bytes] = 0;
  return text;
}

static char *as_text(const char *text) { // protobuf-c writes to none of them
  return (char *)(uintptr_t)text;
}

static uint8_t *new_id(struct otlp *otlp) {
  uint64_t z = (otlp->random += 0x9e3779b97f4a7c15u); // splitmix64, as in obs/trace.c
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  uint8_t *id = take(otlp, ID_BYTES);
  z += z == 0;
  memcpy(id, &z, ID_BYTES);
  return id;
}

// ---- attributes ----
static Any *attribute(struct otlp *otlp, const char *key, KeyValue **list, size_t *n, size_t most) {
  FW_ASSERT(*n < most);
  KeyValue *pair = take(otlp, sizeof *pair);
  Any *value = take(otlp, sizeof *value);
  opentelemetry__proto__common__v1__key_value__init(pair);
  opentelemetry__proto__common__v1__any_value__init(value);
  pair->key = as_text(key);
  pair->value = value;
  list[(*n)++] = pair;
  return value;
}

static void set_text(Any *value, const char *text) {
  value->value_case = OPENTELEMETRY__PROTO__COMMON__V1__ANY_VALUE__VALUE_STRING_VALUE;
  value->string_value = as_text(text);
}

static void set_int(Any *value, int64_t number) {
  value->value_case = OPENTELEMETRY__PROTO__COMMON__V1__ANY_VALUE__VALUE_INT_VALUE;
  value->int_value = number;
}

static void add_text(struct otlp *otlp, Span *span, const char *key, const char *text) {
  if (text && text[0])
    set_text(attribute(otlp, key, span->attributes, &span->n_attributes, ATTRIBUTES), text);
}

static void add_int(struct otlp *otlp, Span *span, const char *key, int64_t number) {
  set_int(attribute(otlp, key, span->attributes, &span->n_attributes, ATTRIBUTES), number);
}

// ---- spans ----
// `state`: tracestate, the same for all spans of a call; NULL: none.
static Span *new_span(struct otlp *otlp, const uint8_t *trace_id, char *state) {
  Span *span = take(otlp, sizeof *span);
  opentelemetry__proto__trace__v1__span__init(span);
  uint8_t *copy = take(otlp, 16);
  memcpy(copy, trace_id, 16);
  span->trace_id = (ProtobufCBinaryData){16, copy};
  if (state) span->trace_state = state;
  span->kind = OPENTELEMETRY__PROTO__TRACE__V1__SPAN__SPAN_KIND__SPAN_KIND_INTERNAL;
  span->flags = 0x101; // sampled; the parent is known to be here
  otlp->spans[otlp->n_spans++] = span;
  return span;
}

static ProtobufCBinaryData id_of(struct otlp *otlp, const uint8_t *id) {
  uint8_t *copy = take(otlp, ID_BYTES);
  memcpy(copy, id, ID_BYTES);
  return (ProtobufCBinaryData){ID_BYTES, copy};
}

static void set_times(Span *span, int64_t from_ns, int64_t to_ns) {
  span->start_time_unix_nano = (uint64_t)from_ns;
  span->end_time_unix_nano = (uint64_t)(to_ns > from_ns ? to_ns : from_ns);
}

// The codes that say of a server that it failed; the others are the client's to judge.
static bool is_error(enum status status) {
  return status == STATUS_UNKNOWN || status == STATUS_DEADLINE_EXCEEDED ||
         status == STATUS_UNIMPLEMENTED || status == STATUS_INTERNAL ||
         status == STATUS_UNAVAILABLE || status == STATUS_DATA_LOSS;
}

static void set_status(struct otlp *otlp, Span *out, const struct trace_span *span) {
  if (!is_error(span->status)) return;
  SpanStatus *status = take(otlp, sizeof *status);
  opentelemetry__proto__trace__v1__status__init(status);
  status->code = OPENTELEMETRY__PROTO__TRACE__V1__STATUS__STATUS_CODE__STATUS_CODE_ERROR;
  status->message = text_of(otlp, span->text, strlen(span->text));
  out->status = status;
}

// "/package.Service/Method": the name is without the first slash.
static void set_rpc(struct otlp *otlp, Span *out, const struct trace_span *span) {
  add_text(otlp, out, "rpc.system", "grpc");
  const char *path = span->method ? span->method + 1 : "";
  const char *slash = strchr(path, '/');
  out->name = as_text(slash ? path : "_OTHER");
  out->kind = OPENTELEMETRY__PROTO__TRACE__V1__SPAN__SPAN_KIND__SPAN_KIND_SERVER;
  if (span->has_parent) out->flags |= 0x200; // and not in this process
  if (slash) {
    add_text(otlp, out, "rpc.service", text_of(otlp, path, (size_t)(slash - path)));
    add_text(otlp, out, "rpc.method", slash + 1);
  }
  add_text(otlp, out, "server.address", otlp->options.address);
  if (otlp->options.port > 0) add_int(otlp, out, "server.port", otlp->options.port);
}

static void add_name(struct otlp *otlp, Span *out, const char *key, const char *text) {
  if (text[0]) add_text(otlp, out, key, text_of(otlp, text, strlen(text)));
}

static void set_inference(struct otlp *otlp, Span *out, const struct trace_span *span) {
  add_name(otlp, out, "fusewire.model.name", span->model);
  add_name(otlp, out, "fusewire.model.version", span->version);
  add_name(otlp, out, "fusewire.request.id", span->request_id);
  add_text(otlp, out, "fusewire.fusion", span->fusion);
  if (!span->ran) return;
  add_int(otlp, out, "fusewire.batch.requests", span->batch_requests);
  add_int(otlp, out, "fusewire.batch.tokens", span->batch_tokens);
  add_text(otlp, out, "fusewire.batch.close", span->close);
  add_int(otlp, out, "fusewire.kernels", span->kernels);
  add_int(otlp, out, "fusewire.hbm.read_bytes", (int64_t)span->read_bytes);
  add_int(otlp, out, "fusewire.hbm.write_bytes", (int64_t)span->write_bytes);
  add_int(otlp, out, "fusewire.hbm.unfused_bytes", (int64_t)span->unfused_bytes);
}

static void add_stages(struct otlp *otlp, const struct trace_span *span, char *state,
                       int64_t wall_ns) {
  static const char *const names[TRACE_STAGES] = {"queue", "copy_in", "compute", "copy_out"};
  for (int i = 0; i < TRACE_STAGES; i++) {
    int64_t from_ns = span->stages[i].from_ns + wall_ns;
    if (span->stages[i].ns <= 0) continue;
    Span *out = new_span(otlp, span->trace_id, state);
    out->span_id = (ProtobufCBinaryData){ID_BYTES, new_id(otlp)};
    out->parent_span_id = id_of(otlp, span->id);
    out->name = as_text(names[i]);
    set_times(out, from_ns, from_ns + span->stages[i].ns);
  }
}

void otlp_add(struct otlp *otlp, const struct trace_span *span, int64_t wall_ns) {
  char *state = span->state[0] ? text_of(otlp, span->state, strlen(span->state)) : NULL;
  Span *out = new_span(otlp, span->trace_id, state);
  out->span_id = id_of(otlp, span->id);
  if (span->has_parent) out->parent_span_id = id_of(otlp, span->parent);
  out->attributes = take(otlp, ATTRIBUTES * sizeof(KeyValue *));
  out->name = as_text("request");
  set_times(out, span->began_ns + wall_ns, span->ended_ns + wall_ns);
  if (span->is_call) set_rpc(otlp, out, span);
  add_int(otlp, out, "rpc.grpc.status_code", (int64_t)span->status);
  set_inference(otlp, out, span);
  set_status(otlp, out, span);
  if (span->ran) add_stages(otlp, span, state, wall_ns);
}

// ---- the whole ----
static size_t pack(struct otlp *otlp, uint8_t *out) {
  Opentelemetry__Proto__Common__V1__InstrumentationScope scope =
      OPENTELEMETRY__PROTO__COMMON__V1__INSTRUMENTATION_SCOPE__INIT;
  scope.name = as_text("fusewire");
  scope.version = as_text(otlp->options.version);
  KeyValue *attributes[RESOURCE_ATTRIBUTES];
  Opentelemetry__Proto__Resource__V1__Resource resource =
      OPENTELEMETRY__PROTO__RESOURCE__V1__RESOURCE__INIT;
  resource.attributes = attributes;
  size_t *n = &resource.n_attributes;
  set_text(attribute(otlp, "service.name", attributes, n, RESOURCE_ATTRIBUTES),
           otlp->options.service);
  set_text(attribute(otlp, "service.version", attributes, n, RESOURCE_ATTRIBUTES),
           otlp->options.version);
  set_text(attribute(otlp, "host.name", attributes, n, RESOURCE_ATTRIBUTES), otlp->host);
  set_int(attribute(otlp, "process.pid", attributes, n, RESOURCE_ATTRIBUTES), getpid());
  Opentelemetry__Proto__Trace__V1__ScopeSpans spans =
      OPENTELEMETRY__PROTO__TRACE__V1__SCOPE_SPANS__INIT;
  spans.scope = &scope;
  spans.n_spans = otlp->n_spans;
  spans.spans = otlp->spans;
  Opentelemetry__Proto__Trace__V1__ScopeSpans *all_spans[] = {&spans};
  Opentelemetry__Proto__Trace__V1__ResourceSpans of_us =
      OPENTELEMETRY__PROTO__TRACE__V1__RESOURCE_SPANS__INIT;
  of_us.resource = &resource;
  of_us.n_scope_spans = 1;
  of_us.scope_spans = all_spans;
  Opentelemetry__Proto__Trace__V1__ResourceSpans *all[] = {&of_us};
  Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceRequest request =
      OPENTELEMETRY__PROTO__COLLECTOR__TRACE__V1__EXPORT_TRACE_SERVICE_REQUEST__INIT;
  request.n_resource_spans = 1;
  request.resource_spans = all;
  size_t bytes = protobuf_c_message_get_packed_size(&request.base);
  FW_ASSERT(bytes <= otlp->body_bytes);
  return protobuf_c_message_pack(&request.base, out);
}

const uint8_t *otlp_pack(struct otlp *otlp, size_t *bytes) {
  *bytes = pack(otlp, otlp->body);
  arena_reset(&otlp->arena);
  otlp->n_spans = 0;
  return otlp->body;
}

enum status otlp_open(const struct otlp_options *options, struct otlp **out, struct error *err) {
  // On the wire everything is shorter than in memory, but for the texts, of which those that are
  // not copied are counted here: keys, and what is the same for all.
  size_t call_bytes = CALL_ROOM + (size_t)ATTRIBUTES * 40 + strlen(options->address) +
                      (size_t)SPANS * (TRACE_STATE_BYTES + 3); // of each span, copied once
  size_t room = OTLP_BATCH * CALL_ROOM + 4096;
  struct otlp *otlp = calloc(1, sizeof *otlp);
  void *memory = malloc(room);
  *out = otlp;
  if (otlp) {
    otlp->options = *options;
    otlp->body_bytes = OTLP_BATCH * call_bytes + 4096 + strlen(options->service);
    otlp->body = malloc(otlp->body_bytes);
    if (memory) arena_init(&otlp->arena, memory, room);
    if (gethostname(otlp->host, sizeof otlp->host - 1) != 0) otlp->host[0] = 0;
    if (getrandom(&otlp->random, sizeof otlp->random, 0) < 0)
      otlp->random = (uint64_t)clock_wall_ns();
    if (memory && otlp->body) return STATUS_OK;
  } else {
    free(memory);
  }
  otlp_close(otlp);
  *out = NULL;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the export of traces");
}

void otlp_close(struct otlp *otlp) {
  if (!otlp) return;
  free(otlp->arena.base);
  free(otlp->body);
  free(otlp);
}

bool otlp_answer(const uint8_t *body, size_t bytes, int64_t *rejected, char *text,
                 size_t text_bytes) {
  Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceResponse *answer =
      opentelemetry__proto__collector__trace__v1__export_trace_service_response__unpack(NULL, bytes,
                                                                                        body);
  *rejected = 0;
  text[0] = 0;
  if (!answer) return false;
  if (answer->partial_success) {
    const char *message = answer->partial_success->error_message;
    *rejected = answer->partial_success->rejected_spans;
    trace_put_text(text, text_bytes, message, strlen(message));
  }
  opentelemetry__proto__collector__trace__v1__export_trace_service_response__free_unpacked(answer,
                                                                                           NULL);
  return true;
}
