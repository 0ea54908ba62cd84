// sched/pack and sched/needs, on the fake device: masked positions leave on the way in and come
// back as zeros.
#include "harness/cmocka_all.h"

#include "sched/pack.h"
#include "sim/fake.h"

static struct model *model;
static struct lane *lane;
static struct pack_target target;

static int set_up(void **state) {
  (void)state;
  fake_device_reset(false);
  model = fake_model("m", 256, 8, 0);
  assert_int_equal(fake_lane_open(&fake_device, NULL, &lane, NULL), STATUS_OK);
  target = (struct pack_target){&fake_backend, lane, NULL};
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  fake_lane_close(&fake_device, lane);
  fake_model_free(model);
  return 0;
}

// A request by hand: `mask` [batch * seq] of 0 and 1, or NULL for dense.
struct case_memory {
  int64_t ids[256], bias[64], tokens[256], sums[64], same[256];
  int32_t seqlens[64], positions[256];
};

static void make(struct request *request, struct case_memory *memory, int32_t batch, int32_t seq,
                 const char *mask, bool bias) {
  memset(request, 0, sizeof *request);
  memset(memory, 0x55, sizeof *memory);
  request->model = model;
  request->fusion = FUSION_ON;
  request->n_seqs = batch;
  request->padded_seqlen = seq;
  request->dense = mask == NULL;
  for (int32_t i = 0; i < batch * seq; i++)
    memory->ids[i] = 7 * i + 1;
  for (int32_t i = 0; i < batch * 2; i++)
    memory->bias[i] = 10000 * (i + 1);
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)memory->ids, (size_t)(batch * seq) * 8};
  if (bias)
    request->inputs[FAKE_BIAS] = (struct slice){(uint8_t *)memory->bias, (size_t)batch * 16};
  for (int32_t b = 0; b < batch; b++) {
    memory->seqlens[b] = 0;
    for (int32_t s = 0; s < seq; s++) {
      if (mask && mask[b * seq + s] == '0') continue;
      memory->positions[request->n_tokens++] = s;
      memory->seqlens[b]++;
    }
    request->sum_sq += (int64_t)memory->seqlens[b] * memory->seqlens[b];
  }
  request->seqlens = mask ? memory->seqlens : NULL;
  request->positions = mask ? memory->positions : NULL;
  request->outputs = 7;
  request->n_outputs = 3;
  void *outputs[] = {memory->tokens, memory->sums, memory->same};
  for (int o = 0; o < 3; o++) {
    request->output_order[o] = (uint8_t)o;
    request->outputs_data[o] = outputs[o];
    request->outputs_bytes[o] = (size_t)(o == FAKE_SUMS ? batch : batch * seq) * 8;
  }
}

static void check(const struct case_memory *memory, int32_t batch, int32_t seq, const char *mask,
                  bool bias) {
  for (int32_t b = 0; b < batch; b++) {
    int64_t sum = bias ? memory->bias[b * 2] : 0;
    for (int32_t s = 0; s < seq; s++) {
      int32_t at = b * seq + s;
      bool kept = !mask || mask[at] != '0';
      int64_t token = 2 * memory->ids[at] + 1000 * s + (bias ? memory->bias[b * 2 + 1] : 0);
      assert_int_equal(memory->tokens[at], kept ? token : 0);
      assert_int_equal(memory->same[at], kept ? memory->ids[at] : 0);
      if (kept) sum += memory->ids[at];
    }
    assert_int_equal(memory->sums[b], sum);
  }
}

static void run_batch(struct request **requests, int n) {
  struct pack_arrays arrays;
  struct batch_geometry geometry;
  assert_int_equal(pack_arrays_init(&arrays, 512, 64), STATUS_OK);
  struct pack_origin origin = {0, 0};
  for (int i = 0; i < n; i++) {
    requests[i]->next = i + 1 < n ? requests[i + 1] : NULL;
    pack_in(&target, requests[i], origin, needs_inputs(model, FUSION_ON, 7));
    origin = (struct pack_origin){origin.token + requests[i]->n_tokens,
                                  origin.seq + requests[i]->n_seqs};
  }
  pack_geometry(requests[0], &arrays, &geometry);
  assert_int_equal(geometry.n_tokens, origin.token);
  assert_int_equal(geometry.n_seqs, origin.seq);
  assert_int_equal(fake_run(lane, NULL, &geometry, 7), STATUS_OK);
  origin = (struct pack_origin){0, 0};
  for (int i = 0; i < n; i++) {
    pack_out(&target, requests[i], origin);
    origin = (struct pack_origin){origin.token + requests[i]->n_tokens,
                                  origin.seq + requests[i]->n_seqs};
  }
  pack_arrays_deinit(&arrays);
}

static void masked_positions_come_back_as_zeros(void **state) {
  (void)state;
  static const char *const masks[] = {NULL,
                                      "1111"
                                      "1111", // all kept, though a mask came
                                      "1100"
                                      "1110", // right padding
                                      "0011"
                                      "0111", // left padding
                                      "1010"
                                      "0101", // scattered
                                      "0000"
                                      "1000", // an empty sequence
                                      "0001"
                                      "0000"};
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
    static struct request request;
    static struct case_memory memory;
    make(&request, &memory, 2, 4, masks[m], m % 2 == 0);
    struct request *requests[] = {&request};
    run_batch(requests, 1);
    check(&memory, 2, 4, masks[m], m % 2 == 0);
  }
}

static void requests_of_unlike_shape_share_a_batch(void **state) {
  (void)state;
  static struct request requests[3];
  static struct case_memory memory[3];
  make(&requests[0], &memory[0], 1, 6, "110111", true);
  make(&requests[1], &memory[1], 3, 2, NULL, false);
  make(&requests[2], &memory[2], 2, 5,
       "11111"
       "10000",
       true);
  struct request *list[] = {&requests[0], &requests[1], &requests[2]};
  run_batch(list, 3);
  check(&memory[0], 1, 6, "110111", true);
  check(&memory[1], 3, 2, NULL, false);
  check(&memory[2], 2, 5,
        "11111"
        "10000",
        true);
}

static void a_left_out_input_is_zero_even_after_another_batch_used_the_lane(void **state) {
  (void)state;
  static struct request request;
  static struct case_memory memory;
  struct request *requests[] = {&request};
  make(&request, &memory, 2, 4, NULL, true);
  run_batch(requests, 1);
  make(&request, &memory, 2, 4, NULL, false);
  run_batch(requests, 1);
  check(&memory, 2, 4, NULL, false);
}

static void geometry_counts_scores(void **state) {
  (void)state;
  static struct request requests[2];
  static struct case_memory memory[2];
  make(&requests[0], &memory[0], 2, 4,
       "1110"
       "0000",
       false);
  make(&requests[1], &memory[1], 1, 5, NULL, false);
  requests[0].next = &requests[1];
  struct pack_arrays arrays;
  struct batch_geometry geometry;
  assert_int_equal(pack_arrays_init(&arrays, 8, 3), STATUS_OK);
  pack_geometry(&requests[0], &arrays, &geometry);
  assert_int_equal(geometry.n_tokens, 8);
  assert_int_equal(geometry.max_seqlen, 5);
  assert_int_equal(geometry.sum_sq, 9 + 25);
  const int32_t cu[] = {0, 3, 3, 8};
  assert_memory_equal(geometry.cu_seqlens, cu, sizeof cu);
  assert_int_equal(geometry.scores_offset[3], 34);
  pack_arrays_deinit(&arrays);
}

static void a_random_mask_is_undone(void **state) {
  (void)state;
  test_random_seed(7);
  for (int round = 0; round < 500; round++) {
    static struct request request;
    static struct case_memory memory;
    int32_t batch = 1 + (int32_t)(test_random() % 6), seq = 1 + (int32_t)(test_random() % 20);
    char mask[128];
    for (int32_t i = 0; i < batch * seq; i++)
      mask[i] = test_random() % 3 ? '1' : '0';
    mask[test_random() % (uint64_t)(batch * seq)] = '1';
    make(&request, &memory, batch, seq, mask, round % 2);
    struct request *requests[] = {&request};
    run_batch(requests, 1);
    check(&memory, batch, seq, mask, round % 2);
  }
}

static void needs_follow_the_steps(void **state) {
  (void)state;
  assert_true(needs_steps(model, FUSION_ON, 1u << FAKE_TOKENS));
  assert_true(needs_steps(model, FUSION_OFF, 1u << FAKE_SUMS | 1u << FAKE_SAME));
  assert_false(needs_steps(model, FUSION_ON, 1u << FAKE_SAME));
  assert_int_equal(needs_inputs(model, FUSION_ON, 1u << FAKE_TOKENS),
                   1u << FAKE_IDS | 1u << FAKE_BIAS);
  assert_int_equal(needs_inputs(model, FUSION_ON, 1u << FAKE_SAME), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(masked_positions_come_back_as_zeros, set_up, tear_down),
      cmocka_unit_test_setup_teardown(requests_of_unlike_shape_share_a_batch, set_up, tear_down),
      cmocka_unit_test_setup_teardown(
          a_left_out_input_is_zero_even_after_another_batch_used_the_lane, set_up, tear_down),
      cmocka_unit_test_setup_teardown(geometry_counts_scores, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_random_mask_is_undone, set_up, tear_down),
      cmocka_unit_test_setup_teardown(needs_follow_the_steps, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
