// Inside of the CPU back end: the device, plans bound to it, and lanes. Included by backend/cpu/*.c
// and by benches.
#ifndef BACKEND_CPU_CPU_DEVICE_H
#define BACKEND_CPU_CPU_DEVICE_H

#include "backend/backend.h"
#include "backend/cpu/desk.h"
#include "backend/cpu/packs.h"
#include "backend/cpu/pool.h"
#include "backend/cpu/team.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/row.h"

#include <stdatomic.h>

// Who holds memory, apart from what is small: packed and converted weights, arenas of the lanes,
// scratch of the threads. Counted by the thread that loads, read by any.
enum cpu_held { CPU_HELD_WEIGHTS, CPU_HELD_ARENAS, CPU_HELD_SCRATCH, CPU_HELD };

struct device {
  struct device_caps caps;
  struct cpu_features features;
  const struct cpu_ops *ops;
  struct team *team;
  struct desk *desks;                   // one for each thread
  struct packs *packs;                  // of every weight table that plans are bound to
  _Atomic int64_t held_bytes[CPU_HELD]; // the ledger
  enum product_kind product_kind;       // AUTO but in benches and tests
  bool timing;                          // measure every step
};

struct bound_step {
  const struct step *step;
  struct row_kernel *row;    // STEP_ROW
  struct product *product;   // STEP_LINEAR
  struct row_kernel *finish; // of a product or an attention; NULL: none
  struct row_kernel *before; // STEP_ROW: makes what it pools; NULL: that is in memory
  // PLACE_WEIGHT operands as operand.dtype, contiguous, in the model's weight table or its packs;
  // NULL for W of a product
  void *weights[STEP_MAX_IN];
  int64_t weight_rows[STEP_MAX_IN]; // gathers: rows of the table
  const struct product *next;       // the plan's next one: its weights are fetched early
};

// Consecutive steps that run together: a chain of row-local steps over the same rows, or one
// attention step.
struct segment {
  int32_t first, count;
  bool row_local;
  const struct product *product; // the first one: a thread's next tile begins with its weights
  uint8_t needed_by;             // union over its steps
};

struct thread_space { // of one thread while it runs this plan
  char *tile;         // plan.tile_bytes
  float *kernel;      // rows and attention
  float *finish;      // rows of a finish, or of what is pooled
  void *product;      // product_workspace_bytes
  int64_t *step_ns;
  int64_t wait_ns; // for others, by the clock; only while steps are timed
};

struct segment_state { // pieces of work: tiles, or parts of attention
  _Alignas(64) _Atomic int64_t next;
  _Alignas(64) _Atomic uint32_t done;
};

struct bound_plan {
  struct device *device;
  const struct plan *plan;
  struct bound_step *steps; // [plan.n_steps]
  struct segment *segments;
  int32_t n_segments;
  struct thread_space *threads; // [n_threads]
  struct packs *packs;          // packed weights, shared with other plans of the model
  int64_t scratch_bytes;        // of `threads`, in the ledger
  struct segment_state *states; // [n_segments]
};

struct lane {
  struct device *device;
  char *arena; // in `pool` when it is large
  int64_t arena_bytes;
  struct pool pool;
  struct lane_times times, done_times;
  bool busy;
  bool failed;
};

// ---- between the files of this folder ----
MUST_USE enum status cpu_load(struct device *device, const struct plan *plan,
                              const struct weight_table *weights, struct bound_plan **out,
                              struct error *err);
void cpu_unload(struct device *device, struct bound_plan *bound);
MUST_USE enum status cpu_run(struct lane *lane, const struct bound_plan *bound,
                             const struct batch_geometry *geometry, uint8_t outputs);

// For benches and tests, before load: measure steps; which products to use.
void cpu_device_set_timing(struct device *device, bool on);
int64_t cpu_wait_ns(const struct bound_plan *bound); // of the last timed run, mean of the threads
void cpu_device_set_products(struct device *device, enum product_kind kind);

#endif
