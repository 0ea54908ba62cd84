// Generated row kernels beside the copy of the same bytes. bench_row [sweep|compile]
// sweep: other ways to spread a row over threads, to see what row_tile_choose should pick. compile:
// fill the cubin cache.
#include "gpu_bench.h"

#define I(op_, dst_, a_, ...)                                                                      \
  { .op = op_, .dst = dst_, .a = a_, __VA_ARGS__ }
#define CHAIN I(RI_SCALE, 0, 0, .imm = 1.001f), I(RI_ADD_IMM, 0, 0, .imm = 0.001f)

struct work {
  const char *name;
  int n_full, n_cols, n_outputs; // full inputs come first, then per-column ones
  int n_insts;
  struct row_inst insts[40];
};
static const struct work works[] = {
    {"chain16",
     1,
     0,
     1,
     34,
     {I(RI_LOAD, 0, 0), CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, CHAIN,
      CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, I(RI_STORE, 0, 0)}},
    {"gelu",
     1,
     0,
     1,
     3,
     {I(RI_LOAD, 0, 0), I(RI_ACT, 0, 0, .aux = ACT_GELU_ERF), I(RI_STORE, 0, 0)}},
    {"layer_norm",
     1,
     2,
     1,
     5,
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
      I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f), I(RI_STORE, 0, 3)}},
    {"rms_norm",
     1,
     1,
     1,
     4,
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_RMS_NORM, 3, 0, .b = 1, .c = ROW_NONE, .imm = 1e-5f),
      I(RI_STORE, 0, 3)}},
    {"add_layer_norm",
     2,
     2,
     1,
     7,
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 2, 2),
      I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 4, 0, .b = 2, .c = 3, .imm = 1e-5f), I(RI_STORE, 0, 4)}},
    {"add_layer_norm_sum",
     2,
     2,
     2,
     8,
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_STORE, 1, 0),
      I(RI_LOAD, 2, 2), I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 4, 0, .b = 2, .c = 3, .imm = 1e-5f),
      I(RI_STORE, 0, 4)}},
    {"softmax", 1, 0, 1, 3, {I(RI_LOAD, 0, 0), I(RI_SOFTMAX, 0, 0), I(RI_STORE, 0, 0)}},
};
struct size {
  int work;
  enum dtype dtype;
  int64_t rows;
  int32_t cols;
};
static const struct size sizes[] = {
    {0, DTYPE_F32, 32768, 1024},  {1, DTYPE_BF16, 16384, 4096}, {2, DTYPE_BF16, 65536, 768},
    {2, DTYPE_BF16, 32768, 1024}, {2, DTYPE_BF16, 16384, 4096}, {2, DTYPE_BF16, 8192, 8192},
    {3, DTYPE_BF16, 16384, 4096}, {4, DTYPE_BF16, 65536, 768},  {4, DTYPE_BF16, 32768, 1024},
    {4, DTYPE_BF16, 16384, 4096}, {4, DTYPE_BF16, 8192, 8192},  {5, DTYPE_BF16, 65536, 768},
    {5, DTYPE_BF16, 16384, 4096}, {6, DTYPE_BF16, 16384, 4096}, {2, DTYPE_F32, 16384, 4096},
};
static struct jit *jit;
static bool compile_only;

static void make_program(const struct work *w, enum dtype dtype, int32_t cols,
                         struct row_program *p) {
  memset(p, 0, sizeof *p);
  p->cols = cols, p->n_inputs = (uint8_t)(w->n_full + w->n_cols),
  p->n_outputs = (uint8_t)w->n_outputs;
  p->n_insts = (uint8_t)w->n_insts, p->n_regs = 5;
  memcpy(p->insts, w->insts, sizeof w->insts);
  for (int i = 0; i < p->n_inputs; i++)
    p->inputs[i] = (struct row_input){i < w->n_full ? IN_FULL : IN_PER_COL, dtype, 0};
  for (int i = 0; i < p->n_outputs; i++)
    p->output_dtype[i] = dtype;
}

// Builds with the generator's own tiles, or with `tile` for the vector variant alone.
static bool build(const struct row_program *p, const struct row_tile *tile,
                  struct row_kernel *out) {
  static char text[1 << 20];
  static struct row_ir ir;
  struct row_tile tiles[ROW_VARIANTS] = {{0}};
  char message[JIT_MESSAGE_BYTES];
  struct cubin cubin;
  if (!row_ir_build(p, &ir)) return false;
  size_t n = strlen(strcpy(text, row_prelude));
  if (tile) {
    enum row_variant v = tile->style == ROW_FLAT ? ROW_VARIANT_FLAT : ROW_VARIANT_VECTOR;
    tiles[v] = *tile;
    row_source(&ir, tile, row_variant_name[v], text + n, sizeof text - n);
  } else {
    row_source_all(&ir, tiles, text + n, sizeof text - n);
  }
  if (jit_compile(jit, text, "sm_90a", &cubin, message) != 0) {
    printf("%s\n", message);
    return false;
  }
  if (!compile_only) CHECK_CUDA(row_kernel_load(p, tiles, &cubin, out));
  cubin_free(&cubin);
  return true;
}

struct launch {
  struct row_kernel kernel;
  struct row_args args;
};

static void launch(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(row_kernel_run(&l->kernel, &l->args, bench_stream));
}

static void sweep_flat(const struct row_program *p, struct launch *l, double floor_us) {
  for (int threads = 128; threads <= 1024; threads *= 2) {
    for (int depth = 1; depth <= 8; depth *= 2) {
      struct row_tile tile = {.style = ROW_FLAT,
                              .vector = p->inputs[0].dtype == DTYPE_F32 ? 4 : 8,
                              .threads = threads,
                              .depth = depth,
                              .group = 1,
                              .rows = 1};
      if (!build(p, &tile, &l->kernel) || compile_only) continue;
      double us = bench_us(launch, l, 10);
      printf("  {\"threads\": %d, \"depth\": %d, \"us\": %.2f, \"of_floor\": %.3f}\n", threads,
             depth, us, us / floor_us);
      row_kernel_unload(&l->kernel);
    }
  }
}

static void sweep(const struct row_program *p, struct launch *l, double floor_us) {
  static const int groups[] = {32, 64, 128, 256, 512, 1024};
  int vectors = p->cols / 8;
  if (p->inputs[0].dtype == DTYPE_F32) return;
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
    int depth = (vectors + groups[g] - 1) / groups[g];
    if (depth > 16 || groups[g] > vectors) continue;
    for (int rows = 1; rows <= 4; rows *= 2) {
      if (depth * rows > 16) continue;
      for (int threads = groups[g] == 32 ? 64 : groups[g]; threads <= 256 || threads == groups[g];
           threads *= 2) {
        if (groups[g] > 32 && threads != groups[g]) break;
        struct row_tile tile = {.style = ROW_GROUP,
                                .vector = 8,
                                .threads = threads,
                                .depth = depth,
                                .group = groups[g],
                                .rows = rows};
        if (!build(p, &tile, &l->kernel) || compile_only) continue;
        double us = bench_us(launch, l, 10);
        printf("  {\"group\": %d, \"depth\": %d, \"rows\": %d, \"threads\": %d, \"us\": %.2f, "
               "\"of_floor\": %.3f}\n",
               groups[g], depth, rows, threads, us, us / floor_us);
        row_kernel_unload(&l->kernel);
      }
    }
  }
}

static void run_size(const struct size *s, bool sweeping) {
  const struct work *w = &works[s->work];
  struct row_program p;
  struct launch l = {.args.rows = s->rows};
  int64_t n = s->rows * s->cols;
  size_t bytes = (size_t)n * dtype_bytes(s->dtype);
  double copy_us = 0, floor_us = 0;
  make_program(w, s->dtype, s->cols, &p);
  for (int i = 0; i < p.n_inputs && !compile_only; i++) {
    l.args.in[i] = bench_normal(s->dtype, i < w->n_full ? n : s->cols, 1),
    l.args.in_stride[i] = s->cols;
  }
  for (int o = 0; o < p.n_outputs && !compile_only; o++) {
    CHECK_CUDA(cudaMalloc(&l.args.out[o], bytes));
    l.args.out_stride[o] = s->cols;
  }
  if (!compile_only) {
    copy_us = bench_copy_us(l.args.out[0], (void *)(uintptr_t)l.args.in[0], bytes);
    floor_us = copy_us * (w->n_full + w->n_outputs) / 2;
  }
  if (build(&p, NULL, &l.kernel) && !compile_only) {
    double us = bench_us(launch, &l, 10);
    const struct row_tile *t =
        &l.kernel.tiles[l.kernel.kernels[ROW_VARIANT_FLAT] ? ROW_VARIANT_FLAT : 0];
    printf("{\"work\": \"%s\", \"dtype\": \"%s\", \"rows\": %ld, \"cols\": %d, \"us\": %.2f, "
           "\"copy_us\": %.2f, \"floor_us\": %.2f, "
           "\"of_floor\": %.3f, \"tile\": [%d, %d, %d, %d]}\n",
           w->name, dtype_name(s->dtype), (long)s->rows, s->cols, us, copy_us, floor_us,
           us / floor_us, t->group, t->depth, t->rows, t->threads);
    row_kernel_unload(&l.kernel);
  }
  if (sweeping && s->work < 2) sweep_flat(&p, &l, floor_us);
  if (sweeping && (s->work == 2 || s->work == 4)) sweep(&p, &l, floor_us);
  for (int i = 0; i < p.n_inputs; i++)
    cudaFree((void *)(uintptr_t)l.args.in[i]);
  for (int o = 0; o < p.n_outputs; o++)
    cudaFree(l.args.out[o]);
  fflush(stdout);
}

int main(int argc, char **argv) {
  char message[JIT_MESSAGE_BYTES];
  const char *cache = getenv("FUSEWIRE_JIT_CACHE");
  bool sweeping = argc > 1 && strcmp(argv[1], "sweep") == 0;
  compile_only = argc > 1 && strcmp(argv[1], "compile") == 0;
  if (jit_open(&(struct jit_options){cache}, &jit, message) != 0) {
    printf("%s\n", message);
    return 1;
  }
  if (!compile_only) bench_start("row");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    run_size(&sizes[i], sweeping);
  jit_close(jit);
  return 0;
}
