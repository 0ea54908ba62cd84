// An executor with its thread, and a device that takes real time: requests whose deadlines lie
// around the service time, some of them cancelled by the loop while they wait or run. Each comes
// back exactly once, right or with the status that fits. FW_DEADLINE_CALLS of the environment:
// how many (./dev bench deadlines: 100,000 under ThreadSanitizer).
#include "fake.h"

#include "sched/executor.h"

#include <sched.h>
#include <stdio.h>

#define N 24
#define ROWS 8
#define RUN_NS (100 * NS_PER_US)

struct slot {
  struct request request;
  int64_t ids[ROWS], tokens[ROWS];
  int64_t cancel_ns; // CLOCK_NEVER: not
  bool out;
};

static struct slot slots[N];
static struct model *model;
static struct executor *executor;
static uint64_t random_state = 1;
static int64_t counts[4]; // ok, expired, cancelled, all

static int64_t random_below(int64_t n) {
  random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (int64_t)((random_state >> 33) % (uint64_t)n);
}

static int fail(const char *what, int64_t number) {
  fprintf(stderr, "%s (%lld)\n", what, (long long)number);
  return 1;
}

static enum status run_in_real_time(struct lane *lane, const struct bound_plan *bound,
                                    const struct batch_geometry *g, uint8_t outputs) {
  int64_t until_ns = clock_now_ns() + RUN_NS;
  enum status status = fake_run(lane, bound, g, outputs);
  while (clock_now_ns() < until_ns)
    sched_yield();
  return status;
}

static void make(struct slot *slot, int64_t number) {
  int64_t now_ns = clock_now_ns();
  slot->request = (struct request){.model = model,
                                   .fusion = FUSION_ON,
                                   .outputs = 1u << FAKE_TOKENS,
                                   .n_outputs = 1,
                                   .n_seqs = 1,
                                   .n_tokens = ROWS,
                                   .padded_seqlen = ROWS,
                                   .sum_sq = ROWS * ROWS,
                                   .dense = true,
                                   .deadline_ns = now_ns + random_below(4 * RUN_NS)};
  for (int i = 0; i < ROWS; i++)
    slot->ids[i] = number + i, slot->tokens[i] = -1;
  slot->request.inputs[FAKE_IDS] = (struct slice){(uint8_t *)slot->ids, sizeof slot->ids};
  slot->request.outputs_data[0] = (uint8_t *)slot->tokens;
  slot->request.outputs_bytes[0] = sizeof slot->tokens;
  slot->request.t_ns[STAGE_ADMITTED] = now_ns;
  slot->cancel_ns = random_below(4) == 0 ? now_ns + random_below(3 * RUN_NS) : CLOCK_NEVER;
  slot->out = true;
}

// What the loop does for a call that is gone.
static void cancel_some(void) {
  int64_t now_ns = clock_now_ns();
  for (int i = 0; i < N; i++) {
    if (!slots[i].out || slots[i].cancel_ns > now_ns) continue;
    atomic_store_explicit(&slots[i].request.cancelled, true, memory_order_relaxed);
    slots[i].cancel_ns = CLOCK_NEVER;
    executor_note_cancel(executor);
  }
}

static int check(struct slot *slot) {
  const struct request *request = &slot->request;
  if (!slot->out) return fail("a request came back twice", slot - slots);
  slot->out = false;
  counts[3]++;
  switch (request->status) {
  case STATUS_OK:
    for (int i = 0; i < ROWS; i++)
      if (slot->tokens[i] != 2 * slot->ids[i] + 1000 * i) return fail("a wrong answer", i);
    counts[0]++;
    return 0;
  case STATUS_DEADLINE_EXCEEDED: // at its time, or before: when it could not be met any more
    counts[1]++;
    return slot->tokens[0] != -1 ? fail("an expired request was written to", counts[3]) : 0;
  case STATUS_CANCELLED:
    counts[2]++;
    return atomic_load(&request->cancelled) ? 0 : fail("nobody cancelled it", counts[3]);
  default:
    return fail("a status that does not fit", request->status);
  }
}

static int run(int64_t calls) {
  int64_t sent = 0;
  while (counts[3] < calls) {
    for (int i = 0; i < N && sent < calls; i++) {
      if (slots[i].out || random_below(4) != 0) continue;
      make(&slots[i], sent);
      if (!executor_submit(executor, 0, &slots[i].request)) return fail("refused", sent);
      sent++;
    }
    cancel_some();
    for (struct request *done; (done = executor_reap(executor, 0));)
      if (check((struct slot *)(void *)done) != 0) return 1;
    sched_yield();
  }
  if (executor_queued(executor) != 0 || executor_reap(executor, 0)) return fail("some are left", 0);
  return 0;
}

int main(void) {
  const char *text = getenv("FW_DEADLINE_CALLS");
  int64_t calls = text ? strtoll(text, NULL, 10) : 20000;
  struct backend_ops backend = fake_backend;
  struct wake wake;
  backend.run = run_in_real_time;
  fake_device_reset(false);
  fake_device.run_ns = RUN_NS; // what it says that it took: the scheduler predicts by it
  wake_init(&wake, NULL, NULL);
  model = fake_model("m", 64, 8, 0);
  struct executor_options options = {.backend = &backend,
                                     .device = &fake_device,
                                     .n_loops = 1,
                                     .loop_wakes = {&wake},
                                     .queue_requests = N,
                                     .lanes = 2,
                                     .max_tokens = 64,
                                     .max_seqs = 64};
  if (executor_open(&options, &executor, NULL) != STATUS_OK) return fail("open", 0);
  int failed = run(calls);
  executor_stop(executor);
  executor_close(executor);
  fake_model_free(model);
  printf("%lld calls: %lld ok, %lld expired, %lld cancelled\n", (long long)counts[3],
         (long long)counts[0], (long long)counts[1], (long long)counts[2]);
  for (int i = 0; i < 3 && !failed; i++) // a run in which one kind is rare tests nothing about it
    if (counts[i] * 50 < calls) failed = fail("one kind of ending hardly happened", i);
  return failed;
}
