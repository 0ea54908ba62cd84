// Whole runs against a server of our own: what is sent, counted, timed. No assertion depends on how
// fast anything is.
#include "base/clock.h"
#include "client/load.h"
#include "fake_server.h"
#include "harness/cmocka_all.h"

static struct fake_server *server;
static struct net *net;
static struct payload_set payloads;
static struct result result;
static struct error err;

static int setup(void **state) {
  (void)state;
  server = calloc(1, sizeof *server);
  return server ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  result_free(&result);
  net_close(net);
  net = NULL;
  payload_set_free(&payloads);
  fake_stop(server);
  free(server);
  return 0;
}

static void begin(int n_conns) {
  char url[64];
  const struct payload_options options = {.model = "m", .fusion = {"on", "off"}};
  fake_start(server);
  snprintf(url, sizeof url, "127.0.0.1:%d", server->port);
  const struct net_options net_options = {.url = url, .n_conns = n_conns};
  assert_int_equal(net_open(&net_options, &net, &err), 0);
  for (int i = 0; i < 3; i++) {
    struct request_input input = {.n_tensors = 1, .tokens = 10};
    input.tensors[0] =
        (struct infer_tensor){.name = "x", .type = TYPE_FP32, .rank = 1, .dims = {100}};
    assert_int_equal(tensor_alloc(&input.tensors[0], SIZE_MAX, &err), 0);
    assert_int_equal(payload_set_add(&payloads, &options, &input, &err), 0);
    request_input_free(&input);
  }
}

static const struct call_method method = {.path = METHOD_INFER};

static struct load_options closed(int callers, int64_t requests) {
  return (struct load_options){.net = net,
                               .payloads = &payloads,
                               .method = &method,
                               .timeout_ns = 20 * NS_PER_S,
                               .callers = callers,
                               .requests = requests,
                               .seed = 1};
}

static enum status run(struct load_options options) {
  err = (struct error){0};
  const enum status status = load_run(&options, &result, &err);
  fake_stop(server);
  return status;
}

static void closed_loop_sends_as_many_as_asked(void **state) {
  (void)state;
  server->compute_us[0] = 77;
  begin(1);
  assert_int_equal(run(closed(4, 200)), 0);
  assert_int_equal(result.variant[0].n_ok, 200);
  assert_int_equal(server->n_calls, 200);
  assert_in_range(server->most_running, 2, 4);
  assert_int_equal(result.variant[0].tokens, 2000);
  assert_int_equal(result.variant[0].latency_us.n, 200);
  assert_near(result_cost_mean(&result.variant[0], COST_COMPUTE_US), 77, 0);
  assert_near(result_bytes_moved(&result.variant[0]), 2000, 0);
  assert_string_equal(result.variant[0].fusion, "on");
  assert_int_equal(result_failed(&result), 0);
  assert_false(server->timeout_header_seen);
}

static void failures_are_counted_by_status(void **state) {
  (void)state;
  server->fail_every = 10;
  begin(2);
  assert_int_equal(run(closed(4, 200)), 0);
  assert_int_equal(result.status_count[STATUS_RESOURCE_EXHAUSTED], 20);
  assert_int_equal(result.status_count[STATUS_OK], 180);
  assert_int_equal(result.variant[0].latency_us.n, 180); // a quick refusal is no quick answer
  assert_int_equal(result_failed(&result), 20);
}

static void warm_up_calls_do_not_count(void **state) {
  (void)state;
  begin(1);
  struct load_options options = closed(2, 50);
  options.warmup_ns = 30 * NS_PER_MS;
  assert_int_equal(run(options), 0);
  assert_int_equal(result.variant[0].latency_us.n, 50);
  assert_true(result.n_warmup > 0);
  assert_int_equal(server->n_calls, 50 + result.n_warmup);
}

static void a_b_slices_never_overlap_and_use_both_kinds_alike(void **state) {
  (void)state;
  server->compute_us[0] = 100;
  server->compute_us[1] = 150;
  begin(1);
  struct load_options options = closed(4, 96);
  options.slice_calls = 8;
  assert_int_equal(run(options), 0);
  assert_false(server->variants_overlapped);
  assert_true(server->most_running > 1);
  assert_int_equal(result.pairs.n, 6);
  assert_int_equal(result.variant[0].n_ok, 48);
  assert_int_equal(result.variant[1].n_ok, 48);
  assert_memory_equal(server->variants, "000000001111111111111111000000000000000011111111", 48);
  assert_near(result.estimate[AB_COMPUTE].ratio, 1.5, 1e-9);
  assert_near(result.estimate[AB_BYTES].ratio, 2, 1e-9);
  assert_true(result.variant[0].seconds > 0 && result.variant[1].seconds > 0);
}

static void open_loop_counts_from_the_scheduled_send(void **state) {
  (void)state;
  server->stall_at_call = 20;
  server->stall_ms = 300;
  begin(1);
  struct load_options options =
      closed(4, 100); // 4 in flight at most: the stall holds later sends back
  options.rate_per_s = 1000;
  assert_int_equal(run(options), 0);
  assert_int_equal(result.variant[0].n_ok, 100);
  assert_true(result.n_late >= 50); // of the 80 that were due during the stall
  assert_true(result.lag_us.max > 100e3);
  // All those calls waited for the stalled server, sent or not.
  assert_true(samples_percentile(&result.variant[0].latency_us, 0.5) > 50e3);
}

static void a_mute_server_costs_the_time_limit_and_is_reported(void **state) {
  (void)state;
  server->mute_from_call = 6;
  begin(1);
  struct load_options options = closed(1, 7);
  options.timeout_ns = 500 * NS_PER_MS; // long enough for the first five, whoever else works here
  assert_int_equal(run(options), 0);
  assert_int_equal(result.variant[0].n_ok, 5);
  assert_int_equal(result.status_count[STATUS_DEADLINE_EXCEEDED], 2);
}

static void a_lost_connection_is_opened_again(void **state) {
  (void)state;
  server->close_at_call = 30;
  begin(1);
  assert_int_equal(run(closed(4, 100)), 0);
  const int64_t lost = result.status_count[STATUS_UNAVAILABLE];
  assert_in_range(lost, 1, 4); // what was in flight
  assert_int_equal(result.variant[0].n_ok, 100 - lost);
}

static void a_draining_connection_is_replaced_without_loss(void **state) {
  (void)state;
  server->goaway_at_call = 30;
  begin(1);
  assert_int_equal(run(closed(8, 400)), 0); // some calls are on their way when the GOAWAY comes
  assert_int_equal(result_failed(&result), 0);
  assert_int_equal(result.variant[0].n_ok, 400);
  print_message("sent again: %lld\n", (long long)result.n_resent);
}

static void a_server_that_only_drains_fails_the_calls_in_the_end(void **state) {
  (void)state;
  server->always_goaway = true;
  begin(1);
  assert_int_equal(run(closed(2, 4)), 0);
  assert_int_equal(result.status_count[STATUS_UNAVAILABLE], 4);
  assert_int_equal(result.n_resent, 12); // three times each
}

static void a_server_that_is_gone_ends_the_run(void **state) {
  (void)state;
  server->close_at_call = 10;
  begin(1);
  shutdown(server->listen_fd, SHUT_RDWR); // nobody answers the second connect
  assert_int_equal(run(closed(2, 100)), STATUS_UNAVAILABLE);
  assert_true(result.status_count[STATUS_UNAVAILABLE] >= 1);
  assert_true(err.message[0] != 0);
}

static void nobody_there_is_unavailable(void **state) {
  (void)state;
  begin(1);
  struct net *other = NULL;
  const struct net_options nowhere = {.url = "127.0.0.1:1", .n_conns = 1};
  const struct net_options bad = {.url = "localhost", .n_conns = 1};
  assert_int_equal(net_open(&nowhere, &other, &err), STATUS_UNAVAILABLE);
  assert_non_null(strstr(err.message, "127.0.0.1:1"));
  assert_int_equal(net_open(&bad, &other, &err), STATUS_INVALID_ARGUMENT);
  result_init(&result, 1, 1);
}

static void an_interrupt_ends_the_run_early_with_what_there_is(void **state) {
  (void)state;
  static volatile bool interrupt = true;
  begin(1);
  struct load_options options = closed(2, 1000000);
  options.interrupt = &interrupt;
  assert_int_equal(run(options), 0);
  assert_true(result.interrupted);
  assert_true(server->n_calls < 1000000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(closed_loop_sends_as_many_as_asked),
      TEST(failures_are_counted_by_status),
      TEST(warm_up_calls_do_not_count),
      TEST(a_b_slices_never_overlap_and_use_both_kinds_alike),
      TEST(open_loop_counts_from_the_scheduled_send),
      TEST(a_mute_server_costs_the_time_limit_and_is_reported),
      TEST(a_lost_connection_is_opened_again),
      TEST(a_draining_connection_is_replaced_without_loss),
      TEST(a_server_that_only_drains_fails_the_calls_in_the_end),
      TEST(a_server_that_is_gone_ends_the_run),
      TEST(nobody_there_is_unavailable),
      TEST(an_interrupt_ends_the_run_early_with_what_there_is),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
