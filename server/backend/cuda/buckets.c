#include "backend/cuda/buckets.h"
#include "base/log.h"

#include <string.h>

#define SMALL_TOKENS 64
#define STEP_TOKENS 64
#define OCTAVE_TOKENS 256
#define OCTAVE_STEPS 4
#define PITCH_BYTES 256

// ---- tokens ----
static int32_t next_tokens(int32_t tokens) {
  if (tokens < SMALL_TOKENS) return tokens * 2;
  if (tokens < OCTAVE_TOKENS) return tokens + STEP_TOKENS;
  int32_t octave = OCTAVE_TOKENS;
  while (tokens / 2 >= octave)
    octave *= 2;
  return tokens > INT32_MAX - octave / OCTAVE_STEPS ? INT32_MAX : tokens + octave / OCTAVE_STEPS;
}

// Rungs as they come, and among them the limit of tokens, where graphs end, and of sequences.
static void make_rungs(struct bucket_set *set) {
  int32_t tokens = set->limits.max_tokens, seqs = set->limits.max_seqs;
  int32_t graphs = set->graph_tokens < tokens ? set->graph_tokens : tokens;
  int32_t most = seqs > tokens ? seqs : tokens, rung = 1;
  const int32_t ends[] = {graphs, tokens, most};
  for (int end = 0; end < 3; end++) {
    for (; rung < ends[end]; rung = next_tokens(rung))
      set->rungs[set->n_rungs++] = rung;
    if (ends[end] > 0 && (set->n_rungs == 0 || set->rungs[set->n_rungs - 1] < ends[end]))
      set->rungs[set->n_rungs++] = ends[end];
    if (end == 0) set->n_tokens = set->n_rungs;
    FW_ASSERT(set->n_rungs < BUCKET_RUNGS_MAX);
  }
}

int32_t bucket_rung(const struct bucket_set *set, int64_t rows) {
  int32_t low = 0, high = set->n_rungs;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (set->rungs[middle] < rows)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// ---- sequences ----
static bool sees_sequences(const struct step *step) {
  if (step->rows != ROWS_TOKENS || (step->kind != STEP_ROW && step->kind != STEP_LINEAR))
    return true;
  for (int i = 0; step->kind == STEP_ROW && i < step->row.n_inputs; i++)
    if (step->row.inputs[i].cls >= IN_POOL_MEAN) return true;
  return false;
}

// The most sequences of a class: 1, 4, 16, 64, ...
static int64_t class_end(int32_t class) {
  return INT64_C(1) << (2 * class);
}

static int32_t class_of(int32_t count) {
  int32_t class = 0;
  while (class_end(class) < count)
    class ++;
  return class;
}

static void make_seqs(const struct plan *plan, struct bucket_set *set) {
  set->n_seqs = 1;
  for (int32_t s = 0; s < plan->n_steps; s++)
    if (sees_sequences(&plan->steps[s])) set->n_seqs = class_of(set->limits.max_seqs) + 1;
}

// ---- outputs ----
static bool same_steps(const struct plan *plan, uint8_t a, uint8_t b) {
  for (int32_t s = 0; s < plan->n_steps; s++)
    if (!(plan->steps[s].needed_by & a) != !(plan->steps[s].needed_by & b)) return false;
  return true;
}

static void add_mask(const struct plan *plan, struct bucket_set *set, uint8_t mask) {
  for (int32_t m = 0; m < set->n_masks; m++)
    if (same_steps(plan, set->masks[m], mask)) return;
  if (set->n_masks < BUCKET_MASKS_MAX) set->masks[set->n_masks++] = mask;
}

// All outputs, then each alone, then what room is left for; masks that need the same steps are one.
static void make_masks(const struct plan *plan, struct bucket_set *set) {
  int32_t all = (1 << plan->n_outputs) - 1;
  add_mask(plan, set, (uint8_t)all);
  for (int32_t o = 0; o < plan->n_outputs; o++)
    add_mask(plan, set, (uint8_t)(1 << o));
  for (int32_t mask = 1; mask < all; mask++)
    add_mask(plan, set, (uint8_t)mask);
  memset(set->mask_class, BUCKET_MASKS_MAX, sizeof set->mask_class);
  for (int32_t mask = 1; mask <= all; mask++)
    for (int32_t m = 0; m < set->n_masks; m++)
      if (same_steps(plan, set->masks[m], (uint8_t)mask)) set->mask_class[mask] = (uint8_t)m;
}

void bucket_set_make(const struct plan *plan, int32_t graph_tokens, struct bucket_set *out) {
  *out = (struct bucket_set){.limits = plan->limits, .graph_tokens = graph_tokens};
  make_rungs(out);
  make_seqs(plan, out);
  make_masks(plan, out);
}

// ---- index ----
int32_t bucket_count(const struct bucket_set *set) {
  return set->n_tokens * set->n_seqs * set->n_masks;
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

bool bucket_at(const struct bucket_set *set, int32_t index, struct bucket *out) {
  FW_ASSERT(index >= 0 && index < bucket_count(set));
  int32_t mask = index % set->n_masks, class = index / set->n_masks % set->n_seqs;
  int32_t at = index / set->n_masks / set->n_seqs;
  int64_t tokens = set->rungs[at], fewest_tokens = at > 0 ? set->rungs[at - 1] + 1 : 1;
  // Of the batches in here: the fewest sequences and the most.
  int64_t fewest = class > 0 ? class_end(class - 1) + 1 : 1;
  int64_t most = least(class_end(class), least(tokens, set->limits.max_seqs));
  if (set->n_seqs == 1) most = least(tokens, set->limits.max_seqs);
  int64_t longest = least(set->limits.max_seqlen, tokens - (fewest - 1));
  *out = (struct bucket){.n_tokens = (int32_t)tokens,
                         .n_seqs = (int32_t)most,
                         .max_seqlen = (int32_t)longest,
                         .outputs = set->masks[mask]};
  return fewest <= most && longest >= 1 && most * longest >= fewest_tokens;
}

int32_t bucket_find(const struct bucket_set *set, const struct batch_geometry *geometry,
                    uint8_t outputs) {
  int32_t mask = set->mask_class[outputs];
  if (mask == BUCKET_MASKS_MAX) return -1;
  int32_t low = bucket_rung(set, geometry->n_tokens);
  if (low >= set->n_tokens) return -1;
  int32_t class = set->n_seqs > 1 ? class_of(geometry->n_seqs) : 0;
  int32_t index = (low * set->n_seqs + class) * set->n_masks + mask;
  struct bucket bucket;
  // Empty sequences make more of them than tokens, which no bucket holds.
  bool holds = class < set->n_seqs && bucket_at(set, index, &bucket) &&
               geometry->n_seqs <= bucket.n_seqs && geometry->max_seqlen <= bucket.max_seqlen;
  return holds ? index : -1;
}

// ---- geometry ----
int64_t geometry_used(int32_t n_tokens, int32_t n_seqs) {
  int64_t tokens = 4 * (int64_t)n_tokens, seqs = 8 * ((int64_t)n_seqs + 1);
  return tokens > seqs ? tokens : seqs;
}

int64_t geometry_pitch(int32_t max_tokens, int32_t max_seqs) {
  return (geometry_used(max_tokens, max_seqs) + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
}

void geometry_fill(void *block, int64_t pitch, const struct batch_geometry *from, int32_t n_tokens,
                   int32_t n_seqs) {
  int32_t *positions = block;
  int32_t *cu_seqlens = (void *)((char *)block + pitch);
  int64_t *scores_offset = (void *)((char *)block + 2 * pitch);
  size_t seqs = (size_t)from->n_seqs + 1;
  memcpy(positions, from->positions, (size_t)from->n_tokens * sizeof *positions);
  memset(positions + from->n_tokens, 0, (size_t)(n_tokens - from->n_tokens) * sizeof *positions);
  memcpy(cu_seqlens, from->cu_seqlens, seqs * sizeof *cu_seqlens);
  memcpy(scores_offset, from->scores_offset, seqs * sizeof *scores_offset);
  for (int32_t s = from->n_seqs + 1; s <= n_seqs; s++) {
    cu_seqlens[s] = cu_seqlens[from->n_seqs];
    scores_offset[s] = scores_offset[from->n_seqs];
  }
}
