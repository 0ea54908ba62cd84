// Which instructions share a pass, and what a pass does with its one accumulator.
#include "kernels/cpu/row_pass.h"

struct planner {
  struct row_kernel *kernel;
  const struct row_uses *uses;
  uint64_t in_pass;    // instructions that work on tiles
  uint64_t elided;     // loads that only passes read: they take them from the input itself
  uint64_t members;    // of the pass that is being gathered
  uint64_t remembered; // members that need memory: read again when the accumulator has moved on
  uint64_t fetched;    // loads whose tile lies in the stash by now
  int accumulator;     // the instruction whose result it holds, or -1
  bool registers;      // something lives in the block's registers
};

static uint64_t bit(int i) {
  return (uint64_t)1 << i;
}

static const struct row_inst *inst_of(const struct planner *p, int i) {
  return &p->kernel->program.insts[i];
}

static const struct row_input *input_of(const struct planner *p, int load) {
  return &p->kernel->program.inputs[inst_of(p, load)->a];
}

static bool is_load(const struct planner *p, int i) {
  return inst_of(p, i)->op == RI_LOAD;
}

static bool works_on_tiles(const struct planner *p, int i) {
  const struct row_inst *in = inst_of(p, i);
  if (in->op == RI_STORE) return p->kernel->shape[p->uses->a[i]] != SHAPE_ROW;
  return in->op > RI_STORE && in->op <= RI_CAST && p->kernel->shape[i] == SHAPE_FULL;
}

static bool reads(const struct planner *p, int reader, int value) {
  const struct row_uses *u = p->uses;
  return u->a[reader] == value || u->b[reader] == value || u->c[reader] == value;
}

static bool is_read_outside(const struct planner *p, int value, uint64_t readers) {
  for (int i = value + 1; i < p->kernel->program.n_insts; i++)
    if (!p->kernel->done[i] && !(readers & bit(i)) && reads(p, i, value)) return true;
  return false;
}

// ---- what one pass does ----
static void emit(struct planner *p, enum pass_code code, enum pass_where where, int index, int aux,
                 float imm) {
  struct row_pass *pass = &p->kernel->passes[p->kernel->n_passes];
  p->kernel->pass_ops[pass->first + pass->n++] =
      (struct pass_op){(uint8_t)code, (uint8_t)where, (uint8_t)index, (uint8_t)aux, imm};
}

// A result that is written straight to an output, or that is read after the pass, has its place;
// the others use the stash.
static bool has_place(const struct planner *p, int i) {
  return p->kernel->direct[i] != ROW_NONE || is_read_outside(p, i, p->members);
}

static enum pass_where place_of(const struct planner *p, int i, int *index) {
  *index = i;
  if (has_place(p, i)) return AT_RESULT;
  *index = inst_of(p, i)->dst;
  return AT_STASH;
}

// Where an operand that is not the accumulator is read; other dtypes than fp32 are brought into the
// stash first. `missing`: a member that nobody remembered.
static enum pass_where operand(struct planner *p, int value, int *index, bool *missing) {
  if (p->members & bit(value)) {
    *missing |= !(p->remembered & bit(value)) && !has_place(p, value);
    p->remembered |= bit(value);
    return place_of(p, value, index);
  }
  *index = inst_of(p, value)->dst;
  if (!(p->elided & bit(value))) return AT_REGISTER;
  int input = inst_of(p, value)->a;
  if (p->kernel->shape[value] == SHAPE_ROW || input_of(p, value)->dtype == DTYPE_F32) {
    *index = input;
    return AT_INPUT;
  }
  if (!(p->fetched & bit(value))) emit(p, PASS_FETCH, AT_INPUT, input, *index, 0);
  p->fetched |= bit(value);
  return AT_STASH;
}

static void load_accumulator(struct planner *p, int value, bool *missing) {
  if (p->accumulator == value) return;
  p->accumulator = value;
  bool raw = (p->elided & bit(value)) && !(p->fetched & bit(value));
  if (raw && input_of(p, value)->dtype == DTYPE_BF16) {
    emit(p, PASS_LOAD_BF16, AT_INPUT, inst_of(p, value)->a, 0, 0);
    return;
  }
  int index;
  enum pass_where where = operand(p, value, &index, missing);
  emit(p, PASS_LOAD, where, index, 0, 0);
}

static enum pass_code swapped(enum pass_code code) {
  return code == PASS_SUB   ? PASS_SUB_FROM
         : code == PASS_DIV ? PASS_DIV_INTO
         : code == PASS_MAX ? PASS_MAX_WITH
                            : code;
}

static void emit_binary(struct planner *p, int i, bool *missing) {
  enum pass_code code = (enum pass_code)(PASS_ADD + inst_of(p, i)->op - RI_ADD);
  const int8_t a = p->uses->a[i], b = p->uses->b[i];
  int8_t other = b;
  const uint8_t *shape = p->kernel->shape;
  if (p->accumulator != a && (p->accumulator == b || shape[a] == SHAPE_ROW))
    other = a, code = swapped(code);
  load_accumulator(p, other == b ? a : b, missing);
  int index;
  enum pass_where where = operand(p, other, &index, missing);
  if (shape[other] == SHAPE_ROW) code = (enum pass_code)(code + PASS_ONE);
  emit(p, code, where, index, 0, 0);
}

static void emit_store(struct planner *p, int i, bool *missing) {
  uint8_t output = inst_of(p, i)->dst;
  load_accumulator(p, p->uses->a[i], missing);
  enum dtype dtype = p->kernel->program.output_dtype[output];
  emit(p,
       dtype == DTYPE_F32    ? PASS_SAVE
       : dtype == DTYPE_BF16 ? PASS_SAVE_BF16
                             : PASS_STORE,
       AT_OUTPUT, output, 0, 0);
}

static void emit_unary(struct planner *p, int i, bool *missing) {
  const struct row_inst *in = inst_of(p, i);
  load_accumulator(p, p->uses->a[i], missing);
  switch (in->op) {
  case RI_SCALE:
    emit(p, PASS_MUL_ONE, AT_IMMEDIATE, 0, 0, in->imm);
    break;
  case RI_ADD_IMM:
    emit(p, PASS_ADD_ONE, AT_IMMEDIATE, 0, 0, in->imm);
    break;
  case RI_ACT:
    emit(p, in->aux == ACT_RELU ? PASS_RELU : PASS_ACT, AT_NOTHING, 0, in->aux, 0);
    break;
  default:
    emit(p, in->aux == DTYPE_BF16 ? PASS_ROUND_BF16 : PASS_ROUND, AT_NOTHING, 0, in->aux, 0);
    break;
  }
}

static void emit_member(struct planner *p, int i, bool *missing) {
  uint8_t op = inst_of(p, i)->op;
  if (op == RI_STORE) {
    emit_store(p, i, missing);
    return;
  }
  if (op <= RI_MAX)
    emit_binary(p, i, missing);
  else
    emit_unary(p, i, missing);
  p->accumulator = i;
  if (!(p->remembered & bit(i)) && !has_place(p, i)) return;
  int index;
  enum pass_where where = place_of(p, i, &index);
  emit(p, PASS_SAVE, where, index, 0, 0);
}

// Which results are read again is known only once all is emitted: then it is done again with those
// remembered. Each round remembers at least one more.
static void emit_pass(struct planner *p, uint64_t members) {
  struct row_kernel *k = p->kernel;
  struct row_pass *pass = &k->passes[k->n_passes];
  p->remembered = 0;
  bool missing = true;
  while (missing) {
    missing = false;
    pass->n = 0;
    p->fetched = 0, p->accumulator = -1;
    for (int i = 0; i < k->program.n_insts; i++)
      if (members & bit(i)) emit_member(p, i, &missing);
  }
}

// ---- which instructions it has ----
static void add_step(struct planner *p, bool is_pass, int index) {
  p->registers |= !is_pass;
  p->kernel->steps[p->kernel->n_steps++] = (struct row_step){is_pass, (uint8_t)index};
}

static void close_pass(struct planner *p) {
  struct row_kernel *k = p->kernel;
  if (!p->members) return;
  struct row_pass *pass = &k->passes[k->n_passes];
  *pass = (struct row_pass){.first = 0};
  if (k->n_passes)
    pass->first = (uint16_t)(k->passes[k->n_passes - 1].first + k->passes[k->n_passes - 1].n);
  emit_pass(p, p->members);
  for (int i = 0; i < k->program.n_insts; i++) {
    if (!(p->members & bit(i)) || inst_of(p, i)->op == RI_STORE) continue;
    if (is_read_outside(p, i, p->members)) pass->kept |= bit(i);
    p->registers |= (pass->kept & bit(i)) && k->direct[i] == ROW_NONE;
  }
  add_step(p, true, k->n_passes++);
  p->members = 0;
}

// Does member i read the block's register `reg`? `shared`: only when that is one line or one column
// for all rows of the block.
static bool reads_register(const struct planner *p, int i, uint8_t reg, bool shared) {
  const int8_t of[] = {p->uses->a[i], p->uses->b[i]};
  for (int o = 0; o < 2; o++) {
    if (of[o] < 0 || ((p->members | p->elided) & bit(of[o]))) continue;
    if (inst_of(p, of[o])->dst == reg && (!shared || p->kernel->shape[of[o]] != SHAPE_FULL))
      return true;
  }
  return false;
}

// May instruction i, which runs alone, run before the open pass instead of after what is in it?
// Loads and work on row scalars read nothing that a pass makes, but their register may be in use.
static bool may_go_before(const struct planner *p, int i) {
  const struct row_inst *in = inst_of(p, i);
  if (in->op != RI_LOAD && (in->op == RI_STORE || in->op > RI_CAST)) return false;
  for (int m = 0; m < i; m++) {
    if (!(p->members & bit(m))) continue;
    if (inst_of(p, m)->op != RI_STORE && inst_of(p, m)->dst == in->dst) return false;
    if (reads_register(p, m, in->dst, false)) return false;
  }
  return true;
}

// A member's result must not take the register of something that all rows of the pass read: the
// first row's result would be there before the last row has read it. (Whole rows are read tile by
// tile before they are written.)
static bool may_join(const struct planner *p, int i) {
  if (inst_of(p, i)->op == RI_STORE) return true;
  for (int m = 0; m < i; m++)
    if ((p->members & bit(m)) && reads_register(p, m, inst_of(p, i)->dst, true)) return false;
  return true;
}

static void gather_steps(struct planner *p) {
  for (int i = 0; i < p->kernel->program.n_insts; i++) {
    if (p->kernel->done[i] || (p->elided & bit(i))) continue;
    if (p->in_pass & bit(i)) {
      if (!may_join(p, i)) close_pass(p);
      p->members |= bit(i);
      continue;
    }
    if (!may_go_before(p, i)) close_pass(p);
    add_step(p, false, i);
  }
  close_pass(p);
}

bool row_plan_steps(struct row_kernel *kernel, const struct row_uses *uses, bool gather) {
  struct planner p = {.kernel = kernel, .uses = uses};
  for (int i = 0; gather && i < kernel->program.n_insts; i++)
    if (!kernel->done[i] && works_on_tiles(&p, i)) p.in_pass |= bit(i);
  for (int i = 0; gather && i < kernel->program.n_insts; i++)
    if (is_load(&p, i) && input_of(&p, i)->cls < IN_GATHER && !is_read_outside(&p, i, p.in_pass))
      p.elided |= bit(i);
  gather_steps(&p);
  return p.registers;
}
