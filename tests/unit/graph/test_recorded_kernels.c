// The cost model against what was measured (test_recorded.c): single kernels, products fused and
// apart, the shipped models as served, and bytes by the card's counters.
#include "recorded.h"

#include "kernels/gemm/x3_tiles.h"

// ---- single kernels ----
static void take_kernel(const char *line) {
  char what[80];
  double us, b;
  if (says(line, "work", "linear")) {
    int m = (int)need(line, "m"), k = (int)need(line, "k"), n = (int)need(line, "n");
    snprintf(what, sizeof what, "%dx%d->%d, library", m, k, n);
    compare(what, product(DTYPE_BF16, m, k, n, BEHIND_NONE, FUSION_ON).us,
            need(line, "product_us"));
    snprintf(what, sizeof what, "%dx%d->%d, gelu", m, k, n);
    if (m > 512 && number(line, "bias_erf_us", &us))
      compare(what, product(DTYPE_BF16, m, k, n, BEHIND_GELU, FUSION_ON).us, us);
  } else if (says(line, "work", "few rows")) {
    int m = (int)need(line, "m"), k = (int)need(line, "k"), n = (int)need(line, "n");
    double least = fmin(need(line, "32x1"), need(line, "64x1"));
    snprintf(what, sizeof what, "%dx%d->%d, few rows, gelu", m, k, n);
    compare(what, product(DTYPE_BF16, m, k, n, BEHIND_GELU, FUSION_ON).us, least);
  } else if (says(line, "work", "attention") && number(line, "b", &b)) {
    double slots = b;
    number(line, "slots", &slots);
    if (slots > b) return; // more than the batch was made room for
    enum dtype dtype = says(line, "dtype", "fp32") ? DTYPE_F32 : DTYPE_BF16;
    int h = (int)need(line, "h"), s = (int)need(line, "s"), d = (int)need(line, "d");
    bool causal = need(line, "causal") > 0;
    snprintf(what, sizeof what, "attention %d of %d, %d heads of %d%s", (int)b, s, h, d,
             causal ? ", causal" : "");
    compare(what, attention(dtype, (int64_t)b, s, h, d, causal, FUSION_ON).us, need(line, "us"));
  }
}

static void single_kernels(void **state) {
  (void)state;
  for (source = BY_DEFAULTS; source < SOURCES; source++) {
    begin("single kernels, us");
    each_line("gpu-kernels-2026-11-30.jsonl", take_kernel);
    each_line("gpu-2026-11-30-2.jsonl", take_kernel);
    printf("  %d are more than %g times off\n", n_far, FAR);
    if (n_far > n_compared / 7)
      fail_msg("%d of %d are more than %g times off", n_far, n_compared, FAR);
    end(1.55, 80); // shapes that no tile fits: 128 rows of 4096 -> 16384, sequences of 20
  }
  source = BY_DEFAULTS;
}

// ---- products fused and apart, as `fusewired tune` measured them ----
#define SURELY 1.03  // by more than this one way is faster; the planner says so, too
#define AT_FAULT 1.1 // a fused kernel slower than that has a fault, which no model predicts

static int n_lost; // of which the model alone would choose the slower way

static void take_shape(const char *line) {
  char x[16], y[16], behind[32], what[100];
  int n, k, m;
  double fused_us, apart_us;
  if (sscanf(line, "shape %d %d %d %15s %15s %31s %lf %lf", &n, &k, &m, x, y, behind, &fused_us,
             &apart_us) != 8 ||
      strcmp(x, y) != 0 || fused_us > AT_FAULT * apart_us)
    return;
  bool gelu = !strcmp(behind, "bias,gelu");
  assert_true(gelu || !strcmp(behind, "bias,add"));
  enum behind of = gelu ? BEHIND_GELU : BEHIND_RESIDUAL;
  enum dtype dtype = strcmp(x, "fp32") ? DTYPE_BF16 : DTYPE_F32;
  struct cost fused = product(dtype, m, k, n, of, FUSION_ON),
              apart = product(dtype, m, k, n, of, FUSION_OFF),
              chosen = product(dtype, m, k, n, of, FUSION_AUTO);
  snprintf(what, sizeof what, "%dx%d->%d, %s, %s, fused", m, k, n, x, behind);
  compare(what, fused.us + rates.batch_us, fused_us);
  snprintf(what, sizeof what, "%dx%d->%d, %s, %s, apart", m, k, n, x, behind);
  compare(what, apart.us + rates.batch_us, apart_us);
  n_lost += chosen.launches == 1 ? fused_us > SURELY * apart_us : apart_us > SURELY * fused_us;
}

static void products_both_ways(void **state) {
  (void)state;
  static const struct {
    double most;
    int lost;
  } bands[SOURCES] = {{1.22, 0}, {1.27, 0}};
  for (source = BY_DEFAULTS; source < SOURCES; source++) {
    begin("products as tune measured them, us of a batch");
    gpu_rates(); // with the products of today
    n_lost = n_compared = 0;
    every_line(TUNED, take_shape);
    printf("  the slower way would be taken %d times\n", n_lost);
    assert_in_range(n_lost, 0, bands[source].lost);
    end(bands[source].most, 58);
  }
  source = BY_DEFAULTS;
}

// ---- the tiles of products in fp32 ----
static struct x3_product {
  int64_t m;
  int32_t n, k;
  double us[X3_TILES], bias_us[X3_TILES];
} x3_product; // m 0: none

// Of a product whose lines are all read: the tile that is chosen is the fastest, and its time.
static void compare_x3(void) {
  const struct x3_product *p = &x3_product;
  if (p->m == 0) return;
  enum x3_tile_size tile = x3_pick(p->m, p->n, p->k, 132);
  const struct x3_tile *of = &x3_tiles[tile];
  char what[80];
  snprintf(what, sizeof what, "%dx%d->%d by %d x %d", (int)p->m, p->k, p->n, of->rows, of->cols);
  compare(what, of->start_us + p->k * x3_us_of_k(of, x3_rounds(of, p->m, p->n, 132)),
          p->bias_us[tile]);
  for (int i = 0; i < X3_TILES; i++)
    if (p->us[i] < 0.98 * p->us[tile])
      fail_msg("%s takes %.1f us, by another tile %.1f", what, p->us[tile], p->us[i]);
}

// Lines of `cuda_bench_gemm fp32`: a product, and each tile's time below it.
static void take_x3(const char *line) {
  static const char *const names[X3_TILES] = {"x3_32", "x3_64", "x3_128x64"};
  struct x3_product *p = &x3_product;
  if (strstr(line, "\"work\"")) {
    compare_x3();
    *p = (struct x3_product){0};
    if (says(line, "work", "linear fp32"))
      p->m = (int64_t)need(line, "m"), p->n = (int32_t)need(line, "n"),
      p->k = (int32_t)need(line, "k");
  }
  for (int i = 0; i < X3_TILES; i++) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\": {", names[i]);
    const char *at = strstr(line, key);
    if (at) p->us[i] = need(at, "us"), p->bias_us[i] = need(at, "bias_us");
  }
}

// m n k, what was chosen, us by each tile: today's choice is the fastest, or nearly.
static void take_x3_line(const char *line) {
  struct x3_product p;
  char chosen[32];
  long m;
  if (sscanf(line, "%ld %d %d %31s %lf %lf %lf", &m, &p.n, &p.k, chosen, &p.us[0], &p.us[1],
             &p.us[2]) != 7)
    return;
  enum x3_tile_size tile = x3_pick(m, p.n, p.k, 132);
  for (int i = 0; i < X3_TILES; i++)
    if (p.us[i] < 0.98 * p.us[tile])
      fail_msg("%ld x %d x %d takes %.1f us, by another tile %.1f", m, p.n, p.k, p.us[tile],
               p.us[i]);
  n_compared++;
}

static void tiles_of_products_in_fp32(void **state) {
  (void)state;
  begin("products in fp32 by tiles: us");
  every_line("gpu-mixed-2026-11-30.txt", take_x3);
  compare_x3();
  end(1.1, 14);
  n_compared = 0;
  every_line("gpu-f32-products-2026-11-30-2.txt", take_x3_line);
  assert_int_equal(n_compared, 14);
}

// ---- what fusing gains of the shipped models, as served ----
static int32_t cast(struct graph_maker *m, int32_t x, enum dtype dtype) {
  return maker_node(m, OP_CAST, &x, 1, (struct node_attrs){.to = dtype});
}

// As config/models has them: inputs and outputs of all but the sentence models in fp32.
static void shipped_graph(struct graph_maker *m, const char *name, bool narrow) {
  int32_t cols = strncmp(name, "chain", 5) ? 768 : 4096, x, y;
  if (!strncmp(name, "minilm", 6)) {
    block_sentence_encoder(m, 6, 384, 12, 1536, 30522);
    return;
  }
  if (!strncmp(name, "bert", 4)) {
    block_sentence_encoder(m, 12, 768, 12, 3072, 30522);
    return;
  }
  x = maker_tensor(m, TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, cols);
  if (narrow) x = cast(m, x, DTYPE_BF16);
  if (!strncmp(name, "mlp", 3)) {
    y = maker_binary(m, OP_ADD, x, block_mlp(m, maker_layer_norm(m, x), 3072));
  } else if (cols == 768) {
    y = maker_layer_norm(m, maker_binary(m, OP_ADD, x, block_attention(m, x, 12)));
  } else {
    y = x;
    for (int i = 0; i < 8; i++) {
      int32_t in[2] = {maker_node(m, OP_SCALE, &y, 1, factor), maker_weight(m, 1, cols)};
      y = maker_node(m, OP_BIAS, in, 2, factor);
    }
  }
  output_add(m->graph, narrow ? cast(m, y, DTYPE_F32) : y);
}

static double served_us(const char *name, bool narrow, const struct batch_size *batch,
                        uint8_t outputs, enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  struct cost total;
  maker_init(&m, &graph, NULL, narrow ? DTYPE_BF16 : DTYPE_F32);
  shipped_graph(&m, name, narrow);
  struct plan *plan = plan_of(&graph, mode, batch);
  assert_int_equal(plan_cost(plan, &rates, batch, outputs, NULL, &total), STATUS_OK);
  plan_free(plan);
  graph_deinit(&graph);
  return total.us + rates.batch_us;
}

static int n_bert;
static bool measured_rates; // lines of a daemon with measured constants follow

static void take_served(const char *line) {
  // the mean batches that each line's clients made, about
  static const struct {
    const char *line;
    int64_t tokens, length;
    uint8_t outputs;
    bool narrow;
  } cases[] = {{"minilm --tokens 8..64", 240, 40, 2, false},
               {"minilm --tokens 128", 1920, 128, 2, false},
               {"bert-base ", 1920, 128, 2, false},
               {"bert-base ", 128, 128, 2, false}, // the second such line
               {"mlp --batch 256", 335, 1, 1, false},
               {"mlp16 --batch 16 ", 16, 1, 1, true},
               {"mlp16 --batch 256", 335, 1, 1, true},
               {"mlp16 --batch 2048", 2048, 1, 1, true},
               {"attention --tokens 256", 340, 256, 1, false},
               {"attention16 --tokens 256", 340, 256, 1, true},
               {"chain --batch 2048", 2048, 1, 1, false},
               {"bert16 ", 2048, 128, 2, true}};
  double on, off;
  const char *at = strstr(line, " on ");
  measured_rates |= !strncmp(line, "After", 5);
  if (measured_rates || !at || sscanf(at, " on %lf off %lf", &on, &off) != 2) return;
  size_t i = 0, n = sizeof cases / sizeof *cases;
  while (i < n && strncmp(line, cases[i].line, strlen(cases[i].line)) != 0)
    i++;
  assert_true(i < n);
  if (!strcmp(cases[i].line, "bert-base ")) i += (size_t)n_bert++;
  struct batch_size batch = batch_of(cases[i].tokens, cases[i].length);
  double fused = served_us(line, cases[i].narrow, &batch, cases[i].outputs, FUSION_ON),
         unfused = served_us(line, cases[i].narrow, &batch, cases[i].outputs, FUSION_OFF);
  compare(cases[i].line, 100 * unfused / fused, 100 * off / on);
}

static void served_models(void **state) {
  (void)state;
  static const char *const runs[] = {"gpu-ab-2026-11-30-3.txt", "gpu-ab-2026-11-30-4.txt"};
  for (int i = 0; i < 2; i++) {
    begin("unfused over fused, as fusewire bench --ab measured it: percent");
    gpu_rates();
    n_compared = n_bert = 0, measured_rates = false;
    every_line(runs[i], take_served);
    end(1.15, 11 + i);
  }
}

// ---- bytes ----
static const struct byte_case {
  const char *name;
  enum dtype dtype;
  int kind; // 0 product, 1 product and gelu, 2 attention, 3 stack, 4 product, gelu and relu of it
  int64_t seqs, length;
  int32_t k, n; // of a stack: columns, layers; of an attention: columns, heads
  enum fusion_mode mode;
} byte_cases[] = {
    {"linear 16384x768->3072", DTYPE_BF16, 0, 32, 512, 768, 3072, FUSION_ON},
    {"linear 16384x3072->768", DTYPE_BF16, 0, 32, 512, 3072, 768, FUSION_ON},
    {"linear 16384x1024->4096", DTYPE_BF16, 0, 32, 512, 1024, 4096, FUSION_ON},
    {"linear 8192x4096->16384", DTYPE_BF16, 0, 16, 512, 4096, 16384, FUSION_ON},
    {"linear 16384x4096->4096", DTYPE_BF16, 0, 32, 512, 4096, 4096, FUSION_ON},
    {"linear 24576x1280->5120", DTYPE_BF16, 0, 48, 512, 1280, 5120, FUSION_ON},
    {"linear 20480x1536->6144", DTYPE_BF16, 0, 40, 512, 1536, 6144, FUSION_ON},
    {"linear 8192x2048->8192", DTYPE_BF16, 0, 16, 512, 2048, 8192, FUSION_ON},
    {"linear+gelu 16384x768->3072", DTYPE_BF16, 1, 32, 512, 768, 3072, FUSION_ON},
    {"linear+gelu 16384x1024->4096", DTYPE_BF16, 1, 32, 512, 1024, 4096, FUSION_ON},
    {"linear+gelu 8192x4096->16384", DTYPE_BF16, 1, 16, 512, 4096, 16384, FUSION_ON},
    {"linear+gelu 65536x256->1024", DTYPE_BF16, 1, 128, 512, 256, 1024, FUSION_ON},
    {"linear+gelu 64x4096->16384", DTYPE_BF16, 1, 1, 64, 4096, 16384, FUSION_ON},
    {"linear+gelu 8192x1024->4096", DTYPE_F32, 1, 16, 512, 1024, 4096, FUSION_ON},
    {"linear+gelu 24576x1280->5120", DTYPE_BF16, 1, 48, 512, 1280, 5120, FUSION_ON},
    {"linear+gelu 12288x2048->8192", DTYPE_BF16, 1, 24, 512, 2048, 8192, FUSION_ON},
    {"linear+gelu and relu of it 16384x768->3072", DTYPE_BF16, 4, 32, 512, 768, 3072, FUSION_ON},
    {"attention 64x512, 12 of 64", DTYPE_BF16, 2, 64, 512, 768, 12, FUSION_ON},
    {"attention 16x2048, 16 of 128", DTYPE_BF16, 2, 16, 2048, 2048, 16, FUSION_ON},
    {"attention 4x8192, 16 of 128", DTYPE_BF16, 2, 4, 8192, 2048, 16, FUSION_ON},
    {"attention 64x512, 12 of 64", DTYPE_F32, 2, 64, 512, 768, 12, FUSION_ON},
    {"unfused attention 32x512, 12 of 64", DTYPE_BF16, 2, 32, 512, 768, 12, FUSION_OFF},
    {"linear+gelu 16384x512->2048", DTYPE_F32, 1, 32, 512, 512, 2048, FUSION_ON},
    {"bert-large 24x384", DTYPE_BF16, 3, 24, 384, 1024, 8, FUSION_ON},
    {"bert-large unfused 24x384", DTYPE_BF16, 3, 24, 384, 1024, 8, FUSION_OFF},
    {"bert-base 1x128", DTYPE_BF16, 3, 1, 128, 768, 12, FUSION_ON},
    {"bert-base 32x128", DTYPE_BF16, 3, 32, 128, 768, 12, FUSION_ON},
    {"bert-base 32x512", DTYPE_BF16, 3, 32, 512, 768, 12, FUSION_ON},
    {"bert-base 128x128", DTYPE_BF16, 3, 128, 128, 768, 12, FUSION_ON},
    {"bert-base unfused 1x128", DTYPE_BF16, 3, 1, 128, 768, 12, FUSION_OFF},
    {"bert-base unfused 32x128", DTYPE_BF16, 3, 32, 128, 768, 12, FUSION_OFF},
    {"bert-base unfused 32x512", DTYPE_BF16, 3, 32, 512, 768, 12, FUSION_OFF},
};

static struct cost byte_cost(const struct byte_case *c) {
  int64_t rows = c->seqs * c->length;
  if (c->kind == 3) return stack(c->dtype, c->n, c->k, c->k / 64, c->mode, c->seqs, c->length);
  if (c->kind == 2)
    return attention(c->dtype, c->seqs, c->length, c->n, c->k / c->n, false, c->mode);
  return product(c->dtype, rows, c->k, c->n,
                 c->kind == 4   ? BEHIND_GELU_AND_RELU
                 : c->kind == 1 ? BEHIND_GELU
                                : BEHIND_NONE,
                 c->mode);
}

static void take_bytes(const char *line) {
  for (size_t i = 0; i < sizeof byte_cases / sizeof *byte_cases; i++) {
    const struct byte_case *c = &byte_cases[i];
    char what[80];
    if (!says(line, "line", c->name) || !says(line, "dtype", dtype_name(c->dtype))) continue;
    struct cost cost = byte_cost(c);
    const char *write = strstr(line, "\"write\"");
    assert_non_null(write);
    snprintf(what, sizeof what, "%s read", c->name);
    compare(what, cost.read.expected / 1e6, need(line, "counted") / 1e6);
    snprintf(what, sizeof what, "%s written", c->name);
    if (need(write, "counted") > 5e6)
      compare(what, cost.write.expected / 1e6, need(write, "counted") / 1e6);
  }
}

static void bytes_by_the_cards_counters(void **state) {
  (void)state;
  begin("bytes through memory: MB");
  gpu_rates(); // recorded with the products of today
  n_compared = 0;
  each_line("gpu-audit-2026-11-30-4.jsonl", take_bytes);
  each_line("gpu-audit-2026-12-01.jsonl", take_bytes);
  end(1.25, 110);
}
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(single_kernels),
      cmocka_unit_test(products_both_ways),
      cmocka_unit_test(tiles_of_products_in_fp32),
      cmocka_unit_test(served_models),
      cmocka_unit_test(bytes_by_the_cards_counters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
