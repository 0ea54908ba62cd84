// Counters that lie, lose samples, go away or never were: what is reported then, and what is not.
#include "rig.h"

#include <math.h>

static const struct rig_batch plain = {.tokens = 10, .fusion = FUSION_ON, .ns = NS_PER_MS};

static void opened(void) {
  struct decoder_options options = rig_options();
  rig_open(&options);
}

// Exactly twice: a session was seen to count like that.
static void a_copy_counted_twice(void **state) {
  (void)state;
  opened();
  fake_counters.factor = 2;
  rig_idle(500 * NS_PER_MS);
  assert_calibrated(false);
  rig_load(&plain, 3 * NS_PER_S, 0);
  rig_idle(4 * NS_PER_S);
  assert_calibrated(false);
  assert_int_equal(rig_outcomes[AUDIT_MEASURED], 0);
  assert_true(rig_row(FUSION_ON)->unmeasured[AUDIT_UNCALIBRATED] > 0);
  assert_int_equal(rig_logged("counted 2.0000 times read, 2.0000 written"), 1); // told once
  assert_near(atomic_load(&decoder.stats.read_factor), 2, 1e-9);
  assert_true(decoder.stats.calibrations_failed >= 2);
  int starts = fake_counters.n_starts;
  assert_true(starts >= 2 && starts < 8); // begun anew, ever later
  fake_counters.factor = 1;
  rig_idle(20 * NS_PER_S);
  assert_calibrated(true);
  assert_int_equal(rig_logged("audit_calibrated"), 1);
  rig_load(&plain, NS_PER_S, 0);
  assert_true(rig_outcomes[AUDIT_MEASURED] > 700);
  assert_near(rig_sums(rig_row(FUSION_ON)).read / rig_sums(rig_row(FUSION_ON)).read_expected, 1,
              0.01);
}

// Clocks that were set apart: how far is found by the host's clock first, then by a copy.
static void samples_by_another_clock(void **state) {
  static const int64_t offsets_ns[] = {NS_PER_MS * 5 / 4, -300 * NS_PER_MS, 40 * NS_PER_S};
  struct rig_batch b = {.tokens = 8, .fusion = FUSION_ON, .ns = 20 * NS_PER_MS};
  (void)state;
  for (size_t i = 0; i < sizeof offsets_ns / sizeof *offsets_ns; i++) {
    if (i > 0) rig_close(NULL);
    opened();
    fake_counters.sample_offset_ns = offsets_ns[i];
    fake_counters.late_ns = 3 * NS_PER_MS;
    rig_load(&b, 300 * NS_PER_MS, 0); // of a time of which nothing is known
    rig_idle(4 * NS_PER_S);
    assert_calibrated(true);
    assert_int_equal(rig_outcomes[AUDIT_MEASURED], 0);
    assert_near((double)(offsets_ns[i]), decoder.offset.ns, 10e3);
    for (int k = 0; k < 20; k++) {
      rig_run(&b);
      rig_idle(30 * NS_PER_MS);
    }
    rig_idle(500 * NS_PER_MS);
    struct rig_sums sums = rig_sums(rig_row(FUSION_ON));
    assert_int_equal(sums.batches, 20);
    assert_near(sums.read / (20 * 8 * READ_A_TOKEN), 1, 0.02);
  }
}

// By 3 us a second, as on a card: an hour later single batches still get what is theirs, and few
// copies were made for it.
static void samples_by_a_clock_that_drifts(void **state) {
  struct rig_batch b = {.tokens = 8, .fusion = FUSION_ON, .ns = 20 * NS_PER_MS};
  (void)state;
  opened();
  fake_counters.sample_drift = -3.3e-6;
  fake_counters.sample_offset_ns = -390 * NS_PER_US;
  rig_idle(200 * NS_PER_S);
  for (int hour = 0; hour < 2; hour++) {
    assert_calibrated(true);
    struct rig_sums before = rig_sums(rig_row(FUSION_ON));
    for (int k = 0; k < 20; k++) {
      rig_run(&b);
      rig_idle(30 * NS_PER_MS);
    }
    rig_idle(500 * NS_PER_MS);
    struct rig_sums after = rig_sums(rig_row(FUSION_ON));
    assert_int_equal(after.batches - before.batches, 20);
    assert_near((after.read - before.read) / (20 * 8 * READ_A_TOKEN), 1, 0.02);
    if (hour == 0) rig_idle(3600 * NS_PER_S);
  }
  assert_near(decoder.offset.drift, -3.3e-6, 0.1e-6);
  assert_true(fake_counters.n_copies <= 8);
  assert_int_equal(fake_counters.n_starts, 1);
  assert_int_equal(rig_logged("audit_calibrated"), 1);
}

// The copy tells by how much, and single batches get what is theirs. Found out anew after a loss.
static void samples_by_a_clock_that_is_a_little_off(void **state) {
  static const int64_t offsets_ns[] = {-115 * NS_PER_US, 215 * NS_PER_US, -900 * NS_PER_US};
  struct rig_batch b = {.tokens = 8, .fusion = FUSION_ON, .ns = 20 * NS_PER_MS};
  (void)state;
  opened();
  for (size_t i = 0; i < sizeof offsets_ns / sizeof *offsets_ns; i++) {
    fake_counters.sample_offset_ns =
        offsets_ns[i]; // the first sample of it is a hole, or comes twice
    rig_idle(20 * NS_PER_S);
    assert_calibrated(true);
    assert_near(decoder.offset.ns / (double)offsets_ns[i], 1,
                0.02 + 10e3 / fabs((double)offsets_ns[i]));
    struct rig_sums before = rig_sums(rig_row(FUSION_ON));
    for (int k = 0; k < 20; k++) {
      rig_run(&b);
      rig_idle(30 * NS_PER_MS + (int64_t)(test_random() % (uint64_t)NS_PER_MS));
    }
    rig_idle(500 * NS_PER_MS);
    struct rig_sums after = rig_sums(rig_row(FUSION_ON));
    assert_int_equal(after.batches - before.batches, 20);
    assert_near((after.read - before.read) / (20 * 8 * READ_A_TOKEN), 1, 0.02);
  }
}

// What the start of the counters costs is no reason to pass over the copy, nor what comes after it.
static void a_start_that_costs_more_than_there_is(void **state) {
  (void)state;
  opened();
  fake_counters.start_cpu_ns = 500 * NS_PER_MS;
  rig_idle(500 * NS_PER_MS);
  assert_calibrated(true);
  rig_load(&plain, NS_PER_S, 0);
  assert_true(rig_outcomes[AUDIT_MEASURED] > 700);
}

static void lost_samples_are_seen_by_their_times(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  rig_load(&plain, NS_PER_S, 0);
  assert_calibrated(true);
  int measured = rig_outcomes[AUDIT_MEASURED];
  assert_true(measured > 700);
  fake_counters.drop_from_ns = fake_device_ns() + 10 * NS_PER_MS; // and no flag tells
  fake_counters.drop_to_ns = fake_counters.drop_from_ns + 3 * NS_PER_MS;
  rig_load(&plain, 500 * NS_PER_MS, 0);
  assert_int_equal(decoder.stats.losses, 1);
  assert_calibrated(false);
  assert_int_equal(rig_logged("samples were lost"), 1);
  int after = rig_outcomes[AUDIT_MEASURED];
  assert_true(after - measured < 300); // those before the loss
  assert_true(rig_row(FUSION_ON)->unmeasured[AUDIT_LOST] >= 3);
  rig_load(&plain, 400 * NS_PER_MS, 0);
  assert_int_equal(rig_outcomes[AUDIT_MEASURED], after); // never without a copy
  assert_true(rig_row(FUSION_ON)->unmeasured[AUDIT_UNCALIBRATED] > 0);
  rig_idle(2 * NS_PER_S);
  assert_calibrated(true);
  assert_int_equal(fake_counters.n_copies, 2);
  assert_int_equal(decoder.stats.calibrations, 2);
  rig_load(&plain, NS_PER_S, 0);
  assert_true(rig_outcomes[AUDIT_MEASURED] > after + 700);
  assert_near(rig_sums(rig_row(FUSION_ON)).read / rig_sums(rig_row(FUSION_ON)).read_expected, 1,
              0.01);
}

static void one_lost_sample_is_a_loss(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  fake_counters.drop_from_ns = fake_device_ns() + 10 * NS_PER_MS;
  fake_counters.drop_to_ns = fake_counters.drop_from_ns + INTERVAL_NS;
  rig_load(&plain, 300 * NS_PER_MS, 0);
  assert_int_equal(decoder.stats.losses, 1);
  assert_calibrated(false);
}

// Copies cost time of the device: ever fewer of them where samples are lost again and again.
static void losses_without_end(void **state) {
  (void)state;
  opened();
  for (int i = 0; i < 600; i++) {
    fake_counters.drop_from_ns = fake_device_ns() - 50 * NS_PER_MS;
    fake_counters.drop_to_ns = fake_counters.drop_from_ns + NS_PER_MS;
    rig_idle(100 * NS_PER_MS);
  }
  assert_true(decoder.stats.losses > 3);
  assert_true(fake_counters.n_copies < 10);
  assert_true(rig_logged("audit_uncalibrated") <= 1 + (int)decoder.stats.calibrations);
}

static void samples_stop_coming(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  assert_calibrated(true);
  fake_counters.silent = true;
  rig_load(&plain, 2500 * NS_PER_MS, 0);
  assert_calibrated(false);
  assert_int_equal(rig_logged("samples have stopped coming"), 1);
  fake_counters.silent = false;
  rig_idle(6 * NS_PER_S);
  assert_calibrated(true);
}

static void counters_that_go_away(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  rig_load(&plain, NS_PER_S, 0);
  int measured = rig_outcomes[AUDIT_MEASURED];
  fake_counters.gone = true;
  struct rig_batch b = plain;
  b.wanted = true;
  rig_load(&b, 300 * NS_PER_MS, 0);
  assert_int_equal(atomic_load(&exchange.state), AUDIT_GONE);
  assert_true(rig_outcomes[AUDIT_REFUSED] > 0);
  assert_int_equal(rig_logged("audit_refused"), 1);
  rig_load(&b, NS_PER_S, 0);
  assert_int_equal(rig_logged("audit_refused"), 1);
  assert_true(rig_outcomes[AUDIT_MEASURED] - measured < 300);
}

static void counters_that_are_somebody_elses(void **state) {
  (void)state;
  opened();
  fake_counters.start_status = STATUS_UNAVAILABLE;
  rig_idle(100 * NS_PER_MS);
  assert_int_equal(atomic_load(&exchange.state), AUDIT_GONE);
  assert_int_equal(rig_logged("somebody else's now"), 1);
}

static void a_copy_that_does_not_come_about(void **state) {
  (void)state;
  opened();
  fake_counters.copy_fails = true;
  rig_idle(4 * NS_PER_S);
  assert_calibrated(false);
  fake_counters.copy_fails = false;
  rig_idle(4 * NS_PER_S);
  assert_calibrated(true);
}

// A batch that fails gives back what it held, and nothing waits for its samples.
static void a_batch_that_fails(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  struct audit_batch *batch = rig_begin(&plain);
  batch->failed = true;
  exchange_end(&exchange, batch);
  rig_load(&plain, 100 * NS_PER_MS, 0);
  rig_idle(500 * NS_PER_MS);
  assert_int_equal(rig_outcomes[AUDIT_NONE], 1);
  assert_true(rig_outcomes[AUDIT_MEASURED] > 90);
  // times that cannot be
  batch = rig_begin(&plain);
  batch->span.computed_ns = batch->span.computes_ns;
  exchange_end(&exchange, batch);
  rig_idle(500 * NS_PER_MS);
  assert_int_equal(rig_outcomes[AUDIT_NONE], 2);
}

static void more_batches_than_there_is_room_for(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  struct rig_batch tiny = {.tokens = 1, .ns = 10, .fusion = FUSION_ON};
  int none = 0;
  for (int i = 0; i < AUDIT_BATCHES + 100; i++) {
    struct audit_batch *batch = rig_begin(&tiny);
    none += batch == NULL;
    rig_now_ns += 20;
    if (batch) exchange_end(&exchange, batch);
  }
  assert_int_equal(none, 100);
  rig_idle(500 * NS_PER_MS);
  assert_int_equal(decoder.stats.batches_skipped, 100);
  assert_int_equal(rig_outcomes[AUDIT_MEASURED], 0); // they cannot be told from those unknown
  assert_int_equal(rig_row(FUSION_ON)->unmeasured[AUDIT_SKIPPED], AUDIT_BATCHES);
  rig_load(&plain, 200 * NS_PER_MS, 0);
  rig_idle(300 * NS_PER_MS);
  assert_true(rig_outcomes[AUDIT_MEASURED] > 190);
}

// One that runs for longer than samples are kept for it.
static void a_batch_of_four_seconds(void **state) {
  (void)state;
  opened();
  rig_idle(500 * NS_PER_MS);
  struct rig_batch slow = {.lane = 1, .tokens = 10, .ns = 4 * NS_PER_S, .fusion = FUSION_OFF};
  rig_run(&plain);
  rig_run(&slow);
  rig_load(&plain, 200 * NS_PER_MS, 0);
  rig_idle(500 * NS_PER_MS);
  assert_int_equal(rig_sums(rig_row(FUSION_OFF)).batches + rig_outcomes[AUDIT_SKIPPED] +
                       rig_outcomes[AUDIT_LOST],
                   1);
  assert_true(decoder.queue_n < DECODER_QUEUE);
  assert_true(rig_sums(rig_row(FUSION_ON)).batches > 150);
}

static void refused_from_the_start(void **state) {
  (void)state;
  opened();
  struct audit *audit = NULL;
  struct audit_options options = {.mode = AUDIT_CONTINUOUS,
                                  .backend = &rig_backend,
                                  .name = "fake:1",
                                  .interval_ns = INTERVAL_NS,
                                  .band = 0.1,
                                  .cpu = 0.08};
  fake_counters.open_status = STATUS_PERMISSION_DENIED;
  assert_int_equal(audit_open(&options, &audit, NULL), STATUS_OK);
  assert_int_equal(audit_state(audit), AUDIT_GONE);
  assert_int_equal(audit_start(audit, NULL), STATUS_OK);
  assert_int_equal(rig_logged("audit_refused"), 1);
  assert_int_equal(rig_logged("insufficient privileges"), 1);
  audit_stop(audit);
  audit_close(audit);
  rig_backend.counters = NULL; // a device without counters
  assert_int_equal(audit_open(&options, &audit, NULL), STATUS_OK);
  assert_int_equal(rig_logged("no counters of a device of kind fake"), 1);
  audit_close(audit);
}

int main(void) {
  test_random_seed(1130);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_copy_counted_twice, rig_close),
      cmocka_unit_test_teardown(samples_by_another_clock, rig_close),
      cmocka_unit_test_teardown(samples_by_a_clock_that_drifts, rig_close),
      cmocka_unit_test_teardown(samples_by_a_clock_that_is_a_little_off, rig_close),
      cmocka_unit_test_teardown(a_start_that_costs_more_than_there_is, rig_close),
      cmocka_unit_test_teardown(lost_samples_are_seen_by_their_times, rig_close),
      cmocka_unit_test_teardown(one_lost_sample_is_a_loss, rig_close),
      cmocka_unit_test_teardown(losses_without_end, rig_close),
      cmocka_unit_test_teardown(samples_stop_coming, rig_close),
      cmocka_unit_test_teardown(counters_that_go_away, rig_close),
      cmocka_unit_test_teardown(counters_that_are_somebody_elses, rig_close),
      cmocka_unit_test_teardown(a_copy_that_does_not_come_about, rig_close),
      cmocka_unit_test_teardown(a_batch_that_fails, rig_close),
      cmocka_unit_test_teardown(more_batches_than_there_is_room_for, rig_close),
      cmocka_unit_test_teardown(a_batch_of_four_seconds, rig_close),
      cmocka_unit_test_teardown(refused_from_the_start, rig_close),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
