// Row programs on the CPU against the double reference: every opcode, input class, dtype and
// instruction set.
#include "cpu_test.h"
#include "kernels/cpu/row.h"

static struct row_inst inst(int op, int dst, int a, int b, int c, int aux, float imm) {
  return (struct row_inst){(uint8_t)op, (uint8_t)dst, (uint8_t)a, (uint8_t)b,
                           (uint8_t)c,  (uint8_t)aux, imm};
}

#define NONE ROW_NONE

struct bench_batch {
  int32_t cu[6], positions[64];
  struct batch_geometry geometry;
};

static struct bench_batch make_batch(void) {
  static struct bench_batch b;
  b = (struct bench_batch){.cu = {0, 7, 7, 8, 30, 41}};
  for (int s = 0; s < 5; s++)
    for (int32_t t = b.cu[s]; t < b.cu[s + 1]; t++)
      b.positions[t] = t - b.cu[s];
  b.geometry = (struct batch_geometry){
      .n_tokens = 41, .n_seqs = 5, .max_seqlen = 22, .cu_seqlens = b.cu, .positions = b.positions};
  return b;
}

struct subject {
  struct row_program program;
  struct matrix in[ROW_MAX_INPUTS], out[ROW_MAX_OUTPUTS];
  int n_views; // inputs and index operands
  int64_t table_rows[ROW_MAX_INPUTS];
  int64_t rows;
};

// Runs rows [0, n) in two calls, so that row0 is not always 0, and compares with the reference.
static void run_and_compare(struct subject *s, const struct cpu_ops *ops, bool overlap,
                            double bound, const char *what) {
  struct bench_batch batch = make_batch();
  struct row_kernel kernel;
  assert_true(row_prepare(&kernel, &s->program, overlap));
  float *scratch = aligned_alloc(64, (row_scratch_bytes(&kernel) + 64) & ~(size_t)63);
  for (int part = 0; part < 2; part++) {
    int64_t first = part ? s->rows / 3 : 0, end = part ? s->rows : s->rows / 3;
    struct view inputs[ROW_MAX_INPUTS], outputs[ROW_MAX_OUTPUTS];
    for (int i = 0; i < s->n_views; i++) {
      inputs[i] = s->in[i].view;
      bool by_row = i >= s->program.n_inputs || s->program.inputs[i].cls == IN_FULL ||
                    s->program.inputs[i].cls == IN_PER_ROW;
      if (by_row)
        inputs[i].data = (char *)inputs[i].data +
                         first * inputs[i].stride * (int64_t)dtype_bytes(inputs[i].dtype);
    }
    for (int i = 0; i < s->program.n_outputs; i++) {
      outputs[i] = s->out[i].view;
      outputs[i].data = (char *)outputs[i].data +
                        first * outputs[i].stride * (int64_t)dtype_bytes(outputs[i].dtype);
    }
    struct row_call call = {.inputs = inputs,
                            .outputs = outputs,
                            .table_rows = s->table_rows,
                            .row0 = first,
                            .n_rows = end - first,
                            .geometry = &batch.geometry,
                            .scratch = scratch};
    ops->row_run(&kernel, &call);
  }
  struct view inputs[ROW_MAX_INPUTS];
  double *wants[ROW_MAX_OUTPUTS];
  for (int i = 0; i < s->n_views; i++)
    inputs[i] = s->in[i].view;
  for (int i = 0; i < s->program.n_outputs; i++)
    wants[i] = malloc((size_t)(s->rows * s->program.cols) * sizeof(double));
  double *regs = malloc((size_t)s->program.n_regs * (size_t)s->program.cols * sizeof *regs);
  ref_row_program(&s->program, inputs, wants, s->rows, &batch.geometry, regs);
  for (int i = 0; i < s->program.n_outputs; i++) {
    double distance = matrix_distance(&s->out[i], wants[i]);
    if (!(distance <= bound))
      fail_msg("%s, %s, cols %d, output %d: off by %g", what, cpu_isa_name(ops->isa),
               s->program.cols, i, distance);
    if (!matrix_intact(&s->out[i])) fail_msg("%s wrote outside of its output", what);
    free(wants[i]);
  }
  free(regs), free(scratch);
}

static void subject_free(struct subject *s) {
  for (int i = 0; i < s->n_views; i++)
    matrix_free(&s->in[i]);
  for (int i = 0; i < s->program.n_outputs; i++)
    matrix_free(&s->out[i]);
}

// x, y [rows, cols], gamma, beta [cols], r [rows, 1], one scalar; `op` on them; stored as `dtype`.
static struct subject make_subject(int op, int aux, float imm, int32_t cols, enum dtype dtype) {
  struct subject s = {.rows = 41, .n_views = 6};
  struct row_program *p = &s.program;
  *p = (struct row_program){.cols = cols, .n_inputs = 6, .n_outputs = 1, .n_regs = 7};
  const enum row_input_class cls[6] = {IN_FULL,    IN_FULL,    IN_PER_COL,
                                       IN_PER_COL, IN_PER_ROW, IN_SCALAR};
  for (int i = 0; i < 6; i++) {
    p->inputs[i] = (struct row_input){cls[i], dtype, NONE};
    bool full = i < 2, by_row = i == 4;
    s.in[i] = matrix_random(full || by_row ? s.rows : 1, i < 4 ? cols : 1,
                            i < 2   ? cols + 3
                            : i < 4 ? cols
                                    : 1,
                            dtype);
    p->insts[p->n_insts++] = inst(RI_LOAD, i, i, NONE, NONE, 0, 0);
  }
  bool binary = op <= RI_MAX;
  p->insts[p->n_insts++] = inst(op, 6, 0,
                                binary                                     ? 1
                                : op == RI_LAYER_NORM || op == RI_RMS_NORM ? 2
                                                                           : NONE,
                                op == RI_LAYER_NORM ? 3 : NONE, aux, imm);
  p->insts[p->n_insts++] = inst(RI_STORE, 0, 6, NONE, NONE, 0, 0);
  p->output_dtype[0] = dtype;
  s.out[0] = matrix_make(s.rows, cols, cols + 2, dtype);
  return s;
}

static const int32_t widths[] = {1, 3, 15, 16, 17, 31, 64, 65, 384, 1000, 4097, 9000};

static void each_opcode(const struct cpu_ops *ops, enum dtype dtype) {
  for (int op = RI_ADD; op <= RI_NORMALIZE; op++) {
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
      if (widths[w] > 1000 && dtype != DTYPE_F32) continue; // only the loads and stores differ
      if (op == RI_DIV && dtype != DTYPE_F32) continue; // a divisor near zero magnifies rounding
      float imm = op == RI_SCALE || op == RI_ADD_IMM ? 0.75f : 1e-5f;
      int aux = op == RI_ACT    ? (int)(1 + test_random() % (ACT_COUNT - 1))
                : op == RI_CAST ? DTYPE_BF16
                                : 0;
      struct subject s = make_subject(op, aux, imm, widths[w], dtype);
      if (op == RI_LAYER_NORM && widths[w] < 4) typed_set(s.in[0].view.data, dtype, 0, 0.5f);
      char what[64];
      snprintf(what, sizeof what, "opcode %d aux %d %s", op, aux, dtype_name(dtype));
      // A sum may cancel to nearly nothing; its error is bounded by what was added.
      bool sum = op == RI_SUM || op == RI_MEAN;
      run_and_compare(&s, ops, test_random() % 2, sum ? 20 * bound_of(dtype) : bound_of(dtype),
                      what);
      subject_free(&s);
    }
  }
}

static void every_opcode_matches_the_reference(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    if (!ops) continue;
    each_opcode(ops, DTYPE_F32);
    each_opcode(ops, DTYPE_BF16);
    each_opcode(ops, DTYPE_F16);
  }
}

// ((x * r + s) * gamma) and a row mean, stored full, as a row scalar, and a second time after more
// work.
static void broadcasts_and_several_outputs(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (size_t w = 0; ops && w < sizeof widths / sizeof widths[0]; w++) {
      struct subject s = make_subject(RI_ADD, 0, 0, widths[w], DTYPE_F32);
      struct row_program *p = &s.program;
      p->n_insts = 6, p->n_outputs = 3, p->n_regs = 8;
      p->insts[p->n_insts++] = inst(RI_MUL, 6, 0, 4, NONE, 0, 0); // full * row
      p->insts[p->n_insts++] = inst(RI_ADD, 6, 6, 5, NONE, 0, 0); // in place, + scalar
      p->insts[p->n_insts++] = inst(RI_STORE, 0, 6, NONE, NONE, 0, 0);
      p->insts[p->n_insts++] = inst(RI_MUL, 6, 6, 2, NONE, 0, 0); // * column
      p->insts[p->n_insts++] = inst(RI_MAX_ROW, 7, 6, NONE, NONE, 0, 0);
      p->insts[p->n_insts++] = inst(RI_STORE, 1, 7, NONE, NONE, 0, 0);
      p->insts[p->n_insts++] = inst(RI_SUB, 6, 7, 6, NONE, 0, 0);   // row - full
      p->insts[p->n_insts - 1] = inst(RI_SUB, 1, 7, 6, NONE, 0, 0); // dst is never b
      p->insts[p->n_insts++] = inst(RI_STORE, 2, 1, NONE, NONE, 0, 0);
      p->output_dtype[0] = p->output_dtype[1] = p->output_dtype[2] = DTYPE_F32;
      p->output_is_scalar[1] = 1;
      s.out[1] = matrix_make(s.rows, 1, 3, DTYPE_F32);
      s.out[2] = matrix_make(s.rows, widths[w], widths[w], DTYPE_F32);
      run_and_compare(&s, ops, false, 1e-5, "broadcasts");
      subject_free(&s);
    }
  }
}

// Of one column: a norm of a row scalar is a row, and what follows may be done in its register.
static void norms_of_row_scalars_are_rows(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int op = RI_LAYER_NORM; ops && op <= RI_NORMALIZE; op++) {
      struct subject s = make_subject(op, 0, 0.25f, 1, DTYPE_F32);
      struct row_program *p = &s.program;
      struct row_inst norm = p->insts[6];
      p->n_insts = 6, p->n_outputs = 2, p->n_regs = 8;
      p->insts[p->n_insts++] = inst(RI_SUM, 7, 0, NONE, NONE, 0, 0);
      norm.a = 7;
      p->insts[p->n_insts++] = norm;                              // into 6
      p->insts[p->n_insts++] = inst(RI_MUL, 6, 6, 2, NONE, 0, 0); // in place, * column
      p->insts[p->n_insts++] = inst(RI_STORE, 0, 6, NONE, NONE, 0, 0);
      p->insts[p->n_insts++] = inst(RI_SUM, 1, 6, NONE, NONE, 0, 0);
      p->insts[p->n_insts++] = inst(RI_STORE, 1, 1, NONE, NONE, 0, 0);
      p->output_dtype[1] = DTYPE_F32, p->output_is_scalar[1] = 1;
      s.out[1] = matrix_make(s.rows, 1, 3, DTYPE_F32);
      run_and_compare(&s, ops, op % 2, 1e-5, "a norm of a row scalar");
      subject_free(&s);
    }
  }
}

// words[ids] + places[positions] -> pooled three ways needs sequences as rows, so two programs.
static void gathers_match_the_reference(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int wide = 0; ops && wide < 2; wide++) {
      int32_t cols = wide ? 5000 : 33;
      struct subject s = {.rows = 41, .n_views = 3};
      s.program =
          (struct row_program){.cols = cols,
                               .n_inputs = 2,
                               .n_outputs = 1,
                               .n_regs = 3,
                               .inputs = {{IN_GATHER, DTYPE_BF16, 2}, {IN_GATHER, DTYPE_F32, NONE}},
                               .output_dtype = {DTYPE_F32},
                               .n_insts = 4};
      s.program.insts[0] = inst(RI_LOAD, 0, 0, NONE, NONE, 0, 0);
      s.program.insts[1] = inst(RI_LOAD, 1, 1, NONE, NONE, 0, 0);
      s.program.insts[2] = inst(RI_ADD, 2, 0, 1, NONE, 0, 0);
      s.program.insts[3] = inst(RI_STORE, 0, 2, NONE, NONE, 0, 0);
      s.in[0] = matrix_random(9, cols, cols, DTYPE_BF16);
      s.in[1] = matrix_random(64, cols, cols, DTYPE_F32);
      s.in[2] = matrix_make(41, 1, 1, wide ? DTYPE_I32 : DTYPE_I64);
      s.table_rows[0] = 9, s.table_rows[1] = 64;
      for (int i = 0; i < 41; i++)
        typed_set(s.in[2].view.data, s.in[2].view.dtype, i, (float)(test_random() % 9));
      s.out[0] = matrix_make(41, cols, cols, DTYPE_F32);
      run_and_compare(&s, ops, false, 1e-6, "gathers");
      subject_free(&s);
    }
  }
}

static void pools_match_the_reference(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int n = 0; ops && n < 6; n++) {
      enum dtype dtype = n % 2 ? DTYPE_BF16 : DTYPE_F32;
      int32_t cols = n < 2 ? 17 : 384;
      struct subject s = {.rows = 5, .n_views = 1};
      s.program = (struct row_program){
          .cols = cols,
          .n_inputs = 1,
          .n_outputs = 1,
          .n_regs = 2,
          .n_insts = 3,
          .inputs = {{(enum row_input_class)(IN_POOL_MEAN + n / 2), dtype, NONE}},
          .output_dtype = {dtype}};
      s.program.insts[0] = inst(RI_LOAD, 0, 0, NONE, NONE, 0, 0);
      s.program.insts[1] = inst(RI_NORMALIZE, 1, 0, NONE, NONE, 0, 1e-12f);
      s.program.insts[2] = inst(RI_STORE, 0, 1, NONE, NONE, 0, 0);
      s.in[0] = matrix_random(41, cols, cols, dtype);
      s.out[0] = matrix_make(5, cols, cols, dtype);
      run_and_compare(&s, ops, false, bound_of(dtype), "pools");
      subject_free(&s);
    }
  }
}

static void an_index_out_of_range_reads_as_zeros(void **state) {
  (void)state;
  float table[4] = {1, 2, 3, 4}, out[6];
  int64_t ids[3] = {1, -1, 7}, table_rows[1] = {2};
  struct row_program p = {.cols = 2,
                          .n_inputs = 1,
                          .n_outputs = 1,
                          .n_regs = 1,
                          .n_insts = 2,
                          .inputs = {{IN_GATHER, DTYPE_F32, 1}},
                          .output_dtype = {DTYPE_F32}};
  p.insts[0] = inst(RI_LOAD, 0, 0, NONE, NONE, 0, 0);
  p.insts[1] = inst(RI_STORE, 0, 0, NONE, NONE, 0, 0);
  struct row_kernel kernel;
  assert_true(row_prepare(&kernel, &p, false));
  float *scratch = aligned_alloc(64, (row_scratch_bytes(&kernel) + 64) & ~(size_t)63);
  struct view inputs[] = {{table, 2, 2, DTYPE_F32}, {ids, 1, 1, DTYPE_I64}},
              output = {out, 2, 2, DTYPE_F32};
  struct row_call call = {.inputs = inputs,
                          .outputs = &output,
                          .table_rows = table_rows,
                          .n_rows = 3,
                          .scratch = scratch};
  cpu_ops_for(CPU_PORTABLE)->row_run(&kernel, &call);
  const float want[6] = {3, 4, 0, 0, 0, 0};
  assert_memory_equal(out, want, sizeof want);
  free(scratch);
}

// Values that break careless code, one kind a row, through the whole-row functions.
static void ugly_rows_follow_the_reference_and_stay_apart(void **state) {
  (void)state;
  const int ops_tried[] = {RI_LAYER_NORM, RI_RMS_NORM, RI_SOFTMAX, RI_NORMALIZE, RI_MAX_ROW};
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (size_t o = 0; ops && o < sizeof ops_tried / sizeof ops_tried[0]; o++) {
      struct subject s = make_subject(ops_tried[o], 0, 1e-5f, 384, DTYPE_F32);
      float *x = s.in[0].view.data;
      int64_t stride = s.in[0].view.stride;
      for (int c = 0; c < 384; c++) {
        x[0 * stride + c] = 1e6f + test_float();
        x[1 * stride + c] = 3.25f; // all equal
        x[2 * stride + c] = -INFINITY;
        x[3 * stride + c] = test_float() * 1e-41f; // not normal
        x[4 * stride + c] = test_float() * 1e4f;
        if (ops_tried[o] == RI_LAYER_NORM && c == 0) x[2 * stride] = -INFINITY;
      }
      x[5 * stride + 17] = NAN;
      x[6 * stride + 383] = INFINITY;
      run_and_compare(&s, ops, false, 1e-5, "ugly rows");
      for (int c = 0; c < 384; c++) // the neighbours of the NaN row are numbers
        assert_false(isnan(matrix_at(&s.out[0], 4, c)) || isnan(matrix_at(&s.out[0], 7, c)));
      subject_free(&s);
    }
  }
}

static void malformed_programs_are_refused(void **state) {
  (void)state;
  struct row_kernel kernel;
  struct row_program p = {.cols = 4,
                          .n_inputs = 1,
                          .n_outputs = 1,
                          .n_regs = 2,
                          .n_insts = 2,
                          .inputs = {{IN_FULL, DTYPE_F32, NONE}},
                          .output_dtype = {DTYPE_F32}};
  p.insts[0] = inst(RI_LOAD, 0, 0, NONE, NONE, 0, 0);
  p.insts[1] = inst(RI_STORE, 0, 0, NONE, NONE, 0, 0);
  assert_true(row_prepare(&kernel, &p, false));
  struct row_program q = p;
  q.insts[1].a = 1; // never written
  assert_false(row_prepare(&kernel, &q, false));
  q = p, q.insts[0].a = 1; // no such input
  assert_false(row_prepare(&kernel, &q, false));
  q = p, q.insts[1].dst = 1; // no such output
  assert_false(row_prepare(&kernel, &q, false));
  q = p, q.insts[0].dst = 2; // no such register
  assert_false(row_prepare(&kernel, &q, false));
}

int main(void) {
  test_seed_now();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_opcode_matches_the_reference),
      cmocka_unit_test(broadcasts_and_several_outputs),
      cmocka_unit_test(norms_of_row_scalars_are_rows),
      cmocka_unit_test(gathers_match_the_reference),
      cmocka_unit_test(pools_match_the_reference),
      cmocka_unit_test(an_index_out_of_range_reads_as_zeros),
      cmocka_unit_test(ugly_rows_follow_the_reference_and_stay_apart),
      cmocka_unit_test(malformed_programs_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
