// What the three formats say of a model, as plain data: kernels with their costs, edges, memory.
// Private to the folder. All of it points into the model, which must outlive it.
#ifndef EXPLAIN_FACTS_H
#define EXPLAIN_FACTS_H

#include "backend/cuda/buckets.h"
#include "explain/explain.h"
#include "explain/out.h"
#include "graph/cost.h"

// A stretch of a list: `period` entries that come `times` times over, as the layers of an encoder
// do. Entries alike are shown once.
struct fold {
  int32_t first, period, times;
};

// One kernel: a step of a plan. Its intensity is that of the work: operations for each byte of its
// operands, wherever they come from, so that equal kernels stand at one place of the roofline.
struct fact_kernel {
  const struct step *step;
  struct cost cost;
  double intensity; // INFINITY: it moves nothing
  int32_t point;    // of the roofline; kernels that do the same work share one
  uint64_t alike;   // equal for kernels that differ in their layer's number only
};

// A point of the roofline.
struct fact_point {
  int32_t kernel; // the first one there
  int32_t count;  // how many
  double us;      // of all
};

// A piece of memory: one tensor, or the results of products side by side, or a score matrix.
struct fact_buffer {
  int32_t tensor;              // -1: a score matrix
  enum place_kind place;       // PLACE_ARENA or PLACE_TILE
  int32_t chain;               // PLACE_TILE: the scratch is the chain's
  int64_t offset_bytes, bytes; // for the largest batch (a tile: for its rows)
  int32_t cols;
  enum row_kind rows;
  enum dtype dtype;
  int32_t first, last; // kernels that write it first and use it last; -1: there before the first;
                       // n_kernels: still there after the last
  uint64_t alike;
};

// The two plans that are compared: one op at a time, and the fused one (fusion on or auto).
enum side { SIDE_OFF, SIDE_FUSED, SIDES };

struct fact_plan {
  enum side side;
  const struct plan *plan;
  struct fact_kernel *kernels; // [plan->n_steps]
  struct fold *folds;          // [n_folds] over kernels
  int32_t n_folds;
  struct cost total;
  double score_bytes; // of all: score matrices, which pass between the parts of one attention
  struct fact_point *points; // [n_points]
  int32_t n_points;
  struct fact_buffer *buffers; // [n_buffers], as they come to life
  struct fold *buffer_folds;
  int32_t n_buffers, n_buffer_folds;
  int32_t *first_step, *last_step; // [n_nodes] the kernels that run a node first; -1: none does
};

// An edge of the graph: the result of one op that another one reads.
struct fact_edge {
  const struct decision *decision;
  int32_t tensor;      // what goes along it
  bool beside;         // not an edge: two products of one input that became one
  double tensor_bytes; // of this batch
  // Through memory, by plan. A tensor's write counts at the first of its edges, its reads once a
  // kernel: the sum over edges is what passes between ops.
  double bytes[SIDES];
  bool weighed; // the costs are there: the planner had a choice
  struct cost apart, fused;
  uint64_t alike;
};

// Batch sizes that run as captured graphs, and the rows that fill them up.
struct fact_size {
  int32_t tokens, fewest; // batches of fewest..tokens tokens run in it
  double worst, mean;     // share of its rows that are nobody's
};
struct fact_sizes {
  int32_t n; // 0: batches run at their own size
  struct fact_size sizes[BUCKET_RUNGS_MAX];
  int32_t n_seqs, n_graphs; // classes of sequences (1, 4, 16, ..); graphs in all
  int64_t ran_tokens;       // by this batch: its own and those that fill it up
  double waste_us;          // predicted time of the latter
};

struct facts {
  const struct model *model;
  const struct device_caps *caps;
  const struct device_rates *rates;
  bool measured; // they are no defaults
  struct batch_size batch;
  int64_t longest;   // sequence of the batch
  int32_t *root;     // [n_tensors] the tensor that holds a view's data
  int32_t *producer; // [n_tensors] node, -1: none
  struct fact_plan plans[SIDES];
  struct fact_edge *edges; // [n_edges], of the fused plan's decisions
  int32_t n_edges;
  struct fold *node_folds; // over the graph's nodes
  int32_t n_node_folds;
  struct fact_sizes sizes; // of the fused plan
};

// INVALID_ARGUMENT, RESOURCE_EXHAUSTED; facts_free in any case.
MUST_USE enum status facts_make(const struct explain_options *options, struct facts *out,
                                struct error *err);
void facts_free(struct facts *facts);

// ---- its parts, each in a file of its own; false: out of memory ----
bool facts_sizes(struct facts *facts);                                 // facts_sizes.c
bool facts_edges(struct facts *facts);                                 // facts_edges.c
bool facts_buffers(const struct facts *facts, struct fact_plan *plan); // facts_memory.c

// fold.c: stretches of equal runs in keys[n]; together they cover the list. malloc'd; NULL: out of
// memory.
struct fold *fold_make(const uint64_t *keys, int32_t n, int32_t *n_folds);
uint64_t hash_begin(void);
uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes);
uint64_t hash_name(uint64_t hash, const char *name); // numbers in it count as equal
uint64_t hash_real(uint64_t hash, double value);     // three digits of it

// ---- for the formats ----
// Name of a point: "1", "2" in the fused plan; "a", "b", .. "aa" in the other. Into
// name[FACTS_POINT]; returned.
#define FACTS_POINT 16
const char *facts_point_name(enum side mode, int32_t point, char *name);
// "linear+bias+gelu 768->3072": what a kernel does, with the shape of a product.
#define FACTS_LABEL 112
const char *facts_label(const struct step *step, char *label);
const char *facts_rows_word(enum row_kind rows); // "tokens", "sequences", "scores", "fixed"
// Operations a second that a product or an attention of this kernel may reach; row programs: the
// vector rate.
double facts_peak(const struct facts *facts, const struct step *step);
// Operations a second that memory allows at this intensity, or the peak.
double facts_roof(const struct facts *facts, const struct fact_kernel *kernel);
double facts_bandwidth(const struct facts *facts); // bytes a second, of the roofline's slope
double facts_moved(const struct cost *cost);       // bytes of operands, both ways
double facts_expected(const struct cost *cost);    // of these, through memory
double facts_lower(const struct cost *cost);       //   at least
double facts_upper(const struct cost *cost);       //   at most
// Means over the entries that a line of a stretch stands for: kernel `at` of its period.
struct cost facts_mean(const struct fact_plan *plan, const struct fold *fold, int32_t at);
// Operations a second that are predicted for a point.
double facts_point_rate(const struct fact_plan *plan, const struct fact_point *point);

void explain_text(const struct facts *facts, struct out *out);
// Before a line of a stretch that comes `times` times over: "12x | " at its first line.
void text_gutter(struct out *out, const struct fold *fold, int32_t at);
void text_heading(struct out *out, const char *title);
void explain_text_details(const struct facts *facts, struct out *out); // text_details.c
void explain_svg(const struct facts *facts, struct out *out);
void explain_json(const struct facts *facts, struct out *out);

int64_t facts_rows(const struct facts *facts, enum row_kind rows);        // of this batch
const char *facts_tensor_name(const struct facts *facts, int32_t tensor); // "(scores)" for -1

#endif
