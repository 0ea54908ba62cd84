// One graph and its plan by `fusion: on`, on a device with small limits, and what is expected of
// it.
#ifndef GRAPH_FUSE_BENCH_H
#define GRAPH_FUSE_BENCH_H

#include "blocks.h"
#include "graph/plan.h"
#include "plan_check.h"

struct bench { // one graph and its plan
  struct graph graph;
  struct graph_maker m;
  struct plan_caps caps;
  struct plan *plan;
};

static inline void bench_begin(struct bench *b) {
  memset(b, 0, sizeof *b);
  maker_init(&b->m, &b->graph, NULL, DTYPE_F32);
  b->caps = (struct plan_caps){
      .tile_rows = 8, .tile_bytes = 1 << 20, .epilogue_max = 4, .epilogue_kinds = 0x1f};
  for (int d = 0; d < DTYPE_COUNT; d++)
    b->caps.dtype_ok[d] = true;
}

static void bench_plan(struct bench *b) {
  struct plan_limits limits = {64, 8, 32};
  struct error err = {0};
  if (plan_build(&b->graph, FUSION_ON, &b->caps, &limits, &b->plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  check_plan(&b->graph, b->plan, &b->caps, "case");
}

static void bench_end(struct bench *b) {
  plan_free(b->plan);
  graph_deinit(&b->graph);
}

static inline void expect_steps(const struct bench *b, int n, const char *const *labels) {
  if (b->plan->n_steps != n) {
    static char text[1 << 16];
    plan_dump(b->plan, &b->graph, text, sizeof text);
    fail_msg("%d steps, expected %d\n%s", b->plan->n_steps, n, text);
  }
  for (int i = 0; i < n; i++)
    assert_string_equal(b->plan->steps[i].label, labels[i]);
}
#define EXPECT_STEPS(b, ...)                                                                       \
  expect_steps(b, (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(const char *)),               \
               (const char *[]){__VA_ARGS__})

// The decision about the edge between the nodes that make `from` and `to`.
static inline const struct decision *edge(const struct bench *b, int32_t from, int32_t to) {
  for (int32_t i = 0; i < b->plan->n_decisions; i++) {
    const struct decision *d = &b->plan->decisions[i];
    if (b->graph.nodes[d->producer].out == from && b->graph.nodes[d->consumer].out == to) return d;
  }
  fail_msg("no decision about %d -> %d", from, to);
  return NULL;
}

static inline void expect_apart(const struct bench *b, int32_t from, int32_t to,
                                const char *part_of_reason) {
  const struct decision *d = edge(b, from, to);
  if (d->fused || !strstr(d->reason, part_of_reason))
    fail_msg("fused %d: \"%s\", expected \"%s\"", d->fused, d->reason, part_of_reason);
}

#endif
