// Batches on a device that works on one after the other, as a full GPU does: a fixed time for each
// (its weights are read), and some for every token. Clients ask, wait for the answer, think a
// little, ask again. What must hold for any number of them:
//   - with a second lane the device does not lie idle between batches, so that answers come faster
//     than with one;
//   - the second lane does not cut batches into small ones: with waiting for company
//     (sched/pace) no less is answered than when each free lane takes what there is, and much more
//     where many clients ask at once;
//   - one client alone waits for nothing but its own batch.
#include "sched/core.h"
#include "sched/pace.h"
#include "sim/fake.h"

#include <stdio.h>

#define MAX_CLIENTS 96
#define TOKENS 16
#define MAX_TOKENS 2048
#define US NS_PER_US

static struct client {
  struct request request;
  int64_t ids[TOKENS], tokens[TOKENS];
  int64_t asks_ns; // CLOCK_NEVER: waits for an answer
} clients[MAX_CLIENTS];
static uint64_t random_state;
static int64_t answers, latency_sum_ns;

static int64_t random_below(int64_t n) { // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (int64_t)(random_state * UINT64_C(2685821657736338717) >> 33) % n;
}

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  struct client *client = (struct client *)(void *)request;
  if (request->status != STATUS_OK) abort();
  answers++;
  latency_sum_ns += fake_device.now_ns - request->t_ns[STAGE_ADMITTED];
  client->asks_ns = fake_device.now_ns + 20 * US + random_below(60 * US);
}

static void ask(struct core *core, struct client *client, struct model *model) {
  struct request *request = &client->request;
  fake_request_init(request, model, client->ids, client->tokens, TOKENS);
  client->asks_ns = CLOCK_NEVER;
  core_add(core, request);
}

struct result {
  double per_second, latency_us, batch;
};

// A simulated second. `eager`: a lane that is free takes what there is.
static struct result run(int n_clients, int lanes, bool eager) {
  struct core *core;
  fake_device_reset(true);
  fake_device.run_ns = 300 * US;
  fake_device.token_ns = 400;
  fake_device.start_ns = 40 * US; // launches and copies
  fake_device.caps.small_tokens = eager ? INT32_MAX : 0;
  random_state = 88172645463325252u;
  answers = latency_sum_ns = 0;
  struct model *model = fake_model("m", MAX_TOKENS, 64, 0);
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = lanes,
                                 .max_tokens = MAX_TOKENS,
                                 .max_seqs = MAX_TOKENS,
                                 .now = fake_now,
                                 .finish = on_finish};
  if (core_open(&options, &core, NULL) != STATUS_OK) abort();
  int64_t end_ns = fake_device.now_ns + NS_PER_S, began_ns = fake_device.now_ns;
  for (int i = 0; i < n_clients; i++)
    clients[i].asks_ns = began_ns + random_below(500 * US);
  while (fake_device.now_ns < end_ns) {
    for (int i = 0; i < n_clients; i++)
      if (clients[i].asks_ns <= fake_device.now_ns) ask(core, &clients[i], model);
    int64_t next_ns = core_step(core, fake_device.now_ns);
    for (int i = 0; i < n_clients; i++)
      if (clients[i].asks_ns < next_ns) next_ns = clients[i].asks_ns;
    int64_t soonest_ns = fake_device.now_ns + US; // a step takes a microsecond
    fake_device.now_ns = next_ns > soonest_ns ? next_ns : soonest_ns;
  }
  core_hurry(core);
  for (int i = 0; i < 100000 && !core_idle(core); i++) {
    core_step(core, fake_device.now_ns);
    fake_device.now_ns += 10 * US;
  }
  struct result result = {(double)answers * 1e9 / (double)(fake_device.now_ns - began_ns),
                          (double)latency_sum_ns / (double)answers / 1e3,
                          (double)answers / fake_device.n_runs};
  core_close(core);
  fake_model_free(model);
  return result;
}

static int check(bool ok, const char *what, int n_clients) {
  if (!ok) fprintf(stderr, "%d clients: %s\n", n_clients, what);
  return !ok;
}

int main(void) {
  const int counts[] = {1, 2, 3, 8, 24, 48, 96};
  int failed = 0;
  printf("clients: answers/s, mean us, requests a batch\n");
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    int n = counts[i];
    struct result one = run(n, 1, false), eager = run(n, 2, true), two = run(n, 2, false);
    printf("%3d: one lane %7.0f %6.0f %5.1f | eager %7.0f %6.0f %5.1f | two lanes %7.0f %6.0f "
           "%5.1f\n",
           n, one.per_second, one.latency_us, one.batch, eager.per_second, eager.latency_us,
           eager.batch, two.per_second, two.latency_us, two.batch);
    failed += check(two.per_second > 0.99 * one.per_second, "two lanes answer less than one", n);
    failed += check(two.per_second > 0.97 * eager.per_second, "waiting for company costs", n);
    failed += check(two.latency_us < 1.05 * eager.latency_us, "waiting for company takes time", n);
    if (n == 1)
      failed += check(two.latency_us < 300 + 40 + TOKENS * 0.4 + 10, "one client alone waits", n);
    if (n >= 24)
      failed +=
          check(two.per_second > 1.1 * eager.per_second, "batches are cut into small ones", n);
  }
  return failed != 0;
}
