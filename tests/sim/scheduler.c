// The scheduler on a fake clock and a fake device, under a seeded storm of submissions,
// cancellations, deadlines, failing batches and lost devices. What must hold, whatever happens:
//   - every admitted request is answered exactly once, and what was answered OK is right;
//   - accepted = ok + failed + cancelled + waiting or running, at every step;
//   - nothing runs after its deadline or its cancellation, and no batch is larger than its limits;
//   - what is given up before its deadline could not have been done by then, and the sum of the
//   work that waits comes back to nothing;
//   - a shadow is nobody's request: those that are sampled are compared, failed or dropped, once
//   each, differ by what the device adds to the other plan and by nothing else, and hold no model
//   after;
//   - the scheduler never asks to be called again at a time that has passed without doing something
//   then (it would spin).
//
// A failure prints the seed; FW_SIM_SEED reruns it.
#include "sched/core.h"
#include "sim/fake.h"

#include <stdio.h>

#define N_REQUESTS 512
#define N_MODELS 3
#define MAX_SEQ 6

struct slot {
  struct request request;
  int64_t ids[4 * MAX_SEQ], tokens[4 * MAX_SEQ];
  int32_t seqlens[4], positions[4 * MAX_SEQ];
  bool live;
  int64_t admitted_runs; // batches that had run when it was cancelled
};

static struct slot slots[N_REQUESTS];
static struct model *models[N_MODELS];
static struct core *core;
static uint64_t seed, random_state;
static int64_t accepted, ok, failed, cancelled, expired, late, step_number;
static int64_t most_ns; // that a batch takes
static uint64_t shadows_sampled, shadows_compared, shadows_dropped[SHADOW_DROPS], shadows_failed;

#define CHECK(cond, ...)                                                                           \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      fprintf(stderr,                                                                              \
              "scheduler simulation: seed %llu, step %lld, %s:%d: %s: ", (unsigned long long)seed, \
              (long long)step_number, __FILE__, __LINE__, #cond);                                  \
      fprintf(stderr, __VA_ARGS__);                                                                \
      fputc('\n', stderr);                                                                         \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static uint64_t random_next(void) { // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * UINT64_C(2685821657736338717);
}
static int64_t random_below(int64_t n) {
  return (int64_t)(random_next() >> 33) % n;
}
static bool chance(int percent) {
  return random_below(100) < percent;
}

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static const struct service *service_of(const struct request *request) {
  return &request->model->service[0][request->fusion];
}

static void check_result(const struct slot *slot) {
  const struct request *request = &slot->request;
  int32_t at = 0;
  for (int32_t b = 0; b < request->n_seqs; b++) {
    int32_t kept = 0;
    for (int32_t s = 0; s < request->padded_seqlen; s++) {
      int32_t wire = b * request->padded_seqlen + s;
      bool keep = request->dense || (kept < slot->seqlens[b] && slot->positions[at] == s);
      int64_t adds = request->fusion == FUSION_OFF ? fake_device.unfused_adds : 0;
      int64_t expected = keep ? 2 * slot->ids[wire] + 1000 * s + adds : 0;
      CHECK(slot->tokens[wire] == expected, "token %d is %lld, expected %lld", wire,
            (long long)slot->tokens[wire], (long long)expected);
      if (keep && !request->dense) at++, kept++;
    }
  }
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  struct slot *slot = (struct slot *)(void *)request;
  CHECK(slot >= slots && slot < slots + N_REQUESTS && slot->live,
        "an answer for a request that is not waiting for one");
  slot->live = false;
  switch (request->status) {
  case STATUS_OK:
    ok++;
    // The flag is only set between steps; a batch formed since must not hold it.
    CHECK(request->t_ns[STAGE_BATCHED] < request->deadline_ns, "ran after its deadline");
    CHECK(slot->admitted_runs < 0 || fake_device.caps.async, "ran after it was cancelled");
    CHECK(request->cost.batch_tokens <= request->model->batch.max_tokens, "%d tokens",
          request->cost.batch_tokens);
    CHECK(request->cost.batch_requests <= request->model->batch.max_requests, "%d requests",
          request->cost.batch_requests);
    CHECK(request->cost.queue_ns >= 0, "queue time %lld", (long long)request->cost.queue_ns);
    check_result(slot);
    break;
  case STATUS_CANCELLED:
    cancelled++;
    CHECK(slot->admitted_runs >= 0, "cancelled by nobody");
    break;
  case STATUS_DEADLINE_EXCEEDED:
    expired++;
    if (request->deadline_ns > fake_device.now_ns) {
      late++;
      // Only on the ground of what was measured, and only what could not be done any more.
      CHECK(service_estimate_ns(service_of(request), request->n_tokens, fake_device.now_ns) > 0,
            "expired early");
      CHECK(request->deadline_ns - fake_device.now_ns <= 4 * (most_ns + NS_PER_MS),
            "given up %lld ns before its deadline",
            (long long)(request->deadline_ns - fake_device.now_ns));
    }
    break;
  default:
    failed++;
    CHECK(request->message_text[0] != 0, "failed without a word");
  }
}

static void request_make(struct slot *slot) {
  struct request *request = &slot->request;
  memset(slot, 0, sizeof *slot);
  slot->live = true;
  slot->admitted_runs = -1;
  request->model = models[random_below(N_MODELS)];
  request->fusion = chance(50) ? FUSION_ON : FUSION_OFF;
  request->n_seqs = 1 + (int32_t)random_below(4);
  request->padded_seqlen = 1 + (int32_t)random_below(MAX_SEQ);
  request->dense = chance(50);
  for (int32_t b = 0; b < request->n_seqs; b++)
    for (int32_t s = 0; s < request->padded_seqlen; s++) {
      slot->ids[b * request->padded_seqlen + s] = random_below(1000);
      bool last_chance =
          b == request->n_seqs - 1 && s == request->padded_seqlen - 1 && request->n_tokens == 0;
      if (!request->dense && chance(40) && !last_chance) continue;
      slot->positions[request->n_tokens++] = s;
      slot->seqlens[b]++;
    }
  for (int32_t b = 0; b < request->n_seqs; b++)
    request->sum_sq += (int64_t)slot->seqlens[b] * slot->seqlens[b];
  if (!request->dense) request->seqlens = slot->seqlens, request->positions = slot->positions;
  size_t bytes = (size_t)(request->n_seqs * request->padded_seqlen) * 8;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)slot->ids, bytes};
  request->outputs = 1u << FAKE_TOKENS;
  request->output_order[0] = FAKE_TOKENS;
  request->n_outputs = 1;
  request->outputs_data[0] = (uint8_t *)slot->tokens;
  request->outputs_bytes[0] = bytes;
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  request->deadline_ns =
      chance(50) ? CLOCK_NEVER : fake_device.now_ns + 1 + random_below(20 * NS_PER_MS);
}

static void submit_some(void) {
  if (step_number / 30 % 2 == 1 && chance(90)) return; // quiet times: shadows have their turn
  int64_t n = chance(20) ? random_below(60) : random_below(3); // bursts fill the queue now and then
  for (int64_t i = 0; i < n; i++) {
    struct slot *slot = &slots[random_below(N_REQUESTS)];
    if (slot->live) continue; // the slot's request is still out: this one is refused at the door
    request_make(slot);
    accepted++;
    load_enter(core_load(core), &slot->request, service_of(&slot->request));
    core_add(core, &slot->request);
  }
}

static void cancel_some(void) {
  bool any = false;
  for (int i = 0; i < 8; i++) {
    struct slot *slot = &slots[random_below(N_REQUESTS)];
    if (!slot->live || slot->admitted_runs >= 0) continue;
    atomic_store(&slot->request.cancelled, true);
    slot->admitted_runs = fake_device.n_runs;
    any = true;
  }
  if (any && chance(50)) core_sweep(core, fake_device.now_ns);
}

static int64_t live_count(void) {
  int64_t n = 0;
  for (int i = 0; i < N_REQUESTS; i++)
    n += slots[i].live;
  return n;
}

// What shadows have done so far; and the law.
static uint64_t shadows_moved(void) {
  uint64_t n = 0;
  for (int i = 0; i < N_MODELS; i++) {
    const struct shadow_metrics *metrics = models[i]->shadow.metrics;
    if (!metrics) continue;
    CHECK(fake_shadows_add_up(metrics), "shadows of %s", models[i]->name);
    n += metrics->sampled - (uint64_t)metrics->pending;
  }
  return n;
}

static bool shadows_out(void) {
  for (int i = 0; i < N_MODELS; i++)
    if (models[i]->shadow.metrics && models[i]->shadow.metrics->pending > 0) return true;
  return false;
}

static void shadows_begin(void) {
  int64_t run_ns = fake_device.run_ns;
  fake_device.run_ns = 0; // first batches are waited for, and the clock stands still
  for (int i = 0; i < N_MODELS; i++) {
    if (chance(70))
      fake_shadow(models[i], (double)(1 + random_below(100)) / 100, 0.5,
                  1 + (int32_t)random_below(30), 1 + (int32_t)random_below(3));
    struct shadow_metrics *metrics = models[i]->shadow.metrics; // the process has one of that name
    if (metrics) {
      memset((char *)metrics + offsetof(struct shadow_metrics, sampled), 0,
             offsetof(struct shadow_metrics, n_outputs) - offsetof(struct shadow_metrics, sampled));
      atomic_store(&metrics->n_outputs, 0);
      fake_shadow(models[i], models[i]->shadow.share, 0.5, models[i]->shadow.max_rows,
                  models[i]->shadow.slots);
    }
    CHECK(core_admit(core, NULL, models[i], NULL, 0, NULL) == STATUS_OK, "admit");
  }
  fake_device.run_ns = run_ns;
}

static void shadows_end(void) {
  for (int i = 0; i < N_MODELS; i++) {
    struct shadow_metrics *metrics = models[i]->shadow.metrics;
    CHECK(atomic_load(&models[i]->refs) == 1, "%d hold the model", models[i]->refs);
    core_forget(core, NULL, models[i]);
    if (!metrics) continue;
    const struct shadow_output_metrics *tokens = models[i]->shadow.outputs[FAKE_TOKENS];
    CHECK(metrics->pending == 0 && metrics->bytes == 0, "slots are left");
    CHECK(tokens->compared == metrics->compared, "%d outputs", (int)tokens->compared);
    CHECK(tokens->max_abs == (metrics->compared ? (double)fake_device.unfused_adds : 0),
          "a shadow differs by %g, not by %lld", tokens->max_abs,
          (long long)fake_device.unfused_adds);
    shadows_sampled += metrics->sampled, shadows_compared += metrics->compared;
    shadows_failed += metrics->failed;
    for (int d = 0; d < SHADOW_DROPS; d++)
      shadows_dropped[d] += metrics->dropped[d];
  }
  CHECK(fake_device.host_bytes == 0, "%lld bytes", (long long)fake_device.host_bytes);
}

static void step_once(void) {
  uint64_t moved = shadows_moved();
  int runs = fake_device.n_runs;
  int64_t answered = ok + failed + cancelled + expired, before_ns = fake_device.now_ns;
  int64_t until_ns = core_step(core, before_ns);
  bool progress = fake_device.n_runs > runs || shadows_moved() > moved ||
                  ok + failed + cancelled + expired > answered;
  CHECK(until_ns > before_ns || progress, "asks to be called at once, but did nothing");
  CHECK(accepted == ok + failed + cancelled + expired + live_count(), "accepted %lld",
        (long long)accepted);
  CHECK(!core_idle(core) || live_count() == 0, "idle with %lld requests out",
        (long long)live_count());
  // Shadows are behind: what is left of them is no reason not to serve.
  CHECK(live_count() > 0 || fake_device.lost || shadows_out() || core_idle(core),
        "busy with nothing");
  // Time passes: to what the scheduler waits for, or a little, as an arrival would interrupt it.
  int64_t later_ns = fake_device.now_ns + random_below(2 * NS_PER_MS);
  if (until_ns != CLOCK_NEVER && until_ns > fake_device.now_ns && chance(50)) later_ns = until_ns;
  if (later_ns > fake_device.now_ns) fake_device.now_ns = later_ns;
}

static void run_seed(uint64_t number, int steps) {
  seed = number;
  random_state = number * UINT64_C(0x9e3779b97f4a7c15) + 1;
  memset(slots, 0, sizeof slots);
  accepted = ok = failed = cancelled = expired = 0;
  fake_device_reset(chance(50));
  most_ns = fake_device.run_ns = 1 + random_below(5 * NS_PER_MS);
  for (int i = 0; i < N_MODELS; i++) {
    char name[8];
    snprintf(name, sizeof name, "m%d", i);
    models[i] = fake_model(name, 24 + (int32_t)random_below(100), 1 + (int32_t)random_below(12),
                           random_below(3) * NS_PER_MS);
  }
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = 1 + (int)random_below(3),
                                 .max_tokens = 124,
                                 .max_seqs = 124,
                                 .now = fake_now,
                                 .finish = on_finish};
  CHECK(core_open(&options, &core, NULL) == STATUS_OK, "open");
  fake_device.unfused_adds = random_below(3);
  shadows_begin();
  int first_runs = fake_device.n_runs;
  bool may_lose = chance(20);
  for (step_number = 0; step_number < steps; step_number++) {
    submit_some();
    if (chance(30)) cancel_some();
    fake_device.run_status = chance(3) ? STATUS_INTERNAL : STATUS_OK;
    if (may_lose && step_number == steps / 2) fake_device.lost = true;
    step_once();
  }
  fake_device.run_status = STATUS_OK;
  core_hurry(core); // draining: nothing accepted is lost
  for (int i = 0; i < 100000 && !core_idle(core); i++)
    step_once();
  CHECK(live_count() == 0, "%lld requests never answered", (long long)live_count());
  CHECK(!fake_device.lost || core_lost(core) || fake_device.n_runs == first_runs,
        "a lost device went unnoticed");
  const struct load *load = core_load(core);
  for (int i = 0; i < LOAD_SLOTS; i++)
    CHECK(atomic_load(&load->slots[i]) == 0, "work is left in slot %d", i);
  CHECK(atomic_load(&load->waiting_ns) == 0 && atomic_load(&load->busy_until_ns) == 0,
        "work is left");
  shadows_end();
  core_close(core);
  for (int i = 0; i < N_MODELS; i++)
    fake_model_free(models[i]);
}

int main(void) {
  const char *text = getenv("FW_SIM_SEED"), *rounds_text = getenv("FW_SIM_ROUNDS");
  uint64_t first = text ? strtoull(text, NULL, 0) : 1;
  int rounds = text ? 1 : rounds_text ? atoi(rounds_text) : 200;
  int64_t totals[5] = {0};
  for (int i = 0; i < rounds; i++) {
    run_seed(first + (uint64_t)i, 300);
    totals[0] += accepted, totals[1] += ok, totals[2] += failed, totals[3] += cancelled,
        totals[4] += expired;
  }
  printf(
      "seeds %llu to %llu: %lld accepted = %lld ok + %lld failed + %lld cancelled + %lld expired\n",
      (unsigned long long)first, (unsigned long long)(first + (uint64_t)rounds - 1),
      (long long)totals[0], (long long)totals[1], (long long)totals[2], (long long)totals[3],
      (long long)totals[4]);
  printf("of those that expired %lld were told before\n", (long long)late);
  if (!text && late == 0) return fprintf(stderr, "nothing was ever late\n"), 1;
  printf("shadows: %llu sampled, %llu compared, %llu failed, dropped",
         (unsigned long long)shadows_sampled, (unsigned long long)shadows_compared,
         (unsigned long long)shadows_failed);
  for (int d = 0; d < SHADOW_DROPS; d++) {
    printf(" %llu %s", (unsigned long long)shadows_dropped[d],
           shadow_drop_name((enum shadow_drop)d));
    if (!text && shadows_dropped[d] == 0) totals[0] = 0;
  }
  puts("");
  if (shadows_compared == 0 || shadows_failed == 0) totals[0] = 0;
  // A storm in which one kind never happens tests nothing about it.
  for (int i = 0; i < 5; i++)
    if (!text && totals[i] == 0) return fprintf(stderr, "one kind of ending never happened\n"), 1;
  return 0;
}
