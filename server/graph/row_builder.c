// Row programs: lowering into values, then registers by a linear scan.
#include "graph/row_builder.h"

#include "base/log.h"
#include "graph/op/op.h"

#include <string.h>

void row_builder_init(struct row_builder *builder, const struct graph *graph, enum row_kind rows,
                      int32_t cols) {
  memset(builder, 0, sizeof *builder);
  builder->graph = graph;
  builder->rows = rows;
  builder->cols = cols;
  for (int i = 0; i < ROW_MAX_VALUES; i++)
    builder->defined[i] = -1;
}

static int refuse(struct row_builder *builder, const char *reason) {
  if (!builder->refused) builder->refused = reason;
  return 0; // a value that exists, so that lowerings may go on
}

bool row_result_is_scalar(enum row_opcode op, bool a, bool b) {
  switch (op) {
  case RI_SUM:
  case RI_MEAN:
  case RI_MAX_ROW:
    return true;
  case RI_ADD:
  case RI_SUB:
  case RI_MUL:
  case RI_DIV:
  case RI_MAX:
    return a && b;
  case RI_SCALE:
  case RI_ADD_IMM:
  case RI_ACT:
  case RI_CAST:
    return a;
  default:
    return false;
  }
}

static int append(struct row_builder *builder, struct row_value_inst inst) {
  if (builder->n_insts == ROW_MAX_INSTS)
    return refuse(builder, "the row program would have too many instructions");
  builder->insts[builder->n_insts] = inst;
  return builder->n_insts++;
}

int row_builder_emit(struct row_builder *builder, enum row_opcode op, int a, int b, int c,
                     uint8_t aux, float imm) {
  if (builder->refused) return 0;
  bool a_is = builder->insts[a].scalar, b_is = b != ROW_NO_VALUE && builder->insts[b].scalar;
  struct row_value_inst inst = {.op = (uint8_t)op,
                                .aux = aux,
                                .a = (int16_t)a,
                                .b = (int16_t)b,
                                .c = (int16_t)c,
                                .imm = imm,
                                .scalar = row_result_is_scalar(op, a_is, b_is)};
  return append(builder, inst);
}

int row_builder_load(struct row_builder *builder, int32_t tensor, enum row_input_class cls,
                     int32_t index_tensor) {
  if (builder->refused) return 0;
  if (builder->n_inputs == ROW_MAX_INPUTS)
    return refuse(builder, "the row program would have too many inputs");
  int input = builder->n_inputs++;
  builder->inputs[input] =
      (struct row_builder_input){.tensor = tensor, .index_tensor = index_tensor, .cls = cls};
  return append(builder, (struct row_value_inst){.op = RI_LOAD,
                                                 .a = (int16_t)input,
                                                 .b = ROW_NO_VALUE,
                                                 .c = ROW_NO_VALUE,
                                                 .scalar = cls == IN_PER_ROW || cls == IN_SCALAR});
}

// The class by which a tensor of this shape is loaded here; false when it does not fit the
// iteration space.
static bool load_class(const struct row_builder *builder, const struct tensor *tensor,
                       enum row_input_class *cls) {
  if (tensor->kind == TENSOR_WEIGHT) {
    *cls = tensor->cols == builder->cols ? IN_PER_COL : IN_SCALAR;
    return tensor->n_rows == 1 && (tensor->cols == builder->cols || tensor->cols == 1);
  }
  *cls = tensor->cols == builder->cols ? IN_FULL : IN_PER_ROW;
  return tensor->rows == builder->rows && (tensor->cols == builder->cols || tensor->cols == 1);
}

int row_builder_value(struct row_builder *builder, int32_t tensor) {
  if (builder->refused) return 0;
  for (int i = 0; i < builder->n_insts; i++)
    if (builder->defined[i] == tensor) return i;
  enum row_input_class cls;
  if (!load_class(builder, &builder->graph->tensors[tensor], &cls))
    return refuse(builder, "an operand's shape does not fit the rows of the program");
  int value = row_builder_load(builder, tensor, cls, -1);
  if (!builder->refused) builder->defined[value] = tensor;
  return value;
}

void row_builder_define(struct row_builder *builder, int32_t tensor, int value) {
  if (builder->refused) return;
  // A cast to fp32 gives its operand another name: one value holds one tensor, so copy it by a
  // no-op scaling.
  if (builder->defined[value] >= 0)
    value = row_builder_emit(builder, RI_SCALE, value, ROW_NO_VALUE, ROW_NO_VALUE, 0, 1.0f);
  if (!builder->refused) builder->defined[value] = tensor;
}

void row_builder_store(struct row_builder *builder, int32_t tensor) {
  if (builder->refused) return;
  int value = -1;
  for (int i = 0; i < builder->n_insts; i++)
    if (builder->defined[i] == tensor) value = i;
  FW_ASSERT(value >= 0);
  if (builder->n_outputs == ROW_MAX_OUTPUTS) {
    refuse(builder, "the row program would have too many outputs");
    return;
  }
  int output = builder->n_outputs++;
  builder->outputs[output] = tensor;
  append(builder,
         (struct row_value_inst){
             .op = RI_STORE, .a = (int16_t)value, .b = (int16_t)output, .c = ROW_NO_VALUE});
}

void row_builder_node(struct row_builder *builder, const struct node *node) {
  const struct op_def *def = op_def_get(node->op);
  FW_ASSERT(def && def->lower);
  if (!builder->refused) def->lower(builder, node);
}

// ---- registers ----
// Index of the last instruction that reads each value.
static void last_uses(const struct row_builder *builder, int16_t last[ROW_MAX_VALUES]) {
  for (int i = 0; i < builder->n_insts; i++)
    last[i] = (int16_t)i;
  for (int i = 0; i < builder->n_insts; i++) {
    const struct row_value_inst *inst = &builder->insts[i];
    if (inst->op == RI_LOAD) continue;
    if (inst->a >= 0) last[inst->a] = (int16_t)i;
    if (inst->op == RI_STORE) continue;
    if (inst->b >= 0) last[inst->b] = (int16_t)i;
    if (inst->c >= 0) last[inst->c] = (int16_t)i;
  }
}

struct registers {
  int16_t holds[ROW_MAX_REGS]; // value, or -1
  uint8_t of_value[ROW_MAX_VALUES];
  int used;
};

static int register_free(const struct registers *regs) {
  for (int r = 0; r < ROW_MAX_REGS; r++)
    if (regs->holds[r] < 0) return r;
  return -1;
}

static bool is_per_column(const struct row_builder *builder, int value) {
  const struct row_value_inst *inst = &builder->insts[value];
  return inst->op == RI_LOAD && builder->inputs[inst->a].cls == IN_PER_COL;
}

// The register for the result of instruction i. It may be that of operand a, when a ends here and
// both are of one class (a row kernel may overwrite the row it reads, never one that it
// broadcasts); never that of b or c.
static int register_take(struct registers *regs, const struct row_builder *builder, int i,
                         const int16_t *last) {
  const struct row_value_inst *inst = &builder->insts[i];
  bool distinct = inst->a != inst->b && inst->a != inst->c;
  if (inst->op != RI_LOAD && inst->a >= 0 && last[inst->a] == i && distinct &&
      builder->insts[inst->a].scalar == inst->scalar && !is_per_column(builder, inst->a))
    return regs->of_value[inst->a];
  return register_free(regs);
}

static void registers_release(struct registers *regs, int i, const int16_t *last) {
  for (int r = 0; r < ROW_MAX_REGS; r++)
    if (regs->holds[r] >= 0 && last[regs->holds[r]] == i) regs->holds[r] = -1;
}

static uint8_t register_of(const struct registers *regs, int value) {
  return value >= 0 ? regs->of_value[value] : ROW_NONE;
}

static bool allocate_registers(struct row_builder *builder, struct row_program *out) {
  int16_t last[ROW_MAX_VALUES];
  struct registers regs = {.used = 0};
  memset(regs.holds, -1, sizeof regs.holds);
  last_uses(builder, last);
  for (int i = 0; i < builder->n_insts; i++) {
    const struct row_value_inst *inst = &builder->insts[i];
    struct row_inst *made = &out->insts[i];
    *made = (struct row_inst){.op = inst->op,
                              .a = ROW_NONE,
                              .b = ROW_NONE,
                              .c = ROW_NONE,
                              .aux = inst->aux,
                              .imm = inst->imm};
    if (inst->op == RI_STORE) {
      made->dst = (uint8_t)inst->b;
      made->a = register_of(&regs, inst->a);
      registers_release(&regs, i, last);
      continue;
    }
    made->a = inst->op == RI_LOAD ? (uint8_t)inst->a : register_of(&regs, inst->a);
    made->b = register_of(&regs, inst->b);
    made->c = register_of(&regs, inst->c);
    int taken = register_take(&regs, builder, i, last);
    if (taken < 0) {
      refuse(builder, "the row program would need too many registers");
      return false;
    }
    registers_release(&regs, i, last);
    regs.holds[taken] = last[i] > i ? (int16_t)i : -1;
    regs.of_value[i] = made->dst = (uint8_t)taken;
    if (taken >= regs.used) regs.used = taken + 1;
  }
  out->n_regs = (uint8_t)regs.used;
  return true;
}

// ---- the finished program ----
// Positions of index operands among the step's inputs; one tensor that indexes two tables is one
// operand.
static bool place_index_operands(struct row_builder *builder, struct row_program *out,
                                 int32_t *index_tensors, int *n_index) {
  *n_index = 0;
  for (int i = 0; i < builder->n_inputs; i++) {
    int32_t tensor = builder->inputs[i].index_tensor;
    out->inputs[i].index_operand = ROW_NONE;
    if (tensor < 0 || builder->graph->tensors[tensor].kind == TENSOR_POSITIONS) continue;
    int at = 0;
    while (at < *n_index && index_tensors[at] != tensor)
      at++;
    if (at == *n_index) {
      if (builder->n_inputs + *n_index >= ROW_MAX_INPUTS) {
        refuse(builder, "the row program would have too many inputs");
        return false;
      }
      index_tensors[(*n_index)++] = tensor;
    }
    out->inputs[i].index_operand = (uint8_t)(builder->n_inputs + at);
  }
  return true;
}

static int value_of(const struct row_builder *builder, int32_t tensor) {
  for (int i = 0; i < builder->n_insts; i++)
    if (builder->defined[i] == tensor) return i;
  return -1;
}

bool row_builder_finish(struct row_builder *builder, struct row_program *out,
                        int32_t index_tensors[ROW_MAX_INPUTS], int *n_index) {
  memset(out, 0, sizeof *out);
  *n_index = 0;
  if (builder->refused) return false;
  const struct tensor *tensors = builder->graph->tensors;
  out->cols = builder->cols;
  out->n_inputs = (uint8_t)builder->n_inputs;
  out->n_outputs = (uint8_t)builder->n_outputs;
  out->n_insts = (uint8_t)builder->n_insts;
  for (int i = 0; i < builder->n_inputs; i++) {
    out->inputs[i].cls = builder->inputs[i].cls;
    out->inputs[i].dtype = tensors[builder->inputs[i].tensor].dtype;
  }
  for (int i = 0; i < builder->n_outputs; i++) {
    out->output_dtype[i] = tensors[builder->outputs[i]].dtype;
    out->output_is_scalar[i] = builder->insts[value_of(builder, builder->outputs[i])].scalar;
  }
  return place_index_operands(builder, out, index_tensors, n_index) &&
         allocate_registers(builder, out);
}
