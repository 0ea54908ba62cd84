// What a device is to the rest of the program: one vtable, two implementations (cpu, cuda).
//
// Threads: probe, open, caps, load, unload, lane_open, prepare, warm_size, lane_close and close are
// called by the thread that loads models, one at a time, also while requests run; all that a batch
// takes is the executor thread's alone; host_alloc, host_free and memory may be called by any.
// copy_in, run, copy_out and submit are asynchronous where the device is: host memory that they
// were given stays valid and unchanged until poll says done. On the CPU they finish before they
// return. Nothing after prepare allocates on the device or waits for it.
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "backend/counters.h"
#include "graph/plan.h"
#include "graph/weights.h"

struct device;     // an opened device
struct bound_plan; // a plan prepared for a device: packed weights, chosen kernels, launches
struct lane;       // a stream and an arena: one batch in flight

struct device_caps {
  const char *name;      // "cpu", "cuda"
  int index;             // which device of the kind
  char description[128]; // processor or GPU name and instruction set, for metadata and logs
  char id[128];          // under which what was measured of it is kept (backend/rates_file.h)
  struct plan_caps plan;
  bool async;    // false: work is done when the call returns
  int n_threads; // compute threads of this process; 0: none, the device has its own
  // A batch of this many tokens or fewer leaves much of the device idle: another may run beside it.
  int32_t small_tokens;
  // Batches of up to so many tokens run as a captured graph of the next larger size
  // (backend/cuda/buckets.h); 0: at their own size.
  int32_t graph_tokens;
};

struct backend_options {
  int index;              // which device of the kind
  int threads;            // CPU: compute threads, 0 = all cores this process may use
  int64_t headroom_bytes; // CUDA: device memory kept free
  bool fast_rows;         // CUDA: a row's bits may depend on its batch (device.fast_rows)
  const char *cache_dir;  // CUDA: where compiled kernels are kept; NULL: nowhere
};

// What the lanes of one device are made for: the largest of all models.
struct lane_sizes {
  int64_t arena_bytes;
  int32_t max_tokens, max_seqs; // of one batch
};

#define DEVICE_MEMORY_MAX 8
struct device_memory { // one entry of a device's ledger
  const char *kind;    // "weights", "arenas" and so on; static text
  int64_t bytes;
};

// When a batch was on the device, by the device's own clock: its copies in began, its steps began
// and ended, its copies out ended. Zeros: the device does not tell.
struct device_span {
  int64_t began_ns, computes_ns, computed_ns, ended_ns;
};

struct lane_times { // of the last batch; CPU: measured by the clock; CUDA: by the card's clock
  int64_t copy_in_ns, compute_ns, copy_out_ns;
  struct device_span span;
  // What the device ran in the place of the batch's own size; zero where there is no such thing.
  int32_t ran_tokens; // rows of tokens: the batch's and those that fill up its bucket
  int32_t fallbacks;  // kernels that the device has better ones for, had the shapes allowed them
  bool replayed;      // as one captured graph
};

// A size of batch with code or a captured graph of its own.
struct warm_size {
  int32_t n_tokens, n_seqs;
  uint8_t outputs;
};

struct backend_ops {
  const char *name;
  int (*probe)(void);          // number of devices of this kind; 0 when there is none
  const char *(*absent)(void); // why probe found none, for messages; NULL: it always finds one
  enum status (*open)(const struct backend_options *options, struct device **out,
                      struct error *err);
  void (*close)(struct device *device);
  const struct device_caps *(*caps)(const struct device *device);
  void *(*host_alloc)(struct device *device,
                      size_t bytes); // pinned where it matters; 64-byte aligned; NULL: none left
  void (*host_free)(struct device *device, void *memory, size_t bytes);
  // Prepare a plan: choose kernels, convert and pack weights, create primitives for every bucket.
  // Slow; load time.
  enum status (*load)(struct device *device, const struct plan *plan,
                      const struct weight_table *weights, struct bound_plan **out,
                      struct error *err);
  void (*unload)(struct device *device, struct bound_plan *bound);
  // A lane for every plan that fits `sizes`.
  enum status (*lane_open)(struct device *device, const struct lane_sizes *sizes, struct lane **out,
                           struct error *err);
  // Whatever the plan needs on this lane before its first run (CUDA graphs). Once for each plan and
  // lane, by the thread that loads; the lane may be running other plans meanwhile. NULL: nothing.
  enum status (*prepare)(struct lane *lane, struct bound_plan *bound, struct error *err);
  // The sizes of batches to run once before the first request, by index from 0; n_tokens 0: this
  // one is to be passed over. False: there are no more. NULL: powers of two.
  bool (*warm_size)(const struct bound_plan *bound, int32_t index, struct warm_size *out);
  void (*lane_close)(struct device *device, struct lane *lane);
  // Rows [row, row + n_rows) of signature input `input`, packed row-major at `rows` in the plan's
  // input dtype. Faster from memory of host_alloc.
  void (*copy_in)(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                  int64_t n_rows, const void *rows);
  // Zeros instead of rows, for an input that was left out.
  void (*zero_in)(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                  int64_t n_rows);
  // Same as copy_in for an output; called after run. Contiguous rows at `rows`.
  void (*copy_out)(struct lane *lane, const struct bound_plan *bound, int output, int64_t row,
                   int64_t n_rows, void *rows);
  // Run every step whose needed_by meets `outputs`, bits of outputs that the plan has: with others
  // among them a GPU launches step by step, as it has no graph for that. The geometry and its
  // arrays stay valid until poll says done.
  enum status (*run)(struct lane *lane, const struct bound_plan *bound,
                     const struct batch_geometry *geometry, uint8_t outputs);
  void (*submit)(struct lane *lane); // the batch is complete: poll may be asked
  // 1: done, times filled; 0: not yet; < 0: the device is lost (sticky): fail its requests
  // UNAVAILABLE.
  int (*poll)(struct lane *lane, struct lane_times *times);
  // ns of each step of the lane's last run, in plan order, when step timing was switched on (bench,
  // tests); else 0.
  int (*step_times)(struct lane *lane, const struct bound_plan *bound, int64_t *ns,
                    int32_t n_steps);
  const struct counter_ops *counters; // NULL: the device has none that can be read
  // Who holds the device's memory, at most DEVICE_MEMORY_MAX entries; how many. NULL: not kept.
  int (*memory)(const struct device *device, struct device_memory *out);
  // Of the ledger's weights: those that plans bound to this table hold, shared ones once. By the
  // thread that loads. NULL: not kept.
  int64_t (*weight_bytes)(const struct device *device, const struct weight_table *table);
};

extern const struct backend_ops backend_cpu;
#ifdef WITH_CUDA
extern const struct backend_ops backend_cuda;
#endif
// Those that this build knows, best first ("cuda", "cpu"); NULL-terminated.
extern const struct backend_ops *const backend_table[];
const struct backend_ops *backend_find(const char *name); // NULL: not built in

#endif
