// The team of threads: everyone runs, barriers publish, helpers cost nothing while idle.
#include "backend/cpu/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#define N 4
#define ROUNDS 200

struct shared {
  struct team *team;
  int values[N], sums[N]; // plain memory: the barrier alone orders it
  _Atomic int calls;
};

static void exchange(void *arg, int index) {
  struct shared *s = arg;
  atomic_fetch_add(&s->calls, 1);
  for (int round = 0; round < ROUNDS; round++) {
    s->values[index] = round + index;
    team_barrier(s->team);
    int sum = 0;
    for (int i = 0; i < team_size(s->team); i++)
      sum += s->values[i];
    s->sums[index] = sum - team_size(s->team) * round;
    team_barrier(s->team);
  }
}

static void barriers_publish_what_was_written(void **state) {
  (void)state;
  for (int n = 1; n <= N; n++) {
    struct shared s = {0};
    struct error err;
    assert_int_equal(team_open(n, NULL, &s.team, &err), STATUS_OK);
    for (int run = 0; run < 20; run++) {
      team_run(s.team, exchange, &s);
      for (int i = 0; i < n; i++)
        assert_int_equal(s.sums[i], n * (n - 1) / 2);
    }
    assert_int_equal(atomic_load(&s.calls), 20 * n);
    team_close(s.team);
  }
}

static double process_cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void an_idle_team_uses_no_processor(void **state) {
  (void)state;
  struct shared s = {0};
  struct error err;
  assert_int_equal(team_open(N, NULL, &s.team, &err), STATUS_OK);
  team_run(s.team, exchange, &s);
  double before = process_cpu_seconds();
  nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
  double used = process_cpu_seconds() - before;
  printf("  CPU in 100 ms of idleness: %.3f ms\n", used * 1e3);
  assert_true(used < 0.01); // helpers that spin would use 300 ms
  team_close(s.team);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(barriers_publish_what_was_written),
      cmocka_unit_test(an_idle_team_uses_no_processor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
