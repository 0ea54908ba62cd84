// One admitted inference request on its way loop -> executor -> loop.
//
// Owned by exactly one thread at a time; the rings move ownership. Comes from a pool of the loop
// thread (request_pool_*), never malloc'ed on the request path. Only `cancelled` may be written by
// the loop while the executor owns the request.
#ifndef SCHED_REQUEST_H
#define SCHED_REQUEST_H

#include "audit/batch.h"
#include "base/clock.h"
#include "rpc/call_ref.h"

enum request_stage {
  STAGE_HEADERS,
  STAGE_MESSAGE,
  STAGE_ADMITTED,
  STAGE_BATCHED,
  STAGE_COMPUTE,
  STAGE_DONE,
  STAGE_COUNT
};
enum batch_close { CLOSE_FULL, CLOSE_DELAY, CLOSE_IDLE, CLOSE_DEADLINE, CLOSE_COUNT };
const char *batch_close_name(enum batch_close close); // "full", "delay", "idle", "deadline"

struct request_cost { // written by the executor; becomes the reply's parameters
  int64_t queue_ns, copy_in_ns, compute_ns, copy_out_ns;
  int32_t batch_requests, batch_tokens, kernels;
  enum batch_close close;
  double read_bytes, write_bytes; // this request's share of the plan that ran
  double unfused_bytes;           // what the unfused plan would have moved for it (read + write)
  double batch_read_bytes, batch_write_bytes;
  // Of its whole batch, where the request asked for it: what became of that; AUDIT_MEASURED: what
  // the device counted, and what it was expected to.
  enum audit_outcome audit;
  double read_measured, write_measured, read_expected, write_expected;
};

struct request {
  struct request *next; // free list, queue links
  struct model *model;  // counted
  enum fusion_mode fusion;
  uint8_t outputs;                           // mask of signature outputs asked for
  uint8_t output_order[LIMIT_MODEL_OUTPUTS]; // signature index in the order of the reply
  uint8_t n_outputs;
  bool dense; // no masked position: packed rows are the wire rows
  // Rows this request adds to a batch; tokens after dropping masked positions.
  int32_t n_seqs, n_tokens;
  int32_t padded_seqlen; // `seq` on the wire; 0 when the model has no sequences
  int64_t sum_sq;        // sum of seqlen^2
  // Inputs, one slice per signature input; data == NULL: left out. Wire layout ([batch, seq, ...],
  // dtype of the signature); packed on entry by `positions`.
  struct slice inputs[LIMIT_MODEL_INPUTS];
  int32_t *seqlens;   // [n_seqs] kept tokens of each sequence; NULL when dense
  int32_t *positions; // [n_tokens] index in the sequence of each kept token; NULL when dense
  // Outputs land here in wire layout, in reply order; masked positions as zeros. An output that is
  // an input unchanged (plan.output_is_input) of a dense request points into `message`: nothing is
  // copied.
  uint8_t *outputs_data[LIMIT_MODEL_OUTPUTS];
  size_t outputs_bytes[LIMIT_MODEL_OUTPUTS];
  struct slab *message;  // holds the inputs
  struct slab *response; // holds the outputs and this request's seqlens/positions arrays
  int64_t deadline_ns;   // CLOCK_NEVER: none
  int64_t urgency_ns;    // order in the queue; see sched/batch.h
  int64_t share_ns;      // what it adds to the work that waits; see sched/load.h
  int64_t t_ns[STAGE_COUNT];
  struct call_ref call;
  bool audit;                            // wants what its batch moved through device memory
  const struct audit_batch *audit_batch; // it waits for the verdict on this one,
  int64_t audit_until_ns;                // until then at most
  // Set by the loop: client gone or deadline passed. Looked at when a batch forms.
  _Atomic bool cancelled;
  bool reserved;             // the loop's: `response` counts against the call's connection
  struct slab_pool *slabs;   // where message and response go back to
  struct request_pool *pool; // where the request itself goes back to
  struct executor *executor; // that it was submitted to
  void *item;                // the api's: its place in a stream; NULL: a call of its own
  uint32_t message_bytes;    // of what `message` holds
  enum status gone; // the loop's: what the client was told (STATUS_CANCELLED: nothing) when its
                    // call ended before this came back; STATUS_OK: it has not
  // Result
  enum status status;
  struct request_cost cost;
  uint16_t id_bytes;
  // From here on nothing is zeroed by request_take.
  char id[LIMIT_REQUEST_ID_BYTES]; // echoed
  char message_text[256];          // when status != OK
  char traceparent[56];            // of the client's trace; "": none
  // Protobuf tag and length in front of each output, borrowed by the reply.
  uint8_t raw_heads[LIMIT_MODEL_OUTPUTS][12];
};

struct request_pool;
MUST_USE enum status request_pool_open(int32_t n_requests, struct request_pool **out);
void request_pool_close(struct request_pool *pool);
struct request *
request_take(struct request_pool *pool);   // zeroed, `pool` set; NULL: none left. Loop thread.
void request_put(struct request *request); // back to its pool. Loop thread.

#endif
