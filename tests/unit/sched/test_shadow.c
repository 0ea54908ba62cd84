// Shadows on a clock of their own: which requests have one, when it runs, what it finds, and that
// it is in nobody's way.
#include "harness/cmocka_all.h"

#include "sched/core.h"
#include "sched/shadow.h"
#include "sim/fake.h"

#include <math.h>
#include <stdio.h>

#define N 16
#define MAX_ROWS 8
static struct model *model;
static struct core *core;
static struct request requests[N];
static int64_t ids[N][8], tokens[N][8], sums[N][2];
static int32_t seqlens[N][2], positions[N][8];
static int finished[N];
static struct shadow_metrics *metrics;
static const struct shadow_output_metrics *of_tokens, *of_sums;

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  finished[request - requests]++;
}

static void open_core(bool async, double share, int32_t slots) {
  static int number;
  char name[16];
  fake_device_reset(async);
  snprintf(name, sizeof name, "m%d", number++); // its metrics are its own
  model = fake_model(name, 64, 8, 0);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    assert_non_null(model->metrics[mode] = calloc(1, sizeof *model->metrics[mode]));
  fake_shadow(model, share, 1e-3, MAX_ROWS, slots);
  metrics = model->shadow.metrics;
  of_tokens = model->shadow.outputs[FAKE_TOKENS], of_sums = model->shadow.outputs[FAKE_SUMS];
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = 2,
                                 .max_tokens = 64,
                                 .max_seqs = 64,
                                 .now = fake_now,
                                 .finish = on_finish};
  assert_int_equal(core_open(&options, &core, NULL), STATUS_OK);
  fake_device.run_ns = 0; // first batches are waited for
  assert_int_equal(core_admit(core, NULL, model, NULL, 0, NULL), STATUS_OK);
  fake_device.run_ns = NS_PER_MS;
  fake_device.n_runs = 0;
  memset(requests, 0, sizeof requests);
  memset(finished, 0, sizeof finished);
}

static int close_core(void **state) {
  (void)state;
  assert_true(fake_shadows_add_up(metrics));
  assert_int_equal(metrics->pending, 0);
  assert_int_equal(atomic_load(&model->refs), 1); // nothing holds it
  assert_true(metrics->bytes > 0);
  core_forget(core, NULL, model);
  assert_int_equal(metrics->bytes, 0);
  core_close(core);
  assert_int_equal(fake_device.host_bytes, 0);
  fake_model_free(model);
  return 0;
}

static void ask_for(struct request *request, int output, void *data, size_t bytes) {
  request->outputs |= (uint8_t)(1u << output);
  request->output_order[request->n_outputs] = (uint8_t)output;
  request->outputs_data[request->n_outputs] = data;
  request->outputs_bytes[request->n_outputs++] = bytes;
}

// One sequence of four tokens.
static struct request *add(int i, enum fusion_mode fusion) {
  struct request *request = &requests[i];
  memset(request, 0, sizeof *request);
  request->model = model;
  request->fusion = fusion;
  request->n_seqs = 1;
  request->n_tokens = request->padded_seqlen = 4;
  request->sum_sq = 16;
  request->dense = true;
  for (int t = 0; t < 4; t++)
    ids[i][t] = 10 * i + t + 1;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids[i], 32};
  ask_for(request, FAKE_TOKENS, tokens[i], 32);
  request->deadline_ns = CLOCK_NEVER;
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  core_add(core, request);
  return request;
}
static int64_t step(void) {
  return core_step(core, fake_device.now_ns);
}
static void until_idle(void) {
  for (int i = 0; i < 1000 && !core_idle(core); i++) {
    int64_t at_ns = step();
    if (at_ns == CLOCK_NEVER || at_ns <= fake_device.now_ns) continue;
    fake_device.now_ns = at_ns + 10 * NS_PER_US; // what is due any moment is asked for all the time
  }
  assert_true(core_idle(core));
}
static uint64_t dropped(void) {
  uint64_t n = 0;
  for (int d = 0; d < SHADOW_DROPS; d++)
    n += metrics->dropped[d];
  return n;
}

// ---- what is found ----
static void the_other_plan_runs_behind(void **state) {
  (void)state;
  open_core(false, 1, 2);
  fake_device.unfused_adds = 3;
  add(0, FUSION_ON);
  int64_t before_ns = fake_device.now_ns;
  assert_int_equal(step(), before_ns); // answered; again at once
  assert_int_equal(finished[0], 1);
  assert_int_equal(fake_device.n_runs, 1); // and only answered: the shadow waits for the next step
  assert_int_equal(metrics->pending, 1);
  memset(ids[0], 0xee, sizeof ids[0]); // nothing of the request is needed any more
  memset(tokens[0], 0xee, sizeof tokens[0]);
  until_idle();
  assert_int_equal(fake_device.n_runs, 2);
  assert_int_equal(metrics->sampled, 1);
  assert_int_equal(metrics->compared, 1);
  assert_int_equal(finished[0], 1);
  assert_true(of_tokens->max_abs == 3);
  // 2 id + 1000 position + 3 is the reference, as it is the unfused plan's.
  double reference = 5.0 * 5 + 1007.0 * 1007 + 2009.0 * 2009 + 3011.0 * 3011;
  assert_float_equal(of_tokens->max_relative, sqrt(4 * 9 / reference), 1e-12);
  assert_int_equal(of_tokens->exceeded, 1);
  assert_int_equal(of_sums->compared, 0); // not asked for
}

static void the_fused_plan_is_the_shadow_of_the_unfused(void **state) {
  (void)state;
  open_core(false, 1, 2);
  fake_device.unfused_adds = 3;
  add(0, FUSION_OFF);
  until_idle();
  assert_int_equal(fake_device.n_runs, 2);
  assert_true(of_tokens->max_abs == 3);
  double reference = 5.0 * 5 + 1007.0 * 1007 + 2009.0 * 2009 + 3011.0 * 3011;
  assert_float_equal(of_tokens->max_relative, sqrt(4 * 9 / reference), 1e-12);
}

static void equal_answers_alarm_nobody(void **state) {
  (void)state;
  open_core(false, 1, 2);
  add(0, FUSION_ON);
  until_idle();
  assert_int_equal(metrics->compared, 1);
  assert_true(of_tokens->max_abs == 0 && of_tokens->max_relative == 0);
  assert_int_equal(of_tokens->exceeded, 0);
  assert_int_equal(of_tokens->buckets[0], 1);
}

// Two sequences, of which positions 1 and of the second 0 are masked; an output that is an input.
static void masks_go_with_it_and_every_output_is_compared(void **state) {
  (void)state;
  open_core(false, 1, 2);
  fake_device.unfused_adds = 1;
  struct request *request = &requests[0];
  static int64_t same[8];
  static const int32_t kept[] = {0, 2, 3, 1, 2, 3};
  memcpy(positions[0], kept, sizeof kept);
  for (int t = 0; t < 8; t++)
    ids[0][t] = t + 1;
  *request = (struct request){.model = model,
                              .fusion = FUSION_ON,
                              .n_seqs = 2,
                              .n_tokens = 6,
                              .padded_seqlen = 4,
                              .sum_sq = 18,
                              .seqlens = seqlens[0],
                              .positions = positions[0],
                              .deadline_ns = CLOCK_NEVER};
  seqlens[0][0] = seqlens[0][1] = 3;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids[0], 64};
  ask_for(request, FAKE_SUMS, sums[0], 16);
  ask_for(request, FAKE_SAME, same, 64);
  ask_for(request, FAKE_TOKENS, tokens[0], 64);
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  core_add(core, request);
  step();
  memset(ids[0], 0xee, sizeof ids[0]);
  memset(seqlens, 0xee, sizeof seqlens);
  memset(positions, 0xee, sizeof positions);
  until_idle();
  assert_int_equal(metrics->compared, 1);
  assert_true(of_tokens->max_abs == 1 && of_sums->max_abs == 1);
  assert_int_equal(of_tokens->compared + of_sums->compared, 2);
  double reference = (1 + 3 + 4 + 1.0) * (1 + 3 + 4 + 1.0) + (6 + 7 + 8 + 1.0) * (6 + 7 + 8 + 1.0);
  assert_float_equal(of_sums->max_relative, sqrt(2 / reference), 1e-12);
}

static void a_share_of_the_answered_has_a_shadow(void **state) {
  (void)state;
  open_core(false, 0.25, 2);
  for (int i = 0; i < N; i++) {
    add(i, FUSION_ON);
    until_idle();
  }
  assert_int_equal(metrics->sampled, N / 4);
  assert_int_equal(metrics->compared, N / 4);
  assert_int_equal(fake_device.n_runs, N + N / 4);
  // Requests and batches are counted without them.
  assert_int_equal(model->metrics[FUSION_ON]->batches, N);
  assert_int_equal(model->metrics[FUSION_OFF]->batches, 0);
  assert_int_equal(model->metrics[FUSION_OFF]->accepted, 0);
}

static void what_did_not_run_has_none(void **state) {
  (void)state;
  open_core(false, 1, 2);
  atomic_store(&add(0, FUSION_ON)->cancelled, true);
  add(1, FUSION_ON)->deadline_ns = fake_device.now_ns;
  step();
  assert_int_equal(finished[0] + finished[1], 2);
  struct request *request = add(2, FUSION_ON);
  request->outputs = 1u << FAKE_SAME; // no step
  request->output_order[0] = FAKE_SAME;
  request->outputs_data[0] = (uint8_t *)ids[2];
  step();
  fake_device.run_status = STATUS_INTERNAL;
  add(3, FUSION_ON);
  step();
  assert_int_equal(finished[2] + finished[3], 2);
  assert_int_equal(metrics->sampled, 0);
}

// ---- when it runs ----
static void requests_go_first(void **state) {
  (void)state;
  open_core(false, 1, 4);
  for (int i = 0; i < 3; i++) { // one comes in every step, and no shadow has its turn
    add(i, FUSION_ON);
    step();
    assert_int_equal(finished[i], 1);
    assert_int_equal(fake_device.n_runs, i + 1);
  }
  assert_int_equal(metrics->pending, 3);
  step();
  assert_int_equal(fake_device.n_runs, 4); // the first shadow
  add(3, FUSION_ON);
  step(); // goes before its comparison
  assert_int_equal(finished[3], 1);
  assert_int_equal(metrics->compared, 0);
  until_idle();
  assert_int_equal(metrics->compared, 4);
}

static void outputs_are_compared_in_pieces(void **state) {
  (void)state;
  open_core(false, 1, 2);
  struct request *request = add(0, FUSION_ON);
  ask_for(request, FAKE_SUMS, sums[0], 8);
  step(), step(); // it, and its shadow
  step();         // one output
  assert_int_equal(of_tokens->compared + of_sums->compared, 1);
  assert_int_equal(metrics->pending, 1);
  step();
  assert_int_equal(of_tokens->compared + of_sums->compared, 2);
  assert_int_equal(metrics->pending, 0);
}

static void it_waits_until_the_device_is_idle(void **state) {
  (void)state;
  open_core(true, 1, 4);
  add(0, FUSION_ON);
  step();
  fake_device.now_ns += NS_PER_MS / 2;
  add(1, FUSION_OFF);
  fake_device.caps.small_tokens = 0;
  step(); // waits for the first one's end (sched/pace), or runs beside it
  fake_device.now_ns += NS_PER_MS / 2;
  step();
  assert_int_equal(finished[0], 1);
  while (!finished[1]) {
    assert_true(fake_device.n_runs <= 2);
    int64_t at_ns = step();
    if (at_ns > fake_device.now_ns) fake_device.now_ns = at_ns;
  }
  assert_int_equal(metrics->compared, 0);
  until_idle();
  assert_int_equal(metrics->compared, 2);
  assert_int_equal(fake_device.n_runs, 4);
}

// On a device with another lane nobody waits for a shadow that runs.
static void nobody_waits_for_one_where_there_is_another_lane(void **state) {
  (void)state;
  open_core(true, 1, 1);
  add(0, FUSION_ON);
  step();
  fake_device.now_ns += NS_PER_MS;
  step();
  assert_int_equal(finished[0], 1);
  step();
  assert_int_equal(fake_device.n_runs, 2); // the shadow runs
  add(1, FUSION_ON);
  step();
  assert_int_equal(fake_device.n_runs, 3); // and the request beside it
  fake_device.now_ns += NS_PER_MS;
  step();
  assert_int_equal(finished[1], 1);
  assert_int_equal(metrics->dropped[SHADOW_BUSY], 1);
  until_idle();
  assert_int_equal(metrics->compared, 1);
}

// ---- when it does not ----
static void full_slots_and_large_requests_have_none(void **state) {
  (void)state;
  open_core(false, 1, 2);
  for (int i = 0; i < 4; i++)
    add(i, FUSION_ON);
  step(); // a batch of four, and two slots
  assert_int_equal(metrics->pending, 2);
  assert_int_equal(metrics->dropped[SHADOW_BUSY], 2);
  until_idle();
  static int64_t many[3 * 4], out[3 * 4];
  struct request *request = add(4, FUSION_ON);
  request->n_seqs = 3;
  request->n_tokens = 12;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)many, sizeof many};
  request->outputs_data[0] = (uint8_t *)out;
  request->outputs_bytes[0] = sizeof out;
  until_idle();
  assert_int_equal(metrics->dropped[SHADOW_SIZE], 1);
  assert_int_equal(metrics->compared, 2);
}

static void one_that_waits_too_long_is_dropped(void **state) {
  (void)state;
  open_core(false, 1, 2);
  add(0, FUSION_ON);
  step();
  int64_t held_ns = fake_device.now_ns;
  model->batch.max_delay_ns = 10 * NS_PER_S; // the next one waits for company
  add(1, FUSION_ON);
  int64_t at_ns = step();
  assert_int_equal(at_ns, held_ns + SHADOW_PATIENCE_NS);
  assert_int_equal(metrics->pending, 1);
  fake_device.now_ns = at_ns;
  step();
  assert_int_equal(metrics->dropped[SHADOW_LATE], 1);
  assert_int_equal(metrics->pending, 0);
  core_hurry(core);
  until_idle();
  assert_int_equal(finished[1], 1);
}

static void draining_does_not_wait_for_them(void **state) {
  (void)state;
  open_core(false, 1, 2);
  add(0, FUSION_ON);
  step();
  assert_false(core_idle(core));
  core_hurry(core);
  add(1, FUSION_ON);
  step();
  assert_int_equal(finished[1], 1);
  step();
  assert_true(core_idle(core));
  assert_int_equal(metrics->dropped[SHADOW_DRAIN], 2);
  assert_int_equal(fake_device.n_runs, 2);
}

static void draining_waits_for_one_that_runs(void **state) {
  (void)state;
  open_core(true, 1, 2);
  add(0, FUSION_ON);
  step();
  fake_device.now_ns += NS_PER_MS;
  step(), step();
  assert_int_equal(fake_device.n_runs, 2);
  core_hurry(core);
  step();
  assert_false(core_idle(core)); // the device still works in its memory
  fake_device.now_ns += NS_PER_MS;
  step();
  step();
  assert_true(core_idle(core));
  assert_int_equal(metrics->dropped[SHADOW_DRAIN], 1);
}

static void a_failed_one_fails_nobody(void **state) {
  (void)state;
  open_core(false, 1, 2);
  add(0, FUSION_ON);
  step();
  fake_device.run_status = STATUS_INTERNAL;
  step();
  fake_device.run_status = STATUS_OK;
  assert_int_equal(metrics->failed, 1);
  assert_false(core_lost(core));
  add(1, FUSION_ON);
  until_idle();
  assert_int_equal(requests[0].status, STATUS_OK);
  assert_int_equal(requests[1].status, STATUS_OK);
}

static void a_device_that_is_lost_under_one_is_lost(void **state) {
  (void)state;
  open_core(true, 1, 4);
  add(0, FUSION_ON), add(1, FUSION_ON);
  step();
  fake_device.now_ns += NS_PER_MS;
  step(), step(); // answered; the first shadow runs, the second waits
  assert_int_equal(metrics->pending, 2);
  fake_device.lost = true;
  add(2, FUSION_ON);
  step(), step();
  assert_true(core_lost(core) && core_idle(core));
  assert_int_equal(metrics->failed, 1);
  assert_int_equal(metrics->dropped[SHADOW_LOST], 1);
  assert_int_equal(requests[2].status, STATUS_UNAVAILABLE);
  assert_int_equal(requests[0].status, STATUS_OK);
}

// ---- memory ----
static void it_holds_its_model(void **state) {
  (void)state;
  open_core(false, 1, 2);
  add(0, FUSION_ON);
  step();
  assert_int_equal(atomic_load(&model->refs), 2);
  step();
  assert_int_equal(atomic_load(&model->refs), 2);
  step();
  assert_int_equal(metrics->compared, 1);
  assert_int_equal(atomic_load(&model->refs), 1);
}

static void slots_are_made_at_load_or_it_fails(void **state) {
  (void)state;
  open_core(false, 1, 3);
  // ids, bias (two numbers), and both plans' tokens and sums, of eight rows each; their lengths and
  // positions.
  assert_int_equal(metrics->bytes, 3 * (8 * 8 * (1 + 2 + 4) + 2 * 64));
  assert_int_equal(fake_device.host_bytes, metrics->bytes);
  struct model *other = fake_model("full", 64, 8, 0);
  struct error err = {0};
  fake_shadow(other, 0.5, 1, 8, 2);
  fake_device.host_full = true;
  assert_int_equal(core_admit(core, NULL, other, NULL, 0, &err), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(err.message, "ab.shadow_slots"));
  core_forget(core, NULL, other);
  fake_model_free(other);
  assert_int_equal(dropped(), 0);
}

#define TEST(name) cmocka_unit_test_teardown(name, close_core)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_other_plan_runs_behind),
      TEST(the_fused_plan_is_the_shadow_of_the_unfused),
      TEST(equal_answers_alarm_nobody),
      TEST(masks_go_with_it_and_every_output_is_compared),
      TEST(a_share_of_the_answered_has_a_shadow),
      TEST(what_did_not_run_has_none),
      TEST(requests_go_first),
      TEST(outputs_are_compared_in_pieces),
      TEST(it_waits_until_the_device_is_idle),
      TEST(nobody_waits_for_one_where_there_is_another_lane),
      TEST(full_slots_and_large_requests_have_none),
      TEST(one_that_waits_too_long_is_dropped),
      TEST(draining_does_not_wait_for_them),
      TEST(draining_waits_for_one_that_runs),
      TEST(a_failed_one_fails_nobody),
      TEST(a_device_that_is_lost_under_one_is_lost),
      TEST(it_holds_its_model),
      TEST(slots_are_made_at_load_or_it_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
