// Golden plans: what the planner makes of the blocks of real models, byte for byte as plan_dump
// writes it. A wanted change of plans: run this program once with FUSEWIRE_GOLDEN_WRITE=1 and read
// the diff before it is committed.
#include "blocks.h"
#include "graph/plan.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct plan_caps cpu_like_caps(void) {
  struct plan_caps caps = {
      .row_chains = true, .tile_rows = 32, .tile_bytes = 512 << 10, .epilogue_max = 4};
  caps.epilogue_kinds =
      1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL;
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  return caps;
}

static void write_golden(const char *path, const char *text, size_t bytes) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  fclose(file);
}

static void compare_golden(const struct graph *graph, enum fusion_mode mode,
                           const struct plan_caps *caps, const char *name) {
  static char text[1 << 18], golden[1 << 18];
  struct plan_limits limits = {.max_tokens = 2048, .max_seqs = 64, .max_seqlen = 512};
  struct plan *plan;
  struct error err = {0};
  if (plan_build(graph, mode, caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s: %s", name, err.message);
  size_t bytes = plan_dump(plan, graph, text, sizeof text);
  assert_int_equal(bytes, strlen(text));
  char path[256];
  snprintf(path, sizeof path, "tests/golden/plan_%s_%s.txt", name, fusion_name(mode));
  if (getenv("FUSEWIRE_GOLDEN_WRITE")) write_golden(path, text, bytes);
  FILE *file = fopen(path, "r");
  if (!file) fail_msg("%s: no golden file", path);
  golden[fread(golden, 1, sizeof golden - 1, file)] = '\0';
  fclose(file);
  if (strcmp(text, golden) != 0) {
    size_t at = 0;
    while (text[at] == golden[at])
      at++;
    while (at > 0 && text[at - 1] != '\n')
      at--;
    fail_msg("%s: differs from byte %zu on; now\n%.400s\n", path, at, text + at);
  }
  plan_free(plan);
}

static void golden_all_modes(struct graph *graph, const char *name) {
  struct plan_caps caps = cpu_like_caps();
  for (int mode = 0; mode < FUSION_MODES; mode++)
    compare_golden(graph, (enum fusion_mode)mode, &caps, name);
  graph_deinit(graph);
}

static void mlp_plan_is_one_chain(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  output_add(&graph, block_mlp(&m, maker_input(&m, ROWS_TOKENS, 384), 1536));
  golden_all_modes(&graph, "mlp");
}

static void post_norm_encoder_layer_plan(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  output_add(&graph, block_encoder_post(&m, maker_input(&m, ROWS_TOKENS, 384), 12, 1536));
  golden_all_modes(&graph, "encoder_post_norm");
}

static void pre_norm_encoder_layer_plan(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  output_add(&graph, block_encoder_pre(&m, maker_input(&m, ROWS_TOKENS, 384), 12, 1536));
  golden_all_modes(&graph, "encoder_pre_norm");
}

static void sentence_encoder_plan(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  block_sentence_encoder(&m, 2, 384, 12, 1536, 30522);
  golden_all_modes(&graph, "sentence_encoder");
}

// An H200 by its default constants: GELU pays in the epilogue of a product of 1,024 columns; behind
// products of 8,192 neither it nor a gate does.
static void what_auto_leaves_apart_on_a_gpu(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 1024), wide = maker_input(&m, ROWS_TOKENS, 8192);
  int32_t y = maker_unary(&m, OP_GELU, maker_linear(&m, x, 4096, true));
  int32_t z = maker_unary(&m, OP_GELU, maker_linear(&m, wide, 4096, true));
  output_add(&graph, y), output_add(&graph, z);
  output_add(&graph, maker_binary(&m, OP_MUL, maker_linear(&m, wide, 4096, true),
                                  maker_input(&m, ROWS_TOKENS, 4096)));
  struct plan_caps caps = cpu_like_caps();
  caps.row_chains = false, caps.epilogue_max = EPILOGUE_MAX;
  caps.usual_tokens = 8192; // past the limits of the plan, which only the costs see
  caps.rates = device_rates_gpu();
  compare_golden(&graph, FUSION_ON, &caps, "gated_gpu");
  compare_golden(&graph, FUSION_AUTO, &caps, "gated_gpu");
  graph_deinit(&graph);
}

static void dump_is_cut_at_the_end_of_its_buffer(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  output_add(&graph, block_mlp(&m, maker_input(&m, ROWS_TOKENS, 8), 16));
  struct plan_caps caps = cpu_like_caps();
  struct plan_limits limits = {8, 8, 8};
  struct plan *plan;
  assert_int_equal(plan_build(&graph, FUSION_ON, &caps, &limits, &plan, NULL), STATUS_OK);
  char whole[8192], part[101];
  size_t bytes = plan_dump(plan, &graph, whole, sizeof whole);
  assert_true(bytes > 100 && bytes < sizeof whole);
  assert_int_equal(plan_dump(plan, &graph, part, sizeof part), 100);
  assert_memory_equal(part, whole, 100);
  assert_int_equal(part[100], '\0');
  assert_int_equal(plan_dump(plan, &graph, part, 0), 0);
  plan_free(plan);
  graph_deinit(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mlp_plan_is_one_chain),
      cmocka_unit_test(post_norm_encoder_layer_plan),
      cmocka_unit_test(pre_norm_encoder_layer_plan),
      cmocka_unit_test(sentence_encoder_plan),
      cmocka_unit_test(what_auto_leaves_apart_on_a_gpu),
      cmocka_unit_test(dump_is_cut_at_the_end_of_its_buffer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
