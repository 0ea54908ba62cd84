// Passes over tiles against one instruction at a time: the same programs, bit for bit. (That one
// instruction at a time is right, test_cpu_row.c holds against the double reference; and no sum, no
// cancellation and no overflow of a random program can make equal bits differ.)
//
//   FUSEWIRE_ROW_PROGRAMS: how many (300); FUSEWIRE_ROW_SEED: the seed that a failure printed
#include "cpu_test.h"
#include "kernels/cpu/row.h"

#define ROWS 23 // of which the second call takes the last 16: row0 is not always 0
#define TABLE_ROWS 9
#define NONE ROW_NONE

struct trial {
  struct row_program program;
  uint8_t shape_of[ROW_MAX_REGS]; // enum row_shape, NONE: not written yet
  struct matrix in[ROW_MAX_INPUTS], out[2][ROW_MAX_OUTPUTS];
};

static uint32_t below(uint32_t n) {
  return test_random() % n;
}

static uint8_t some_register(const struct trial *t, bool scalar) {
  uint8_t first = (uint8_t)below(t->program.n_regs);
  for (int i = 0; i < t->program.n_regs; i++) {
    uint8_t r = (uint8_t)((first + i) % t->program.n_regs);
    if (t->shape_of[r] != NONE && (!scalar || t->shape_of[r] == SHAPE_ROW)) return r;
  }
  return NONE;
}

static void append(struct trial *t, struct row_inst in, uint8_t shape) {
  struct row_program *p = &t->program;
  // Never the register of b or c, that of a only when it holds the same shape.
  if (in.op != RI_LOAD) {
    if (in.dst == in.b || in.dst == in.c) return;
    if (in.dst == in.a && t->shape_of[in.a] != shape) return;
  }
  p->insts[p->n_insts++] = in;
  t->shape_of[in.dst] = shape;
}

static void add_load(struct trial *t) {
  struct row_program *p = &t->program;
  uint8_t i = (uint8_t)below(p->n_inputs);
  enum row_input_class cls = p->inputs[i].cls;
  append(t, (struct row_inst){RI_LOAD, (uint8_t)below(p->n_regs), i, NONE, NONE, 0, 0},
         cls == IN_PER_COL                       ? SHAPE_COL
         : cls == IN_PER_ROW || cls == IN_SCALAR ? SHAPE_ROW
                                                 : SHAPE_FULL);
}

static void add_element_wise(struct trial *t) {
  static const enum dtype casts[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_BF16};
  struct row_inst in = {.op = (uint8_t)(RI_ADD + below(RI_CAST - RI_ADD + 1)),
                        .dst = (uint8_t)below(t->program.n_regs),
                        .a = some_register(t, false),
                        .b = NONE,
                        .c = NONE,
                        .imm = test_float()};
  bool scalar = t->shape_of[in.a] == SHAPE_ROW;
  if (in.op <= RI_MAX) {
    in.b = some_register(t, below(4) == 0);
    if (in.b == NONE) return;
    scalar &= t->shape_of[in.b] == SHAPE_ROW;
  }
  if (in.op == RI_ACT) in.aux = (uint8_t)(1 + below(ACT_COUNT - 1));
  if (in.op == RI_CAST) in.aux = (uint8_t)casts[below(4)];
  append(t, in, scalar ? SHAPE_ROW : SHAPE_FULL);
}

// The same two short operations over and over, in place, as chains have them.
static void add_repeats(struct trial *t) {
  static const uint8_t ops[] = {RI_ADD, RI_SUB, RI_MUL, RI_SCALE, RI_ADD_IMM};
  uint8_t a = some_register(t, false), b = some_register(t, below(2));
  struct row_inst pair[2];
  if (b == NONE || t->shape_of[a] != SHAPE_FULL) return;
  for (int i = 0; i < 2; i++) {
    uint8_t op = ops[below(5)];
    pair[i] = (struct row_inst){op, a, a, op <= RI_MAX ? b : NONE, NONE, 0, 0.9f};
  }
  for (uint32_t n = 2 * (1 + below(12)), i = 0; i < n && t->program.n_insts < ROW_MAX_INSTS - 3;
       i++)
    append(t, pair[i % 2], SHAPE_FULL);
}

static void add_whole_row(struct trial *t) {
  struct row_inst in = {.op = (uint8_t)(RI_SUM + below(RI_NORMALIZE - RI_SUM + 1)),
                        .dst = (uint8_t)below(t->program.n_regs),
                        .a = some_register(t, false),
                        .b = NONE,
                        .c = NONE,
                        .imm = 1e-3f};
  if (t->shape_of[in.a] == SHAPE_ROW) return;
  if ((in.op == RI_LAYER_NORM || in.op == RI_RMS_NORM) && below(2)) {
    in.b = some_register(t, false);
    if (t->shape_of[in.b] == SHAPE_ROW) return;
  }
  append(t, in, in.op <= RI_MAX_ROW ? SHAPE_ROW : SHAPE_FULL);
}

static void add_store(struct trial *t) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  struct row_program *p = &t->program;
  if (p->n_outputs == ROW_MAX_OUTPUTS) return;
  uint8_t o = p->n_outputs++, a = some_register(t, below(4) == 0);
  if (a == NONE) a = some_register(t, false);
  p->output_dtype[o] = dtypes[below(4)];
  p->output_is_scalar[o] = t->shape_of[a] == SHAPE_ROW && below(2);
  p->insts[p->n_insts++] = (struct row_inst){RI_STORE, o, a, NONE, NONE, 0, 0};
  int32_t cols = p->output_is_scalar[o] ? 1 : p->cols;
  for (int side = 0; side < 2; side++)
    t->out[side][o] = matrix_make(ROWS, cols, cols + (o % 2 ? 3 : 0), p->output_dtype[o]);
}

static void make_inputs(struct trial *t) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32};
  struct row_program *p = &t->program;
  for (int i = 0; i < p->n_inputs; i++) {
    enum row_input_class cls = (enum row_input_class)below(IN_GATHER + 1);
    p->inputs[i] = (struct row_input){cls, dtypes[below(5)], NONE}; // gathers go by position
    int64_t rows = cls == IN_GATHER ? TABLE_ROWS : cls == IN_PER_COL || cls == IN_SCALAR ? 1 : ROWS;
    int32_t cols = cls == IN_PER_ROW || cls == IN_SCALAR ? 1 : p->cols;
    t->in[i] = matrix_random(rows, cols, cols + (int)below(3), p->inputs[i].dtype);
  }
}

static void make_trial(struct trial *t) {
  static const int32_t widths[] = {1, 7, 64, 300, 1500}; // one of: below each of them
  *t = (struct trial){0};
  struct row_program *p = &t->program;
  memset(t->shape_of, NONE, sizeof t->shape_of);
  p->cols = 1 + (int32_t)below((uint32_t)widths[below(10) == 0 ? 4 : below(4)]);
  p->n_inputs = (uint8_t)(1 + below(8));
  p->n_regs = (uint8_t)(2 + below(8));
  make_inputs(t);
  add_load(t);
  int length = 2 + (int)below(ROW_MAX_INSTS - 4), whole_rows = (int)below(8);
  while (p->n_insts < length) {
    uint32_t kind = below(100);
    if (kind < 25)
      add_load(t);
    else if (kind < 80)
      add_element_wise(t);
    else if (kind < 80 + (uint32_t)whole_rows)
      add_whole_row(t);
    else if (kind >= 90)
      add_store(t);
    else if (kind >= 87)
      add_repeats(t);
  }
  add_store(t);
  if (p->n_outputs == ROW_MAX_OUTPUTS) return;
  add_store(t);
}

static void run_side(struct trial *t, const struct cpu_ops *ops, bool passes, int *n_passes) {
  int32_t positions[ROWS];
  struct batch_geometry geometry = {.positions = positions};
  int64_t table_rows[ROW_MAX_INPUTS];
  struct row_kernel kernel;
  assert_true(row_prepare(&kernel, &t->program, !passes));
  *n_passes = kernel.n_passes;
  float *scratch = aligned_alloc(64, (row_scratch_bytes(&kernel) + 64) & ~(size_t)63);
  for (int i = 0; i < ROWS; i++)
    positions[i] = (i * 5) % (TABLE_ROWS + 1); // some out of range
  for (int i = 0; i < t->program.n_inputs; i++)
    table_rows[i] = TABLE_ROWS;
  for (int part = 0; part < 2; part++) {
    int64_t first = part ? 7 : 0, end = part ? ROWS : 7;
    struct view inputs[ROW_MAX_INPUTS], outputs[ROW_MAX_OUTPUTS];
    for (int i = 0; i < t->program.n_inputs; i++) {
      inputs[i] = t->in[i].view;
      bool by_row = t->in[i].rows == ROWS;
      size_t row_bytes = (size_t)inputs[i].stride * dtype_bytes(inputs[i].dtype);
      inputs[i].data = (char *)inputs[i].data + (by_row ? (size_t)first * row_bytes : 0);
    }
    for (int o = 0; o < t->program.n_outputs; o++) {
      outputs[o] = t->out[passes][o].view;
      size_t row_bytes = (size_t)outputs[o].stride * dtype_bytes(outputs[o].dtype);
      outputs[o].data = (char *)outputs[o].data + (size_t)first * row_bytes;
    }
    struct row_call call = {inputs,    outputs, table_rows, first, end - first,
                            &geometry, scratch, 0,          NULL};
    ops->row_run(&kernel, &call);
  }
  free(scratch);
}

// Elements that are numbers on both sides and the same, in all outputs; -1 when two differ.
static int64_t same_numbers(const struct trial *t) {
  int64_t same = 0;
  for (int o = 0; o < t->program.n_outputs; o++) {
    const struct matrix *a = &t->out[0][o], *b = &t->out[1][o];
    if (!matrix_intact(a) || !matrix_intact(b)) return -1;
    for (int64_t r = 0; r < ROWS; r++)
      for (int32_t c = 0; c < a->view.cols; c++) {
        float x = matrix_at(a, r, c), y = matrix_at(b, r, c);
        if (isnan(x) && isnan(y)) continue;
        if (memcmp(&x, &y, sizeof x) != 0) return -1;
        same += isfinite(x);
      }
  }
  return same;
}

static int64_t numbers_in(const struct trial *t) {
  int64_t n = 0;
  for (int o = 0; o < t->program.n_outputs; o++)
    n += ROWS * t->out[0][o].view.cols;
  return n;
}

static void print_program(const struct row_program *p) {
  printf("cols %d, %d registers\n", p->cols, p->n_regs);
  for (int i = 0; i < p->n_inputs; i++)
    printf("input %d: class %d %s\n", i, p->inputs[i].cls, dtype_name(p->inputs[i].dtype));
  for (int i = 0; i < p->n_insts; i++) {
    const struct row_inst *in = &p->insts[i];
    printf("%2d: op %2d dst %2d a %d b %d c %d aux %d imm %g\n", i, in->op, in->dst, in->a, in->b,
           in->c, in->aux, (double)in->imm);
  }
}

static void random_programs_give_the_same_bits(void **state) {
  (void)state;
  const char *count = getenv("FUSEWIRE_ROW_PROGRAMS"), *seed = getenv("FUSEWIRE_ROW_SEED");
  int n = count ? atoi(count) : 300, passes = 0, insts = 0;
  int64_t finite = 0, all = 0;
  static struct trial t;
  if (seed) test_seed = strtoull(seed, NULL, 10), n = 1;
  for (int i = 0; i < n; i++) {
    uint64_t start = test_seed;
    make_trial(&t);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
      const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
      if (!ops) continue;
      int now = 0, none = 0;
      run_side(&t, ops, false, &none);
      run_side(&t, ops, true, &now);
      assert_int_equal(none, 0);
      int64_t same = same_numbers(&t);
      if (same < 0) {
        print_program(&t.program);
        fail_msg("%s differs: FUSEWIRE_ROW_SEED=%llu", cpu_isa_name(ops->isa),
                 (unsigned long long)start);
      }
      finite += same, all += numbers_in(&t);
      if (isa == 0) passes += now, insts += t.program.n_insts;
    }
    for (int in = 0; in < t.program.n_inputs; in++)
      matrix_free(&t.in[in]);
    for (int o = 0; o < 2 * t.program.n_outputs; o++)
      matrix_free(&t.out[o % 2][o / 2]);
  }
  printf("%d programs, %d instructions, %d passes, %.2f of the results finite\n", n, insts, passes,
         (double)finite / (double)all);
  if (!seed) assert_true(finite * 2 > all && passes >= n);
}

// A chain is one pass whatever registers its loads take, and it uses no memory in between.
static void a_chain_is_one_pass(void **state) {
  (void)state;
  struct row_program p = {.cols = 96, .n_outputs = 1, .n_regs = 2};
  p.output_dtype[0] = DTYPE_F32;
  p.inputs[p.n_inputs++] = (struct row_input){IN_FULL, DTYPE_F32, NONE};
  p.insts[p.n_insts++] = (struct row_inst){RI_LOAD, 0, 0, NONE, NONE, 0, 0};
  for (int i = 0; i < 14; i++) {
    enum row_input_class cls = i % 2 ? IN_PER_COL : IN_PER_ROW;
    p.inputs[p.n_inputs] = (struct row_input){cls, i % 3 ? DTYPE_F32 : DTYPE_BF16, NONE};
    p.insts[p.n_insts++] = (struct row_inst){RI_LOAD, 1, p.n_inputs++, NONE, NONE, 0, 0};
    p.insts[p.n_insts++] = (struct row_inst){i % 2 ? RI_ADD : RI_MUL, 0, 0, 1, NONE, 0, 0};
    p.insts[p.n_insts++] = (struct row_inst){RI_CAST, 0, 0, NONE, NONE, DTYPE_BF16, 0};
  }
  p.insts[p.n_insts++] = (struct row_inst){RI_STORE, 0, 0, NONE, NONE, 0, 0};
  struct row_kernel kernel;
  assert_true(row_prepare(&kernel, &p, false));
  assert_int_equal(kernel.n_steps, 1);
  assert_true(kernel.steps[0].is_pass);
  assert_false(kernel.registers);
  int saves = 0, fetches = 0;
  for (int i = 0; i < kernel.passes[0].n; i++) {
    saves += kernel.pass_ops[i].code == PASS_SAVE;
    fetches += kernel.pass_ops[i].code == PASS_FETCH; // bf16 columns, once each
  }
  assert_int_equal(saves, 1);
  assert_int_equal(fetches, 2);
}

// Sixteen products and sums in turn, and then an operand of each row's own or none: rows that lie
// together are gone through as one, whatever their length, and give the bits of each alone.
static void long_chains_give_the_same_bits(void **state) {
  (void)state;
  static const int32_t widths[] = {1, 3, 7, 16, 47, 48, 64, 96, 101, 192, 256, 300, 1024, 1031};
  for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
    static struct trial t;
    bool apart = i % 2; // rows that do not lie together
    int32_t cols = widths[i / 2];
    t = (struct trial){.program = {.cols = cols, .n_inputs = 2, .n_outputs = 1, .n_regs = 2}};
    struct row_program *p = &t.program;
    p->inputs[0] = (struct row_input){IN_FULL, DTYPE_F32, NONE};
    p->inputs[1] = (struct row_input){i % 3 ? IN_SCALAR : IN_PER_ROW, DTYPE_F32, NONE};
    p->insts[p->n_insts++] = (struct row_inst){RI_LOAD, 0, 0, NONE, NONE, 0, 0};
    p->insts[p->n_insts++] = (struct row_inst){RI_LOAD, 1, 1, NONE, NONE, 0, 0};
    for (int k = 0; k < 16; k++) {
      p->insts[p->n_insts++] = (struct row_inst){RI_SCALE, 0, 0, NONE, NONE, 0, 1.0f - 0.01f * k};
      p->insts[p->n_insts++] = (struct row_inst){RI_ADD, 0, 0, 1, NONE, 0, 0};
    }
    p->insts[p->n_insts++] = (struct row_inst){RI_STORE, 0, 0, NONE, NONE, 0, 0};
    t.in[0] = matrix_random(ROWS, cols, cols + apart, DTYPE_F32);
    t.in[1] = matrix_random(i % 3 ? 1 : ROWS, 1, 1, DTYPE_F32);
    for (int side = 0; side < 2; side++)
      t.out[side][0] = matrix_make(ROWS, cols, cols + 3 * apart, DTYPE_F32);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
      const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
      int passes = 0, none = 0;
      if (!ops) continue;
      run_side(&t, ops, false, &none);
      run_side(&t, ops, true, &passes);
      assert_int_equal(passes, 1);
      if (same_numbers(&t) != numbers_in(&t))
        fail_msg("%s differs at %d columns", cpu_isa_name(ops->isa), cols);
    }
    matrix_free(&t.in[0]), matrix_free(&t.in[1]);
    matrix_free(&t.out[0][0]), matrix_free(&t.out[1][0]);
  }
}

int main(void) {
  test_seed_now();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_chain_is_one_pass),
      cmocka_unit_test(long_chains_give_the_same_bits),
      cmocka_unit_test(random_programs_give_the_same_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
