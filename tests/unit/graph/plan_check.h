// What must hold of any plan, checked from the finished plan alone (nothing of the planner's own
// bookkeeping).
#ifndef TESTS_UNIT_GRAPH_PLAN_CHECK_H
#define TESTS_UNIT_GRAPH_PLAN_CHECK_H

#include "graph/op/op.h"
#include "graph/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct access { // a use of memory by an operand, at a time
  struct operand operand;
  int32_t step, chain;
  bool writes;
};

struct plan_checker {
  const struct graph *graph;
  const struct plan *plan;
  const char *what;
  int32_t *root; // views resolved, independently of the planner
  struct access *accesses;
  int32_t n_accesses;
};

static inline int64_t operand_rows(const struct plan *plan, const struct plan_caps *caps,
                                   const struct operand *operand) {
  if (operand->place == PLACE_TILE) return caps->tile_rows;
  if (operand->rows == ROWS_SEQS) return plan->limits.max_seqs;
  int64_t tokens = plan->limits.max_tokens, longest = plan->limits.max_seqlen;
  return operand->rows == ROWS_SCORES ? tokens * (longest < tokens ? longest : tokens) : tokens;
}

static inline void access_add(struct plan_checker *c, const struct operand *operand, int32_t step,
                              int32_t chain, bool writes) {
  if (operand->place != PLACE_ARENA && operand->place != PLACE_TILE) return;
  c->accesses[c->n_accesses++] =
      (struct access){.operand = *operand, .step = step, .chain = chain, .writes = writes};
}

static inline bool in_same_buffer(const struct operand *a, const struct operand *b) {
  // Columns of one buffer of equal stride: their first rows lie within one row of each other.
  int64_t row = a->stride * (int64_t)dtype_bytes(a->dtype),
          apart = a->offset_bytes - b->offset_bytes;
  return a->stride == b->stride && a->dtype == b->dtype && a->rows == b->rows && apart < row &&
         -apart < row;
}

static inline bool bytes_meet(const struct plan *plan, const struct plan_caps *caps,
                              const struct operand *a, const struct operand *b) {
  if (a->place != b->place) return false;
  int64_t a_row = a->stride * (int64_t)dtype_bytes(a->dtype),
          b_row = b->stride * (int64_t)dtype_bytes(b->dtype);
  int64_t a_end = a->offset_bytes + (operand_rows(plan, caps, a) - 1) * a_row +
                  a->cols * (int64_t)dtype_bytes(a->dtype);
  int64_t b_end = b->offset_bytes + (operand_rows(plan, caps, b) - 1) * b_row +
                  b->cols * (int64_t)dtype_bytes(b->dtype);
  return a->offset_bytes < b_end && b->offset_bytes < a_end;
}

static inline bool covers(const struct operand *writer, const struct operand *reader) {
  int64_t column = reader->offset_bytes - writer->offset_bytes;
  return writer->place == reader->place && writer->stride == reader->stride &&
         writer->dtype == reader->dtype && writer->rows == reader->rows && column >= 0 &&
         column + reader->cols * (int64_t)dtype_bytes(reader->dtype) <=
             writer->cols * (int64_t)dtype_bytes(writer->dtype);
}

// ---- every node once ----
static inline void check_coverage(const struct plan_checker *c) {
  const struct graph *graph = c->graph;
  bool *live = calloc((size_t)graph->n_tensors + 1, 1);
  int *count = calloc((size_t)graph->n_nodes + 1, sizeof *count);
  for (int i = 0; i < graph->n_outputs; i++)
    live[c->root[graph->outputs[i]]] = true;
  for (int32_t n = graph->n_nodes - 1; n >= 0; n--)
    for (int i = 0;
         graph->nodes[n].op != OP_IDENTITY && live[graph->nodes[n].out] && i < graph->nodes[n].n_in;
         i++)
      live[c->root[graph->nodes[n].in[i]]] = true;
  for (int32_t s = 0; s < c->plan->n_steps; s++) {
    const struct step *step = &c->plan->steps[s];
    assert_true(step->n_nodes >= 1);
    if (c->plan->mode == FUSION_OFF) assert_int_equal(step->n_nodes, 1);
    if (step->kind == STEP_SCORES || step->kind == STEP_SCORES_SCALE ||
        step->kind == STEP_SCORES_SOFTMAX)
      continue;
    for (int i = 0; i < step->n_nodes; i++)
      count[step->nodes[i]]++;
  }
  for (int32_t n = 0; n < graph->n_nodes; n++) {
    int expected = graph->nodes[n].op != OP_IDENTITY && live[graph->nodes[n].out];
    bool again = c->plan->mode == FUSION_AUTO && expected && count[n] > 1 &&
                 op_def_get(graph->nodes[n].op)->cls == OPC_ROW;
    if (count[n] != expected && !again)
      fail_msg("%s: node %d runs %d times, expected %d", c->what, n, count[n], expected);
  }
  free(live), free(count);
}

// ---- reasons ----
// Who is said to be on pieces of a product's result is in a step that has a finish.
static inline void check_finishes(const struct plan_checker *c) {
  for (int32_t d = 0; d < c->plan->n_decisions; d++) {
    const struct decision *decision = &c->plan->decisions[d];
    if (!decision->fused || !strstr(decision->reason, "each piece of the product's")) continue;
    bool found = false;
    for (int32_t s = 0; s < c->plan->n_steps; s++) {
      const struct step *step = &c->plan->steps[s];
      for (int i = 0; step->kind == STEP_LINEAR && i < step->n_nodes; i++)
        found = found || (step->nodes[i] == decision->consumer && step->finish.n_insts > 0);
    }
    if (!found)
      fail_msg("%s: node %d is said to be in a finish, and is not", c->what, decision->consumer);
  }
}

// ---- reads see the right write ----
static inline bool produced_by(const struct plan_checker *c, const struct access *write,
                               int32_t tensor) {
  if (write->step < 0) return write->operand.tensor == tensor;
  const struct step *step = &c->plan->steps[write->step];
  for (int i = 0; i < step->n_nodes; i++)
    if (tensor < 0 ? c->graph->nodes[step->nodes[i]].op == OP_ATTENTION
                   : c->graph->nodes[step->nodes[i]].out == tensor)
      return true;
  return false;
}

static inline void check_reads(const struct plan_checker *c, const struct plan_caps *caps) {
  for (int32_t r = 0; r < c->n_accesses; r++) {
    const struct access *read = &c->accesses[r], *last = NULL;
    if (read->writes) continue;
    for (int32_t w = 0; w < r; w++) {
      const struct access *write = &c->accesses[w];
      bool in_reach = read->operand.place != PLACE_TILE || write->chain == read->chain;
      if (write->writes && in_reach && write->step < read->step &&
          bytes_meet(c->plan, caps, &write->operand, &read->operand))
        last = write;
    }
    if (!last || !covers(&last->operand, &read->operand) ||
        !produced_by(c, last, read->operand.tensor))
      fail_msg("%s: step %d reads tensor %d, last written there by step %d", c->what, read->step,
               read->operand.tensor, last ? last->step : -99);
  }
}

// Tiles of a chain run in any order: nothing that it touches in the arena may share bytes with what
// it writes there.
static inline void check_chains(const struct plan_checker *c, const struct plan_caps *caps) {
  for (int32_t i = 0; i < c->n_accesses; i++)
    for (int32_t j = 0; j < c->n_accesses; j++) {
      const struct access *write = &c->accesses[i], *other = &c->accesses[j];
      if (i == j || !write->writes || write->chain != other->chain ||
          write->operand.place != PLACE_ARENA)
        continue;
      bool in_place = write->operand.rows == ROWS_SCORES && other->operand.rows == ROWS_SCORES;
      if (in_same_buffer(&write->operand, &other->operand) || in_place) continue;
      if (bytes_meet(c->plan, caps, &write->operand, &other->operand))
        fail_msg("%s: chain %d shares arena bytes between steps %d and %d", c->what, write->chain,
                 write->step, other->step);
    }
}

static inline void check_step(const struct plan_checker *c, const struct plan_caps *caps,
                              int32_t s) {
  const struct step *step = &c->plan->steps[s];
  const struct step *before = s > 0 ? &c->plan->steps[s - 1] : NULL;
  assert_true(step->needed_by != 0);
  assert_true(strlen(step->label) > 0);
  if (before) assert_true(step->chain == before->chain || step->chain == before->chain + 1);
  if (before && step->chain == before->chain) {
    assert_true(caps->row_chains && c->plan->mode != FUSION_OFF);
    assert_int_equal(step->rows, before->rows);
    assert_true(step->kind == STEP_ROW || step->kind == STEP_LINEAR);
  }
  for (int i = 0; i < step->n_in + step->n_out; i++) {
    const struct operand *operand = i < step->n_in ? &step->in[i] : &step->out[i - step->n_in];
    int64_t bytes = (int64_t)dtype_bytes(operand->dtype) * operand->stride *
                    operand_rows(c->plan, caps, operand);
    assert_true(operand->place != PLACE_NONE && operand->stride >= operand->cols);
    if (operand->stride == operand->cols &&
        (operand->place == PLACE_ARENA || operand->place == PLACE_TILE)) {
      assert_int_equal(operand->offset_bytes % 64, 0);
      assert_true(operand->offset_bytes + bytes <=
                  (operand->place == PLACE_ARENA ? c->plan->arena_bytes : c->plan->tile_bytes));
    }
  }
}

// ---- who needs a step ----
// Recomputed forwards by brute force: output i needs step s when a path of tensors leads from s to
// it.
static inline bool computes(const struct plan_checker *c, int32_t s, int32_t tensor) {
  const struct step *step = &c->plan->steps[s];
  for (int i = 0; i < step->n_nodes; i++)
    if (c->graph->nodes[step->nodes[i]].out == tensor) return true;
  return false;
}

static inline bool leads_to(const struct plan_checker *c, int32_t s, const struct operand *target) {
  const struct plan *plan = c->plan;
  bool *reached = calloc((size_t)plan->n_steps + 1, 1);
  bool found = false;
  reached[s] = true;
  for (int32_t at = s; at < plan->n_steps; at++) {
    const struct step *step = &plan->steps[at];
    for (int i = 0; i < step->n_in && !reached[at]; i++)
      for (int32_t from = s; from < at && !reached[at]; from++)
        for (int o = 0; o < plan->steps[from].n_out && reached[from]; o++) {
          const struct operand *out = &plan->steps[from].out[o], *in = &step->in[i];
          bool scores =
              out->tensor < 0 && in->tensor < 0 && plan->steps[from].nodes[0] == step->nodes[0];
          bool slice = out->cols > in->cols && covers(out, in) && computes(c, from, in->tensor);
          if (scores || (out->tensor >= 0 && out->tensor == in->tensor) || slice)
            reached[at] = true;
        }
    for (int o = 0; o < step->n_out && reached[at]; o++)
      found = found || step->out[o].tensor == target->tensor;
  }
  free(reached);
  return found;
}

static inline void check_needed(const struct plan_checker *c) {
  for (int32_t s = 0; s < c->plan->n_steps; s++)
    for (int i = 0; i < c->plan->n_outputs; i++)
      if (leads_to(c, s, &c->plan->outputs[i]) != (c->plan->steps[s].needed_by >> i & 1))
        fail_msg("%s: step %d, needed by 0x%x, wrong about output %d", c->what, s,
                 c->plan->steps[s].needed_by, i);
}

static inline void collect_accesses(struct plan_checker *c) {
  const struct plan *plan = c->plan;
  c->accesses =
      calloc((size_t)plan->n_steps * (STEP_MAX_IN + STEP_MAX_OUT) + 64, sizeof *c->accesses);
  for (int i = 0; i < plan->n_inputs; i++)
    access_add(c, &plan->inputs[i], -1, -1, true);
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in; i++)
      access_add(c, &step->in[i], s, step->chain, false);
    for (int i = 0; i < step->n_out; i++)
      access_add(c, &step->out[i], s, step->chain, true);
  }
  for (int i = 0; i < plan->n_outputs; i++)
    access_add(c, &plan->outputs[i], plan->n_steps, 1 << 20, false);
}

static inline void check_plan(const struct graph *graph, const struct plan *plan,
                              const struct plan_caps *caps, const char *what) {
  struct plan_checker c = {.graph = graph, .plan = plan, .what = what};
  c.root = calloc((size_t)graph->n_tensors + 1, sizeof *c.root);
  for (int32_t t = 0; t < graph->n_tensors; t++)
    c.root[t] = t;
  for (int32_t n = 0; n < graph->n_nodes; n++)
    if (graph->nodes[n].op == OP_IDENTITY)
      c.root[graph->nodes[n].out] = c.root[graph->nodes[n].in[0]];
  collect_accesses(&c);
  check_coverage(&c);
  check_finishes(&c);
  for (int32_t s = 0; s < plan->n_steps; s++)
    check_step(&c, caps, s);
  check_reads(&c, caps);
  check_chains(&c, caps);
  check_needed(&c);
  if (plan->tile_bytes > caps->tile_bytes)
    fail_msg("%s: tile of %lld bytes", what, (long long)plan->tile_bytes);
  free(c.root), free(c.accesses);
}

#endif
