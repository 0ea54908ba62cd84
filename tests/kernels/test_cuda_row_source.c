// The generator's text, held against files: a change of the generator shows as a change of its
// output. Runs without CUDA. FUSEWIRE_GOLDEN_UPDATE=1 writes the files anew.
#include "kernels/codegen/codegen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/kernels/cuda/golden/"
#define I(op_, dst_, a_, ...)                                                                      \
  { .op = op_, .dst = dst_, .a = a_, __VA_ARGS__ }

static char text[1 << 18], want[1 << 18];

static void check_golden_ir(const struct row_ir *ir, const char *name) {
  struct row_tile tiles[ROW_VARIANTS];
  char path[256];
  size_t bytes = row_source_all(ir, tiles, text, sizeof text);
  assert_in_range(bytes, 1, sizeof text - 1);
  assert_int_equal(bytes, strlen(text));
  snprintf(path, sizeof path, GOLDEN "%s.cu.txt", name);
  if (getenv("FUSEWIRE_GOLDEN_UPDATE")) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
  }
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  want[fread(want, 1, sizeof want - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(text, want);
}

static void check_golden(const struct row_program *prog, const char *name) {
  static struct row_ir ir;
  assert_true(row_ir_build(prog, &ir));
  check_golden_ir(&ir, name);
}

static void add_gelu_is_flat_tiled_and_scalar(void **state) {
  (void)state;
  struct row_program p = {.cols = 768, .n_inputs = 2, .n_outputs = 1, .n_insts = 5, .n_regs = 2};
  p.inputs[0] = p.inputs[1] = (struct row_input){IN_FULL, DTYPE_BF16, 0};
  p.output_dtype[0] = DTYPE_BF16;
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1),
                                   I(RI_ACT, 0, 0, .aux = ACT_GELU_ERF), I(RI_STORE, 0, 0)};
  memcpy(p.insts, insts, sizeof insts);
  check_golden(&p, "add_gelu");
}

static void add_layer_norm_keeps_its_row_in_registers(void **state) {
  (void)state;
  struct row_program p = {.cols = 4096, .n_inputs = 4, .n_outputs = 2, .n_insts = 8, .n_regs = 5};
  p.inputs[0] = p.inputs[1] = (struct row_input){IN_FULL, DTYPE_BF16, 0};
  p.inputs[2] = p.inputs[3] = (struct row_input){IN_PER_COL, DTYPE_F32, 0};
  p.output_dtype[0] = p.output_dtype[1] = DTYPE_BF16;
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0),
                                   I(RI_LOAD, 1, 1),
                                   I(RI_ADD, 0, 0, .b = 1),
                                   I(RI_STORE, 0, 0),
                                   I(RI_LOAD, 2, 2),
                                   I(RI_LOAD, 3, 3),
                                   I(RI_LAYER_NORM, 4, 0, .b = 2, .c = 3, .imm = 1e-5f),
                                   I(RI_STORE, 1, 4)};
  memcpy(p.insts, insts, sizeof insts);
  check_golden(&p, "add_layer_norm");
}

static void a_row_beyond_registers_is_streamed(void **state) {
  (void)state;
  struct row_program p = {.cols = 200000, .n_inputs = 1, .n_outputs = 1, .n_insts = 3, .n_regs = 1};
  p.inputs[0] = (struct row_input){IN_FULL, DTYPE_F32, 0};
  p.output_dtype[0] = DTYPE_F32;
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_SOFTMAX, 0, 0), I(RI_STORE, 0, 0)};
  memcpy(p.insts, insts, sizeof insts);
  check_golden(&p, "softmax_stream");
}

static void embedding_and_pool_read_by_index(void **state) {
  (void)state;
  struct row_program p = {.cols = 96, .n_inputs = 2, .n_outputs = 1, .n_insts = 5, .n_regs = 2};
  p.inputs[0] = (struct row_input){IN_GATHER, DTYPE_F16, 255};
  p.inputs[1] = (struct row_input){IN_POOL_MEAN, DTYPE_F16, 0};
  p.output_dtype[0] = DTYPE_F16;
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1),
                                   I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)};
  memcpy(p.insts, insts, sizeof insts);
  check_golden(&p, "gather_pool");
}

// LayerNorm of each token, the mean of a sequence's, its norm taken off.
static void before_programs_of(enum row_input_class cls, struct row_program *before,
                               struct row_program *row) {
  *before = (struct row_program){.cols = 768, .n_inputs = 3, .n_outputs = 1, .n_insts = 5};
  *row = (struct row_program){.cols = 768, .n_inputs = 1, .n_outputs = 1, .n_insts = 3};
  before->inputs[0] = (struct row_input){IN_FULL, DTYPE_BF16, 0};
  before->inputs[1] = before->inputs[2] = (struct row_input){IN_PER_COL, DTYPE_F32, 0};
  before->output_dtype[0] = DTYPE_F32;
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
                                   I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f),
                                   I(RI_STORE, 0, 3)};
  memcpy(before->insts, insts, sizeof insts);
  row->inputs[0] = (struct row_input){cls, DTYPE_F32, 0};
  row->output_dtype[0] = DTYPE_BF16;
  const struct row_inst then[] = {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f),
                                  I(RI_STORE, 0, 0)};
  memcpy(row->insts, then, sizeof then);
}

static void what_is_pooled_may_be_made_by_the_block(void **state) {
  (void)state;
  static struct row_ir before_ir, ir;
  static const enum row_input_class classes[] = {IN_POOL_MEAN, IN_POOL_CLS};
  static const char *const names[] = {"norm_mean_pool", "norm_cls_pool"};
  for (int i = 0; i < 2; i++) {
    struct row_program before, row;
    before_programs_of(classes[i], &before, &row);
    assert_true(row_ir_build(&row, &ir));
    ir.clusters = true;
    assert_true(row_ir_build_before(&before, row.n_inputs, 0, &before_ir, &ir));
    check_golden_ir(&ir, names[i]);
  }
}

static void malformed_work_before_a_pooling_is_refused(void **state) {
  (void)state;
  static struct row_ir before_ir, ir;
  struct row_program good, row, bad;
  before_programs_of(IN_POOL_MAX, &good, &row);
  assert_true(row_ir_build(&row, &ir));
  assert_true(row_ir_build_before(&good, 1, 0, &before_ir, &ir));
  assert_false(row_ir_build_before(&good, 1, 1, &before_ir, &ir)); // no such input
  assert_false(row_ir_build_before(&good, ROW_MAX_INPUTS - 2, 0, &before_ir, &ir));
  bad = good, bad.cols = 384;
  assert_false(row_ir_build_before(&bad, 1, 0, &before_ir, &ir));
  bad = good, bad.output_dtype[0] = DTYPE_BF16;
  assert_false(row_ir_build_before(&bad, 1, 0, &before_ir, &ir));
  bad = good, bad.insts[4].a = 7; // register never written
  assert_false(row_ir_build_before(&bad, 1, 0, &before_ir, &ir));
  bad = good, bad.inputs[0].cls = IN_POOL_MAX; // pools by itself
  assert_false(row_ir_build_before(&bad, 1, 0, &before_ir, &ir));
  row.inputs[0].cls = IN_FULL; // pools nothing
  assert_true(row_ir_build(&row, &ir));
  assert_false(row_ir_build_before(&good, 1, 0, &before_ir, &ir));
}

static void malformed_programs_are_refused(void **state) {
  (void)state;
  static struct row_ir ir;
  struct row_program good = {.cols = 8, .n_inputs = 1, .n_outputs = 1, .n_insts = 2, .n_regs = 1},
                     bad;
  good.inputs[0] = (struct row_input){IN_FULL, DTYPE_F32, 0};
  good.output_dtype[0] = DTYPE_F32;
  good.insts[0] = (struct row_inst)I(RI_LOAD, 0, 0);
  good.insts[1] = (struct row_inst)I(RI_STORE, 0, 0);
  assert_true(row_ir_build(&good, &ir));
  bad = good, bad.cols = 0;
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.insts[0].a = 1; // no such input
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.insts[1].a = 3; // register never written
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.insts[1].dst = 1; // no such output
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.insts[0].dst = ROW_MAX_REGS;
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.inputs[0].dtype = DTYPE_I64; // no integer arithmetic
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.insts[0].op = 200;
  assert_false(row_ir_build(&bad, &ir));
  bad = good, bad.n_insts = ROW_MAX_INSTS + 1;
  assert_false(row_ir_build(&bad, &ir));
}

static void a_short_buffer_is_reported_and_not_overrun(void **state) {
  (void)state;
  static struct row_ir ir;
  struct row_program p = {.cols = 64, .n_inputs = 1, .n_outputs = 1, .n_insts = 2, .n_regs = 1};
  struct row_tile tile;
  char small[64];
  p.inputs[0] = (struct row_input){IN_FULL, DTYPE_F32, 0};
  p.output_dtype[0] = DTYPE_F32;
  p.insts[0] = (struct row_inst)I(RI_LOAD, 0, 0);
  p.insts[1] = (struct row_inst)I(RI_STORE, 0, 0);
  assert_true(row_ir_build(&p, &ir));
  assert_true(row_tile_choose(&ir, ROW_VARIANT_VECTOR, &tile));
  size_t whole = row_source(&ir, &tile, "k", text, sizeof text);
  memset(small, 'x', sizeof small);
  assert_int_equal(row_source(&ir, &tile, "k", small, 32), whole);
  assert_int_equal(strlen(small), 31);
  for (size_t i = 32; i < sizeof small; i++)
    assert_int_equal(small[i], 'x');
}

static void blocks_cover_every_row_and_refuse_what_no_grid_holds(void **state) {
  (void)state;
  struct row_tile group = {
      .style = ROW_GROUP, .vector = 8, .threads = 128, .depth = 3, .group = 32, .rows = 1};
  struct row_tile flat = {
      .style = ROW_FLAT, .vector = 8, .threads = 256, .depth = 4, .group = 1, .rows = 1};
  struct row_tile shared = {
      .style = ROW_GROUP, .threads = 256, .group = 256, .rows = 1, .before_blocks = 8};
  assert_int_equal(row_tile_blocks(&shared, 768, 5), 40); // a cluster a sequence
  assert_int_equal(row_tile_blocks(&group, 768, 1), 1);
  assert_int_equal(row_tile_blocks(&group, 768, 5), 2);
  assert_int_equal(row_tile_blocks(&group, 768, 0), 0);
  assert_int_equal(row_tile_blocks(&flat, 7, 1),
                   1); // no whole vector, and still a block for the tail
  assert_int_equal(row_tile_blocks(&flat, 8192, 2), 2);
  assert_int_equal(row_tile_blocks(&group, 768, INT64_MAX / 2), 0);
  assert_int_equal(row_tile_blocks(&flat, 768, INT64_MAX / 2), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(add_gelu_is_flat_tiled_and_scalar),
      cmocka_unit_test(add_layer_norm_keeps_its_row_in_registers),
      cmocka_unit_test(a_row_beyond_registers_is_streamed),
      cmocka_unit_test(embedding_and_pool_read_by_index),
      cmocka_unit_test(what_is_pooled_may_be_made_by_the_block),
      cmocka_unit_test(malformed_work_before_a_pooling_is_refused),
      cmocka_unit_test(malformed_programs_are_refused),
      cmocka_unit_test(a_short_buffer_is_reported_and_not_overrun),
      cmocka_unit_test(blocks_cover_every_row_and_refuse_what_no_grid_holds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
