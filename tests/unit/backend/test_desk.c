// Desks: every unit of every step is done once, before the owner goes on, whoever takes it.
#include "backend/cpu/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define N 4
#define UNITS 300
#define STEPS 400

struct board {
  struct team *team;
  struct desk *desks;
  bool split;
  uint8_t times[N][UNITS]; // plain memory: the desks order it
  _Atomic uint32_t finished, wrong;
};

static int32_t units_of(int step) {
  return 1 + step * 37 % UNITS;
}

static bool do_some(struct board *b, struct desk *desk, int thread) {
  struct desk_claim claim;
  if (!desk_take(desk, thread, &claim)) return false;
  uint8_t *times = (uint8_t *)claim.job.tile;
  // Rows carry the step's number twice, so that a claim with another step's job shows.
  if (claim.job.n_rows != claim.job.step || claim.job.row != 3 * (int64_t)claim.job.step ||
      claim.n_units < 1 || claim.unit + claim.n_units > units_of(claim.job.step))
    atomic_fetch_add(&b->wrong, 1);
  for (int32_t i = 0; i < claim.n_units; i++)
    times[claim.unit + i]++;
  desk_done(desk, b->team, claim.n_units);
  return true;
}

static void own_steps(struct board *b, int thread) {
  struct desk *desk = desk_of(b->desks, thread);
  for (int step = thread; step < STEPS; step += 1 + thread) {
    memset(b->times[thread], 0, UNITS);
    struct desk_job job = {step, step, 3 * (int64_t)step, (char *)b->times[thread]};
    desk_lay(desk, &job, units_of(step), thread, b->split);
    while (do_some(b, desk, thread)) {
    }
    desk_wait(desk, b->team);
    for (int i = 0; i < units_of(step); i++)
      if (b->times[thread][i] != 1) atomic_fetch_add(&b->wrong, 1);
  }
}

static void work(void *arg, int thread) {
  struct board *b = arg;
  int n = team_size(b->team);
  own_steps(b, thread);
  team_count(b->team, &b->finished, 1, (uint32_t)n);
  for (int spins = 0; atomic_load(&b->finished) != (uint32_t)n;) {
    bool any = false;
    for (int i = 1; i < n; i++)
      any |= do_some(b, desk_of(b->desks, (thread + i) % n), thread);
    if (!any && ++spins > 200) team_doze(b->team, &b->finished, (uint32_t)n), spins = 0;
  }
}

static void every_unit_is_done_once(void **state) {
  (void)state;
  for (int n = 1; n <= N; n++)
    for (int split = 0; split < 2; split++) {
      static struct board b;
      struct error err;
      b = (struct board){.split = split};
      assert_int_equal(team_open(n, NULL, &b.team, &err), STATUS_OK);
      b.desks = desks_open(n);
      assert_non_null(b.desks);
      for (int run = 0; run < 5; run++) {
        atomic_store(&b.finished, 0);
        team_run(b.team, work, &b);
        assert_int_equal(atomic_load(&b.wrong), 0);
      }
      team_close(b.team);
      desks_close(b.desks);
    }
}

static void ranges_cover_all_units_in_order(void **state) {
  (void)state;
  for (int n = 1; n <= N; n++)
    for (int32_t units = 1; units < 20; units++) {
      assert_int_equal(desk_first(units, 0, n), 0);
      assert_int_equal(desk_first(units, n, n), units);
      for (int i = 0; i < n; i++)
        assert_true(desk_first(units, i, n) <= desk_first(units, i + 1, n));
    }
}

// Alone, the owner takes the units from the first to the last.
static void a_lonely_owner_goes_from_front_to_back(void **state) {
  (void)state;
  struct team *team;
  struct error err;
  assert_int_equal(team_open(1, NULL, &team, &err), STATUS_OK);
  struct desk *desks = desks_open(3), *desk = desk_of(desks, 1);
  struct desk_job job = {.step = 7};
  desk_lay(desk, &job, 100, 1, false);
  struct desk_claim claim;
  int32_t at = 0;
  while (desk_take(desk, 1, &claim)) {
    assert_int_equal(claim.unit, at);
    at += claim.n_units;
    assert_int_equal(claim.next, at < 100 ? at : -1);
    desk_done(desk, team, claim.n_units);
  }
  assert_int_equal(at, 100);
  desk_wait(desk, team);
  desks_close(desks);
  team_close(team);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_unit_is_done_once),
      cmocka_unit_test(ranges_cover_all_units_in_order),
      cmocka_unit_test(a_lonely_owner_goes_from_front_to_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
