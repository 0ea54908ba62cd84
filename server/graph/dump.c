// plan_dump: a plan as text, for `explain`, logs and golden tests. Stable: a golden test compares
// it byte for byte.
#include "graph/op/op.h"
#include "graph/plan.h"

#include <stdio.h>
#include <string.h>

// Appends into a fixed buffer; what does not fit is cut and counted no further.
struct text {
  char *out;
  size_t used, bytes;
};

static void text_add(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3);
static void text_add(struct text *text, const char *format, ...) {
  if (text->used + 1 >= text->bytes) return;
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text->out + text->used, text->bytes - text->used, format, args);
  va_end(args);
  if (length < 0) return;
  size_t room = text->bytes - text->used - 1;
  text->used += (size_t)length < room ? (size_t)length : room;
}

// ---- operands ----
static void dump_place(struct text *text, const struct operand *operand) {
  switch (operand->place) {
  case PLACE_NONE:
    text_add(text, "nowhere");
    return;
  case PLACE_ARENA:
    text_add(text, "arena+%lld", (long long)operand->offset_bytes);
    break;
  case PLACE_TILE:
    text_add(text, "tile+%lld", (long long)operand->offset_bytes);
    break;
  case PLACE_POSITIONS:
    text_add(text, "positions");
    return;
  case PLACE_STEP:
    text_add(text, "hand");
    return;
  case PLACE_WEIGHT:
    text_add(text, "weight");
    for (int i = 0; i < operand->n_parts; i++)
      text_add(text, "%s%d", i ? "," : " ", operand->weight[i]);
    return;
  }
  if (operand->stride != operand->cols) text_add(text, " stride %lld", (long long)operand->stride);
}

static void dump_operand(struct text *text, const struct graph *graph,
                         const struct operand *operand) {
  static const char *const rows[] = {"T", "B", "S", "W"};
  const char *name = operand->tensor >= 0 ? graph->tensors[operand->tensor].name : "(scores)";
  text_add(text, "%s [%s, %d] %s at ", name, rows[operand->rows], operand->cols,
           dtype_name(operand->dtype));
  dump_place(text, operand);
  if (operand->n_parts > 1) text_add(text, " side by side");
  text_add(text, "\n");
}

// ---- row programs ----
static const char *opcode_name(uint8_t op) {
  static const char *const names[] = {
      [RI_LOAD] = "load",         [RI_STORE] = "store",     [RI_ADD] = "add",
      [RI_SUB] = "sub",           [RI_MUL] = "mul",         [RI_DIV] = "div",
      [RI_MAX] = "max",           [RI_SCALE] = "scale",     [RI_ADD_IMM] = "add_imm",
      [RI_ACT] = "act",           [RI_CAST] = "cast",       [RI_SUM] = "sum",
      [RI_MEAN] = "mean",         [RI_MAX_ROW] = "max_row", [RI_LAYER_NORM] = "layer_norm",
      [RI_RMS_NORM] = "rms_norm", [RI_SOFTMAX] = "softmax", [RI_NORMALIZE] = "normalize"};
  return op < sizeof names / sizeof *names ? names[op] : "?";
}

static const char *class_name(enum row_input_class cls) {
  static const char *const names[] = {"full",   "per_col",   "per_row",  "scalar",
                                      "gather", "pool_mean", "pool_cls", "pool_max"};
  return (unsigned)cls < sizeof names / sizeof *names ? names[cls] : "?";
}

static void dump_inst(struct text *text, const struct row_program *program,
                      const struct row_inst *inst) {
  if (inst->op == RI_LOAD) {
    const struct row_input *input = &program->inputs[inst->a];
    text_add(text, "        r%d = load in%d %s", inst->dst, inst->a, class_name(input->cls));
    if (input->cls == IN_GATHER && input->index_operand == ROW_NONE)
      text_add(text, " by positions");
    if (input->cls == IN_GATHER && input->index_operand != ROW_NONE)
      text_add(text, " by in%d", input->index_operand);
    text_add(text, "\n");
    return;
  }
  if (inst->op == RI_STORE) {
    text_add(text, "        out%d = r%d\n", inst->dst, inst->a);
    return;
  }
  text_add(text, "        r%d = %s r%d", inst->dst, opcode_name(inst->op), inst->a);
  if (inst->b != ROW_NONE) text_add(text, " r%d", inst->b);
  if (inst->c != ROW_NONE) text_add(text, " r%d", inst->c);
  if (inst->op == RI_ACT) text_add(text, " %s", activation_name((enum activation)inst->aux));
  if (inst->op == RI_CAST) text_add(text, " %s", dtype_name((enum dtype)inst->aux));
  bool has_imm = inst->op == RI_SCALE || inst->op == RI_ADD_IMM || inst->op == RI_LAYER_NORM ||
                 inst->op == RI_RMS_NORM || inst->op == RI_NORMALIZE;
  if (has_imm) text_add(text, " %g", (double)inst->imm);
  text_add(text, "\n");
}

static void dump_row_program(struct text *text, const struct row_program *program) {
  text_add(text, "      program of %d columns, %d registers\n", program->cols, program->n_regs);
  for (int i = 0; i < program->n_insts; i++)
    dump_inst(text, program, &program->insts[i]);
}

// ---- products and attention ----
static void dump_linear(struct text *text, const struct linear_problem *linear) {
  static const char *const kinds[] = {"bias", "act", "scale", "add", "mul"};
  text_add(text, "      product n %d k %d", linear->n, linear->k);
  for (int i = 0; i < linear->n_epilogue; i++) {
    const struct epilogue_op *op = &linear->epilogue[i];
    text_add(text, "%s%s", i ? ", " : ", then ", kinds[op->kind]);
    if (op->kind == EPI_ACT) text_add(text, " %s", activation_name((enum activation)op->act));
    if (op->kind == EPI_SCALE) text_add(text, " %g", (double)op->imm);
    if (op->operand != ROW_NONE) text_add(text, " in%d", op->operand);
  }
  text_add(text, "\n");
}

static void dump_norm(struct text *text, const struct step *step) {
  const struct norm_problem *norm = &step->norm;
  if (step->kind != STEP_LINEAR || norm->kind == ROW_NORM_NONE) return;
  text_add(text, "      then %s %g, gamma in%d",
           norm->kind == ROW_NORM_RMS ? "rms_norm" : "layer_norm", (double)norm->eps, norm->gamma);
  if (norm->beta != ROW_NONE) text_add(text, ", beta in%d", norm->beta);
  text_add(text, norm->sum ? ", into out0; what it is made from into out1\n" : ", into out0\n");
}

static void dump_finish(struct text *text, const struct step *step) {
  if (step->finish.n_insts == 0) return;
  text_add(text, "      then, its result being in0 and in%d the program's in1:\n", step->finish_in);
  dump_row_program(text, &step->finish);
}

static void dump_attention(struct text *text, const struct attention_problem *problem) {
  text_add(text, "      heads %d kv heads %d of %d, scale %g%s\n", problem->heads,
           problem->kv_heads, problem->head_dim, (double)problem->scale,
           problem->causal ? ", causal" : "");
}

// ---- traffic ----
static void dump_rate(struct text *text, const char *name, const struct traffic_rate *rate) {
  const struct {
    double value;
    const char *unit;
  } terms[] = {
      {rate->fixed, ""}, {rate->per_token, " T"}, {rate->per_seq, " B"}, {rate->per_score, " S"}};
  bool any = false;
  text_add(text, " %s ", name);
  for (int i = 0; i < 4; i++) {
    if (terms[i].value == 0) continue;
    text_add(text, "%s%.17g%s", any ? " + " : "", terms[i].value, terms[i].unit);
    any = true;
  }
  if (!any) text_add(text, "0");
}

static void dump_step(struct text *text, const struct graph *graph, const struct step *step,
                      int32_t index) {
  static const char *const rows[] = {"tokens", "sequences", "scores", "fixed"};
  text_add(text, "  step %d: %s \"%s\" over %s, chain %d, needed by 0x%02x\n", index,
           step_kind_name(step->kind), step->label, rows[step->rows], step->chain, step->needed_by);
  for (int i = 0; i < step->n_in; i++) {
    text_add(text, "      in%d ", i);
    dump_operand(text, graph, &step->in[i]);
  }
  for (int i = 0; i < step->n_out; i++) {
    text_add(text, "      out%d ", i);
    dump_operand(text, graph, &step->out[i]);
  }
  if (step->kind == STEP_ROW && step->before.n_insts > 0) {
    text_add(text, "      what is at hand is made from in%d on, as in0 of the program before:\n",
             step->before_in);
    dump_row_program(text, &step->before);
  }
  if (step->kind == STEP_ROW)
    dump_row_program(text, &step->row);
  else if (step->kind == STEP_LINEAR)
    dump_linear(text, &step->linear);
  else
    dump_attention(text, &step->attention);
  dump_norm(text, step);
  if (step->kind != STEP_ROW) dump_finish(text, step);
  text_add(text, "     ");
  dump_rate(text, "reads", &step->traffic.read);
  text_add(text, " bytes,");
  dump_rate(text, "writes", &step->traffic.write);
  text_add(text, " bytes,");
  dump_rate(text, "does", &step->traffic.flops);
  text_add(text, " flops\n");
}

// ---- the whole ----
static void dump_decision(struct text *text, const struct graph *graph,
                          const struct decision *decision) {
  const struct node *from = &graph->nodes[decision->producer],
                    *to = &graph->nodes[decision->consumer];
  text_add(text, "  %s %s -> %s %s: %s: %s\n", op_name(from->op), graph->tensors[from->out].name,
           op_name(to->op), graph->tensors[to->out].name,
           decision->fused     ? "fused"
           : decision->chained ? "chained"
                               : "apart",
           decision->reason);
}

static void dump_signature(struct text *text, const struct plan *plan, const struct graph *graph) {
  for (int32_t i = 0; i < plan->n_inputs; i++) {
    text_add(text, "  input %d ", i);
    if (plan->inputs[i].place == PLACE_NONE)
      text_add(text, "is not used\n");
    else
      dump_operand(text, graph, &plan->inputs[i]);
  }
  for (int32_t i = 0; i < plan->n_outputs; i++) {
    text_add(text, "  output %d ", i);
    if (plan->output_is_input[i] >= 0) text_add(text, "is input %d: ", plan->output_is_input[i]);
    dump_operand(text, graph, &plan->outputs[i]);
  }
}

size_t plan_dump(const struct plan *plan, const struct graph *graph, char *out, size_t out_bytes) {
  struct text text = {.out = out, .bytes = out_bytes};
  if (out_bytes > 0) out[0] = '\0';
  text_add(&text,
           "plan, fusion %s: %d steps, arena %lld bytes, tile %lld bytes; up to %d tokens, %d "
           "sequences of %d\n",
           fusion_name(plan->mode), plan->n_steps, (long long)plan->arena_bytes,
           (long long)plan->tile_bytes, plan->limits.max_tokens, plan->limits.max_seqs,
           plan->limits.max_seqlen);
  dump_signature(&text, plan, graph);
  for (int32_t i = 0; i < plan->n_steps; i++)
    dump_step(&text, graph, &plan->steps[i], i);
  text_add(&text, "decisions\n");
  for (int32_t i = 0; i < plan->n_decisions; i++)
    dump_decision(&text, graph, &plan->decisions[i]);
  return text.used;
}
