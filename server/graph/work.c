// What a kernel that runs a set of nodes would do: bytes, operations, by what units. Of finished
// steps, and of sets of nodes that the planner only thinks about; the formulas are those of
// traffic.c, node by node.
#include "base/log.h"
#include "graph/cost.h"
#include "graph/planner.h"

#include <string.h>

// ---- of a step ----
static void add_kinds(enum row_kind rows, const struct row_program *program,
                      struct kernel_work *work) {
  struct program_flops flops = program_flops(program);
  rate_add(&work->special_flops, rows, flops.special);
  rate_add(&work->reduced_flops, rows, flops.reduced);
}

// More than a first row is pooled of rows of `cols`, which the kernel makes, or finds in memory.
static void add_pool(struct kernel_work *work, int32_t cols, bool makes) {
  if (cols > work->pool_cols) work->pool_cols = cols;
  work->pool_makes = work->pool_makes || makes;
}

static void row_rates(const struct step *step, struct kernel_work *work) {
  for (int i = 0; i < step->row.n_inputs; i++) {
    enum row_input_class cls = step->row.inputs[i].cls;
    if (cls == IN_POOL_MEAN || cls == IN_POOL_MAX)
      add_pool(work, step->in[i].cols, step->in[i].place == PLACE_STEP);
  }
  add_kinds(step->rows, &step->row, work);
  add_kinds(step_before_rows(step), &step->before, work);
  for (int i = 0; i < step->row.n_outputs; i++)
    work->exact = work->exact || step->row.output_dtype[i] == DTYPE_F32;
}

// Of two residuals, the wider.
static void add_residual(struct kernel_work *work, enum dtype dtype) {
  uint8_t bytes = (uint8_t)dtype_bytes(dtype);
  if (bytes > work->add_bytes) work->add_bytes = bytes;
}

static void linear_rates(const struct step *step, struct kernel_work *work) {
  const struct linear_problem *linear = &step->linear;
  rate_add(&work->product_flops, step->rows, 2.0 * linear->n * linear->k);
  for (int i = 0; i < linear->n_epilogue; i++) {
    const struct epilogue_op *op = &linear->epilogue[i];
    work->epilogue_kinds |= 1u << op->kind;
    if (op->kind == EPI_ADD) add_residual(work, step->in[op->operand].dtype);
    bool act = op->kind == EPI_ACT;
    double flops = linear->n * (act ? activation_flops(op->act) : 1.0);
    rate_add(&work->epilogue_flops, step->rows, flops);
    if (act && op->act != ACT_RELU) rate_add(&work->epilogue_special, step->rows, flops);
  }
  if (step->norm.kind != ROW_NORM_NONE) {
    struct row_inst norm = {.op = step->norm.kind == ROW_NORM_RMS ? RI_RMS_NORM : RI_LAYER_NORM};
    work->norm = true;
    rate_add(&work->epilogue_flops, step->rows, linear->n * inst_flops(&norm));
  }
  struct program_flops finish = program_flops(&step->finish);
  rate_add(&work->epilogue_flops, step->rows, finish.all);
  rate_add(&work->epilogue_special, step->rows, finish.special);
}

// The two products of an attention, and the keys and values that each tile of queries reads.
static void attention_rates(const struct attention_problem *problem, enum step_kind kind,
                            struct kernel_work *work) {
  double half = problem->causal && kind == STEP_ATTENTION ? 0.5 : 1, tile = 128;
  double product = 2.0 * problem->head_dim * problem->heads;
  work->heads = problem->heads, work->head_dim = problem->head_dim;
  work->causal = problem->causal;
  double kv = 2.0 * problem->head_dim * problem->kv_heads * (double)dtype_bytes(problem->dtype);
  if (kind == STEP_ATTENTION) {
    work->product_flops.per_score = 2 * product * half;
    if (problem->causal) work->product_flops.per_token = product;
    work->again.per_score = kv * half / tile;
    work->again.per_token = -kv * half;
    double softmax = 6.0 * problem->heads * half;
    work->softmax_flops.per_score = softmax;
    work->softmax_flops.per_token = problem->causal ? softmax : 0;
  }
  if (kind == STEP_SCORES || kind == STEP_CONTEXT) work->product_flops.per_score = product;
  if (kind == STEP_SCORES_SOFTMAX) attention_flops(problem, kind, &work->reduced_flops);
  work->exact = true; // scores are fp32
}

// Reductions of an instruction: each must be through before the row is passed over again.
static int reductions_of(uint8_t op) {
  if (op < RI_SUM) return 0;
  return op == RI_LAYER_NORM || op == RI_SOFTMAX ? 2 : 1;
}

static void live_values(const struct row_program *program, struct kernel_work *work) {
  work->row_passes = 0;
  for (int i = 0; i < program->n_insts; i++)
    work->row_passes += reductions_of(program->insts[i].op);
  work->live_row_bytes =
      work->row_passes ? (double)program->n_regs * program->cols * (double)sizeof(float) : 0;
}

static void finish_rates(const struct step *step, struct kernel_work *work) {
  if (step->finish.n_insts == 0) return;
  rate_add(&work->finish_values, step->rows, step->finish.cols);
  for (int i = 1; i < step->finish.n_inputs; i++)
    work->finish_rows |= step->finish.inputs[i].cls == IN_PER_ROW;
  if (step->kind == STEP_LINEAR) work->epilogue_kinds |= NOT_OF_A_LIBRARY;
}

struct kernel_work step_work(const struct step *step) {
  struct kernel_work work = {
      .kind = step->kind, .rows = step->rows, .launches = 1, .traffic = step->traffic};
  if (step->kind == STEP_LINEAR) {
    work.dtype = step->linear.x_dtype;
    work.n = step->linear.n, work.k = step->linear.k;
    work.y_bytes = (uint8_t)dtype_bytes(step->out[step_saved(step)].dtype);
    linear_rates(step, &work);
  } else if (step->kind == STEP_ROW) {
    row_rates(step, &work);
    live_values(&step->row, &work);
  } else {
    work.dtype = step->attention.dtype;
    attention_rates(&step->attention, step->kind, &work);
    add_kinds(step->rows, &step->finish, &work);
  }
  if (step->kind != STEP_ROW) finish_rates(step, &work);
  return work;
}

// ---- of a set of nodes ----
void node_set_add(struct node_set *set, int32_t node) {
  FW_ASSERT(set->n < (int)(sizeof set->nodes / sizeof *set->nodes));
  set->nodes[set->n++] = node;
}

void node_set_group(const struct planner *planner, const struct group *group,
                    struct node_set *set) {
  for (int32_t node = group->head; node >= 0; node = planner->next[node])
    node_set_add(set, node);
}

static bool in_set(const struct planner *planner, int32_t node) {
  return node >= 0 && planner->node_seen[node] == planner->seen_mark;
}

// Work on rows whose results depend on the same rows only.
static bool is_row_local(const struct node *node) {
  enum op_class cls = op_def_get(node->op)->cls;
  return cls == OPC_LINEAR || (cls == OPC_ROW && node->op != OP_POOL);
}

// Does the tensor stay in a tile between two kernels of a chain? Known once memory is laid out;
// before, when both ends work row by row and it takes no more than half a tile.
bool planner_stays_in_tile(const struct planner *planner, int32_t tensor) {
  const struct tensor *t = &planner->graph->tensors[tensor];
  int32_t producer = planner->producer[tensor];
  const struct buffer *buffer = &planner->buffers[planner->buffer_of[tensor]];
  if (!planner->caps->row_chains || planner->mode == FUSION_OFF || producer < 0) return false;
  if (planner->placed && buffer->used) return buffer->place == PLACE_TILE;
  int64_t bytes = (int64_t)t->cols * planner->caps->tile_rows * (int64_t)dtype_bytes(t->dtype);
  if (planner->wanted[tensor] || bytes > planner->caps->tile_bytes / 2 ||
      !is_row_local(&planner->nodes[producer]))
    return false;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    const struct node *reader = &planner->nodes[planner->readers[i]];
    if (!is_row_local(reader) || planner->graph->tensors[reader->out].rows != t->rows) return false;
  }
  return true;
}

static void read_tensor(struct planner *planner, const struct node *node, int i, enum row_kind rows,
                        struct kernel_work *work) {
  int32_t tensor = node->in[i];
  const struct tensor *t = &planner->graph->tensors[tensor];
  double bytes = (double)t->cols * (double)dtype_bytes(t->dtype);
  if (in_set(planner, planner->producer[tensor])) return;
  if (node->op == OP_EMBEDDING && i == 1) {
    rate_add(&work->traffic.read, rows, bytes);
    return;
  }
  bool positions = t->kind == TENSOR_POSITIONS; // each gather looks at them
  if (planner->tensor_seen[tensor] == planner->seen_mark && !positions) return;
  planner->tensor_seen[tensor] = planner->seen_mark;
  if (planner_stays_in_tile(planner, tensor)) return;
  if (t->kind == TENSOR_WEIGHT) {
    work->traffic.read.fixed += bytes * t->n_rows;
    return;
  }
  bool one_of_sequence = node->op == OP_POOL && node->attrs.pool == POOL_CLS;
  rate_add(&work->traffic.read, one_of_sequence ? ROWS_SEQS : t->rows, bytes);
}

static bool is_read_outside(const struct planner *planner, int32_t tensor) {
  if (planner->wanted[tensor]) return true;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++)
    if (!in_set(planner, planner->readers[i])) return true;
  return false;
}

// Operations of a row op, by the instructions that it is lowered to.
static double row_node_flops(const struct planner *planner, const struct node *node,
                             enum row_kind rows, double *special, double *reduced) {
  const struct tensor *out = &planner->graph->tensors[node->out],
                      *in = &planner->graph->tensors[node->in[0]];
  int32_t cols = op_def_get(node->op)->whole_row && in->cols > out->cols ? in->cols : out->cols;
  struct row_builder builder;
  double flops = 0;
  row_builder_init(&builder, planner->graph, rows, cols);
  row_builder_node(&builder, node);
  for (int i = 0; i < builder.n_insts; i++) {
    struct row_inst inst = {.op = builder.insts[i].op, .aux = builder.insts[i].aux};
    flops += inst_flops(&inst);
    *special += cols * inst_special_flops(&inst);
    *reduced += cols * inst_reduced_flops(&inst);
  }
  return flops * cols;
}

static void add_row_node(const struct planner *planner, const struct node *node, bool in_epilogue,
                         struct kernel_work *work) {
  const struct tensor *out = &planner->graph->tensors[node->out];
  double special = 0, reduced = 0,
         flops = row_node_flops(planner, node, out->rows, &special, &reduced);
  rate_add(&work->traffic.flops, out->rows, flops);
  if (!in_epilogue) {
    rate_add(&work->special_flops, out->rows, special);
    rate_add(&work->reduced_flops, out->rows, reduced);
  }
  if (node->op == OP_POOL && node->attrs.pool != POOL_CLS) {
    rate_add(&work->traffic.flops, ROWS_TOKENS, out->cols);
    add_pool(work, out->cols, in_set(planner, planner->producer[node->in[0]]));
  }
  if (in_epilogue) {
    rate_add(&work->epilogue_flops, out->rows, flops);
    rate_add(&work->epilogue_special, out->rows, special);
  }
}

static void add_linear_node(const struct planner *planner, const struct node *node,
                            struct kernel_work *work) {
  const struct tensor *out = &planner->graph->tensors[node->out],
                      *x = &planner->graph->tensors[node->in[0]];
  work->n += out->cols, work->k = x->cols;
  work->dtype = x->dtype;
  work->y_bytes = (uint8_t)dtype_bytes(out->dtype);
  double product = 2.0 * out->cols * x->cols, bias = node->n_in > 2 ? out->cols : 0;
  rate_add(&work->traffic.flops, out->rows, product + bias);
  rate_add(&work->product_flops, out->rows, product);
  rate_add(&work->epilogue_flops, out->rows, bias);
  if (node->n_in > 2) work->epilogue_kinds |= 1u << EPI_BIAS;
}

static void add_node(struct planner *planner, int32_t index, struct kernel_work *work) {
  const struct node *node = &planner->nodes[index];
  const struct op_def *def = op_def_get(node->op);
  struct op_fold fold;
  bool in_epilogue = work->kind == STEP_LINEAR;
  if (def->cls == OPC_LINEAR) add_linear_node(planner, node, work);
  if (def->cls == OPC_ATTENTION) {
    struct attention_problem problem = attention_problem_of(planner, node);
    work->dtype = problem.dtype;
    attention_flops(&problem, STEP_ATTENTION, &work->traffic.flops);
    attention_rates(&problem, STEP_ATTENTION, work);
  }
  if (def->cls != OPC_ROW) return;
  add_row_node(planner, node, in_epilogue, work);
  if (in_epilogue && !planner->finishes[index]) // nodes come in order: the last one's stays
    work->y_bytes = (uint8_t)dtype_bytes(planner->graph->tensors[node->out].dtype);
  work->norm = work->norm || (in_epilogue && def->whole_row);
  for (int i = 0; in_epilogue && def->fold && i < node->n_in; i++)
    if (in_set(planner, planner->producer[node->in[i]]) &&
        def->fold(planner->graph, node, node->in[i], &fold) && fold.has_epilogue) {
      work->epilogue_kinds |= 1u << fold.epilogue.kind;
      if (fold.epilogue.kind == EPI_ADD)
        add_residual(work, planner->graph->tensors[fold.operand].dtype);
    }
}

// A product or an attention with nodes that are a finish of its result.
static void add_finish(const struct planner *planner, const struct node_set *set,
                       struct kernel_work *work) {
  if (work->kind != STEP_LINEAR && work->kind != STEP_ATTENTION) return;
  const struct tensor *tensors = planner->graph->tensors;
  bool any = false;
  for (int i = 0; i < set->n; i++) {
    const struct node *node = &planner->nodes[set->nodes[i]];
    const struct tensor *out = &tensors[node->out];
    if (!planner->finishes[set->nodes[i]]) continue;
    for (int in = 0; in < node->n_in; in++)
      work->finish_rows |= tensors[node->in[in]].kind != TENSOR_WEIGHT &&
                           tensors[node->in[in]].cols == 1 && out->cols > 1;
    if (!any) rate_add(&work->finish_values, out->rows, out->cols);
    any = true;
  }
  if (any && work->kind == STEP_LINEAR) work->epilogue_kinds |= NOT_OF_A_LIBRARY;
}

static enum step_kind kind_of(const struct planner *planner, const struct node_set *set) {
  for (int i = 0; i < set->n; i++) {
    enum op_class cls = op_def_get(planner->nodes[set->nodes[i]].op)->cls;
    if (cls == OPC_LINEAR) return STEP_LINEAR;
    if (cls == OPC_ATTENTION) return STEP_ATTENTION;
  }
  return STEP_ROW;
}

// Token rows of which only each sequence's first is made, since that is all that is pooled of them.
static bool makes_first_rows(const struct planner *planner, const struct node_set *set) {
  for (int i = 0; i < set->n; i++) {
    const struct node *node = &planner->nodes[set->nodes[i]];
    if (node->op == OP_POOL && node->attrs.pool == POOL_CLS &&
        in_set(planner, planner->producer[node->in[0]]))
      return true;
  }
  return false;
}

static void tokens_to_sequences(struct traffic_rate *rate) {
  rate->per_seq += rate->per_token;
  rate->per_token = 0;
}

struct kernel_work planner_work(struct planner *planner, const struct node_set *set) {
  struct kernel_work work = {.kind = kind_of(planner, set), .launches = set->n > 0};
  uint32_t mark = ++planner->seen_mark;
  for (int i = 0; i < set->n; i++)
    planner->node_seen[set->nodes[i]] = mark;
  for (int i = 0; i < set->n; i++) {
    const struct node *node = &planner->nodes[set->nodes[i]];
    const struct tensor *out = &planner->graph->tensors[node->out];
    work.rows = out->rows;
    for (int in = 0; in < node->n_in; in++)
      read_tensor(planner, node, in, out->rows, &work);
    bool written = i >= set->n_silent && is_read_outside(planner, node->out);
    work.exact = work.exact || (written && out->dtype == DTYPE_F32);
    if (written && !planner_stays_in_tile(planner, node->out))
      rate_add(&work.traffic.write, out->rows, (double)out->cols * (double)dtype_bytes(out->dtype));
    add_node(planner, set->nodes[i], &work);
  }
  add_finish(planner, set, &work);
  if (makes_first_rows(planner, set)) {
    tokens_to_sequences(&work.traffic.read);
    tokens_to_sequences(&work.traffic.flops);
    tokens_to_sequences(&work.special_flops);
  }
  return work;
}

void planner_live_values(const struct planner *planner, const struct group *group,
                         const struct group *other, struct kernel_work *work) {
  struct row_builder builder;
  struct row_program program;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index;
  if (group->kind == GROUP_ROW &&
      planner_row_program(planner, group, other, &builder, &program, index_tensors, &n_index))
    live_values(&program, work);
}

// ---- of a decision ----
// The nodes of `all` that lead to `last`, and itself.
static void leading_to(const struct planner *planner, const struct node_set *all, int32_t last,
                       struct node_set *out, struct node_set *rest) {
  bool leads[2 * STEP_MAX_NODES] = {false};
  for (int i = all->n - 1; i >= 0; i--) { // in graph order: readers come later
    leads[i] = all->nodes[i] == last;
    for (int j = i + 1; j < all->n && !leads[i]; j++) {
      const struct node *reader = &planner->nodes[all->nodes[j]];
      for (int in = 0; in < reader->n_in && leads[j]; in++)
        if (reader->in[in] == planner->nodes[all->nodes[i]].out) leads[i] = true;
    }
  }
  for (int i = 0; i < all->n; i++)
    node_set_add(leads[i] ? out : rest, all->nodes[i]);
}

// Of a product of several parts: the product that `linear` is, and its bias node.
static void one_part(const struct planner *planner, const struct node_set *all, int32_t linear,
                     struct node_set *out, struct node_set *rest) {
  for (int i = 0; i < all->n; i++) {
    const struct node *node = &planner->nodes[all->nodes[i]];
    bool mine = all->nodes[i] == linear ||
                (node->op == OP_BIAS && node->in[0] == planner->nodes[linear].out);
    node_set_add(mine ? out : rest, all->nodes[i]);
  }
}

void planner_pair(struct planner *planner, const struct node_set *first,
                  const struct node_set *second, struct kernel_work works[2]) {
  works[0] = planner_work(planner, first);
  works[1] = planner_work(planner, second); // from here on `in_set` means the second
  for (int i = 0; i < first->n; i++) {
    int32_t tensor = planner->nodes[first->nodes[i]].out;
    const struct tensor *t = &planner->graph->tensors[tensor];
    bool goes_on = false;
    for (int32_t r = planner->reader_start[tensor]; r < planner->reader_start[tensor + 1]; r++)
      goes_on = goes_on || in_set(planner, planner->readers[r]);
    if (!goes_on || planner_stays_in_tile(planner, tensor)) continue;
    double bytes = (double)t->cols * (double)dtype_bytes(t->dtype);
    rate_add(&works[0].hot_write, t->rows, bytes);
    rate_add(&works[1].hot_read, t->rows, bytes);
  }
}

// The nodes that a product's epilogue could have taken and did not.
static void left_out(const struct planner *planner, const struct group *group,
                     struct node_set *out) {
  int32_t tensor = group->out[0];
  for (int i = 0; i < group->n_left; i++) {
    node_set_add(out, planner->readers[planner->reader_start[tensor]]);
    tensor = planner->nodes[out->nodes[out->n - 1]].out;
  }
}

static struct kernel_work union_work(struct planner *planner, const struct node_set *first,
                                     const struct node_set *second) {
  struct node_set both = *first;
  for (int i = 0; i < second->n; i++)
    node_set_add(&both, second->nodes[i]);
  return planner_work(planner, &both);
}

void planner_weigh(struct planner *planner, struct decision *decision, int32_t tensor) {
  struct node_set first = {.n = 0}, second = {.n = 0}, both = {.n = 0};
  int32_t from = planner->group_of[decision->producer], to = planner->group_of[decision->consumer];
  const struct group *group = &planner->groups[to];
  decision->tensor = tensor;
  if (from != to) {
    node_set_group(planner, &planner->groups[from], &first);
    decision->legal = planner_is_worth_reason(decision->reason);
    if (planner->groups[from].n_left > 0) // the rest of the epilogue, as it was weighed
      left_out(planner, &planner->groups[from], &second);
    else
      node_set_group(planner, group, &second);
    if (decision->legal) decision->both = union_work(planner, &first, &second);
  } else {
    decision->legal = true;
    node_set_group(planner, group, &both);
    if (planner->producer[tensor] != decision->producer) // products side by side
      one_part(planner, &both, decision->consumer, &second, &first);
    else
      leading_to(planner, &both, decision->producer, &first, &second);
    decision->both = planner_work(planner, &both);
  }
  struct kernel_work works[2];
  planner_pair(planner, &first, &second, works);
  decision->first = works[0], decision->second = works[1];
  if (from == to) {
    planner_live_values(planner, group, NULL, &decision->both);
    return;
  }
  planner_live_values(planner, &planner->groups[from], NULL, &decision->first);
  planner_live_values(planner, group, NULL, &decision->second);
  if (decision->legal) planner_live_values(planner, &planner->groups[from], group, &decision->both);
}
