// Explain: what the planner made of a model. Writing takes milliseconds, for which no loop waits: a
// thread of its own does it (api_explain_next), for so many calls of a loop at once. A call that is
// gone before its turn is not explained. The document goes out by reference.
#include "explain/explain.h"
#include "api/handlers.h"
#include "base/log.h"

#include "fusewire.pb-c.h"
#include <stdlib.h>
#include <string.h>

// protobuf-c copies every field, unknown ones too: what is no sensible request is not unpacked.
#define REQUEST_BYTES 4096
#define FUSION 6 // its field, the third string

static enum status read_request(struct slice message, struct wire_names *names,
                                struct explain_options *out, struct error *err) {
  if (message.bytes > REQUEST_BYTES)
    return error_set(err, STATUS_INVALID_ARGUMENT, "the request has %zu bytes; expected at most %d",
                     message.bytes, REQUEST_BYTES);
  enum status status = wire_split_names(message, names, err);
  if (status == STATUS_OK) status = wire_check_strings(message, 1u << FUSION, err);
  if (status != STATUS_OK) return status;
  Fusewire__V1__ExplainRequest *request =
      fusewire__v1__explain_request__unpack(NULL, message.bytes, message.data);
  if (!request) return error_set(err, STATUS_INTERNAL, "the message is not an ExplainRequest");
  out->tokens = request->tokens;
  out->seqs = request->sequences;
  int format = (int)request->format;
  bool known = explain_fusion_find(request->fusion, &out->fusion);
  if (!known)
    status =
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "fusion: found \"%.100s\", expected \"on\" or \"auto\" (each is held against "
                  "\"off\")",
                  request->fusion);
  fusewire__v1__explain_request__free_unpacked(request, NULL);
  if (!known) return status;
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

// ---- on the loop: what is asked ----
struct explain_job {
  struct call_ref call;
  struct explain_options options; // holds the model
  _Atomic bool unwanted;          // its call is gone
  char *document;
  size_t bytes;
  enum status status;
  struct error err;
};

static void call_gone(void *arg, enum status why) {
  struct explain_job *job = arg;
  (void)why;
  atomic_store(&job->unwanted, true);
}

static void job_free(struct explain_job *job) {
  free(job->document);
  model_put((struct model *)(uintptr_t)job->options.model);
  free(job);
}

static enum status hand_over(struct api *api, struct call *call,
                             const struct explain_options *options, struct error *err) {
  struct api_loop *loop = &api->loops[call_loop(call)];
  struct explain_job *job = NULL;
  if (!api->explainer) return error_set(err, STATUS_UNAVAILABLE, "nobody explains here");
  if (loop->n_explains == API_EXPLAINS || !(job = calloc(1, sizeof *job)))
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "%d explanations are being written; ask again later", loop->n_explains);
  job->call = call_ref_of(call);
  job->options = *options;
  model_get((struct model *)(uintptr_t)job->options.model);
  loop->n_explains++;
  call_on_cancel(call, call_gone, job);
  bool pushed = ring_push(&loop->to_explain, job);
  FW_ASSERT(pushed);
  wake_signal(api->explainer);
  return STATUS_OK;
}

void explain(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names = {0};
  struct error err;
  struct explain_options options = {.most_bytes = LIMIT_EXPLAIN_BYTES,
                                    .rates_measured = api->rates_measured};
  enum status status = read_request(call_message(call), &names, &options, &err);
  if (status == STATUS_OK)
    options.model = model_find(api, names.first, names.second, &status, &err);
  if (status == STATUS_OK && options.model->graph.n_nodes > LIMIT_EXPLAIN_NODES)
    status = error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                       "the model has %d operations, a daemon explains up to %d; `fusewired "
                       "explain` any number",
                       options.model->graph.n_nodes, LIMIT_EXPLAIN_NODES);
  if (status == STATUS_OK) status = hand_over(api, call, &options, &err);
  if (status != STATUS_OK) call_fail(call, status, err.message);
}

// ---- on the thread that explains ----
bool api_explain_next(struct api *api) {
  struct explain_job *job = NULL;
  int loop = 0;
  for (; loop < api->n_loops && !(job = ring_pop(&api->loops[loop].to_explain)); loop++) {
  }
  if (!job) return false;
  if (!atomic_load(&job->unwanted)) {
    job->options.caps = job->options.model->backend->caps(job->options.model->devices[0]);
    job->status = explain_write(&job->options, &job->document, &job->bytes, &job->err);
  }
  bool pushed = ring_push(&api->loops[loop].explained, job); // no more than API_EXPLAINS are about
  FW_ASSERT(pushed);
  if (api->wakes[loop]) wake_signal(api->wakes[loop]);
  return true;
}

// ---- back on the loop ----
void explain_answer(struct api *api, struct rpc *rpc, int loop) {
  struct explain_job *job;
  while ((job = ring_pop(&api->loops[loop].explained))) {
    struct call *call = atomic_load(&job->unwanted) ? NULL : call_find(rpc, job->call);
    if (call && job->status != STATUS_OK) call_fail(call, job->status, job->err.message);
    if (call && job->status == STATUS_OK) {
      answer(call, &job->options, job->document, job->bytes);
      job->document = NULL;
    }
    api->loops[loop].n_explains--;
    job_free(job);
  }
}

void explain_close(struct api_loop *loop) {
  void *job;
  while (loop->to_explain.slots && (job = ring_pop(&loop->to_explain)))
    job_free(job);
  while (loop->explained.slots && (job = ring_pop(&loop->explained)))
    job_free(job);
  ring_deinit(&loop->to_explain);
  ring_deinit(&loop->explained);
}
