// Inside of the CUDA back end: the device, plans bound to it, and lanes. Included by
// backend/cuda/*.c only.
//
// cuda_backend.c, device.c, lane.c: the card, streams, copies, events. bind.c: a plan's weights and
// kernels. buckets.c: which sizes graphs are captured for (pure). launch.c: a step onto a stream.
// graphs.c: capture, replay.
#ifndef BACKEND_CUDA_CUDA_DEVICE_H
#define BACKEND_CUDA_CUDA_DEVICE_H

#include "backend/backend.h"
#include "backend/cuda/buckets.h"
#include "backend/cuda/errors.h"
#include "backend/cuda/host_pool.h"
#include "backend/cuda/ledger.h"
#include "kernels/cuda.h"
#include "kernels/kernel.h"

#include <cuda_runtime_api.h>

// Whose batch computed last, so that batches that fill the card compute one after another.
struct turns {
  cudaEvent_t computed[LIMIT_LANES]; // by lane index; NULL until there is such a lane
  int last;                          // lane index; -1: none yet
  int32_t last_tokens;
};

struct device {
  struct device_caps caps;
  int index;     // CUDA ordinal; every entry point makes it current first (cuda_enter)
  int sm;        // 90 for sm_90
  char arch[16]; // what NVRTC compiles for: "sm_90a"
  struct jit *jit;
  struct lt *lt; // cuBLASLt, NULL where it was not found (products fall back to our own)
  struct kernel_device kernels; // facts that kernels are chosen by; kernels.lt is lt
  struct host_pool *host;       // pinned memory for requests and replies, usable by every card
  struct ledger ledger;
  _Atomic bool lost;            // a sticky error was seen: every entry point fails from here on
  bool fast_rows;               // products may split their sums by the number of rows
  uint32_t lanes_used;          // bit i: there is a lane of index i
  struct turns turns;           // lane.c; executor thread
  struct weight_block *weights; // bind.c: what plans of one model share; control thread only
  bool counted;                 // its memory's counters are being read: batches tell when they
                                // began to compute
  bool timing;                  // measure every step: launches one by one with events between
};

// One batch in flight: a stream, an arena, and the batch geometry on the device at addresses that
// never change, so that captured graphs may hold them.
struct lane {
  struct device *device;
  int index; // 0 .. LIMIT_LANES - 1: which of a bound plan's graph sets is this lane's
  cudaStream_t stream;
  char *arena; // device memory
  int64_t arena_bytes;
  int32_t max_tokens, max_seqs;
  // Geometry on the device and its pinned image on the host: positions, cu_seqlens and
  // scores_offset as three rows of `geometry_pitch` bytes, so that one 2-D copy before each run
  // moves the used part of all three. Entries past the batch's n_seqs repeat the end (empty
  // sequences), positions past n_tokens are 0.
  struct batch_geometry geometry; // device addresses, counts of the batch (or bucket)
  void *geometry_host, *geometry_device;
  int64_t geometry_pitch;
  void *workspace;    // cuBLASLt's and other kernels', this lane's own
  uint32_t *counters; // KERNEL_COUNTERS words behind it, 0 between kernels
  int64_t workspace_bytes;
  cudaEvent_t done;
  struct copies *copies; // copies.c: those of the batch that is put together
  int64_t *stamps;       // [5], pinned, the card's clock: began, copied in, computed, copied out;
                         // [4]: began to compute, where that is not when it was copied in
  bool took_turn;        // [4] is this batch's
  uint32_t *arrived;     // device word for the stamps
  int32_t ran_tokens, fallbacks; // of the last run, for lane_times
  bool replayed;
  int error; // the first cudaError_t of this batch's copies, which cannot return one
};
#define CUDA_WORKSPACE_BYTES ((int64_t)1 << 20) // of a lane; kernels are chosen that need no more

// Results of products and attention: a norm and its sum, or what a list of operations saves.
#define LAUNCH_OUTS STEP_MAX_OUT
// A step prepared for one lane: what to call, and arguments whose addresses are that lane's. Only
// counts of rows change from run to run.
struct launch {
  int (*run)(struct launch *launch, const struct batch_geometry *geometry, cudaStream_t stream);
  const struct step *step;
  uint8_t needed_by;
  union {
    struct {
      const struct row_kernel *kernel;
      struct row_args args;
    } row;
    struct {
      struct view in[STEP_MAX_IN], out[LAUNCH_OUTS];
      struct kernel_call call; // names the two above
      const struct kernel_choice *choices;
      const struct bucket_set *buckets; // a product's choice is by its rows' rung
      void *workspace;
    } views; // products, attention
  };
};

// What a lane has of a bound plan: its launches and graphs.
struct lane_plan {
  struct launch *launches;  // [plan.n_steps]
  cudaGraphExec_t *graphs;  // by bucket_index and mask, NULL where none was captured
  int16_t *fallbacks;       // of each graph: kernels that are fallbacks
  cudaEvent_t *step_events; // [n_steps + 1], only while device.timing
  bool timed;
  int64_t graph_bytes; // booked in the ledger
  int32_t n_graphs;
};

struct bound_step {
  const struct step *step;
  const struct row_kernel *kernel;  // STEP_ROW: one of bound_plan.kernels
  void *weights[STEP_MAX_IN];       // PLACE_WEIGHT operands as operand.dtype, contiguous
  int64_t weight_rows[STEP_MAX_IN]; // gathers: rows of the table
  struct linear_problem linear;     // STEP_LINEAR: the step's, with its finish in the list
  // STEP_LINEAR: by rung of the rows, STEP_ATTENTION: one. Shared by steps that are alike.
  struct kernel_choice *choices;
  bool owns_choices;
};

struct bound_plan {
  struct device *device;
  const struct plan *plan;
  struct bound_step *steps;   // [plan.n_steps]
  struct row_kernel *kernels; // [n_kernels] distinct row programs
  int32_t n_kernels;
  struct weight_block **blocks; // [n_blocks] counted references into device.weights
  int32_t n_blocks;
  struct bucket_set buckets;
  struct lane_plan *lanes[LIMIT_LANES]; // by lane.index; NULL before cuda_prepare
};

// 0 or a status with a message; cudaErrors that do not go away mark the device lost (UNAVAILABLE).
MUST_USE enum status cuda_check(struct device *device, int cuda_error, const char *what,
                                struct error *err);
// The device current on this thread; fails when it is lost.
MUST_USE enum status cuda_enter(struct device *device, struct error *err);
// Memory of the card, counted in the ledger; RESOURCE_EXHAUSTED with `name` ("weights of model x")
// and the ledger's entries. 256-byte aligned. Load time only.
MUST_USE enum status cuda_memory_take(struct device *device, enum ledger_kind kind, int64_t bytes,
                                      const char *name, void **out, struct error *err);
void cuda_memory_give(struct device *device, enum ledger_kind kind, void *memory, int64_t bytes);

// ---- device.c ----
int cuda_probe(void);
const char *cuda_absent(void);
MUST_USE enum status cuda_open(const struct backend_options *options, struct device **out,
                               struct error *err);
void cuda_close(struct device *device);

// ---- lane.c ----
MUST_USE enum status cuda_lane_open(struct device *device, const struct lane_sizes *sizes,
                                    struct lane **out, struct error *err);
void cuda_lane_close(struct device *device, struct lane *lane);
// Before a batch of `n_tokens` computes: it waits on the card for the batch before it, where the
// two would fill it. After its launch: it is the batch before. 0 or a cudaError_t.
int cuda_turn_take(struct lane *lane, int32_t n_tokens);
int cuda_turn_give(struct lane *lane, int32_t n_tokens);
void cuda_turns_close(struct device *device);

// ---- copies.c ----
// Copies of one batch, gathered and sent off together: small ones by a kernel, large ones by the
// copy engine. In this order: any number of copy_add, copies_flush_in, the steps, any number of
// copy_add, copies_flush_out. Host memory is read and written until `done`. All return a
// cudaError_t.
MUST_USE enum status copies_open(struct lane *lane, struct error *err);
void copies_close(struct lane *lane);
int copy_add(struct lane *lane, void *to, const void *from, int64_t bytes, bool in); // from NULL: 0
// Rows of `bytes` bytes, `pitch` apart on the card's side only.
int copy_add_rows(struct lane *lane, void *to, const void *from, int64_t pitch, int64_t bytes,
                  int64_t n_rows, bool in);
// With the geometry of a batch (or bucket) of so many tokens and sequences, from geometry_host.
int copies_flush_in(struct lane *lane, int32_t n_tokens, int32_t n_seqs);
int copies_flush_out(struct lane *lane); // and records `done`
void copies_forget(struct lane *lane);   // of a batch that failed

// ---- bind.c, graphs.c ----
MUST_USE enum status cuda_load(struct device *device, const struct plan *plan,
                               const struct weight_table *weights, struct bound_plan **out,
                               struct error *err);
void cuda_unload(struct device *device, struct bound_plan *bound);
// Captures the lane's graphs of every bucket and set of outputs. Load time, after lane_open, before
// the first run.
MUST_USE enum status cuda_prepare(struct lane *lane, struct bound_plan *bound, struct error *err);
// What cuda_prepare made for this lane; before the lane is closed, or with the plan.
void cuda_lane_plan_close(struct device *device, struct bound_plan *bound, int lane);
// Uploads the geometry, then replays a graph, or launches step by step where there is none.
MUST_USE enum status cuda_run(struct lane *lane, const struct bound_plan *bound,
                              const struct batch_geometry *geometry, uint8_t outputs);
// ns of each step of the lane's last run (device.timing), after the stream was waited for; how
// many.
int cuda_step_times(struct lane *lane, const struct bound_plan *bound, int64_t *ns,
                    int32_t n_steps);
// What planning needs to know of this card.
void cuda_plan_caps(const struct device *device, struct plan_caps *out);

// ---- pm_sampling.c ----
extern const struct counter_ops cuda_counters;

// ---- launch.c ----
// The launches of one lane. Plain host work.
MUST_USE enum status cuda_launches_make(const struct bound_plan *bound, struct lane *lane,
                                        struct lane_plan *out, struct error *err);
// Every step whose needed_by meets `outputs`, onto the lane's stream; a cudaError_t.
int cuda_launch_all(struct lane_plan *plan, int32_t n_steps, const struct batch_geometry *geometry,
                    uint8_t outputs, cudaStream_t stream);

#endif
