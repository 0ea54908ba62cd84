// Buckets of captured graphs: every batch that a plan may get lands in the smallest bucket that
// holds it, waste is bounded, and the padded geometry says nothing new.
#include "backend/cuda/buckets.h"
#include "harness/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// A plan of an attention step for all outputs, and a product for each of them alone.
static struct plan plan_of(struct step *steps, int32_t n_outputs, int32_t tokens, int32_t seqs,
                           int32_t seqlen) {
  memset(steps, 0, ((size_t)n_outputs + 1) * sizeof *steps);
  steps[0] = (struct step){
      .kind = STEP_ATTENTION, .rows = ROWS_TOKENS, .needed_by = (uint8_t)((1 << n_outputs) - 1)};
  for (int i = 0; i < n_outputs; i++)
    steps[1 + i] =
        (struct step){.kind = STEP_LINEAR, .rows = ROWS_TOKENS, .needed_by = (uint8_t)(1 << i)};
  return (struct plan){.steps = steps,
                       .n_steps = n_outputs + 1,
                       .n_outputs = n_outputs,
                       .limits = {tokens, seqs, seqlen}};
}

static struct batch_geometry counts(int32_t tokens, int32_t seqs, int32_t longest) {
  return (struct batch_geometry){.n_tokens = tokens, .n_seqs = seqs, .max_seqlen = longest};
}

static void every_batch_without_empty_sequences_has_a_bucket(void **state) {
  (void)state;
  struct step steps[3];
  static const int32_t limits[][3] = {
      {16384, 16384, 512}, {600, 64, 256}, {1, 1, 1}, {100, 100, 100}, {5000, 7, 5000}};
  for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
    struct plan plan = plan_of(steps, 2, limits[l][0], limits[l][1], limits[l][2]);
    struct bucket_set set;
    bucket_set_make(&plan, INT32_MAX, &set);
    assert_int_equal(set.rungs[set.n_tokens - 1], limits[l][0]);
    for (int round = 0; round < 20000; round++) {
      int32_t seqs = 1 + rand() % limits[l][1], tokens = 0, longest = 0;
      int32_t most = 1 + rand() % limits[l][2], n = 0;
      for (; n < seqs && tokens < limits[l][0]; n++) {
        int32_t length = 1 + rand() % most;
        if (length > limits[l][0] - tokens) length = limits[l][0] - tokens;
        tokens += length;
        if (length > longest) longest = length;
      }
      struct batch_geometry g = counts(tokens, n, longest);
      int32_t index = bucket_find(&set, &g, 3);
      if (index < 0) fail_msg("T %d B %d S %d has no bucket", tokens, n, longest);
      struct bucket b;
      assert_true(bucket_at(&set, index, &b));
      assert_true(b.n_tokens >= tokens && b.n_seqs >= n && b.max_seqlen >= longest);
      assert_true(b.n_tokens <= limits[l][0] && b.n_seqs <= limits[l][1]);
      assert_true(b.max_seqlen <= limits[l][2] && b.n_seqs <= b.n_tokens);
    }
  }
}

static void waste_is_at_most_a_fifth_from_256_tokens_on(void **state) {
  (void)state;
  struct step steps[2];
  struct plan plan = plan_of(steps, 1, 100000, 1, 100000);
  struct bucket_set set;
  bucket_set_make(&plan, INT32_MAX, &set);
  double worst = 0;
  for (int32_t tokens = 1; tokens <= 100000; tokens++) {
    struct batch_geometry g = counts(tokens, 1, tokens);
    struct bucket b;
    assert_true(bucket_at(&set, bucket_find(&set, &g, 1), &b));
    double waste = 1 - (double)tokens / b.n_tokens;
    if (tokens > 256 && waste > worst) worst = waste;
    if (tokens <= 64) assert_true(b.n_tokens < 2 * tokens);
    if (tokens > 64 && tokens <= 256) assert_true(b.n_tokens - tokens < 64);
  }
  assert_true(worst <= 0.2 && worst > 0.19);
}

static void batches_above_the_limit_of_graphs_have_no_bucket(void **state) {
  (void)state;
  struct step steps[2];
  struct plan plan = plan_of(steps, 1, 10000, 100, 512);
  struct bucket_set set;
  bucket_set_make(&plan, 1000, &set);
  struct batch_geometry below = counts(1000, 4, 300), above = counts(1001, 4, 300);
  assert_true(bucket_find(&set, &below, 1) >= 0);
  assert_int_equal(bucket_find(&set, &above, 1), -1);
  bucket_set_make(&plan, 0, &set);
  assert_int_equal(bucket_count(&set), 0);
  assert_int_equal(bucket_find(&set, &below, 1), -1);
}

static void every_row_count_has_the_lowest_rung_that_holds_it(void **state) {
  (void)state;
  struct step steps[2];
  static const int32_t limits[][3] = {{10000, 100, 1000}, {100, 3000, 50}, {7, 7, 0}, {1, 1, 1}};
  for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
    struct plan plan = plan_of(steps, 1, limits[l][0], limits[l][1], 64);
    struct bucket_set set;
    bucket_set_make(&plan, limits[l][2], &set);
    int32_t most = limits[l][0] > limits[l][1] ? limits[l][0] : limits[l][1];
    for (int32_t i = 1; i < set.n_rungs; i++)
      assert_true(set.rungs[i] > set.rungs[i - 1]);
    for (int32_t rows = 1; rows <= most; rows++) {
      int32_t rung = bucket_rung(&set, rows);
      assert_true(rung < set.n_rungs && set.rungs[rung] >= rows);
      assert_true(rung == 0 || set.rungs[rung - 1] < rows);
    }
    assert_int_equal(bucket_rung(&set, (int64_t)most + 1), set.n_rungs);
  }
}

static void more_sequences_than_tokens_have_no_bucket(void **state) {
  (void)state;
  struct step steps[2];
  struct plan plan = plan_of(steps, 1, 1000, 1000, 512);
  struct bucket_set set;
  bucket_set_make(&plan, INT32_MAX, &set);
  struct batch_geometry g = counts(3, 9, 2); // six of them are empty
  assert_int_equal(bucket_find(&set, &g, 1), -1);
}

static void masks_that_need_the_same_steps_share_graphs(void **state) {
  (void)state;
  struct step steps[9];
  struct plan plan = plan_of(steps, 2, 100, 10, 100);
  steps[1].needed_by = 3; // output 0 is on the way to output 1
  struct bucket_set set;
  bucket_set_make(&plan, INT32_MAX, &set);
  assert_int_equal(set.n_masks, 2);
  assert_int_equal(set.mask_class[2], set.mask_class[3]);
  assert_int_not_equal(set.mask_class[1], set.mask_class[3]);
  plan = plan_of(steps, 8, 100, 10, 100); // 255 sets of steps: few have graphs, none is wrong
  bucket_set_make(&plan, INT32_MAX, &set);
  assert_int_equal(set.n_masks, BUCKET_MASKS_MAX);
  struct batch_geometry g = counts(10, 1, 10);
  assert_true(bucket_find(&set, &g, 255) >= 0);
  assert_int_equal(bucket_find(&set, &g, 0x55), -1);
  for (int mask = 1; mask < 256; mask++) {
    int32_t index = bucket_find(&set, &g, (uint8_t)mask);
    struct bucket b;
    if (index >= 0) assert_true(bucket_at(&set, index, &b) && b.outputs == mask);
  }
}

static void buckets_that_no_batch_needs_are_left_out(void **state) {
  (void)state;
  struct step steps[2];
  struct plan plan = plan_of(steps, 1, 16384, 16384, 512);
  struct bucket_set set;
  bucket_set_make(&plan, 4096, &set);
  int n = 0;
  for (int32_t i = 0; i < bucket_count(&set); i++) {
    struct bucket b;
    if (!bucket_at(&set, i, &b)) continue;
    n++;
    assert_true((int64_t)b.n_seqs * b.max_seqlen >= b.n_tokens / 2);
  }
  printf("  %d graphs of %d for each mode and lane\n", n, bucket_count(&set));
  assert_true(n > 80 && n < 150);
}

static void a_plan_without_sequences_has_one_class_of_them(void **state) {
  (void)state;
  struct step step = {.kind = STEP_LINEAR, .rows = ROWS_TOKENS, .needed_by = 1};
  struct plan plan = {.steps = &step, .n_steps = 1, .n_outputs = 1, .limits = {1000, 1000, 1}};
  struct bucket_set set;
  bucket_set_make(&plan, INT32_MAX, &set);
  assert_int_equal(set.n_seqs, 1);
  struct batch_geometry g = counts(300, 300, 1);
  struct bucket b;
  assert_true(bucket_at(&set, bucket_find(&set, &g, 1), &b));
  assert_int_equal(b.n_tokens, 320);
  assert_int_equal(b.n_seqs, 320);
}

static void padded_geometry_repeats_the_end(void **state) {
  (void)state;
  int32_t positions[] = {0, 1, 2, 0}, cu[] = {0, 3, 4};
  int64_t scores[] = {0, 9, 10};
  struct batch_geometry g = counts(4, 2, 3);
  g.positions = positions, g.cu_seqlens = cu, g.scores_offset = scores;
  int64_t pitch = geometry_pitch(100, 50);
  assert_true(pitch >= 408 && pitch % 256 == 0);
  char *block = malloc((size_t)pitch * GEOMETRY_ROWS);
  memset(block, 0x7f, (size_t)pitch * GEOMETRY_ROWS);
  geometry_fill(block, pitch, &g, 8, 5);
  const int32_t *p = (void *)block, *c = (void *)(block + pitch);
  const int64_t *s = (void *)(block + 2 * pitch);
  static const int32_t want_p[] = {0, 1, 2, 0, 0, 0, 0, 0, 0x7f7f7f7f},
                       want_c[] = {0, 3, 4, 4, 4, 4, 0x7f7f7f7f};
  static const int64_t want_s[] = {0, 9, 10, 10, 10, 10, 0x7f7f7f7f7f7f7f7f};
  assert_memory_equal(p, want_p, sizeof want_p);
  assert_memory_equal(c, want_c, sizeof want_c);
  assert_memory_equal(s, want_s, sizeof want_s);
  assert_int_equal(geometry_used(8, 5), 48);
  assert_int_equal(geometry_used(100, 5), 400);
  free(block);
}

int main(void) {
  unsigned seed = (unsigned)time(NULL);
  printf("seed %u\n", seed);
  srand(seed);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_batch_without_empty_sequences_has_a_bucket),
      cmocka_unit_test(waste_is_at_most_a_fifth_from_256_tokens_on),
      cmocka_unit_test(batches_above_the_limit_of_graphs_have_no_bucket),
      cmocka_unit_test(every_row_count_has_the_lowest_rung_that_holds_it),
      cmocka_unit_test(more_sequences_than_tokens_have_no_bucket),
      cmocka_unit_test(masks_that_need_the_same_steps_share_graphs),
      cmocka_unit_test(buckets_that_no_batch_needs_are_left_out),
      cmocka_unit_test(a_plan_without_sequences_has_one_class_of_them),
      cmocka_unit_test(padded_geometry_repeats_the_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
