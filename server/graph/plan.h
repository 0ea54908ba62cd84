// From a graph to steps a back end can walk: grouping (what fuses, and why), traffic (bytes),
// placement (arena offsets). Pure functions of the graph, a mode and the device's abilities;
// deterministic; load time only. A finished plan is read-only plain data and may be shared by
// threads.
#ifndef GRAPH_PLAN_H
#define GRAPH_PLAN_H

#include "graph/graph.h"
#include "graph/rates.h"
#include "graph/shapes.h"

// off: one op a kernel. on: all that is legal. auto: of that, what the cost model says pays
// (docs/PLANNER.md).
enum fusion_mode { FUSION_OFF, FUSION_ON, FUSION_AUTO, FUSION_MODES };
const char *fusion_name(enum fusion_mode mode); // "off", "on", "auto"

// Of kernel_work.epilogue_kinds: a finish, which is for products on kernels of our own.
#define NOT_OF_A_LIBRARY (1u << EPI_SAVE)

// Multiples of `step`, up to `most`.
struct norm_columns {
  int32_t step, most;
};
#define NORM_COLUMNS 2

// What a device can do, as far as planning goes. From backend_ops.caps.
struct plan_caps {
  bool row_chains;    // CPU: run consecutive row-local steps tile by tile, intermediates in a
                      // per-thread tile
  int32_t tile_rows;  // most rows of such a tile (row_chains only)
  int64_t tile_bytes; // most bytes of tile scratch of one thread (fits L2 with room for weights)
  uint32_t epilogue_kinds; // bit per enum epilogue_kind that a product can take
  uint8_t epilogue_max;    // how many
  // Vectors (bias, gamma, beta) are kept in the compute dtype, as frameworks do that keep whole
  // models in 16 bits: the library takes no other bias, and fp32 ones cost a norm of 768 columns a
  // fifth of its time. For who makes graphs; a product's own bias is kept in its result's dtype,
  // which may be fp32. False: all in fp32.
  bool vectors_as_compute;
  // Element-wise row programs that products, and fused attentions, run on each piece of their
  // result before it is written (step.finish).
  bool product_finish, attention_finish;
  // Products take those alone that a list can say (graph/finish_list.h), on another kernel than
  // the fastest: FUSION_ON asks the cost model, too.
  bool finish_lists;
  bool pool_before; // row programs that pool rows which another program makes, as it makes them
  // Norms of whole rows that a product does on its result, a bias and a residual included
  // (step.norm): of rows of so many columns, operands and result in one of these dtypes (a bit
  // each). 0: none.
  struct norm_columns product_norm[NORM_COLUMNS];
  uint32_t product_norm_dtypes;
  bool product_norm_weighed; // it pays for many rows only: FUSION_AUTO asks, FUSION_ON leaves it
  bool dtype_ok[DTYPE_COUNT];
  struct device_rates rates;        // for the cost model; .copy 0: the defaults (graph/rates.h)
  const struct shape_table *shapes; // measured on this device; NULL: none. Read by plan_build alone
  int32_t usual_tokens; // of the batch that costs and FUSION_AUTO are for; 0: the largest batch
};

enum place_kind {
  PLACE_NONE,
  PLACE_ARENA,     // offset into the lane's arena
  PLACE_TILE,      // offset into the tile scratch: the tensor exists one tile of rows at a time
                   // (chain-internal)
  PLACE_WEIGHT,    // weights [n_parts], concatenated by rows (QKV products: three weights as one)
  PLACE_POSITIONS, // batch_geometry.positions
  PLACE_STEP,      // nowhere: the step makes it (step.before), some rows at a time
};
#define OPERAND_PARTS 4
// Buffers (not slices) begin at multiples of 64 bytes in the arena and in the tile scratch. A TILE
// operand holds up to caps.tile_rows rows; row 0 is the first row of the tile being worked on.
struct operand {
  enum place_kind place;
  int32_t tensor; // tensor id (first part for weights)
  int64_t
      offset_bytes; // ARENA: of row 0 for the planned maximum; TILE: within one thread's scratch
  int64_t stride;   // elements from row to row (> cols for a column slice of a wider buffer)
  int32_t cols;
  int32_t n_rows; // of a weight, its first part's; else 0
  enum dtype dtype;
  enum row_kind rows;
  uint8_t n_parts;
  int32_t weight[OPERAND_PARTS]; // weight ids
};

enum step_kind {
  STEP_ROW,            // row program over rows of kind `rows`
  STEP_LINEAR,         // in: x, w, [epilogue operands], [gamma, beta]; out: y, [its sum]
  STEP_ATTENTION,      // fused; in: q, k, v; out: o
  STEP_SCORES,         // unfused attention, one matrix in memory after each: scores = q k^T
  STEP_SCORES_SCALE,   //   scores <- scale * scores, causal mask
  STEP_SCORES_SOFTMAX, //   probabilities
  STEP_CONTEXT,        //   o = p v
};
const char *step_kind_name(enum step_kind kind);

// Bytes through main (device) memory and floating-point operations of one step, as linear functions
// of the batch:
//   fixed + per_token * T + per_seq * B + per_score * sum_sq  (see batch_geometry.sum_sq; heads are
//   in per_score)
// `fixed` is what does not depend on the batch (weights, tables' compulsory part).
struct traffic_rate {
  double fixed, per_token, per_seq, per_score;
};
struct traffic {
  struct traffic_rate read, write, flops;
};

// One kernel, as far as its cost goes: what it does as functions of the batch. Of a step of a plan,
// or of one that the planner thought about.
struct kernel_work {
  enum step_kind kind; // STEP_LINEAR, STEP_ATTENTION, STEP_ROW or a part of unfused attention
  enum dtype dtype;    // of the operands of a product or an attention
  enum row_kind rows;
  int32_t n, k;               // product
  int32_t heads, head_dim;    // attention
  uint8_t y_bytes, add_bytes; // of an element of a product's result, of a residual
  bool causal;                // attention
  bool exact;                 // activations of row programs: in their form for fp32
  int32_t launches;           // 1; 0: there is no such kernel
  uint32_t epilogue_kinds; // bit per enum epilogue_kind; NOT_OF_A_LIBRARY: and a finish behind them
  bool norm;               // a product with a norm of whole rows behind it
  struct traffic traffic;  // compulsory bytes; all operations
  struct traffic_rate product_flops;       // of these, by the units that compute products
  struct traffic_rate softmax_flops;       // of these, between the products of a fused attention
  struct traffic_rate reduced_flops;       // of these, norms and other reductions of rows
  struct traffic_rate special_flops;       // of these, activations of row programs
  struct traffic_rate epilogue_flops;      // of these, in a product's epilogue
  struct traffic_rate epilogue_special;    //   of these, activations
  struct traffic_rate finish_values;       // of a finish: values of the result that pass through it
  bool finish_rows;                        // and one of its operands has a value a row
  struct traffic_rate hot_read, hot_write; // of these bytes, those of a tensor that the kernel just
                                           // before wrote, or just after reads
  struct traffic_rate again; // bytes of operands that tiles of an attention read again
  // Row programs: bytes of the values of one row that must be held at once because reductions need
  // whole rows, and how many times a row is passed over when they do not fit.
  double live_row_bytes;
  int32_t row_passes;
  // Columns of what is folded over a sequence's tokens; 0: nothing is. Does it make their rows?
  int32_t pool_cols;
  bool pool_makes;
};

// The size of a batch, as costs and traffic see it.
struct batch_size {
  int64_t n_tokens, n_seqs, sum_sq;
};

enum cost_bound { BOUND_MEMORY, BOUND_COMPUTE, BOUND_LAUNCH, BOUNDS };
const char *cost_bound_name(enum cost_bound bound); // "memory", "compute", "launch"

// Bytes through main memory: what a kernel reads from it, and what of its results is written to it,
// then or later. Lower: all that might be found in the last-level cache is. Upper: no byte is found
// there, and every tile reads its operands again. Expected: the model of docs/TRAFFIC.md in
// between.
struct byte_bounds {
  double compulsory, expected, lower, upper;
};

// What a kernel, or a plan, is predicted to cost for one batch.
struct cost {
  struct byte_bounds read, write;
  double flops;
  int32_t launches;
  // Of the expected bytes through memory and the cache, of the operations, of starting it; and the
  // whole: the larger of the first two, and the third. A GPU's product takes longer than that, as
  // far as its bytes and its operations do not hide behind each other.
  double memory_us, compute_us, launch_us, us;
  enum cost_bound bound; // which one it spends most on
  double intensity;      // operations for each expected byte: where it stands on the roofline
};

// Order of a step's operands, by kind:
//   STEP_ROW      in[0 .. row.n_inputs) are the program's inputs; the index operands of gathers
//   follow (in[index_operand],
//                 cols 1, int32 or int64). out[i] is the program's output i. The iteration space is
//                 `rows`.
//                 With a `before`: its inputs and then its index operands are in[before_in ..), by
//                 themselves; its one output is what the input that is in PLACE_STEP pools.
//   STEP_LINEAR   in[0] x, in[1] weight, then the epilogue's operands; out[0] y. A weight of
//   several parts is the parts'
//                 rows one after another ([sum n, k]; a bias: their columns). A node's own bias is
//                 EPI_BIAS in both modes, so every back end has EPI_BIAS.
//   A finish (products and fused attentions) has its operands behind those: its input 0 is the
//   step's
//                 result in fp32, after the epilogue and before any rounding; input i is
//                 in[finish_in + i - 1]. The step's outputs are then the finish's, and
//                 linear.y_dtype is fp32.
//   A norm behind a product has its weights where step.norm says, behind the epilogue's. out[0] is
//   the norm's result; out[1], with norm.sum, what it was made from, which linear.y_dtype is of.
//   STEP_ATTENTION, STEP_SCORES (in q, k), STEP_CONTEXT (in p, v); STEP_SCORES_SCALE and
//   STEP_SCORES_SOFTMAX work in
//                 place (out[0] is in[0]). Score operands: tensor -1, rows ROWS_SCORES, cols =
//                 heads: heads * sum_sq elements of the q dtype.
// Operand ids: one memory place has one (place, offset_bytes); a tensor whose rows live inside a
// wider buffer has offset_bytes of its first column and the buffer's stride.
#define STEP_MAX_IN ROW_MAX_INPUTS
#define STEP_MAX_OUT ROW_MAX_OUTPUTS
#define STEP_MAX_NODES 36
struct step {
  enum step_kind kind;
  enum row_kind rows; // iteration space
  uint8_t n_in, n_out;
  uint8_t needed_by; // bit i: output i of the signature needs this step; a batch skips steps nobody
                     // needs
  uint16_t chain; // consecutive steps with the same number form a chain (see row_chains): row-local
                  // steps
                  //   over the same `rows`. Other steps have a number of their own. Arena memory is
                  //   never shared between tensors that one chain touches, so tiles may run in any
                  //   order.
  struct operand in[STEP_MAX_IN], out[STEP_MAX_OUT];
  uint8_t finish_in, before_in;
  union {
    struct {
      struct row_program row;
      struct row_program before; // over the tokens of what `row` pools; no instructions: none
    };
    struct {
      union {
        struct {
          struct linear_problem linear;
          struct norm_problem norm; // ROW_NORM_NONE: none
        };
        struct attention_problem attention;
      };
      struct row_program
          finish; // element-wise, over the columns of the result; no instructions: none
    };
  };
  struct traffic traffic;
  struct cost cost; // for plan.batch, with the rates of the caps; step_cost for others
  uint8_t n_nodes;
  int32_t nodes[STEP_MAX_NODES]; // graph nodes this step covers
  char label[64];                // "linear+bias+gelu" and so on; metrics, explain
};

// Of a product: results that its finish saves on the way. They are out[0 ..), and what the kernel
// ends with is the next.
static inline int step_saved(const struct step *step) {
  return step->finish.n_insts > 0 ? step->n_out - 1 : 0;
}

// One decision of the planner about an edge (producer node -> consumer node), kept for `explain`.
struct decision {
  int32_t producer, consumer; // node indices
  bool fused;
  bool chained;       // two kernels of one chain, and the tensor between them exists as a tile only
  const char *reason; // static text
  bool legal;         // one kernel can do both; else there is nothing to weigh, and both[] is empty
  int32_t tensor;     // what goes along the edge
  // Two kernels with the tensor in memory between them, against one. Of an edge inside a larger
  // kernel: that one cut in two behind the producer and all that leads to it.
  struct kernel_work first, second, both;
  struct cost apart_cost, fused_cost; // for plan.batch; decision_cost for others
};

// The program's input that operand i of a row step is; NULL: an index operand, or no row step.
const struct row_input *step_row_input(const struct step *step, int i);
// The rows that operand i of a row step, if it is a table, is gathered for.
enum row_kind step_row_space(const struct step *step, int i);
// The rows of `before` that are made: all tokens, or one of each sequence.
enum row_kind step_before_rows(const struct step *step);

struct plan_limits {
  int32_t max_tokens, max_seqs, max_seqlen; // the largest batch; arena offsets are for it
};

// Rates of all steps that some outputs need, added up once.
struct traffic_sum {
  struct traffic traffic;
  int32_t kernels; // steps
};

struct plan {
  enum fusion_mode mode;
  struct batch_size batch;   // that the costs in this plan are for
  struct device_rates rates; // by which they were predicted
  struct step *steps;
  int32_t n_steps;
  int64_t arena_bytes; // lane arena for the largest batch
  int64_t tile_bytes;  // tile scratch per thread (row_chains only)
  struct plan_limits limits;
  struct operand inputs[LIMIT_MODEL_INPUTS]; // where copy_in puts signature input i (PLACE_NONE:
                                             // not used by the plan,
  int32_t n_inputs; //   as attention_mask, which only shapes the geometry). Entries at and
                    //   after n_inputs are PLACE_NONE, so any signature index may be looked up
  struct operand outputs[LIMIT_MODEL_OUTPUTS]; // where copy_out finds output i
  int32_t n_outputs;
  int32_t
      output_is_input[LIMIT_MODEL_OUTPUTS]; // output i is input j unchanged (identity): j, else -1
  struct decision *decisions;
  int32_t n_decisions;
  struct traffic_sum *sums; // [1 << n_outputs], by mask of outputs
};

MUST_USE enum status plan_build(const struct graph *graph, enum fusion_mode mode,
                                const struct plan_caps *caps, const struct plan_limits *limits,
                                struct plan **out, struct error *err);
void plan_free(struct plan *plan);
// Do both run the same kernels on the same memory? FUSION_AUTO often comes out as one of the
// others.
bool plan_same(const struct plan *a, const struct plan *b);
// Is the node of the graph in one of the plan's steps? Not: no output needs it, or it is a view.
bool plan_runs(const struct plan *plan, int32_t node);

// Totals of the steps that `outputs` (mask of signature outputs) needs, for one batch.
struct traffic_total {
  double read_bytes, write_bytes, flops;
  int32_t kernels; // steps
};
// Batch total: geometry's T, B, sum_sq.
struct traffic_total plan_traffic(const struct plan *plan, uint8_t outputs, int64_t n_tokens,
                                  int64_t n_seqs, int64_t sum_sq);
// The share of one request in a batch: its own rows, and of the fixed bytes the part n_tokens /
// batch_tokens.
struct traffic_total plan_traffic_share(const struct plan *plan, uint8_t outputs, int64_t n_tokens,
                                        int64_t n_seqs, int64_t sum_sq, int64_t batch_tokens);

// Human-readable dump of steps, placement and decisions (explain, golden tests). Returns bytes
// written (cut at out_bytes).
size_t plan_dump(const struct plan *plan, const struct graph *graph, char *out, size_t out_bytes);

#endif
