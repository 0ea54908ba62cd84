// The planner's working state, shared by fuse.c (groups), steps.c (operands), place.c (chains and
// memory) and traffic.c. Private to the graph folder. One planner lives for one plan_build call;
// all arrays are freed by planner_deinit.
#ifndef GRAPH_PLANNER_H
#define GRAPH_PLANNER_H

#include "graph/op/op.h"
#include "graph/plan.h"
#include "graph/row_builder.h"

// GROUP_DEAD: merged into another.
enum group_kind { GROUP_DEAD, GROUP_ROW, GROUP_LINEAR, GROUP_ATTENTION };

// What one kernel will do. Its nodes form a list in graph order: head, planner.next[head], ...
struct group {
  enum group_kind kind;
  enum row_kind rows;
  int32_t cols;    // row groups: columns of the iteration space
  bool cols_fixed; // false: only [rows, 1] tensors so far, which also fit beside wider ones
  int32_t head, tail, n_nodes;
  int32_t n_finish; // of products and attentions: the last so many nodes work on the result
                    // (finish.c); out[0] is then what they start from
  bool norm;        // GROUP_LINEAR: the last node is a norm of the result (norm.c), which is out[0]
  // GROUP_LINEAR: one part, or several products of one input whose weights are concatenated
  uint8_t n_parts, n_epilogue;
  uint8_t n_left; // nodes after it that its epilogue could take, and it does not pay (FUSION_AUTO)
  // (tensors by part; bias -1: none, or not a part's own while n_parts is 1)
  int32_t weight[OPERAND_PARTS], bias[OPERAND_PARTS], out[OPERAND_PARTS];
};

// A piece of arena or tile scratch: one tensor, the concatenated outputs of one product, or a score
// matrix.
struct buffer {
  enum row_kind rows;
  enum dtype dtype;
  int32_t cols; // of one row (heads for scores)
  // Written and last read; first is -1 for inputs, last is n_steps for outputs.
  int32_t first_step, last_step;
  bool used;
  enum place_kind place;
  int64_t offset_bytes, bytes;
};

struct planner {
  const struct graph *graph;
  int32_t n_own_tensors; // those after them are copies (recompute.c); 0: there are none
  enum fusion_mode mode;
  const struct plan_caps *caps;
  struct plan_limits limits;
  struct error *err;
  struct plan *plan;

  // graph, with views resolved; tensors by the id of the tensor that holds the data (their root)
  int32_t *root;      // [n_tensors]
  struct node *nodes; // [n_nodes], inputs replaced by their roots
  int32_t *producer;  // [n_tensors] node, or -1
  // Nodes that read tensor t, once an operand: readers[reader_start[t] .. reader_start[t + 1])
  int32_t *reader_start, *readers;
  uint8_t *wanted;   // [n_tensors] mask of signature outputs that this tensor is
  bool *live;        // [n_nodes] leads to an output and is no view
  uint8_t *leads_to; // [n_nodes] mask of signature outputs

  // groups
  struct group *groups; // [n_groups]
  int32_t n_groups;
  int32_t *group_of, *next; // [n_nodes], -1: none
  uint8_t *in_finish;       // [n_nodes] of the finish that is being looked for
  uint8_t *finishes;        // [n_nodes] is in a finish, or was left out of one for what it costs
  const char **why; // [n_nodes][NODE_MAX_INPUTS] why the edge into this operand was not fused
  int32_t *order;   // [n_order] live groups as they will run
  int32_t n_order;
  uint32_t *seen; // [n_groups] marks of path searches
  int32_t *stack; // [n_groups]
  uint32_t seen_mark;
  uint32_t *node_seen, *tensor_seen; // [n_nodes], [n_tensors] marks of node sets
  bool placed;                       // place.c is through

  // memory
  struct buffer *buffers; // [n_tensors] by tensor, then [n_nodes] an attention's score matrix
  int32_t *buffer_of;     // [n_tensors] tensor whose buffer holds it (not itself: a column slice)
  int32_t *slice_col;     // [n_tensors] first column in that buffer
};

MUST_USE enum status planner_init(struct planner *planner, const struct graph *graph);
void planner_deinit(struct planner *planner);

// fuse.c: every live node into exactly one group.
void planner_group(struct planner *planner);
// The row program of the nodes of `group`, and of `other` when it is not NULL. False:
// builder->refused says why.
bool planner_row_program(const struct planner *planner, const struct group *group,
                         const struct group *other, struct row_builder *builder,
                         struct row_program *out, int32_t index_tensors[ROW_MAX_INPUTS],
                         int *n_index);
// The nodes of both groups whose rows are of one kind, in graph order.
void planner_lower_nodes(const struct planner *planner, const struct group *group,
                         const struct group *other, enum row_kind rows,
                         struct row_builder *builder);
// Must the tensor be written to memory when the groups `a` and `b` are one kernel? When it is an
// output of the model or has a reader elsewhere.
bool planner_is_written(const struct planner *planner, int32_t tensor, int32_t a, int32_t b);
// The only node that reads `tensor`, through one operand; -1 with a reason when there are more or
// it is an output.
int32_t planner_sole_reader(const struct planner *planner, int32_t tensor, const char **why);
extern const char *const PLANNER_WHY_NODES; // a kernel's nodes or operands would be too many

// pool.c: poolings that make the rows they pool.
// Of a group whose rows are sequences: the program of its nodes whose rows are tokens, which makes
// what the group pools. No nodes of that kind: no instructions. False: builder->refused says why.
bool planner_before_program(const struct planner *planner, const struct group *group,
                            const struct group *other, struct row_builder *builder,
                            struct row_program *out, int32_t index_tensors[ROW_MAX_INPUTS],
                            int *n_index);
// Operands of that program; 0: there is none.
int planner_operands_before(const struct planner *planner, const struct group *group);
// Of work on token rows, `a`, and a group `b` that pools: why one kernel should not do both; NULL:
// it may.
const char *planner_pool_refusal(struct planner *planner, const struct group *a,
                                 const struct group *b);

// finish.c: element-wise work that a product or an attention does on its result beyond what an
// epilogue's list can say. After the list, before row groups are made.
void planner_add_finish(struct planner *planner, int32_t group);
// The program of those nodes. False: builder->refused says why.
bool planner_finish_program(const struct planner *planner, const struct group *group,
                            struct row_builder *builder, struct row_program *out);

// norm.c: a norm of whole rows by the kernel of the product before it. After epilogues and products
// side by side, before row groups are made.
// `n_keep`: nodes of the group that would stay in it without.
void planner_add_norm(struct planner *planner, int32_t group, int n_keep);

struct node_set;
// worth.c: FUSION_AUTO. Of a product's group with all that may be in its epilogue: how many of its
// nodes should be, and why no more.
int planner_epilogue_worth(struct planner *planner, const struct group *group, const char **why);
// Should two row groups that may be one be one? NULL, or why not.
const char *planner_merge_worth(struct planner *planner, const struct group *a,
                                const struct group *b);
// Should a pooling make the rows that it pools? NULL, or why not.
const char *planner_pool_worth(struct planner *planner, const struct group *a,
                               const struct group *b);

// Should a product or an attention do the nodes of `finish` on its result? NULL, or why not.
const char *planner_finish_worth(struct planner *planner, const struct group *group,
                                 const struct node_set *finish);

// Should a product do the norm of its result? Else it has its first n_keep nodes, and the norm the
// others. NULL, or why not.
const char *planner_norm_worth(struct planner *planner, const struct group *group, int n_keep,
                               int32_t norm);

bool planner_is_worth_reason(const char *reason);

// recompute.c: FUSION_AUTO. A copy of the graph in which cheap results that several kernels read
// are computed in each of them, and what its nodes and tensors are in the graph itself.
#define AGAIN_MAX 64 // such results of one graph
struct again_graph {
  struct graph graph;
  int32_t *node_of, *tensor_of;
};
// Once the plan is made. No nodes: nothing of that kind pays.
MUST_USE enum status planner_recompute(struct planner *planner, struct again_graph *out);
void again_graph_deinit(struct again_graph *again);
// Is the plan of the copy, whose first n_tensors are the graph's own, better than the graph's own?
bool planner_recompute_pays(const struct plan *again, const struct plan *once, int32_t n_tensors);
// Nodes and tensors in the plan of the copy become those of the graph.
void planner_recompute_name(struct plan *plan, const struct again_graph *again);

// schedule.c: groups in an order in which inputs come first.
MUST_USE enum status planner_order(struct planner *planner);
// schedule.c: every edge and its reason into the plan; after placement, which is a reason too.
MUST_USE enum status planner_decide(struct planner *planner);
// steps.c: groups into steps whose operands name tensors; place and offset are still open.
MUST_USE enum status planner_steps(struct planner *planner);
struct attention_problem attention_problem_of(const struct planner *planner,
                                              const struct node *node);
// place.c: chains, tile scratch, arena; fills place, offset and stride of every operand.
MUST_USE enum status planner_place(struct planner *planner);
// work.c: nodes that one kernel runs, or might.
struct node_set {
  int32_t nodes[2 * STEP_MAX_NODES];
  int n, n_silent; // the first n_silent write nothing
};
void node_set_add(struct node_set *set, int32_t node);
void node_set_group(const struct planner *planner, const struct group *group, struct node_set *set);
struct kernel_work planner_work(struct planner *planner, const struct node_set *set);
// Two kernels one after the other; what the first writes and the second reads is hot.
void planner_pair(struct planner *planner, const struct node_set *first,
                  const struct node_set *second, struct kernel_work works[2]);
// The row values that the program of a row group holds (with `other`, unless NULL), into `work`.
void planner_live_values(const struct planner *planner, const struct group *group,
                         const struct group *other, struct kernel_work *work);
// Does the tensor stay in a tile between two kernels of a chain?
bool planner_stays_in_tile(const struct planner *planner, int32_t tensor);
// Fills the works of a decision about the edge that carries `tensor`, once groups are settled.
void planner_weigh(struct planner *planner, struct decision *decision, int32_t tensor);
// traffic.c
void rate_add(struct traffic_rate *rate, enum row_kind rows, double per_row);
double inst_flops(const struct row_inst *inst);
double inst_special_flops(const struct row_inst *inst); // of these, activations
double inst_reduced_flops(const struct row_inst *inst); // of these, norms and other reductions
// Of one row of a program: all, activations, norms and other reductions. Work on row scalars counts
// once a row.
struct program_flops {
  double all, special, reduced;
};
struct program_flops program_flops(const struct row_program *program);
double activation_flops(uint8_t act);
void attention_flops(const struct attention_problem *problem, enum step_kind kind,
                     struct traffic_rate *flops);
void step_traffic(struct step *step);
MUST_USE enum status plan_sum_traffic(struct plan *plan); // after every step_traffic

struct buffer *planner_buffer(struct planner *planner, const struct step *step,
                              const struct operand *operand);

#endif
