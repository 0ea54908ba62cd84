#include "backend/cuda/choices.h"
#include "backend/cuda/launch.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

// Kernels are chosen by strides and by the alignment of addresses, so any arena's will do: offsets
// into it are what counts, and every arena begins at a multiple of 256 bytes.
#define ARENA_BASE 4096

struct question {
  struct view in[STEP_MAX_IN], out[LAUNCH_OUTS];
  struct kernel_call call;
  struct batch_geometry geometry;
};

static void ask(const struct bound_plan *bound, const struct bound_step *b, struct question *q) {
  struct lane anywhere = {.arena = (char *)(uintptr_t)ARENA_BASE};
  const struct plan_limits *limits = &bound->plan->limits;
  memset(q, 0, sizeof *q);
  launch_views(&anywhere, b, q->in, q->out);
  q->geometry = (struct batch_geometry){.n_tokens = limits->max_tokens,
                                        .n_seqs = limits->max_seqs,
                                        .max_seqlen = limits->max_seqlen,
                                        .sum_sq = (int64_t)limits->max_tokens * limits->max_seqlen};
  q->call = launch_call(bound->device, b, q->in, q->out);
  q->call.geometry = &q->geometry; // for attention
}

// ---- steps alike ----
static bool same_view(const struct view *a, const struct view *b) {
  return a->stride == b->stride && a->cols == b->cols && a->dtype == b->dtype &&
         (uintptr_t)a->data % ARENA_BASE % 256 == (uintptr_t)b->data % ARENA_BASE % 256;
}

// Byte by byte: were padding to differ, the question would only be put twice.
static bool same_problem(const struct bound_step *first, const struct bound_step *second) {
  const struct step *a = first->step, *b = second->step;
  if (a->kind == STEP_ATTENTION) // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
    return memcmp(&a->attention, &b->attention, sizeof a->attention) == 0;
  const struct norm_problem *x = &a->norm, *y = &b->norm;
  bool norm = x->kind == y->kind && x->gamma == y->gamma && x->beta == y->beta &&
              x->sum == y->sum && x->eps == y->eps;
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
  return norm && memcmp(&first->linear, &second->linear, sizeof first->linear) == 0;
}

// Layers repeat, and asking cuBLASLt takes its time: does an earlier step put the same question?
static const struct bound_step *asked_before(const struct bound_plan *bound, int32_t index,
                                             const struct question *q) {
  for (int32_t s = 0; s < index; s++) {
    const struct bound_step *b = &bound->steps[s];
    const struct step *step = bound->steps[index].step;
    if (!b->choices || b->step->kind != step->kind || b->step->n_in != step->n_in ||
        b->step->n_out != step->n_out || b->step->rows != step->rows)
      continue;
    bool same = same_problem(b, &bound->steps[index]);
    struct question other;
    if (same) ask(bound, b, &other);
    for (int i = 0; same && i < step->n_in; i++)
      same = same_view(&q->in[i], &other.in[i]);
    for (int i = 0; same && i < step->n_out && i < LAUNCH_OUTS; i++)
      same = same_view(&q->out[i], &other.out[i]);
    if (same) return b;
  }
  return NULL;
}

// ---- choosing ----
static enum status choose(struct bound_plan *bound, struct bound_step *b, struct question *q,
                          struct error *err) {
  int32_t n = b->step->kind == STEP_ATTENTION ? 1 : bound->buckets.n_rungs;
  b->choices = calloc((size_t)n, sizeof *b->choices);
  b->owns_choices = true;
  if (!b->choices) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for kernel choices");
  for (int32_t rung = 0; rung < n; rung++) {
    q->call.m = n > 1 ? bound->buckets.rungs[rung] : bound->plan->limits.max_tokens;
    int rc = kernel_choose(&q->call, CUDA_WORKSPACE_BYTES, &b->choices[rung]);
    if (rc == CUDA_UNSUPPORTED)
      return error_set(err, STATUS_INTERNAL, "step %s: no kernel takes it", b->step->label);
    enum status status = cuda_check(bound->device, rc, "choice of a kernel", err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

static bool is_asked(const struct step *step) {
  return step->kind == STEP_LINEAR || step->kind == STEP_ATTENTION;
}

enum status choices_make(struct bound_plan *bound, struct error *err) {
  for (int32_t s = 0; s < bound->plan->n_steps; s++) {
    struct bound_step *b = &bound->steps[s];
    if (!is_asked(b->step)) continue;
    struct question q;
    ask(bound, b, &q);
    const struct bound_step *before = asked_before(bound, s, &q);
    enum status status = STATUS_OK;
    if (before)
      b->choices = before->choices;
    else
      status = choose(bound, b, &q, err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

int32_t choices_fallbacks(const struct bound_plan *bound, const struct batch_geometry *counts,
                          uint8_t outputs) {
  int32_t n = 0;
  for (int32_t s = 0; s < bound->plan->n_steps; s++) {
    const struct bound_step *b = &bound->steps[s];
    if (!b->choices || !(b->step->needed_by & outputs)) continue;
    int64_t rows = b->step->rows == ROWS_SEQS ? counts->n_seqs : counts->n_tokens;
    int32_t rung = b->step->kind == STEP_ATTENTION ? 0 : bucket_rung(&bound->buckets, rows);
    const struct kernel_choice *choice = &b->choices[rung];
    n += choice->kernel->fallback || (choice->product && choice->product->fallback);
  }
  return n;
}

void choices_free(struct bound_plan *bound) {
  for (int32_t s = 0; s < bound->plan->n_steps; s++) {
    if (bound->steps[s].owns_choices) free(bound->steps[s].choices);
    bound->steps[s].choices = NULL;
  }
}
