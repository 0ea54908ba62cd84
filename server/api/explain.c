// Explain: what the planner made of a model, written on this thread: 1.5 ms for a BERT-base, 10 for
// 48 such layers. What would take longer is refused. The document goes out by reference.
#include "explain/explain.h"
#include "api/handlers.h"

#include "fusewire.pb-c.h"
#include <stdlib.h>
#include <string.h>

// protobuf-c copies every field, unknown ones too: what is no sensible request is not unpacked.
#define REQUEST_BYTES 4096

static enum status read_request(struct slice message, struct wire_names *names,
                                struct explain_options *out, struct error *err) {
  if (message.bytes > REQUEST_BYTES)
    return error_set(err, STATUS_INVALID_ARGUMENT, "the request has %zu bytes; expected at most %d",
                     message.bytes, REQUEST_BYTES);
  enum status status = wire_split_names(message, names, err);
  if (status != STATUS_OK) return status;
  Fusewire__V1__ExplainRequest *request =
      fusewire__v1__explain_request__unpack(NULL, message.bytes, message.data);
  if (!request) return error_set(err, STATUS_INTERNAL, "the message is not an ExplainRequest");
  out->tokens = request->tokens;
  out->seqs = request->sequences;
  int format = (int)request->format;
  bool known = explain_fusion_find(request->fusion, &out->fusion);
  fusewire__v1__explain_request__free_unpacked(request, NULL);
  if (!known) return error_set(err, STATUS_INVALID_ARGUMENT, "fusion: expected \"on\" or \"auto\"");
  if (format < 0 || format >= EXPLAIN_FORMATS)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "format: found %d, expected 0 (text), 1 (JSON) or 2 (SVG)", format);
  out->format = (enum explain_format)format;
  return STATUS_OK;
}

static void put_text(struct wire_writer *writer, uint32_t field, const char *text) {
  wire_put_bytes(writer, field, text, strlen(text));
}

// Takes the document.
static void answer(struct call *call, const struct explain_options *options, char *document,
                   size_t bytes) {
  uint8_t head[LIMIT_NAME_BYTES + 160];
  struct wire_writer writer = {head, head + sizeof head, false};
  put_text(&writer, 1, options->model->name);
  put_text(&writer, 2, options->model->version);
  put_text(&writer, 3, explain_content_type(options->format));
  wire_put_length(&writer, 4, bytes);
  if (writer.over) {
    call_fail(call, STATUS_INTERNAL, "the reply's head does not fit");
    free(document);
    return;
  }
  struct slice payload = {(const uint8_t *)document, bytes};
  call_reply(call, head, (size_t)(writer.at - head), &payload, 1, free, document);
}

void explain(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names = {0};
  struct error err;
  struct explain_options options = {.most_bytes = LIMIT_EXPLAIN_BYTES,
                                    .rates_measured = api->rates_measured};
  char *document = NULL;
  size_t bytes = 0;
  enum status status = read_request(call_message(call), &names, &options, &err);
  if (status == STATUS_OK)
    options.model = model_find(api, names.first, names.second, &status, &err);
  if (status == STATUS_OK && options.model->graph.n_nodes > LIMIT_EXPLAIN_NODES)
    status = error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                       "the model has %d operations, a daemon explains up to %d; `fusewired "
                       "explain` any number",
                       options.model->graph.n_nodes, LIMIT_EXPLAIN_NODES);
  if (status == STATUS_OK) {
    options.caps = options.model->backend->caps(options.model->devices[0]);
    status = explain_write(&options, &document, &bytes, &err);
  }
  if (status != STATUS_OK)
    call_fail(call, status, err.message);
  else
    answer(call, &options, document, bytes);
}
