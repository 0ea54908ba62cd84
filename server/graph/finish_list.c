#include "graph/finish_list.h"

// What a register of the program holds.
struct held {
  enum { HOLDS_NOTHING, HOLDS_RESULT, HOLDS_INPUT } what;
  uint8_t input; // HOLDS_INPUT: which, times `factor`
  float factor;
};

struct reading {
  const struct row_program *finish;
  struct linear_problem *problem;
  struct held held[ROW_MAX_REGS];
  uint8_t first_in;
};

static bool push(struct reading *r, struct epilogue_op op) {
  struct linear_problem *problem = r->problem;
  if (problem->n_epilogue >= EPILOGUE_MAX) return false;
  problem->epilogue[problem->n_epilogue++] = op;
  return true;
}

// The result goes on in `dst` alone: who reads it as it was finds nothing.
static bool go_on(struct reading *r, uint8_t dst) {
  for (int i = 0; i < ROW_MAX_REGS; i++)
    if (r->held[i].what == HOLDS_RESULT) r->held[i].what = HOLDS_NOTHING;
  r->held[dst] = (struct held){.what = HOLDS_RESULT};
  return true;
}

static bool load(struct reading *r, const struct row_inst *inst) {
  if (inst->a == 0) return go_on(r, inst->dst);
  r->held[inst->dst] = (struct held){.what = HOLDS_INPUT, .input = inst->a, .factor = 1};
  return r->finish->inputs[inst->a].cls <= IN_SCALAR;
}

static enum epilogue_spread spread_of(enum row_input_class cls) {
  return cls == IN_FULL      ? SPREAD_NONE
         : cls == IN_PER_COL ? SPREAD_ROWS
         : cls == IN_PER_ROW ? SPREAD_COLUMNS
                             : SPREAD_ALL;
}

static bool combine(struct reading *r, const struct row_inst *inst) {
  struct held a = r->held[inst->a], b = r->held[inst->b];
  if (b.what == HOLDS_RESULT) {
    const struct held other = a;
    a = b, b = other;
  }
  if (a.what != HOLDS_RESULT || b.what != HOLDS_INPUT) return false;
  enum epilogue_spread spread = spread_of(r->finish->inputs[b.input].cls);
  struct epilogue_op op = {.operand = (uint8_t)(r->first_in + b.input - 1)};
  if (inst->op == RI_ADD) {
    bool plain = b.factor == 1 && spread <= SPREAD_ROWS;
    op.kind = !plain ? EPI_ADD_SPREAD : spread == SPREAD_ROWS ? EPI_BIAS : EPI_ADD;
    if (!plain) op.act = (uint8_t)spread, op.imm = b.factor;
    return push(r, op) && go_on(r, inst->dst);
  }
  op.kind = spread == SPREAD_NONE ? EPI_MUL : EPI_MUL_SPREAD;
  if (spread != SPREAD_NONE) op.act = (uint8_t)spread;
  bool ok = push(r, op);
  if (b.factor != 1) ok = ok && push(r, (struct epilogue_op){.kind = EPI_SCALE, .imm = b.factor});
  return ok && go_on(r, inst->dst);
}

static bool scale(struct reading *r, const struct row_inst *inst) {
  struct held held = r->held[inst->a];
  if (held.what == HOLDS_INPUT) {
    held.factor *= inst->imm;
    r->held[inst->dst] = held;
    return true;
  }
  if (held.what != HOLDS_RESULT) return false;
  return (inst->imm == 1 || push(r, (struct epilogue_op){.kind = EPI_SCALE, .imm = inst->imm})) &&
         go_on(r, inst->dst);
}

// An input that is rounded to fp32, or to what it is in memory, stays as it is.
static bool cast(struct reading *r, const struct row_inst *inst) {
  struct held held = r->held[inst->a];
  if (held.what == HOLDS_INPUT) {
    r->held[inst->dst] = held;
    return inst->aux == DTYPE_F32 ||
           (held.factor == 1 && inst->aux == r->finish->inputs[held.input].dtype);
  }
  if (held.what != HOLDS_RESULT) return false;
  return (inst->aux == DTYPE_F32 ||
          push(r, (struct epilogue_op){.kind = EPI_ROUND, .act = inst->aux})) &&
         go_on(r, inst->dst);
}

static bool store(struct reading *r, const struct row_inst *inst) {
  if (r->held[inst->a].what != HOLDS_RESULT) return false;
  if (inst->dst + 1 < r->finish->n_outputs)
    return push(r, (struct epilogue_op){.kind = EPI_SAVE, .operand = (uint8_t)(inst->dst + 1)});
  r->problem->y_dtype = r->finish->output_dtype[inst->dst];
  return inst == &r->finish->insts[r->finish->n_insts - 1]; // the last result ends the list
}

static bool read_inst(struct reading *r, const struct row_inst *inst) {
  switch (inst->op) {
  case RI_LOAD:
    return load(r, inst);
  case RI_STORE:
    return store(r, inst);
  case RI_ADD:
  case RI_MUL:
    return combine(r, inst);
  case RI_SCALE:
    return scale(r, inst);
  case RI_CAST:
    return cast(r, inst);
  case RI_ACT:
    return r->held[inst->a].what == HOLDS_RESULT &&
           push(r, (struct epilogue_op){.kind = EPI_ACT, .act = inst->aux}) && go_on(r, inst->dst);
  default:
    return false;
  }
}

bool finish_as_list(const struct row_program *finish, uint8_t first_in,
                    struct linear_problem *problem) {
  struct reading r = {.finish = finish, .problem = problem, .first_in = first_in};
  for (int i = 0; i < finish->n_insts; i++)
    if (!read_inst(&r, &finish->insts[i])) return false;
  return finish->n_insts > 0;
}
