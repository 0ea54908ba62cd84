// The decoder while all is well: what it calibrates by, what it measures, what it looks at and what
// that costs, and when it raises its voice.
#include "rig.h"

static const struct rig_batch plain = {.tokens = 10, .fusion = FUSION_ON, .ns = NS_PER_MS};

static void nothing_before_a_copy_was_counted_right(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_open(&options);
  rig_step();
  assert_int_equal(atomic_load(&exchange.copy_state), COPY_WANTED);
  struct rig_batch b = plain;
  b.wanted = true;
  rig_load(&b, 50 * NS_PER_MS, 0); // nobody makes the copy meanwhile
  rig_idle(60 * NS_PER_MS);
  assert_int_equal(rig_outcomes[AUDIT_MEASURED], 0);
  assert_true(rig_outcomes[AUDIT_UNCALIBRATED] + rig_outcomes[AUDIT_LOST] > 40);
  rig_idle(300 * NS_PER_MS);
  assert_calibrated(true);
  assert_int_equal(fake_counters.n_copies, 1);
  assert_int_equal(rig_logged("audit_calibrated"), 1);
  assert_near(atomic_load(&decoder.stats.read_factor), 1, 1e-9);
  assert_int_equal(rig_sums(rig_row(FUSION_ON)).batches, 0);
}

static void batches_get_their_bytes(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  options.cpu_ns = NULL;
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  assert_calibrated(true);
  struct rig_batch small = {.tokens = 3, .fusion = FUSION_OFF, .ns = 70 * NS_PER_US, .factor = 0.9};
  for (int i = 0; i < 20; i++) {
    rig_load(&plain, 20 * NS_PER_MS, 3 * NS_PER_MS);
    rig_load(&small, 2 * NS_PER_MS, NS_PER_MS);
  }
  rig_idle(500 * NS_PER_MS);
  struct rig_sums on = rig_sums(rig_row(FUSION_ON)), off = rig_sums(rig_row(FUSION_OFF));
  assert_true(on.batches > 100 && off.batches > 20);
  assert_int_equal(on.batches + off.batches, rig_outcomes[AUDIT_MEASURED]);
  assert_near(on.read / on.read_expected, 1, 0.005);
  assert_near(on.write / on.write_expected, 1, 0.005);
  assert_near(off.read / off.read_expected, 0.9, 0.02); // their neighbours share their samples
  assert_int_equal(on.shared + off.shared, 0);
  assert_int_equal(rig_row(FUSION_ON)->sizes[0].batches, on.batches); // up to 16 tokens
  assert_near(atomic_load(&decoder.stats.unexplained), 0, 1e-9);
}

// Samples begin wherever they like; the batch gets its own all the same.
static void one_batch_among_idle_time(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  struct rig_batch b = {.tokens = 8, .ns = 700 * NS_PER_US, .fusion = FUSION_ON, .wanted = true};
  test_random_seed(7);
  for (int i = 0; i < 30; i++) {
    int64_t began_ns = rig_now_ns;
    rig_run(&b);
    int measured = rig_outcomes[AUDIT_MEASURED];
    while (rig_outcomes[AUDIT_MEASURED] == measured && rig_now_ns < began_ns + NS_PER_S)
      rig_idle(NS_PER_MS);
    assert_int_equal(rig_outcomes[AUDIT_MEASURED], measured + 1);
    assert_true(rig_now_ns - began_ns < 60 * NS_PER_MS); // who waits is not kept waiting
    assert_near(rig_last.read_bytes, 8 * READ_A_TOKEN, 8 * READ_A_TOKEN * 1e-9);
    assert_near(rig_last.write_bytes, 8 * WRITE_A_TOKEN, 8 * WRITE_A_TOKEN * 1e-9);
    rig_idle((int64_t)(test_random() % (uint64_t)NS_PER_MS));
  }
}

static void two_lanes_at_once(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  options.cpu_ns = NULL;
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  struct rig_batch a = {.lane = 0, .tokens = 12, .fusion = FUSION_ON, .ns = 2 * NS_PER_MS};
  struct rig_batch b = {.lane = 1, .tokens = 4, .fusion = FUSION_OFF, .ns = 2 * NS_PER_MS};
  for (int i = 0; i < 50; i++) { // b is under way while a ends, and nobody knows of it before
    struct audit_batch *first = rig_begin(&a);
    rig_now_ns += NS_PER_MS;
    struct audit_batch *second = rig_begin(&b);
    rig_now_ns += NS_PER_MS;
    exchange_end(&exchange, first);
    rig_step();
    rig_now_ns += NS_PER_MS;
    exchange_end(&exchange, second);
    rig_step();
  }
  rig_idle(500 * NS_PER_MS);
  struct rig_sums on = rig_sums(rig_row(FUSION_ON)), off = rig_sums(rig_row(FUSION_OFF));
  assert_int_equal(on.batches, 50);
  assert_int_equal(off.batches, 50);
  assert_near(on.read / on.read_expected, 1, 1e-3);
  assert_near(off.write / off.write_expected, 1, 1e-3);
  assert_int_equal(on.shared, 50);
  assert_int_equal(off.shared, 50);
  uint64_t in_histogram = 0;
  for (int i = 0; i <= AUDIT_RATIOS; i++)
    in_histogram += rig_row(FUSION_ON)->read_ratio.counts[i];
  assert_int_equal(in_histogram, 0); // shared ones say nothing of the model
}

static void what_no_batch_explains(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  options.cpu_ns = NULL;
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  // another program: as much as one batch of ten tokens in ten milliseconds, all the time
  int64_t at_ns = fake_device_ns();
  fake_traffic_add(at_ns, at_ns + 20 * NS_PER_S, 2000 * 10 * READ_A_TOKEN,
                   2000 * 10 * WRITE_A_TOKEN);
  rig_idle(200 * NS_PER_MS);
  for (int i = 0; i < 300; i++) {
    rig_run(&plain);
    rig_now_ns += 9 * NS_PER_MS;
    rig_step();
  }
  rig_idle(260 * NS_PER_MS);
  struct rig_sums on = rig_sums(rig_row(FUSION_ON));
  // its part of the time that batches compute is theirs: 1 of 10 milliseconds
  assert_near(on.read / on.read_expected, 1.1, 0.01);
  assert_near(atomic_load(&decoder.stats.unexplained), 0.9 / 2, 0.05);
}

static void windows_are_all_that_is_looked_at(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  options.sampled = true;
  options.cpu_ns = NULL;
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  assert_calibrated(true);
  int evaluated = fake_counters.n_evaluated, taken = fake_counters.n_taken;
  rig_load(&plain, 4 * NS_PER_S, 0);
  struct rig_batch b = plain;
  double share = (double)(fake_counters.n_evaluated - evaluated) / (fake_counters.n_taken - taken);
  assert_near(share, 0.1, 0.02);
  struct rig_sums on = rig_sums(rig_row(FUSION_ON));
  assert_near(on.batches / 4000.0, 0.1, 0.015);
  assert_near(on.read / on.read_expected, 1, 0.01);
  // who asks is answered wherever he comes
  int measured = rig_outcomes[AUDIT_MEASURED];
  b.wanted = true;
  for (int i = 0; i < 10; i++) {
    rig_load(&plain, 90 * NS_PER_MS, 0);
    rig_run(&b);
  }
  rig_load(&plain, 300 * NS_PER_MS, 0);
  assert_true(rig_outcomes[AUDIT_MEASURED] >= measured + 10);
  assert_int_equal(rig_outcomes[AUDIT_LOST], 0);
}

static void the_decoder_stays_within_its_share(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_open(&options);
  fake_counters.evaluate_ns = 60 * NS_PER_US; // 30 % of a core for all samples
  rig_idle(1500 * NS_PER_MS);
  assert_calibrated(true);
  int64_t began_ns = rig_now_ns, cpu_ns = fake_counters.cpu_ns;
  rig_load(&plain, 8 * NS_PER_S, 0);
  double used = (double)(fake_counters.cpu_ns - cpu_ns) / (double)(rig_now_ns - began_ns);
  assert_true(used <= 0.09); // 8 % and what one second had left over
  assert_true(used > 0.06);
  struct rig_sums on = rig_sums(rig_row(FUSION_ON));
  assert_near(on.batches / 8000.0, 0.08 / 0.3, 0.06);
  assert_near(on.read / on.read_expected, 1, 0.01); // what is measured is right
  assert_true(rig_row(FUSION_ON)->unmeasured[AUDIT_SKIPPED] > 4000);
  assert_calibrated(true);
}

// At the usual interval, with what one sample was seen to cost.
static void the_usual_interval_is_cheap_enough(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  rig_load(&plain, 3 * NS_PER_S, 0);
  rig_idle(300 * NS_PER_MS);
  assert_int_equal(rig_row(FUSION_ON)->unmeasured[AUDIT_SKIPPED], 0);
  assert_true((double)fake_counters.cpu_ns < 0.05 * 3.8e9);
}

static void leaving_the_band_is_told_once(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_open(&options);
  rig_idle(500 * NS_PER_MS);
  struct rig_batch wrong = plain;
  wrong.factor = 1.3;
  rig_load(&plain, 5 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("audit_band"), 0);
  rig_load(&wrong, 7 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("audit_band"), 2); // read, and written
  assert_int_equal(rig_logged("outside 1 +- 0.10"), 2);
  assert_int_equal(rig_logged("fusion on, device fake:0"), 2);
  assert_true(rig_row(FUSION_ON)->read_out && rig_row(FUSION_ON)->write_out);
  assert_int_equal(rig_row(FUSION_ON)->alarms, 2);
  rig_load(&plain, 7 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("within its band again"), 2);
  assert_int_equal(rig_logged("audit_band"), 4);
  assert_false(rig_row(FUSION_ON)->read_out);
  wrong.factor = 0.7;
  rig_load(&wrong, 7 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("audit_band"), 6);
}

// What lives in the cache is held to its bounds only.
static void a_resident_batch_has_wide_bounds(void **state) {
  (void)state;
  struct decoder_options options = rig_options();
  rig_resident = true; // bounds 0 and twice what is expected
  rig_open(&options);
  rig_resident = false;
  rig_idle(500 * NS_PER_MS);
  struct rig_batch b = plain;
  b.factor = 0.3;
  rig_load(&b, 5 * NS_PER_S, NS_PER_MS);
  b.factor = 1.9;
  rig_load(&b, 5 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("audit_band"), 0);
  b.factor = 2.5;
  rig_load(&b, 6 * NS_PER_S, NS_PER_MS);
  assert_int_equal(rig_logged("audit_band"), 2);
  assert_int_equal(rig_row(FUSION_ON)->sizes[0].resident, rig_row(FUSION_ON)->sizes[0].batches);
}

int main(void) {
  test_random_seed(1130);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(nothing_before_a_copy_was_counted_right, rig_close),
      cmocka_unit_test_teardown(batches_get_their_bytes, rig_close),
      cmocka_unit_test_teardown(one_batch_among_idle_time, rig_close),
      cmocka_unit_test_teardown(two_lanes_at_once, rig_close),
      cmocka_unit_test_teardown(what_no_batch_explains, rig_close),
      cmocka_unit_test_teardown(windows_are_all_that_is_looked_at, rig_close),
      cmocka_unit_test_teardown(the_decoder_stays_within_its_share, rig_close),
      cmocka_unit_test_teardown(the_usual_interval_is_cheap_enough, rig_close),
      cmocka_unit_test_teardown(leaving_the_band_is_told_once, rig_close),
      cmocka_unit_test_teardown(a_resident_batch_has_wide_bounds, rig_close),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
