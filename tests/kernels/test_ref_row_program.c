// Every opcode and input class of a row program, on values worked out by hand.
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void near_all(const double *found, const double *expected, int n) {
  for (int i = 0; i < n; i++)
    if (!(fabs(found[i] - expected[i]) <= 1e-6))
      fail_msg("[%d]: found %.9g, expected %.9g", i, found[i], expected[i]);
}

static struct view f32_view(float *data, int32_t cols, int64_t stride) {
  return (struct view){.data = data, .stride = stride, .cols = cols, .dtype = DTYPE_F32};
}

// Runs one instruction `op` on two full inputs of two columns, [2 rows, 2], and returns its result.
static void run_binary(enum row_opcode op, uint8_t aux, float imm, double y[4]) {
  float a[] = {1, -2, 3, 4.0078125f}, b[] = {10, 20, -30, 2};
  struct row_program program = {
      .cols = 2, .n_inputs = 2, .n_outputs = 1, .n_insts = 4, .n_regs = 3};
  program.insts[0] =
      (struct row_inst){.op = RI_LOAD, .dst = 0, .a = 0, .b = ROW_NONE, .c = ROW_NONE};
  program.insts[1] =
      (struct row_inst){.op = RI_LOAD, .dst = 1, .a = 1, .b = ROW_NONE, .c = ROW_NONE};
  program.insts[2] = (struct row_inst){.op = (uint8_t)op,
                                       .dst = 2,
                                       .a = 0,
                                       .b = op <= RI_MAX ? 1 : ROW_NONE,
                                       .c = ROW_NONE,
                                       .aux = aux,
                                       .imm = imm};
  program.insts[3] =
      (struct row_inst){.op = RI_STORE, .dst = 0, .a = 2, .b = ROW_NONE, .c = ROW_NONE};
  struct view inputs[] = {f32_view(a, 2, 2), f32_view(b, 2, 2)};
  double regs[6];
  ref_row_program(&program, inputs, (double *[]){y}, 2, NULL, regs);
}

static void element_wise_opcodes(void **state) {
  (void)state;
  double y[4], a = 4.0078125;
  run_binary(RI_ADD, 0, 0, y), near_all(y, (double[]){11, 18, -27, a + 2}, 4);
  run_binary(RI_SUB, 0, 0, y), near_all(y, (double[]){-9, -22, 33, a - 2}, 4);
  run_binary(RI_MUL, 0, 0, y), near_all(y, (double[]){10, -40, -90, a * 2}, 4);
  run_binary(RI_DIV, 0, 0, y), near_all(y, (double[]){0.1, -0.1, -0.1, a / 2}, 4);
  run_binary(RI_MAX, 0, 0, y), near_all(y, (double[]){10, 20, 3, a}, 4);
  run_binary(RI_SCALE, 0, 2.5f, y), near_all(y, (double[]){2.5, -5, 7.5, a * 2.5}, 4);
  run_binary(RI_ADD_IMM, 0, 0.5f, y), near_all(y, (double[]){1.5, -1.5, 3.5, a + 0.5}, 4);
  run_binary(RI_ACT, ACT_RELU, 0, y), near_all(y, (double[]){1, 0, 3, a}, 4);
  run_binary(RI_CAST, DTYPE_BF16, 0, y), near_all(y, (double[]){1, -2, 3, 4}, 4);
}

static void row_opcodes_without_operands(void **state) {
  (void)state;
  double y[4], a = 4.0078125;
  run_binary(RI_SOFTMAX, 0, 0, y), near_all(y,
                                            (double[]){1 / (1 + exp(-3)), 1 / (1 + exp(3)),
                                                       1 / (1 + exp(a - 3)), 1 / (1 + exp(3 - a))},
                                            4);
  run_binary(RI_NORMALIZE, 0, 0, y),
      near_all(y, (double[]){1 / sqrt(5), -2 / sqrt(5), 3 / sqrt(9 + a * a), a / sqrt(9 + a * a)},
               4);
  run_binary(RI_LAYER_NORM, 0, 0, y), near_all(y, (double[]){1, -1, -1, 1}, 4);
  run_binary(RI_RMS_NORM, 0, 0, y),
      near_all(y,
               (double[]){1 / sqrt(2.5), -2 / sqrt(2.5), 3 / sqrt((9 + a * a) / 2),
                          a / sqrt((9 + a * a) / 2)},
               4);
  run_binary(RI_SUM, 0, 0, y),
      near_all(y, (double[]){-1, -1, 3 + a, 3 + a}, 4); // stored as a full row: broadcast
  run_binary(RI_MEAN, 0, 0, y), near_all(y, (double[]){-0.5, -0.5, (3 + a) / 2, (3 + a) / 2}, 4);
  run_binary(RI_MAX_ROW, 0, 0, y), near_all(y, (double[]){1, 1, a, a}, 4);
}

// out0 = gather(table, ids) * per_row + scalar; out1 [rows, 1] = per_row * per_row
static void gathers_scalars_and_scalar_outputs(void **state) {
  (void)state;
  float table[] = {1, 2, 99, 3, 4, 99, 5, 6, 99}, per_row[] = {10, 20, 30}, scalar[] = {0.5f};
  int64_t ids[] = {2, -7, 0};
  struct row_program program = {
      .cols = 2, .n_inputs = 3, .n_outputs = 2, .n_regs = 4, .output_is_scalar = {0, 1}};
  program.inputs[0] = (struct row_input){.cls = IN_GATHER, .dtype = DTYPE_F32, .index_operand = 3};
  program.inputs[1] =
      (struct row_input){.cls = IN_PER_ROW, .dtype = DTYPE_F32, .index_operand = ROW_NONE};
  program.inputs[2] =
      (struct row_input){.cls = IN_SCALAR, .dtype = DTYPE_F32, .index_operand = ROW_NONE};
  static const struct row_inst insts[] = {
      {.op = RI_LOAD, .dst = 0, .a = 0},        {.op = RI_LOAD, .dst = 1, .a = 1},
      {.op = RI_MUL, .dst = 0, .a = 0, .b = 1}, {.op = RI_LOAD, .dst = 2, .a = 2},
      {.op = RI_ADD, .dst = 0, .a = 0, .b = 2}, {.op = RI_STORE, .dst = 0, .a = 0},
      {.op = RI_MUL, .dst = 3, .a = 1, .b = 1}, {.op = RI_STORE, .dst = 1, .a = 3}};
  program.n_insts = sizeof insts / sizeof *insts;
  memcpy(program.insts, insts, sizeof insts);
  struct view inputs[] = {f32_view(table, 2, 3),
                          f32_view(per_row, 1, 1),
                          f32_view(scalar, 1, 1),
                          {.data = ids, .stride = 1, .cols = 1, .dtype = DTYPE_I64}};
  double wide[6], narrow[3], regs[8];
  ref_row_program(&program, inputs, (double *[]){wide, narrow}, 3, NULL, regs);
  near_all(wide, (double[]){50.5, 60.5, 0.5, 0.5, 30.5, 60.5}, 6);
  near_all(narrow, (double[]){100, 400, 900}, 3);
}

// out = layer_norm(gather by positions, gamma, beta) + pool of another tensor: rows are sequences
// of one token here.
static void positions_pools_and_per_column_operands(void **state) {
  (void)state;
  float table[] = {1, 3, 2, 6}, gamma[] = {2, 4}, beta[] = {0, 1}, x[] = {10, 20, 30, 40, 50, 0};
  int32_t positions[] = {1, 0}, cu[] = {0, 2, 3};
  struct batch_geometry g = {.n_tokens = 3, .n_seqs = 2, .positions = positions, .cu_seqlens = cu};
  for (int cls = IN_POOL_MEAN; cls <= IN_POOL_MAX; cls++) {
    struct row_program program = {
        .cols = 2, .n_inputs = 4, .n_outputs = 1, .n_regs = 4, .n_insts = 7};
    program.inputs[0] =
        (struct row_input){.cls = IN_GATHER, .dtype = DTYPE_F32, .index_operand = ROW_NONE};
    program.inputs[1] = program.inputs[2] =
        (struct row_input){.cls = IN_PER_COL, .dtype = DTYPE_F32, .index_operand = ROW_NONE};
    program.inputs[3] = (struct row_input){
        .cls = (enum row_input_class)cls, .dtype = DTYPE_F32, .index_operand = ROW_NONE};
    for (uint8_t i = 0; i < 4; i++)
      program.insts[i] = (struct row_inst){.op = RI_LOAD, .dst = i, .a = i};
    program.insts[4] = (struct row_inst){.op = RI_LAYER_NORM, .dst = 0, .a = 0, .b = 1, .c = 2};
    program.insts[5] = (struct row_inst){.op = RI_ADD, .dst = 0, .a = 0, .b = 3};
    program.insts[6] = (struct row_inst){.op = RI_STORE, .dst = 0, .a = 0};
    struct view inputs[] = {f32_view(table, 2, 2), f32_view(gamma, 2, 2), f32_view(beta, 2, 2),
                            f32_view(x, 2, 2)};
    double y[4], regs[8];
    ref_row_program(&program, inputs, (double *[]){y}, 2, &g, regs);
    double pooled[3][4] = {{20, 30, 50, 0}, {10, 20, 50, 0}, {30, 40, 50, 0}};
    for (int i = 0; i < 4; i++)
      pooled[cls - IN_POOL_MEAN][i] += i % 2 ? 5 : -2; // normalised rows are {-1, 1}
    near_all(y, pooled[cls - IN_POOL_MEAN], 4);
  }
}

static void inputs_of_every_dtype(void **state) {
  (void)state;
  uint16_t half[] = {f32_to_f16(1.5f)}, brain[] = {f32_to_bf16(-2.5f)};
  float single[] = {0.1f};
  struct view views[] = {
      {half, 1, 1, DTYPE_F16}, {brain, 1, 1, DTYPE_BF16}, {single, 1, 1, DTYPE_F32}};
  double expected[] = {1.5, -2.5, (double)0.1f};
  for (int i = 0; i < 3; i++) {
    struct row_program program = {
        .cols = 1, .n_inputs = 1, .n_outputs = 1, .n_regs = 1, .n_insts = 2};
    program.inputs[0] =
        (struct row_input){.cls = IN_FULL, .dtype = views[i].dtype, .index_operand = ROW_NONE};
    program.insts[0] = (struct row_inst){.op = RI_LOAD};
    program.insts[1] = (struct row_inst){.op = RI_STORE};
    double y[1], regs[1];
    ref_row_program(&program, &views[i], (double *[]){y}, 1, NULL, regs);
    assert_true(y[0] == expected[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(element_wise_opcodes),
      cmocka_unit_test(row_opcodes_without_operands),
      cmocka_unit_test(gathers_scalars_and_scalar_outputs),
      cmocka_unit_test(positions_pools_and_per_column_operands),
      cmocka_unit_test(inputs_of_every_dtype),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
