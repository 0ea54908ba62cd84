// Generated row kernels against a model in double: every input class, reduction and dtype, odd
// sizes, views with gaps, addresses off their alignment, ugly values, more than 2^31 elements.
//
// test_row [compile]: with `compile` every kernel is generated and compiled and none is run: no GPU
// is needed. FUSEWIRE_JIT_CACHE names a folder for the cubins (default: a new one).
#include "row_model.h"

#include <unistd.h>

static struct jit *jit;
static char arch[16] = "sm_90a";
static bool compile_only;
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

struct recipe {
  const char *name;
  int n_inputs, n_outputs, n_insts;
  enum row_input_class cls[6];
  uint8_t index_operand[6];
  bool scalar_out[2];
  struct row_inst insts[12];
};
#define I(op_, dst_, a_, ...)                                                                      \
  { .op = op_, .dst = dst_, .a = a_, __VA_ARGS__ }

static const struct recipe recipes[] = {
    {"add, erf gelu",
     2,
     1,
     5,
     {IN_FULL, IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1),
      I(RI_ACT, 0, 0, .aux = ACT_GELU_ERF), I(RI_STORE, 0, 0)}},
    {"chain",
     1,
     1,
     6,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_SCALE, 0, 0, .imm = 1.001f), I(RI_ADD_IMM, 0, 0, .imm = 0.001f),
      I(RI_SCALE, 0, 0, .imm = 1.001f), I(RI_ADD_IMM, 0, 0, .imm = 0.001f), I(RI_STORE, 0, 0)}},
    {"broadcasts",
     4,
     2,
     10,
     {IN_FULL, IN_PER_COL, IN_PER_ROW, IN_SCALAR},
     {0},
     {false, true},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2), I(RI_LOAD, 3, 3),
      I(RI_MUL, 0, 0, .b = 1), I(RI_ADD, 0, 0, .b = 2), I(RI_SUB, 0, 0, .b = 3),
      I(RI_MUL, 2, 2, .b = 3), I(RI_STORE, 0, 0), I(RI_STORE, 1, 2)}},
    {"silu gate",
     2,
     1,
     5,
     {IN_FULL, IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ACT, 0, 0, .aux = ACT_SILU), I(RI_MUL, 0, 0, .b = 1),
      I(RI_STORE, 0, 0)}},
    {"layer norm",
     3,
     1,
     5,
     {IN_FULL, IN_PER_COL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
      I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f), I(RI_STORE, 0, 3)}},
    {"add, layer norm, sum written",
     4,
     2,
     8,
     {IN_FULL, IN_FULL, IN_PER_COL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_STORE, 0, 0),
      I(RI_LOAD, 2, 2), I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 4, 0, .b = 2, .c = 3, .imm = 1e-12f),
      I(RI_STORE, 1, 4)}},
    {"rms norm",
     2,
     1,
     4,
     {IN_FULL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_RMS_NORM, 0, 0, .b = 1, .imm = 1e-6f),
      I(RI_STORE, 0, 0)}},
    {"softmax",
     1,
     1,
     3,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_SOFTMAX, 0, 0), I(RI_STORE, 0, 0)}},
    {"normalize",
     1,
     1,
     3,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
    {"mean of gelu, max off",
     1,
     2,
     7,
     {IN_FULL},
     {0},
     {true, false},
     {I(RI_LOAD, 0, 0), I(RI_ACT, 1, 0, .aux = ACT_GELU_TANH), I(RI_MEAN, 1, 1),
      I(RI_MAX_ROW, 2, 0), I(RI_SUB, 0, 0, .b = 2), I(RI_STORE, 0, 1), I(RI_STORE, 1, 0)}},
    {"embedding, layer norm",
     5,
     1,
     9,
     {IN_GATHER, IN_GATHER, IN_PER_COL, IN_PER_COL, IN_PER_ROW},
     {4, 255},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 2, 2),
      I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 0, 0, .b = 2, .c = 3, .imm = 1e-12f),
      I(RI_CAST, 0, 0, .aux = DTYPE_BF16), I(RI_CAST, 0, 0, .aux = DTYPE_F16), I(RI_STORE, 0, 0)}},
    {"mean pool, normalize",
     1,
     1,
     3,
     {IN_POOL_MEAN},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
    {"max pool", 1, 1, 2, {IN_POOL_MAX}, {0}, {0}, {I(RI_LOAD, 0, 0), I(RI_STORE, 0, 0)}},
    {"cls pool, tanh",
     1,
     1,
     3,
     {IN_POOL_CLS},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_ACT, 0, 0, .aux = ACT_TANH), I(RI_STORE, 0, 0)}},
};

struct layout {
  int32_t cols;
  int64_t rows;
  int gap;        // elements between rows
  size_t shift;   // elements by which addresses are off
  int data;       // 0 normal; 1.. ugly
  enum dtype out; // of the outputs; 0: the inputs'
};

static bool is_table(const struct recipe *r, int i) {
  return r->cls[i] == IN_GATHER;
}

static void make_program(const struct recipe *r, enum dtype dtype, int32_t cols,
                         struct row_program *p) {
  memset(p, 0, sizeof *p);
  p->cols = cols, p->n_inputs = (uint8_t)r->n_inputs, p->n_outputs = (uint8_t)r->n_outputs;
  p->n_insts = (uint8_t)r->n_insts, p->n_regs = 6;
  memcpy(p->insts, r->insts, sizeof r->insts);
  for (int i = 0; i < r->n_insts; i++) { // "no register" where a recipe left the field out
    struct row_inst *in = &p->insts[i];
    if (in->op == RI_LAYER_NORM || in->op == RI_RMS_NORM) {
      if (in->b == 0) in->b = ROW_NONE;
      if (in->c == 0) in->c = ROW_NONE;
    }
  }
  for (int i = 0; i < r->n_inputs; i++)
    p->inputs[i] = (struct row_input){r->cls[i], dtype, r->index_operand[i]};
  if (is_table(r, 0)) p->inputs[4].dtype = DTYPE_I64;
  for (int i = 0; i < r->n_outputs; i++)
    p->output_dtype[i] = dtype, p->output_is_scalar[i] = r->scalar_out[i];
}

static int build(const struct row_program *p, struct row_kernel *kernel) {
  static char text[1 << 20];
  static struct row_ir ir;
  struct row_tile tiles[ROW_VARIANTS];
  char message[JIT_MESSAGE_BYTES];
  struct cubin cubin;
  if (!row_ir_build(p, &ir)) return -1;
  size_t n = strlen(strcpy(text, row_prelude));
  row_source_all(&ir, tiles, text + n, sizeof text - n);
  if (jit_compile(jit, text, arch, &cubin, message) != 0) {
    printf("%s\n", message);
    return -1;
  }
  checks += compile_only;
  if (!compile_only) CHECK_CUDA(row_kernel_load(p, tiles, &cubin, kernel));
  cubin_free(&cubin);
  return 0;
}

static void fill_ugly(struct matrix *m, int data) {
  for (int64_t r = 0; r < m->rows; r++) {
    for (int64_t c = 0; c < m->cols; c++) {
      double x = normal();
      if (data == 1) x += m->dtype == DTYPE_F16 ? 2000 : 1e6;  // mean far from zero
      if (data == 2) x = r % 2 ? 3.25 : 0;                     // all equal
      if (data == 3) x *= m->dtype == DTYPE_F16 ? 30000 : 1e4; // squares beyond fp16
      if (data == 4) x *= 1e-6;                                // subnormal fp16
      if (data == 5 && c == m->cols / 2) x = r % 3 == 0 ? INFINITY : r % 3 == 1 ? -INFINITY : NAN;
      if (data == 6) x = -INFINITY;
      matrix_set(m, r, c, x);
    }
  }
}

struct run {
  const struct recipe *recipe;
  const struct layout *layout;
  struct row_program prog;
  struct matrix in[6], out[2], positions, cu;
  int64_t rows, tokens;
  char what[160];
};

static void make_geometry(struct run *run) {
  run->positions = matrix_make(DTYPE_I32, 1, run->rows, run->rows, 0, false);
  run->cu = matrix_make(DTYPE_I32, 1, run->rows + 1, run->rows + 1, 0, false);
  int64_t at = 0;
  for (int64_t r = 0; r < run->rows; r++) {
    matrix_set(&run->positions, 0, r, (double)(r % 19) - 1); // -1: out of range, reads as zeros
    matrix_set(&run->cu, 0, r, (double)at);
    at += r % 5 == 2 ? 0 : 1 + (int64_t)(uniform() * 20);
  }
  matrix_set(&run->cu, 0, run->rows, (double)at);
  run->tokens = at;
  matrix_upload(&run->positions);
  matrix_upload(&run->cu);
}

static void make_input(struct run *run, int i) {
  const struct layout *l = run->layout;
  enum row_input_class cls = run->recipe->cls[i];
  enum dtype dtype = run->prog.inputs[i].dtype;
  bool index = dtype == DTYPE_I64;
  int64_t cols = cls == IN_PER_ROW || cls == IN_SCALAR ? 1 : l->cols;
  int64_t rows = cls == IN_FULL || cls == IN_PER_ROW ? run->rows
                 : cls == IN_GATHER                  ? 17
                 : cls >= IN_POOL_MEAN               ? run->tokens
                                                     : 1;
  if (rows == 0) rows = 1;
  run->in[i] = matrix_make(dtype, rows, cols, cols + (cols > 1 || index ? l->gap : 0),
                           l->shift * dtype_bytes(dtype), true);
  if (index) {
    for (int64_t r = 0; r < rows; r++)
      matrix_set(&run->in[i], r, 0, (double)((int64_t)(uniform() * 20) - 1));
  } else if (l->data && cls == IN_FULL) {
    fill_ugly(&run->in[i], l->data);
  } else {
    matrix_normal(&run->in[i], 1, 0);
  }
  matrix_upload(&run->in[i]);
}

static void verify(struct run *run) {
  const struct recipe *r = run->recipe;
  double *reg[ROW_MAX_REGS], *out[ROW_MAX_OUTPUTS];
  struct model_inputs inputs = {.positions = (int32_t *)run->positions.host,
                                .cu_seqlens = (int32_t *)run->cu.host};
  for (int i = 0; i < r->n_inputs; i++)
    inputs.in[i] = &run->in[i];
  for (int i = 0; i < 8; i++)
    reg[i] = malloc(sizeof(double) * (size_t)run->layout->cols);
  for (int i = 0; i < 2; i++)
    out[i] = malloc(sizeof(double) * (size_t)run->layout->cols);
  int shown = 0;
  // a mean of 1e6 in fp32 leaves 1/16 of resolution to the input itself; what is checked is that no
  // more is lost
  double absolute = run->layout->data == 1 ? 2e-3 : run->layout->data == 3 ? 2e-3 : 2e-6;
  for (int64_t row = 0; row < run->rows; row++) {
    model_row(&run->prog, &inputs, row, reg, out);
    for (int o = 0; o < r->n_outputs; o++) {
      for (int64_t c = 0; c < run->out[o].cols; c++) {
        enum dtype dtype = run->out[o].dtype;
        bool cast = is_table(r, 0); // rounds on the way: two roundings, to bf16 the coarser
        enum dtype grain = cast ? DTYPE_BF16 : dtype;
        compare(run->what, row, c, matrix_get(&run->out[o], row, c), out[o][c], grain,
                cast                 ? 2.1
                : dtype == DTYPE_F32 ? 64
                                     : 1.01,
                absolute, &shown);
      }
    }
  }
  for (int i = 0; i < 8; i++)
    free(reg[i]);
  for (int i = 0; i < 2; i++)
    free(out[i]);
}

static void run_case(const struct recipe *recipe, enum dtype dtype, const struct layout *l) {
  struct run run = {.recipe = recipe, .layout = l, .rows = l->rows};
  struct row_kernel kernel;
  snprintf(run.what, sizeof run.what, "%s %s %ldx%d gap %d shift %zu data %d", recipe->name,
           dtype_name(dtype), (long)l->rows, l->cols, l->gap, l->shift, l->data);
  make_program(recipe, dtype, l->cols, &run.prog);
  enum dtype out_dtype = l->out ? l->out : dtype;
  for (int o = 0; o < recipe->n_outputs; o++)
    run.prog.output_dtype[o] = out_dtype;
  if (build(&run.prog, &kernel) != 0) {
    printf("FAIL %s: not built\n", run.what);
    failures++;
    return;
  }
  if (compile_only) return;
  make_geometry(&run);
  struct row_args args = {
      .rows = run.rows, .positions = run.positions.data, .cu_seqlens = run.cu.data};
  for (int i = 0; i < recipe->n_inputs; i++) {
    make_input(&run, i);
    args.in[i] = run.in[i].data, args.in_stride[i] = run.in[i].stride,
    args.in_rows[i] = run.in[i].rows;
    args.index_bytes[i] = run.in[i].dtype == DTYPE_I64 ? 8 : 4;
  }
  for (int o = 0; o < recipe->n_outputs; o++) {
    int64_t cols = recipe->scalar_out[o] ? 1 : l->cols;
    run.out[o] = matrix_make(out_dtype, run.rows, cols, cols + (cols > 1 ? l->gap : 0),
                             l->shift * dtype_bytes(out_dtype), false);
    args.out[o] = run.out[o].data, args.out_stride[o] = run.out[o].stride;
  }
  CHECK_CUDA(row_kernel_run(&kernel, &args, NULL));
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int o = 0; o < recipe->n_outputs; o++)
    matrix_download(&run.out[o], run.what);
  verify(&run);
  for (int i = 0; i < recipe->n_inputs; i++)
    matrix_free(&run.in[i]);
  for (int o = 0; o < recipe->n_outputs; o++)
    matrix_free(&run.out[o]);
  matrix_free(&run.positions);
  matrix_free(&run.cu);
  row_kernel_unload(&kernel);
}

static void every_recipe_at_many_widths(void) {
  static const int32_t widths[] = {1, 2, 7, 8, 9, 33, 64, 127, 128, 384, 768, 1000, 1025, 4096};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
      enum dtype dtype = dtypes[(r + w) % 3];
      int64_t rows = widths[w] > 1000 ? 5 : 37;
      run_case(&recipes[r], dtype, &(struct layout){.cols = widths[w], .rows = rows});
      if (w % 3 == 1)
        run_case(&recipes[r], dtype,
                 &(struct layout){.cols = widths[w], .rows = rows, .gap = 8, .shift = 1});
      if (w % 4 == 3)
        run_case(&recipes[r], dtype, &(struct layout){.cols = widths[w], .rows = rows, .gap = 8});
    }
  }
}

static void outputs_of_another_dtype(void) {
  static const enum dtype pairs[][2] = {{DTYPE_BF16, DTYPE_F32},
                                        {DTYPE_F32, DTYPE_BF16},
                                        {DTYPE_F16, DTYPE_F32},
                                        {DTYPE_BF16, DTYPE_F16}};
  static const int which[] = {0, 2, 4, 5, 7, 9};
  for (int i = 0; i < 24; i++) {
    run_case(&recipes[which[i % 6]], pairs[i / 6][0],
             &(struct layout){.cols = i % 2 ? 192 : 771, .rows = 11, .out = pairs[i / 6][1]});
  }
}

static void rows_beyond_registers(void) {
  static const int32_t widths[] = {8192, 12289, 16384, 70000};
  for (int r = 4; r < 10; r++) {
    for (int w = 0; w < 4; w++)
      run_case(&recipes[r], dtypes[(r + w) % 3], &(struct layout){.cols = widths[w], .rows = 3});
  }
}

static void ugly_values(void) {
  for (int data = 1; data <= 6; data++) {
    for (int d = 0; d < 3; d++) {
      run_case(&recipes[0], dtypes[d], &(struct layout){.cols = 96, .rows = 9, .data = data});
      if (data == 1 && dtypes[d] == DTYPE_BF16) continue;
      for (int r = 4; r < 10; r++) {
        if (data == 1 && r == 5) continue; // the sum of two such inputs is itself rounded to 1/16
        run_case(&recipes[r], dtypes[d],
                 &(struct layout){.cols = 96, .rows = 9, .data = data == 6 && r != 7 ? 2 : data});
      }
    }
  }
}

// 2.6e9 elements: positions near both ends and around 2^31 are looked at.
static void more_than_2_31_elements(void) {
  const int64_t rows = 40000, cols = 65536, probes[] = {0,
                                                        77777,
                                                        ((int64_t)1 << 31) - 1,
                                                        (int64_t)1 << 31,
                                                        ((int64_t)1 << 31) + 12345,
                                                        rows * cols - 1};
  struct row_program p;
  struct row_kernel kernel;
  uint16_t *x, *y, value;
  make_program(&recipes[1], DTYPE_BF16, (int32_t)cols, &p);
  if (build(&p, &kernel) != 0) exit(1);
  if (compile_only) return;
  if (cudaMalloc((void **)&x, (size_t)(rows * cols) * 2) != cudaSuccess ||
      cudaMalloc((void **)&y, (size_t)(rows * cols) * 2) != cudaSuccess) {
    printf("skipped: no memory for 2^31 elements\n");
    return;
  }
  CHECK_CUDA(cudaMemset(x, 0x3f, (size_t)(rows * cols) * 2));
  CHECK_CUDA(cudaMemset(y, POISON, (size_t)(rows * cols) * 2));
  for (int i = 0; i < 6; i++) {
    value = f32_to_bf16((float)(i + 2));
    CHECK_CUDA(cudaMemcpy(x + probes[i], &value, 2, cudaMemcpyHostToDevice));
  }
  for (int pass = 0; pass < 2; pass++) { // as one long row, then as a matrix
    struct row_args args = {
        .in = {x}, .in_stride = {cols}, .out = {y}, .out_stride = {cols}, .rows = rows};
    if (pass == 1) {
      kernel.kernels[ROW_VARIANT_FLAT] = NULL;
      CHECK_CUDA(cudaMemset(y, POISON, (size_t)(rows * cols) * 2));
    }
    CHECK_CUDA(row_kernel_run(&kernel, &args, NULL));
    for (int i = 0; i < 6; i++) {
      int shown = 0;
      CHECK_CUDA(cudaMemcpy(&value, y + probes[i], 2, cudaMemcpyDeviceToHost));
      double want = ((i + 2) * 1.001 + 0.001) * 1.001 + 0.001;
      compare("2^31 elements", pass, probes[i], bf16_to_f32(value), want, DTYPE_BF16, 1.01, 0,
              &shown);
      CHECK_CUDA(cudaMemcpy(&value, y + probes[i] + (i == 5 ? -1 : 1), 2, cudaMemcpyDeviceToHost));
      if (i != 2)
        compare("2^31 neighbours", pass, probes[i], bf16_to_f32(value),
                (0.74609375 * 1.001 + 0.001) * 1.001 + 0.001, DTYPE_BF16, 1.01, 0, &shown);
    }
  }
  cudaFree(x);
  cudaFree(y);
  row_kernel_unload(&kernel);
}

int main(int argc, char **argv) {
  char message[JIT_MESSAGE_BYTES], fresh[] = "/tmp/fw-jit-XXXXXX";
  const char *cache = getenv("FUSEWIRE_JIT_CACHE");
  int major, minor;
  compile_only = argc > 1 && strcmp(argv[1], "compile") == 0;
  if (!compile_only) {
    need_gpu();
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    snprintf(arch, sizeof arch, "sm_%d%d%s", major, minor, major == 9 ? "a" : "");
  }
  if (jit_open(&(struct jit_options){cache ? cache : mkdtemp(fresh)}, &jit, message) != 0) {
    printf("%s: skipped\n", message);
    return 77;
  }
  printf("%s, seed %#lx\n", arch, (unsigned long)rng_state);
  every_recipe_at_many_widths();
  outputs_of_another_dtype();
  rows_beyond_registers();
  ugly_values();
  more_than_2_31_elements();
  jit_close(jit);
  return report("row");
}
