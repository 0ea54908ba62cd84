// Too much work, with deadlines, on a fake clock: requests come at random times and do not wait for
// each other, each must be answered within its time, and the device can do a part of them. What
// must hold, on a device whose batches cost by their tokens (a CPU) and on one whose batches cost
// nearly the same whatever is in them (a GPU):
//   - what is answered in time is nearly as much as the device can do, however much more is asked;
//   - nearly nothing runs for nothing: what runs is in time;
//   - what will not be done is told so at once, by far the most of it at the door;
//   - a request with a near deadline is served beside any number of patient ones;
//   - after a time in which everything was slow, and so was refused, all is well again soon;
//   - as long as nothing was measured nobody is refused.
#include "sched/core.h"
#include "sim/fake.h"

#include <math.h>
#include <stdio.h>

#define SLOTS 8192
#define TOKENS 16
#define MAX_TOKENS 512
#define MS NS_PER_MS
#define US NS_PER_US

static struct slot {
  struct request request;
  int64_t ids[TOKENS], tokens[TOKENS];
  struct slot *next;
} slots[SLOTS], *vacant;

struct kind {
  const char *name;
  int64_t run_ns, token_ns;
};
static const struct kind cpu = {"cpu", 300 * US, 60 * US}, gpu = {"gpu", 300 * US, 400};

static struct world {
  struct core *core;
  struct model *model;
  bool predict;
  // of the kind of request that is looked at
  int64_t asked, good, refused, late_in_queue, expired, late;
  int64_t patient, patient_now;
} world;

static uint64_t random_state;
static double random_unit(void) { // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return ((double)(random_state * UINT64_C(2685821657736338717) >> 11) + 1) / 9007199254740993.0;
}
static int64_t random_gap(double per_second) {
  return 1 + (int64_t)(-log(random_unit()) / per_second * 1e9);
}

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  struct slot *slot = (struct slot *)(void *)request;
  slot->next = vacant;
  vacant = slot;
  if (request->deadline_ns == CLOCK_NEVER)
    world.patient += request->status == STATUS_OK, world.patient_now--;
  else if (request->status == STATUS_OK && fake_device.now_ns <= request->deadline_ns)
    world.good++;
  else if (request->status == STATUS_OK)
    world.late++; // ran, and nobody was there any more
  else if (fake_device.now_ns < request->deadline_ns)
    world.late_in_queue++;
  else
    world.expired++;
}

static void ask(int64_t within_ns) {
  struct slot *slot = vacant;
  if (!slot) return; // as batch.queue_requests would
  struct request *request = &slot->request;
  int64_t now_ns = fake_device.now_ns;
  fake_request_init(request, world.model, slot->ids, slot->tokens, TOKENS);
  if (within_ns != CLOCK_NEVER) {
    request->deadline_ns = now_ns + within_ns;
    world.asked++;
  } else {
    world.patient_now++;
  }
  const struct service *service = &world.model->service[0][FUSION_ON];
  struct forecast forecast;
  if (world.predict && !load_forecast(core_load(world.core), service, request, now_ns, &forecast)) {
    world.refused++;
    return;
  }
  vacant = slot->next;
  load_enter(core_load(world.core), request, service);
  core_add(world.core, request);
}

// A thread that computes the batch itself is not there for the queue meanwhile.
static int64_t step(const struct kind *kind) {
  if (kind == &cpu && fake_device.free_ns > fake_device.now_ns) return fake_device.free_ns;
  return core_step(world.core, fake_device.now_ns);
}

static void open_world(const struct kind *kind, bool predict) {
  fake_device_reset(true);
  fake_device.run_ns = kind->run_ns;
  fake_device.token_ns = kind->token_ns;
  world = (struct world){.predict = predict, .model = fake_model("m", MAX_TOKENS, 64, 0)};
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = kind == &cpu ? 1 : 2,
                                 .max_tokens = MAX_TOKENS,
                                 .max_seqs = MAX_TOKENS,
                                 .now = fake_now,
                                 .finish = on_finish};
  if (core_open(&options, &world.core, NULL) != STATUS_OK) abort();
  vacant = NULL;
  for (int i = 0; i < SLOTS; i++) {
    slots[i].next = vacant;
    vacant = &slots[i];
  }
  random_state = 88172645463325252u;
}

static void close_world(void) {
  core_hurry(world.core);
  for (int i = 0; i < 1000000 && !core_idle(world.core); i++) {
    core_step(world.core, fake_device.now_ns);
    fake_device.now_ns += 100 * US;
  }
  core_close(world.core);
  fake_model_free(world.model);
}

// For `seconds`: requests at random times that must be done within `within_ns`, and as many patient
// ones as are to be there at any time.
static void play(const struct kind *kind, double seconds, double per_second, int64_t within_ns,
                 int patient) {
  int64_t end_ns = fake_device.now_ns + (int64_t)(seconds * 1e9);
  int64_t next_ns = fake_device.now_ns + random_gap(per_second);
  while (fake_device.now_ns < end_ns) {
    for (; next_ns <= fake_device.now_ns; next_ns += random_gap(per_second))
      ask(within_ns);
    while (world.patient_now < patient)
      ask(CLOCK_NEVER);
    int64_t until_ns = step(kind), soonest_ns = fake_device.now_ns + 2 * US;
    if (next_ns < until_ns) until_ns = next_ns;
    fake_device.now_ns = until_ns > soonest_ns ? until_ns : soonest_ns;
  }
}

static double capacity(const struct kind *kind) {
  return 1e9 * (MAX_TOKENS / TOKENS) / (double)(kind->run_ns + MAX_TOKENS * kind->token_ns);
}

static int failures;
static void check(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "  failed: %s\n", what);
  failures++;
}

static void overload(const struct kind *kind, double factor, int64_t within_ns, bool predict) {
  const double seconds = kind == &cpu ? 8 : 0.4;
  open_world(kind, predict);
  play(kind, 0.2, 0.5 * capacity(kind), within_ns, 0);
  world.asked = world.good = world.refused = world.late = world.expired = world.late_in_queue = 0;
  play(kind, seconds, factor * capacity(kind), within_ns, 0);
  struct world w = world;
  double can = seconds * capacity(kind), good = (double)w.good;
  printf("%s %4.1f x, %4.0f ms, %s: %6lld asked, %3.0f %% of what can be done is done in time; "
         "%lld refused at once, %lld while queued, %lld expired, %lld ran late\n",
         kind->name, factor, (double)within_ns / MS, predict ? "predicting" : "blind     ",
         (long long)w.asked, 100 * good / can, (long long)w.refused, (long long)w.late_in_queue,
         (long long)w.expired, (long long)w.late);
  close_world();
  if (!predict) return;
  double possible = factor < 1 ? (double)w.asked : can;
  check(good > (factor < 0.8 ? 0.99 : 0.85) * possible, "too little is done in time");
  check((double)w.late < 0.05 * good, "too much runs for nothing");
  check((double)w.expired < 0.02 * (double)w.asked, "too many wait for nothing");
  if (factor >= 1.5)
    check((double)w.refused > 0.8 * (double)(w.asked - w.good), "too few are told at once");
}

// Few in a hurry among many who are not.
static void beside_patient_ones(const struct kind *kind, int64_t within_ns) {
  const double seconds = 2;
  open_world(kind, true);
  play(kind, seconds, 0.1 * capacity(kind), within_ns, 256);
  printf("%s: %lld of %lld in time within %.0f ms beside too many patient ones (%lld done)\n",
         kind->name, (long long)world.good, (long long)world.asked, (double)within_ns / MS,
         (long long)world.patient);
  check((double)world.good > 0.95 * (double)world.asked, "patient ones are in the way");
  check((double)(world.good + world.patient) > 0.85 * seconds * capacity(kind), "the device idles");
  close_world();
}

// Everything takes thirty times as long for a while.
static void after_a_slow_time(const struct kind *kind, int64_t within_ns) {
  open_world(kind, true);
  double rate = 0.5 * capacity(kind);
  play(kind, 1, rate, within_ns, 0);
  fake_device.run_ns = 30 * kind->run_ns;
  fake_device.token_ns = 30 * kind->token_ns;
  play(kind, kind == &cpu ? 20 : 1, rate, within_ns, 0);
  fake_device.run_ns = kind->run_ns;
  fake_device.token_ns = kind->token_ns;
  int64_t refused = world.refused;
  play(kind, 4, rate, within_ns, 0); // what was measured is believed for a while
  int64_t meanwhile = world.refused - refused;
  world.asked = world.good = world.refused = 0;
  play(kind, 2, rate, within_ns, 0);
  printf(
      "%s: %lld refused while all was slow; %lld in the 4 s after it; then %lld of %lld in time, "
      "%lld refused\n",
      kind->name, (long long)refused, (long long)meanwhile, (long long)world.good,
      (long long)world.asked, (long long)world.refused);
  check(refused > 0, "the slow time was not noticed");
  check((double)world.good > 0.99 * (double)world.asked, "the slow time is not forgotten");
  close_world();
}

static void cold(const struct kind *kind) {
  open_world(kind, true);
  for (int i = 0; i < 100; i++)
    ask(1);
  check(world.refused == 0, "refused on the ground of nothing");
  close_world();
}

int main(void) {
  const double factors[] = {0.5, 0.9, 1.5, 3, 10};
  for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
    for (int predict = factors[i] != 3; predict <= 1; predict++) { // blind once, to compare
      overload(&cpu, factors[i], 150 * MS, predict != 0);
      overload(&gpu, factors[i], 5 * MS, predict != 0);
    }
  beside_patient_ones(&cpu, 50 * MS);
  beside_patient_ones(&gpu, 3 * MS);
  after_a_slow_time(&cpu, 60 * MS);
  after_a_slow_time(&gpu, 5 * MS);
  cold(&cpu);
  cold(&gpu);
  return failures != 0;
}
