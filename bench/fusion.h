// The experiments on fusion, for any back end: each prints one JSON line a point, fused beside
// separate, measured beside what the cost model predicts with the device's own measured constants.
//
//   chain       k steps v * 1.001 + 0.001 on 2^25 floats; separate is k times the kernel of one
//   step reductions  LayerNorm in one pass against two kernels (statistics, then the rest), and
//               sum(gelu(x)) against two, by the length of a row, 2^25 floats
//   epilogue    gelu(x W + b) against product and GELU apart, by K
//   attention   one kernel against four, by the length of the sequence
//
// A time is the least of the runs that fit the time of a point: what else the machine does only
// adds. On a GPU it is the kernels' own by graph replay, without what a batch has at both ends, as
// the copy's beside it is (median).
#ifndef BENCH_FUSION_H
#define BENCH_FUSION_H

#include "backend/measure.h"
#include "backend/probe_plan.h"
#include "graph/cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUSION_FLOATS (1 << 25)

struct fusion_bench {
  const struct backend_ops *backend;
  struct device *device;
  struct device_rates rates;
  double (*copy_seconds)(int64_t bytes, double seconds); // reads as much as it writes
  // Of the plan's kernels, timed as the copy is; NULL: of its batches.
  double (*kernel_seconds)(struct probe_plan *plan);
  bool small;     // a processor: sizes that take milliseconds there
  double seconds; // that a point may take
};

struct fusion_point {
  double measured, predicted; // seconds
  double bytes;               // read and written, compulsory
  int kernels;
};

static const struct node_attrs fusion_attrs = {.factor = 1.001f, .eps = 1e-5f};

static void fusion_must(enum status status, const struct error *err) {
  if (status == STATUS_OK) return;
  fprintf(stderr, "bench_fusion: %s\n", err->message);
  exit(1);
}

static int32_t fusion_node(struct probe_plan *p, enum op op, int32_t a, int32_t b, int32_t c,
                           const struct node_attrs *attrs, enum dtype dtype) {
  int32_t in[3] = {a, b, c};
  return probe_node(p, op, in, c >= 0 ? 3 : b >= 0 ? 2 : 1, attrs ? attrs : &fusion_attrs, dtype);
}

// Plans `output`, times it, and adds it to `point`; `times`: as often one after another.
static void fusion_take(const struct fusion_bench *b, struct probe_plan *p, int32_t output,
                        enum fusion_mode mode, int32_t rows, int times,
                        struct fusion_point *point) {
  struct error err = {0};
  double least = 0;
  struct batch_size batch = batch_of(rows, rows);
  struct cost total;
  fusion_must(probe_bind(p, output, mode, NULL, rows, &err), &err);
  if (b->kernel_seconds) {
    fusion_must(probe_run(p, &least, &err), &err);
    least = b->kernel_seconds(p);
  } else {
    fusion_must(probe_time(p, NULL, b->seconds, &least, &err), &err);
  }
  fusion_must(plan_cost(p->plan, &b->rates, &batch, 0xff, NULL, &total), &err);
  point->measured += times * least;
  point->predicted += times * total.us / 1e6;
  point->bytes += times * (total.read.compulsory + total.write.compulsory);
  point->kernels += times * p->plan->n_steps;
  probe_deinit(p);
}

static void fusion_print(const char *experiment, const char *x_name, double x,
                         const struct fusion_point *fused, const struct fusion_point *apart,
                         double copy) {
  printf("{\"experiment\": \"%s\", \"%s\": %.0f, \"fused_us\": %.2f, \"separate_us\": %.2f, "
         "\"fused_predicted_us\": %.2f, \"separate_predicted_us\": %.2f, \"fused_bytes\": %.0f, "
         "\"separate_bytes\": %.0f, \"fused_kernels\": %d, \"separate_kernels\": %d, "
         "\"copy_us\": %.2f}\n",
         experiment, x_name, x, fused->measured * 1e6, apart->measured * 1e6,
         fused->predicted * 1e6, apart->predicted * 1e6, fused->bytes, apart->bytes, fused->kernels,
         apart->kernels, copy * 1e6);
  fflush(stdout);
}

static void fusion_chain_plan(const struct fusion_bench *b, int k, int times,
                              struct fusion_point *point) {
  enum { COLS = 4096 };
  struct probe_plan p;
  probe_init(&p, b->backend, b->device, NULL);
  int32_t v = probe_input(&p, DTYPE_F32, COLS), shift = probe_weight(&p, DTYPE_F32, 1, 1);
  for (int i = 0; i < k; i++) {
    v = fusion_node(&p, OP_SCALE, v, -1, -1, NULL, DTYPE_F32);
    v = fusion_node(&p, OP_ADD, v, shift, -1, NULL, DTYPE_F32);
  }
  fusion_take(b, &p, v, FUSION_ON, FUSION_FLOATS / COLS, times, point);
}

static void fusion_chain(const struct fusion_bench *b) {
  for (int k = 1; k <= 16; k *= 2) {
    struct fusion_point fused = {0}, apart = {0};
    fusion_chain_plan(b, k, 1, &fused);
    fusion_chain_plan(b, 1, k, &apart);
    fusion_print("chain", "k", k, &fused, &apart, b->copy_seconds(4 * FUSION_FLOATS, b->seconds));
  }
}

// LayerNorm: one kernel; or -mean in one and, in the next, RMS norm of the centred row (which is
// the same), gamma and beta.
static void fusion_layer_norm(const struct fusion_bench *b, int32_t cols) {
  static const struct node_attrs mean = {.reduce = REDUCE_MEAN}, minus = {.factor = -1};
  struct fusion_point fused = {0}, apart = {0};
  int32_t rows = FUSION_FLOATS / cols;
  struct probe_plan p;
  probe_init(&p, b->backend, b->device, NULL);
  int32_t x = probe_input(&p, DTYPE_F32, cols), gamma = probe_weight(&p, DTYPE_F32, 1, cols),
          beta = probe_weight(&p, DTYPE_F32, 1, cols);
  int32_t y = fusion_node(&p, OP_LAYER_NORM, x, gamma, beta, NULL, DTYPE_F32);
  fusion_take(b, &p, y, FUSION_ON, rows, 1, &fused);
  probe_init(&p, b->backend, b->device, NULL);
  x = probe_input(&p, DTYPE_F32, cols);
  y = fusion_node(&p, OP_REDUCE, x, -1, -1, &mean, DTYPE_F32);
  y = fusion_node(&p, OP_SCALE, y, -1, -1, &minus, DTYPE_F32);
  fusion_take(b, &p, y, FUSION_ON, rows, 1, &apart);
  probe_init(&p, b->backend, b->device, NULL);
  x = probe_input(&p, DTYPE_F32, cols);
  int32_t m = probe_input(&p, DTYPE_F32, 1);
  gamma = probe_weight(&p, DTYPE_F32, 1, cols), beta = probe_weight(&p, DTYPE_F32, 1, cols);
  y = fusion_node(&p, OP_ADD, x, m, -1, NULL, DTYPE_F32);
  y = fusion_node(&p, OP_RMS_NORM, y, gamma, -1, NULL, DTYPE_F32);
  y = fusion_node(&p, OP_BIAS, y, beta, -1, NULL, DTYPE_F32);
  fusion_take(b, &p, y, FUSION_ON, rows, 1, &apart);
  fusion_print("layer_norm", "cols", cols, &fused, &apart,
               b->copy_seconds(4 * FUSION_FLOATS, b->seconds));
}

static void fusion_gelu_sum(const struct fusion_bench *b, int32_t cols) {
  static const struct node_attrs sum = {.reduce = REDUCE_SUM};
  struct fusion_point point[2] = {{0}};
  for (int apart = 0; apart < 2; apart++) {
    struct probe_plan p;
    probe_init(&p, b->backend, b->device, NULL);
    int32_t y = probe_input(&p, DTYPE_F32, cols);
    y = fusion_node(&p, OP_GELU, y, -1, -1, NULL, DTYPE_F32);
    y = fusion_node(&p, OP_REDUCE, y, -1, -1, &sum, DTYPE_F32);
    fusion_take(b, &p, y, apart ? FUSION_OFF : FUSION_ON, FUSION_FLOATS / cols, 1, &point[apart]);
  }
  fusion_print("gelu_sum", "cols", cols, &point[0], &point[1],
               b->copy_seconds(4 * FUSION_FLOATS, b->seconds));
}

static void fusion_reductions(const struct fusion_bench *b) {
  for (int32_t cols = 256; cols <= 16384; cols *= 4) {
    fusion_layer_norm(b, cols);
    fusion_gelu_sum(b, cols);
  }
}

static void fusion_epilogue(const struct fusion_bench *b) {
  enum dtype dtype = b->small ? DTYPE_F32 : DTYPE_BF16;
  int32_t m = b->small ? 1024 : 8192, n = b->small ? 2048 : 4096, most = b->small ? 2048 : 8192;
  for (int32_t k = 32; k <= most; k *= 2) {
    struct fusion_point point[2] = {{0}};
    for (int apart = 0; apart < 2; apart++) {
      struct probe_plan p;
      probe_init(&p, b->backend, b->device, NULL);
      int32_t x = probe_input(&p, dtype, k), w = probe_weight(&p, dtype, n, k),
              bias = probe_weight(&p, dtype, 1, n);
      int32_t y = fusion_node(&p, OP_LINEAR, x, w, bias, NULL, dtype);
      y = fusion_node(&p, OP_GELU, y, -1, -1, NULL, dtype);
      fusion_take(b, &p, y, apart ? FUSION_OFF : FUSION_ON, m, 1, &point[apart]);
    }
    fusion_print("epilogue", "k", k, &point[0], &point[1], 0);
  }
}

static void fusion_attention(const struct fusion_bench *b) {
  enum dtype dtype = b->small ? DTYPE_F32 : DTYPE_BF16;
  int32_t heads = b->small ? 12 : 64, most = b->small ? 2048 : 8192;
  struct node_attrs attrs = {.heads = heads, .kv_heads = heads};
  for (int32_t s = 64; s <= most; s *= 2) {
    struct fusion_point point[2] = {{0}};
    for (int apart = 0; apart < 2; apart++) {
      struct probe_plan p;
      probe_init(&p, b->backend, b->device, NULL);
      int32_t q = probe_input(&p, dtype, heads * 64), k = probe_input(&p, dtype, heads * 64),
              v = probe_input(&p, dtype, heads * 64);
      int32_t y = fusion_node(&p, OP_ATTENTION, q, k, v, &attrs, dtype);
      fusion_take(b, &p, y, apart ? FUSION_OFF : FUSION_ON, s, 1, &point[apart]);
    }
    fusion_print("attention", "s", s, &point[0], &point[1], 0);
  }
}

// All that predictions depend on, so that they can be made again from the file.
static void fusion_print_rates(const struct fusion_bench *b) {
  const struct device_rates *r = &b->rates;
  printf("{\"device\": \"%s\", \"backend\": \"%s\", \"threads\": %d, \"copy_gbps\": %.1f, "
         "\"cache_gbps\": %.1f, \"vector_gflops\": %.0f, \"product_gflops\": %.0f, ",
         b->backend->caps(b->device)->description, b->backend->name,
         b->backend->caps(b->device)->n_threads, r->copy / 1e9, r->cache / 1e9, r->vector / 1e9,
         r->product[b->small ? DTYPE_F32 : DTYPE_BF16] / 1e9);
  printf("\"read_gbps\": %.1f, \"triad_gbps\": %.1f, \"write_gbps\": %.1f, \"cache_bytes\": %lld, "
         "\"row_bytes\": %lld, \"fused_product\": %.3f, \"launch_us\": %.3f, ",
         r->read / 1e9, r->triad / 1e9, r->write / 1e9, (long long)r->cache_bytes,
         (long long)r->row_bytes, r->fused_product, r->launch_us);
  printf("\"reduced_gflops\": %.1f, \"special_gflops\": %.1f, \"special_16_gflops\": %.1f, "
         "\"softmax_gflops\": %.1f, \"epilogue_gflops\": %.1f}\n",
         r->reduced / 1e9, r->special / 1e9, r->special_16 / 1e9, r->softmax / 1e9,
         (b->small && r->epilogue_f32 > 0 ? r->epilogue_f32 : r->epilogue) / 1e9);
}

// bench_fusion [--seconds S] [chain|reductions|epilogue|attention]...: all of them by default.
static int fusion_main(struct fusion_bench *b, int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(const struct fusion_bench *b);
  } experiments[] = {{"chain", fusion_chain},
                     {"reductions", fusion_reductions},
                     {"epilogue", fusion_epilogue},
                     {"attention", fusion_attention}};
  struct error err = {0};
  struct backend_options options = {.cache_dir = getenv("FUSEWIRE_CUBINS")};
  bool chosen[4] = {0}, any = false;
  b->seconds = 0.2;
  for (int i = 1; i < argc; i++) {
    int e = 0;
    if (!strcmp(argv[i], "--seconds") && i + 1 < argc) {
      b->seconds = atof(argv[++i]);
      continue;
    }
    while (e < 4 && strcmp(argv[i], experiments[e].name) != 0)
      e++;
    if (e == 4) {
      fprintf(stderr, "bench_fusion: there is no experiment \"%s\"\n", argv[i]);
      return 2;
    }
    chosen[e] = any = true;
  }
  fusion_must(b->backend->open(&options, &b->device, &err), &err);
  fusion_must(measure_rates(b->backend, b->device, &(struct measure_options){0}, &b->rates, &err),
              &err);
  fusion_print_rates(b);
  for (int e = 0; e < 4; e++)
    if (!any || chosen[e]) experiments[e].run(b);
  b->backend->close(b->device);
  return 0;
}

#endif
