// The facts behind the formats: bytes along edges add up to the plans' traffic, buffers that live
// at one time do not overlap, what repeats is found, batches that cannot be are refused by name.
#include "worlds.h"

#include <math.h>

static void make(const struct model *model, const struct device_caps *caps, int64_t tokens,
                 struct facts *out) {
  struct explain_options options = {.model = model, .caps = caps, .tokens = tokens};
  struct error err = {0};
  if (facts_make(&options, out, &err) != STATUS_OK) fail_msg("%s", err.message);
}

static double edge_bytes(const struct facts *facts, enum side mode) {
  double sum = 0;
  for (int32_t e = 0; e < facts->n_edges; e++)
    sum += facts->edges[e].bytes[mode];
  return sum;
}

// What no edge carries, worked out by hand for the shipped blocks: weights, the reads of the input
// x, and the result y.
static void edges_and_ends_are_the_whole_traffic(void **state) {
  (void)state;
  const struct {
    const char *file;
    double weights; // bytes of matrices and vectors
    int x_reads[SIDES];
  } cases[] = {
      // q, k, v, output: 768 x 768 with bias; norm: 2 x 768
      {"config/models/attention.yaml", 4 * (4 * (768.0 * 768 + 768) + 2 * 768), {4, 2}},
      {"config/models/mlp.yaml", 4 * (2 * 768.0 * 3072 + 3072 + 768 + 2 * 768), {2, 2}},
  };
  const double row = 768 * 4, tokens = 96;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int mode = 0; mode < SIDES; mode++) {
      struct device_caps caps = fixed_caps(true);
      struct model *model = load_file(cases[i].file, &caps);
      struct facts facts;
      make(model, &caps, (int64_t)tokens, &facts);
      double ends = cases[i].weights + (cases[i].x_reads[mode] + 1) * tokens * row;
      double whole = edge_bytes(&facts, (enum side)mode) + facts.plans[mode].score_bytes + ends;
      assert_near(whole, facts_moved(&facts.plans[mode].total), 0.5);
      facts_free(&facts);
      model_put(model);
    }
}

// With row chains what passes inside a chain does not touch memory; without, only epilogues save.
static void tiles_carry_no_bytes(void **state) {
  (void)state;
  struct device_caps cpu = fixed_caps(false), gpu = fixed_caps(true);
  struct model *on_cpu = load_shipped(0, &cpu), *on_gpu = load_shipped(0, &gpu);
  struct facts a, b;
  make(on_cpu, &cpu, 128, &a);
  make(on_gpu, &gpu, 128, &b);
  assert_true(edge_bytes(&a, SIDE_FUSED) < edge_bytes(&b, SIDE_FUSED));
  assert_true(edge_bytes(&b, SIDE_FUSED) < edge_bytes(&b, SIDE_OFF));
  assert_near(edge_bytes(&a, SIDE_OFF), edge_bytes(&b, SIDE_OFF), 0.5);
  facts_free(&a);
  facts_free(&b);
  model_put(on_cpu);
  model_put(on_gpu);
}

// When a buffer lives: the arena's clock is the chain, because tiles of rows run through a chain in
// any order.
static int32_t moment(const struct fact_plan *plan, int32_t kernel) {
  if (kernel < 0) return -1;
  return kernel < plan->plan->n_steps ? plan->plan->steps[kernel].chain : INT32_MAX;
}

static void buffers_alive_together_do_not_overlap(void **state) {
  (void)state;
  for (int i = 0; i < 2 * N_SHIPPED; i++) {
    struct device_caps caps = fixed_caps(i % 2);
    struct model *model = load_shipped(i / 2, &caps);
    struct facts facts;
    make(model, &caps, 0, &facts);
    for (int mode = 0; mode < SIDES; mode++) {
      const struct fact_plan *plan = &facts.plans[mode];
      int64_t end = 0;
      for (int32_t a = 0; a < plan->n_buffers; a++) {
        const struct fact_buffer *one = &plan->buffers[a];
        assert_true(one->first <= one->last);
        if (one->place != PLACE_ARENA) continue;
        if (one->offset_bytes + one->bytes > end) end = one->offset_bytes + one->bytes;
        for (int32_t b = 0; b < a; b++) {
          const struct fact_buffer *other = &plan->buffers[b];
          bool apart = other->place != PLACE_ARENA ||
                       one->offset_bytes >= other->offset_bytes + other->bytes ||
                       other->offset_bytes >= one->offset_bytes + one->bytes ||
                       moment(plan, one->first) > moment(plan, other->last) ||
                       moment(plan, other->first) > moment(plan, one->last);
          if (!apart) fail_msg("%s: buffers %d and %d overlap", shipped[i / 2], a, b);
        }
      }
      assert_int_equal(end, plan->plan->arena_bytes);
    }
    facts_free(&facts);
    model_put(model);
  }
}

static bool has_fold(const struct fold *folds, int32_t n, int32_t times) {
  for (int32_t f = 0; f < n; f++)
    if (folds[f].times == times) return true;
  return false;
}

static void twelve_layers_are_found(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(false);
  struct model *model = load_shipped(0, &caps);
  struct facts facts;
  make(model, &caps, 0, &facts);
  assert_true(has_fold(facts.node_folds, facts.n_node_folds, 12));
  for (int mode = 0; mode < SIDES; mode++) {
    const struct fact_plan *plan = &facts.plans[mode];
    assert_true(has_fold(plan->folds, plan->n_folds, 12));
    int32_t covered = 0;
    for (int32_t f = 0; f < plan->n_folds; f++) {
      assert_int_equal(plan->folds[f].first, covered);
      covered += plan->folds[f].period * plan->folds[f].times;
    }
    assert_int_equal(covered, plan->plan->n_steps);
    int32_t counted = 0;
    for (int32_t p = 0; p < plan->n_points; p++)
      counted += plan->points[p].count;
    assert_int_equal(counted, plan->plan->n_steps);
    assert_true(plan->n_points < 20);
  }
  facts_free(&facts);
  model_put(model);
}

static void folds_of_lists(void **state) {
  (void)state;
  const struct {
    uint64_t keys[12];
    int32_t n, n_folds;
    struct fold folds[4];
  } cases[] = {
      {{0}, 0, 0, {{0, 0, 0}}},
      {{1, 2, 3}, 3, 1, {{0, 3, 1}}},
      {{7, 7, 7, 7}, 4, 1, {{0, 1, 4}}},
      {{9, 1, 2, 1, 2, 1, 2, 5}, 8, 3, {{0, 1, 1}, {1, 2, 3}, {7, 1, 1}}},
      {{1, 1, 2, 1, 1, 2, 3}, 7, 2, {{0, 3, 2}, {6, 1, 1}}}, // the longer stretch, not 1 1
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t n;
    struct fold *folds = fold_make(cases[i].keys, cases[i].n, &n);
    assert_int_equal(n, cases[i].n_folds);
    assert_memory_equal(folds, cases[i].folds, (size_t)n * sizeof *folds);
    free(folds);
  }
  assert_true(hash_name(1, "layer.3/up") == hash_name(1, "layer.11/up"));
  assert_false(hash_name(1, "layer.3/up") == hash_name(1, "layer.3/down"));
}

static void graph_sizes_cover_every_batch(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(true);
  struct model *model = load_shipped(0, &caps);
  struct facts facts;
  make(model, &caps, 130, &facts);
  int32_t next = 1;
  for (int32_t i = 0; i < facts.sizes.n; i++) {
    assert_int_equal(facts.sizes.sizes[i].fewest, next);
    next = facts.sizes.sizes[i].tokens + 1;
  }
  assert_int_equal(next, 1025);
  assert_int_equal(facts.sizes.ran_tokens, 192);
  assert_true(facts.sizes.waste_us > 0);
  facts_free(&facts);
  caps.graph_tokens = 0; // a device without captured graphs
  make(model, &caps, 130, &facts);
  assert_int_equal(facts.sizes.n, 0);
  assert_int_equal(facts.sizes.ran_tokens, 130);
  facts_free(&facts);
  model_put(model);
}

static void impossible_batches_are_refused_by_name(void **state) {
  (void)state;
  const struct {
    int model;
    int64_t tokens, seqs;
    const char *field;
  } cases[] = {
      {0, 2049, 0, "tokens: found 2049"},   {0, -1, 0, "tokens: found -1"},
      {0, INT64_MAX, 1, "tokens: found 9"}, {0, 4, 5, "sequences: found 5"},
      {0, 4, -5, "sequences: found -5"},    {0, 1024, 1, "sequences: 1024 tokens in 1"},
      {2, 16, 4, "no sequences"},           {0, 1025, 2, "513"},
  };
  struct device_caps caps = fixed_caps(false);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct model *model = load_shipped(cases[i].model, &caps);
    struct explain_options options = {
        .model = model, .caps = &caps, .tokens = cases[i].tokens, .seqs = cases[i].seqs};
    struct error err = {0};
    struct facts facts;
    assert_int_equal(facts_make(&options, &facts, &err), STATUS_INVALID_ARGUMENT);
    if (!strstr(err.message, cases[i].field)) fail_msg("case %zu: %s", i, err.message);
    facts_free(&facts);
    model_put(model);
  }
}

static void uneven_sequences_are_counted_exactly(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(false);
  struct model *model = load_shipped(0, &caps);
  struct explain_options options = {.model = model, .caps = &caps, .tokens = 10, .seqs = 4};
  struct facts facts;
  assert_int_equal(facts_make(&options, &facts, NULL), STATUS_OK);
  assert_int_equal(facts.batch.sum_sq, 3 * 3 + 3 * 3 + 2 * 2 + 2 * 2);
  assert_int_equal(facts.longest, 3);
  facts_free(&facts);
  model_put(model);
}

static void numbers_for_people(void **state) {
  (void)state;
  char text[OUT_NUMBER];
  assert_string_equal(out_bytes(0, text), "0 B");
  assert_string_equal(out_bytes(999, text), "999 B");
  assert_string_equal(out_bytes(76.9, text), "77 B"); // an expectation
  assert_string_equal(out_bytes(1000, text), "1.00 kB");
  assert_string_equal(out_bytes(123456789, text), "123 MB");
  assert_string_equal(out_us(12.345, text), "12.3 us");
  assert_string_equal(out_us(1e9, text), "1000 s");
  assert_string_equal(out_rate(741e12, "FLOP", text), "741 TFLOP/s");
  assert_string_equal(out_clean("a\x1b[31m\xff-long", 8, text, sizeof text), "a?[31m..");
  assert_string_equal(out_name("a\x1b[31m\xff-long\n", 8, text, sizeof text), "a?[..ng?");
  assert_string_equal(out_name("abcdefghij", 10, text, sizeof text), "abcdefghij");
  assert_string_equal(out_name("abcdefghij", 9, text, sizeof text), "abcd..hij");
  assert_string_equal(out_name("abcdefghij", 4, text, sizeof text), "a..j");
  assert_string_equal(out_name("abcdefghij", 3, text, sizeof text), "a..");
  assert_string_equal(out_name("abcdefghij", 2, text, sizeof text), "..");
  assert_string_equal(out_name("abcdefghij", 0, text, sizeof text), "");
  // Wider than the buffer: what fits.
  char small[8] = "1234567", one[1] = "x";
  assert_string_equal(out_clean("abcdefghij", 78, small, sizeof small), "abcde..");
  assert_string_equal(out_name("abcdefghij", 78, small, sizeof small), "abc..ij");
  assert_string_equal(out_name("abcdefghij", 8, small, sizeof small), "abc..ij");
  assert_string_equal(out_name("abcdefghij", 78, one, sizeof one), "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(edges_and_ends_are_the_whole_traffic),
      cmocka_unit_test(tiles_carry_no_bytes),
      cmocka_unit_test(buffers_alive_together_do_not_overlap),
      cmocka_unit_test(twelve_layers_are_found),
      cmocka_unit_test(folds_of_lists),
      cmocka_unit_test(graph_sizes_cover_every_batch),
      cmocka_unit_test(impossible_batches_are_refused_by_name),
      cmocka_unit_test(uneven_sequences_are_counted_exactly),
      cmocka_unit_test(numbers_for_people),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
