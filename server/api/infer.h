// ModelInfer in four steps, each its own file: infer (the call's life), infer_check (does the
// request fit the signature), infer_rows (mask, lengths, ids, memory), infer_reply (bytes of the
// answer). Loop threads.
#ifndef API_INFER_H
#define API_INFER_H

#include "api/api.h"
#include "rpc/wire.h"

// What the checks found out about a request before its memory is laid out.
struct infer_shape {
  int64_t batch, seq;                     // seq 0: the model has no sequences
  int16_t wire_index[LIMIT_MODEL_INPUTS]; // by signature input: position among the request's
                                          // inputs, -1: left out
  bool raw;                               // raw_input_contents, else typed contents
  bool fusion_named;                      // by the request; else `fusion` is the model's default
};

// Names, dtypes, shapes, forms and byte counts of inputs and outputs against the model's signature,
// and our parameters. Fills request->fusion, outputs, output_order, n_outputs, inputs (raw form),
// id. INVALID_ARGUMENT with a message that names the field, what was found and what was expected.
MUST_USE enum status infer_check(const struct model *model, const struct wire_infer *wire,
                                 struct request *request, struct infer_shape *shape,
                                 struct error *err);
// Takes the response slab from `pool` (request->response; none when nothing needs it), converts
// typed contents, reads mask and lengths into seqlens and positions, checks ids, places the
// outputs. RESOURCE_EXHAUSTED when there is no memory.
MUST_USE enum status infer_rows(const struct model *model, const struct wire_infer *wire,
                                const struct infer_shape *shape, struct slab_pool *pool,
                                struct request *request, struct error *err);

// From the message to an executor, or to an answer at once. `item`: its place in a stream (NULL: a
// call of its own); then every end goes to infer_item_done.
void infer_begin(struct api *api, struct call *call, void *item);
// A request came back from its executor: answer its call, if it is still there, and let go of
// everything.
void infer_finished(struct api *api, struct rpc *rpc, struct request *request);
// Answers with the outputs; the request goes to `done` when they have left. A request of a stream
// is answered by one message of it.
void infer_reply(const struct api *api, struct call *call, struct request *request,
                 void (*done)(void *request));
// Everything that a request holds goes back.
void infer_release(void *request);
void infer_cancel(struct request *request, enum status why); // nobody waits for it any more
// Into the model's metrics, and into the log if it is to be there. Each request passes here once.
void infer_count(const struct request *request, enum status status, const char *message);
// Into the call's span, if it is traced; before the call is answered.
void infer_trace(const struct call *call, const struct request *request, enum status status);
// A span of its own within the call's, for a request of a stream (NULL: refused before it was one).
// `call` NULL: it is gone, and its span with it.
void infer_trace_item(struct call *call, const struct request *request, enum status status,
                      const char *message);
// infer_log.c: which requests are logged, and their lines; rate-limited as all lines are.
enum infer_log { INFER_LOG_NONE, INFER_LOG_FAILED, INFER_LOG_ALL };
void infer_log_setup(enum infer_log what);
void infer_log(const struct request *request, enum status status, const char *message);
void infer_log_refused(const struct call *call, enum status status, const char *message);

// infer_stream.c: there is a request now, which may be cancelled.
void infer_item_begun(void *item, struct request *request);
// This request of a stream is done (request NULL: there never was one), and may be
// answered when its turn comes.
void infer_item_done(struct call *call, void *item, struct request *request, enum status status,
                     const char *message);
// That a request of a stream failed, as one message: the text, and which request it was.
void infer_reply_error(struct call *call, const char *message, struct slice model,
                       struct slice version, struct slice id);
void infer_reply_setup(void); // before the first reply; any number of times

#endif
