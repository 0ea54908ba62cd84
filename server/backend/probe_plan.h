// A small graph with weights of its own, planned, bound to a device and run for its time alone.
#ifndef BACKEND_PROBE_PLAN_H
#define BACKEND_PROBE_PLAN_H

#include "backend/backend.h"

#define PROBE_WEIGHTS 64

struct probe_plan {
  const struct backend_ops *backend;
  struct device *device;
  struct graph graph;
  struct weight weights[PROBE_WEIGHTS];
  struct weight_table table;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane; // its own, unless probe_init was given one
  bool borrowed;
  struct batch_geometry geometry;
  int32_t *positions, cu_seqlens[2];
  int64_t scores_offset[2];
  int32_t n_names;
  bool failed; // building the graph: memory or a limit; says probe_bind
};

// `lane`: large enough for the plan, one batch at a time; NULL: one of its own. Sharing one saves
// the first touch of its memory, which is slow on some hosts.
void probe_init(struct probe_plan *probe, const struct backend_ops *backend, struct device *device,
                struct lane *lane);
void probe_deinit(struct probe_plan *probe);

// Tensor ids; -1 when the graph refuses, which probe_bind reports.
int32_t probe_input(struct probe_plan *probe, enum dtype dtype, int32_t cols);
// Random values around 0, small enough for sums over k to stay tame.
int32_t probe_weight(struct probe_plan *probe, enum dtype dtype, int32_t rows, int32_t cols);
int32_t probe_node(struct probe_plan *probe, enum op op, const int32_t *in, int n_in,
                   const struct node_attrs *attrs, enum dtype dtype);
// Plans for n_tokens in one sequence, binds, fills the inputs. `caps` NULL: the device's.
MUST_USE enum status probe_bind(struct probe_plan *probe, int32_t output, enum fusion_mode mode,
                                const struct plan_caps *caps, int32_t n_tokens, struct error *err);
// One run; its compute time in seconds.
MUST_USE enum status probe_run(struct probe_plan *probe, double *seconds, struct error *err);
// The fastest of the runs that fit `seconds`, at least three, after a first one: whatever else the
// machine does only makes it slower. `between` is run before each of them unless it is NULL: it
// leaves the caches without this one's data.
MUST_USE enum status probe_time(struct probe_plan *probe, struct probe_plan *between,
                                double seconds, double *least, struct error *err);

#endif
