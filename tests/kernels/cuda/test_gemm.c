// Products with epilogues against double: both Hopper tiles and the simple kernel, sizes around the
// tiles, every epilogue, views with gaps, addresses off their alignment, poisoned neighbours, a
// residual that is also the output.
#include "gpu_test.h"

#include "kernels/gemm/gemm.h"

static double model_act(int act, double x) {
  double u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
  switch (act) {
  case ACT_GELU_ERF:
    return 0.5 * x * erfc(-x * 0.7071067811865476);
  case ACT_GELU_TANH:
    return x / (1 + exp(-2 * u));
  case ACT_RELU:
    return x > 0 || isnan(x) ? x : 0;
  case ACT_SILU:
    return x / (1 + exp(-x));
  case ACT_TANH:
    return tanh(x);
  case ACT_SIGMOID:
    return 1 / (1 + exp(-x));
  default:
    return x;
  }
}

enum which {
  PINGPONG,
  DIRECT,
  DEFERRED,
  NARROW,
  SMALL32,
  SMALL64,
  SPLIT32,
  SPLIT64,
  MMA_LARGE,
  MMA_SMALL,
  SIMT32,
  SIMT64,
  SIMT128,
  X3_32,
  X3_64,
  X3_128,
  CHOSEN
};
static const char *const which_name[] = {
    "ping-pong",     "direct",        "deferred",  "narrow",     "small 32", "small 64",
    "split 32 by 4", "split 64 by 8", "mma large", "mma small",  "simt 32",  "simt 64",
    "simt 128",      "3xtf32 32",     "3xtf32 64", "3xtf32 128", "chosen"};

// Inputs behind x and W: 2 one value a column, 3 one an element, 4 one a row, 5 one for all; output
// 1: what a list saves on its way.
#define N_IN 6
#define N_EPILOGUES 15
struct recipe {
  const char *name;
  int n;
  struct epilogue_op op[6];
};
static const struct recipe recipes[N_EPILOGUES] = {
    {"none", 0, {{0}}},
    {"bias", 1, {{EPI_BIAS, 0, 2, 0}}},
    {"bias gelu", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_GELU_ERF, 0, 0}}},
    {"bias gelu_tanh", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_GELU_TANH, 0, 0}}},
    {"bias residual", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ADD, 0, 3, 0}}},
    {"bias silu gate", 3, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_SILU, 0, 0}, {EPI_MUL, 0, 3, 0}}},
    {"gelu scale residual",
     3,
     {{EPI_ACT, ACT_GELU_ERF, 0, 0}, {EPI_SCALE, 0, 0, 0.25f}, {EPI_ADD, 0, 3, 0}}},
    {"relu tanh", 2, {{EPI_ACT, ACT_RELU, 0, 0}, {EPI_ACT, ACT_TANH, 0, 0}}},
    {"scale bias sigmoid",
     3,
     {{EPI_SCALE, 0, 0, 0.5f}, {EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_SIGMOID, 0, 0}}},
    {"bias relu", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_RELU, 0, 0}}},
    {"layer scale",
     3,
     {{EPI_BIAS, 0, 2, 0}, {EPI_MUL_SPREAD, SPREAD_ROWS, 2, 0}, {EPI_ADD, 0, 3, 0}}},
    {"alpha, beta residual",
     3,
     {{EPI_SCALE, 0, 0, 0.75f}, {EPI_BIAS, 0, 2, 0}, {EPI_ADD_SPREAD, SPREAD_NONE, 3, -0.5f}}},
    {"bias, and gelu of it",
     3,
     {{EPI_BIAS, 0, 2, 0}, {EPI_SAVE, 0, 1, 0}, {EPI_ACT, ACT_GELU_ERF, 0, 0}}},
    {"values of rows, of all",
     4,
     {{EPI_MUL_SPREAD, SPREAD_COLUMNS, 4, 0},
      {EPI_ADD_SPREAD, SPREAD_COLUMNS, 4, 1},
      {EPI_ADD_SPREAD, SPREAD_ALL, 5, -2},
      {EPI_MUL_SPREAD, SPREAD_ALL, 5, 0}}},
    {"rounded, saved, tanh, addends of columns",
     4,
     {{EPI_ROUND, DTYPE_BF16, 0, 0},
      {EPI_SAVE, 0, 1, 0},
      {EPI_ACT, ACT_TANH, 0, 0},
      {EPI_ADD_SPREAD, SPREAD_ROWS, 2, 3}}},
};

static bool recipe_has(const struct recipe *r, int kind) {
  for (int i = 0; i < r->n; i++)
    if (r->op[i].kind == kind) return true;
  return false;
}

struct shape {
  int64_t m;
  int32_t n, k;
  int gap;   // elements between rows
  int shift; // elements by which x is off its alignment
  enum dtype in, out, operand;
  bool in_place; // the residual is y
};

static struct kernel_device device;

static int run_kernel(enum which which, const struct linear_problem *p, const struct view *in,
                      const struct view *y, int64_t m) {
  struct kernel_call call = {
      .device = &device, .op = KERNEL_LINEAR, .in = in, .out = y, .m = m, .linear = p};
  enum gemm_tile tile = (enum gemm_tile)which; // the first four
  if (which == CHOSEN) return linear_run(p, in, y, m, NULL);
  if (which >= X3_32) {
    if (!kernel_gemm_tf32x3.supports(&call)) return CUDA_UNSUPPORTED;
    return gemm_tf32x3(&call, (enum x3_tile_size)(which - X3_32), NULL);
  }
  if (which >= SIMT32) return gemm_simt_tile(&call, (enum simt_tile_size)(which - SIMT32), NULL);
  if (!kernel_gemm_mma.supports(&call)) return CUDA_UNSUPPORTED;
  if (which >= MMA_LARGE)
    return p->x_dtype == DTYPE_BF16 ? gemm_mma_bf16(&call, which == MMA_LARGE, NULL)
                                    : gemm_mma_f16(&call, which == MMA_LARGE, NULL);
  if (which >= SMALL32) {
    int bn = which == SMALL32 || which == SPLIT32 ? 32 : 64, split = which == SPLIT32   ? 4
                                                                     : which == SPLIT64 ? 8
                                                                                        : 1;
    return p->x_dtype == DTYPE_BF16 ? gemm_small_bf16(&call, bn, split, NULL)
                                    : gemm_small_f16(&call, bn, split, NULL);
  }
  return p->x_dtype == DTYPE_BF16 ? gemm_sm90_bf16(&call, tile, NULL)
                                  : gemm_sm90_f16(&call, tile, NULL);
}

static double expected(const struct recipe *r, const struct matrix *in, const struct shape *s,
                       int64_t row, int32_t col, double *saved) {
  double v = 0;
  for (int32_t k = 0; k < s->k; k++)
    v += matrix_get(&in[0], row, k) * matrix_get(&in[1], col, k);
  for (int i = 0; i < r->n; i++) {
    const struct epilogue_op *op = &r->op[i];
    const struct matrix *spread = &in[op->operand];
    switch (op->kind) {
    case EPI_ADD_SPREAD:
      v += (double)op->imm *
           matrix_get(spread, spread->rows > 1 ? row : 0, spread->cols > 1 ? col : 0);
      break;
    case EPI_MUL_SPREAD:
      v *= matrix_get(spread, spread->rows > 1 ? row : 0, spread->cols > 1 ? col : 0);
      break;
    case EPI_ROUND:
      v = (double)bf16_to_f32(f32_to_bf16((float)v));
      break;
    case EPI_SAVE:
      *saved = v;
      break;
    case EPI_BIAS:
      v += matrix_get(&in[2], 0, col);
      break;
    case EPI_ACT:
      v = model_act(r->op[i].act, v);
      break;
    case EPI_SCALE:
      v *= (double)r->op[i].imm;
      break;
    case EPI_ADD:
      v += matrix_get(&in[3], row, col);
      break;
    default:
      v *= matrix_get(&in[3], row, col);
    }
  }
  return v;
}

// y, and what the list saves on its way.
static void compare_case(const char *what, const struct recipe *r, const struct shape *s,
                         const struct matrix *in, struct matrix *y, struct matrix *saved) {
  const bool saves = recipe_has(r, EPI_SAVE), rounds = recipe_has(r, EPI_ROUND);
  matrix_download(y, what);
  if (saves) matrix_download(saved, what);
  int shown = 0;
  int64_t step = s->m * s->n * (int64_t)s->k > 20000000 ? s->m / 23 + 1 : 1; // large: some rows
  for (int64_t row = 0; row < s->m;
       row += row + step < s->m || row == s->m - 1 ? step : s->m - 1 - row) {
    for (int32_t c = 0; c < s->n; c++) {
      // what is rounded on its way may come out one value of bf16 off, whatever follows
      const enum dtype as = rounds ? DTYPE_BF16 : s->out,
                       saved_as = rounds ? DTYPE_BF16 : s->operand;
      double kept = 0, want = expected(r, in, s, row, c, &kept);
      compare(what, row, c, matrix_get(y, row, c), want, as,
              as == DTYPE_F32 ? 1100
              : rounds        ? 2.1
                              : 1.1,
              rounds ? 0.016 : 1e-4, &shown);
      if (saves)
        compare(what, row, c, matrix_get(saved, row, c), kept, saved_as,
                saved_as == DTYPE_F32 ? 1100
                : rounds              ? 2.1
                                      : 1.1,
                1e-4, &shown);
    }
  }
}

static void run_case(enum which which, const struct recipe *r, const struct shape *s,
                     bool must_run) {
  char what[200];
  struct linear_problem p = {.n = s->n,
                             .k = s->k,
                             .x_dtype = s->in,
                             .w_dtype = s->in,
                             .y_dtype = s->out,
                             .n_epilogue = (uint8_t)r->n};
  struct matrix in[N_IN], y, saved;
  struct view views[N_IN];
  memcpy(p.epilogue, r->op, sizeof r->op);
  snprintf(what, sizeof what, "%s, %s, %s->%s %ldx%dx%d gap %d shift %d", which_name[which],
           r->name, dtype_name(s->in), dtype_name(s->out), (long)s->m, s->n, s->k, s->gap,
           s->shift);
  in[0] =
      matrix_make(s->in, s->m, s->k, s->k + s->gap, (size_t)s->shift * dtype_bytes(s->in), true);
  in[1] = matrix_make(s->in, s->n, s->k, s->k + s->gap, 0, true);
  in[2] = matrix_make(s->operand, 1, s->n, s->n, 0, true);
  in[3] =
      matrix_make(s->in_place ? s->out : s->operand, s->m, s->n, s->n + s->gap, 0, !s->in_place);
  in[4] = matrix_make(s->operand, s->m, 1, 1 + s->gap, 0, true);
  in[5] = matrix_make(s->operand, 1, 1, 1, 0, true);
  saved = matrix_make(s->operand, s->m, s->n, s->n + s->gap, 0, false);
  y = s->in_place ? in[3] : matrix_make(s->out, s->m, s->n, s->n + s->gap, 0, false);
  matrix_normal(&in[0], 1, 0);
  matrix_normal(&in[1], 1 / sqrt(s->k), 0);
  matrix_normal(&in[2], 1, 0);
  for (int i = 3; i < N_IN; i++)
    matrix_normal(&in[i], 1, 0);
  for (int i = 0; i < N_IN; i++) {
    matrix_upload(&in[i]);
    views[i] = (struct view){in[i].data, in[i].stride, (int32_t)in[i].cols, in[i].dtype};
  }
  if (s->in_place) { // keep what the device saw: y's host copy is about to become the result
    y.host = malloc(y.bytes + 1);
    memcpy(y.host, in[3].host, y.bytes);
  }
  struct view results[2] = {{y.data, y.stride, s->n, s->out},
                            {saved.data, saved.stride, s->n, s->operand}};
  int rc = run_kernel(which, &p, views, results, s->m);
  if (rc == CUDA_UNSUPPORTED && !must_run) {
    checks++;
  } else {
    CHECK_CUDA(rc);
    CHECK_CUDA(cudaDeviceSynchronize());
    compare_case(what, r, s, in, &y, &saved);
  }
  for (int i = 0; i < N_IN; i++)
    matrix_free(&in[i]);
  matrix_free(&saved);
  if (s->in_place)
    free(y.host);
  else
    matrix_free(&y);
}

static bool is_x3(enum which which) {
  return which >= X3_32 && which <= X3_128;
}

static void sizes_around_the_tiles(enum which which) {
  static const int64_t ms[] = {1, 2, 16, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};
  static const int32_t ns[] = {8, 64, 72, 128, 136, 192, 256, 264, 520},
                       ks[] = {8, 16, 64, 72, 128, 200, 448, 768};
  for (int i = 0; i < 48; i++) {
    struct shape s = {
        .m = ms[i % 13], .n = ns[i * 5 % 9], .k = ks[i * 3 % 8], .gap = i % 3 == 1 ? 8 : 0};
    s.in = s.out = is_x3(which) ? DTYPE_F32 : i % 2 ? DTYPE_F16 : DTYPE_BF16;
    if (is_x3(which) && i % 4 == 3) s.out = i % 8 == 3 ? DTYPE_F16 : DTYPE_BF16;
    s.operand = i % 5 == 4 ? DTYPE_F32 : s.in;
    run_case(which, &recipes[i % N_EPILOGUES], &s, true);
  }
}

static void many_tiles_a_block(enum which which) {
  for (int i = 0; i < N_EPILOGUES; i++) {
    struct shape s = {
        .m = 4100 + i, .n = 1160, .k = 72 + 64 * i, .in = i % 2 ? DTYPE_F16 : DTYPE_BF16};
    if (is_x3(which)) s.in = DTYPE_F32;
    s.out = s.operand = s.in;
    run_case(which, &recipes[i], &s, true);
  }
}

static void other_outputs_and_views(enum which which) {
  for (int i = 0; i < N_EPILOGUES; i++) {
    run_case(which, &recipes[i],
             &(struct shape){200, 130, 96, 0, 0, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, false}, true);
    run_case(which, &recipes[i],
             &(struct shape){70, 198, 96, 0, 0, DTYPE_BF16, DTYPE_F16, DTYPE_F32, false}, true);
    run_case(which, &recipes[i],
             &(struct shape){150, 160, 96, 8, 0, DTYPE_F16, DTYPE_BF16, DTYPE_F32, false}, true);
    run_case(which, &recipes[i],
             &(struct shape){150, 288, 96, 0, 0, DTYPE_F16, DTYPE_F32, DTYPE_F32, false}, true);
    run_case(which, &recipes[i],
             &(struct shape){70, 133, 96, 0, 0, DTYPE_F16, DTYPE_F16, DTYPE_F16, false},
             which >= SIMT32);
  }
  run_case(which, &recipes[4],
           &(struct shape){300, 256, 192, 0, 0, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true}, true);
}

static void any_shape_and_alignment(enum which which) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
  for (int i = 0; i < 60; i++) {
    struct shape s = {1 + (int64_t)(uniform() * 140),
                      1 + (int32_t)(uniform() * 200),
                      1 + (int32_t)(uniform() * 130),
                      i % 4 == 3 ? 3 : 0,
                      i % 5 == 2,
                      dtypes[i % 3],
                      dtypes[i / 3 % 3],
                      dtypes[i / 9 % 3],
                      false};
    run_case(which, &recipes[i % N_EPILOGUES], &s, true);
  }
}

// A row's result must not depend on who shares its batch, nor on which of the kernels of its dtype
// and card computes it.
static void a_row_is_the_same_in_any_batch(enum dtype dtype, const struct recipe *recipe,
                                           const enum which *which, int n_which) {
  struct linear_problem p = {.n = 800,
                             .k = 320,
                             .x_dtype = dtype,
                             .w_dtype = dtype,
                             .y_dtype = dtype,
                             .n_epilogue = (uint8_t)recipe->n};
  struct matrix x = matrix_make(dtype, 700, 320, 320, 0, true),
                w = matrix_make(dtype, 800, 320, 320, 0, true),
                b = matrix_make(dtype, 1, 800, 800, 0, true),
                r = matrix_make(dtype, 700, 800, 800, 0, true),
                rows = matrix_make(dtype, 700, 1, 1, 0, true);
  struct matrix whole = matrix_make(dtype, 700, 800, 800, 0, false),
                part = matrix_make(dtype, 700, 800, 800, 0, false),
                saved = matrix_make(dtype, 700, 800, 800, 0, false);
  memcpy(p.epilogue, recipe->op, sizeof recipe->op);
  matrix_normal(&x, 1, 0), matrix_normal(&w, 0.05, 0), matrix_normal(&b, 1, 0),
      matrix_normal(&r, 1, 0), matrix_normal(&rows, 1, 0);
  matrix_upload(&x), matrix_upload(&w), matrix_upload(&b), matrix_upload(&r), matrix_upload(&rows);
  struct view in[N_IN] = {{x.data, 320, 320, dtype}, {w.data, 320, 320, dtype},
                          {b.data, 800, 800, dtype}, {r.data, 800, 800, dtype},
                          {rows.data, 1, 1, dtype},  {rows.data, 1, 1, dtype}};
  struct view y[2] = {{whole.data, 800, 800, dtype}, {saved.data, 800, 800, dtype}},
              z[2] = {{part.data, 800, 800, dtype}, {saved.data, 800, 800, dtype}};
  if (dtype == DTYPE_F32) { // ugly rows among others
    for (int c = 0; c < 320; c++)
      matrix_set(&x, 5, c, normal() * 1e-39), matrix_set(&x, 64, c, normal() * 1e37);
    matrix_set(&x, 3, 77, INFINITY), matrix_set(&x, 16, 319, NAN), matrix_upload(&x);
  }
  CHECK_CUDA(run_kernel(which[0], &p, in, y, 700));
  matrix_download(&whole, "whole");
  static const int64_t batches[] = {1, 2, 7, 8, 16, 17, 33, 64, 65, 130, 400, 700};
  for (int i = 0; i < 12 * n_which; i++) {
    int64_t m = batches[i % 12];
    CHECK_CUDA(run_kernel(which[i / 12], &p, in, z, m));
    matrix_download(&part, "part");
    checks++;
    if (memcmp(part.host, whole.host, (size_t)m * 800 * dtype_bytes(dtype)) != 0) {
      printf("FAIL %s %s: rows of a batch of %ld differ from %s in a batch of 700\n",
             dtype_name(dtype), which_name[which[i / 12]], (long)m, which_name[which[0]]);
      failures++;
    }
  }
  matrix_free(&x), matrix_free(&w), matrix_free(&b), matrix_free(&r), matrix_free(&rows);
  matrix_free(&whole), matrix_free(&part), matrix_free(&saved);
}

static void rows_are_the_same_in_any_batch(void) {
  static const enum which hopper[] = {PINGPONG, DIRECT, DEFERRED, NARROW, SMALL32, SMALL64, CHOSEN},
                          mma[] = {MMA_LARGE, MMA_SMALL}, simt[] = {SIMT128, SIMT64, SIMT32},
                          x3[] = {X3_128, X3_64, X3_32, CHOSEN};
  for (int i = 1; i < N_EPILOGUES; i++) {
    if (i > 5 && i < 10) continue; // bias, then an activation or a residual or both; rare lists
    const struct recipe *r = &recipes[i];
    if (device.sm == 90) {
      a_row_is_the_same_in_any_batch(DTYPE_BF16, r, hopper, 7);
      a_row_is_the_same_in_any_batch(DTYPE_F16, r, hopper, 7);
    }
    a_row_is_the_same_in_any_batch(DTYPE_BF16, r, mma, 2);
    a_row_is_the_same_in_any_batch(DTYPE_F32, r, simt, 3);
    if (device.sm >= 80) a_row_is_the_same_in_any_batch(DTYPE_F32, r, x3, 4);
  }
}

// test_gemm [fp32]: the kernels for fp32 on the tensor cores alone.
int main(int argc, char **argv) {
  bool all = argc < 2 || strcmp(argv[1], "fp32") != 0;
  need_gpu();
  CHECK_CUDA(kernel_device_query(&device));
  printf("seed %#lx\n", (unsigned long)rng_state);
  for (enum which which = device.sm == 90 ? PINGPONG : MMA_LARGE; all && which <= MMA_SMALL;
       which++) {
    sizes_around_the_tiles(which);
    if (which < SMALL32 || which == MMA_LARGE) many_tiles_a_block(which);
    other_outputs_and_views(which);
  }
  for (enum which which = SIMT32; all && which <= SIMT128; which++) {
    sizes_around_the_tiles(which);
    other_outputs_and_views(which);
    any_shape_and_alignment(which);
  }
  for (enum which which = X3_32; which <= X3_128 && device.sm >= 80; which++) {
    sizes_around_the_tiles(which);
    many_tiles_a_block(which);
    run_case(which,
             &recipes[1], // rows of 16 bytes of which the last are not in k, results off pairs
             &(struct shape){200, 130, 67, 1, 0, DTYPE_F32, DTYPE_F32, DTYPE_F32, false}, true);
    run_case(which, &recipes[7],
             &(struct shape){70, 133, 98, 2, 0, DTYPE_F32, DTYPE_BF16, DTYPE_F32, false}, true);
    run_case(which, &recipes[4],
             &(struct shape){300, 256, 194, 2, 0, DTYPE_F32, DTYPE_F32, DTYPE_F32, true}, true);
  }
  sizes_around_the_tiles(CHOSEN);
  any_shape_and_alignment(CHOSEN);
  rows_are_the_same_in_any_batch();
  return report("gemm");
}
