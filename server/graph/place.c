// Where every tensor lies. Steps that work row by row and follow each other form chains; a tensor
// that only one chain sees lives in that chain's tile scratch, everything else in the arena, at
// offsets that lifetimes allow to share.
//
//   steps      attn     linear  norm  linear    attn
//   chain       0                1               2
//   tile                |--a--|--b--|
//   arena    q ---|  o -|-----------x---------|- q'
//
// Within a chain the steps are the clock of the tile scratch. For the arena a whole chain is one
// moment, because tiles of rows run through it in any order and on any thread.
#include "base/log.h"
#include "graph/planner.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 64
#define CHAIN_MAX_STEPS 64 // more would save nothing more, and bounds the work of the search below

struct interval {
  int32_t first, last; // times at which it holds data, inclusive
  int32_t id;
  int64_t bytes, offset;
};

// ---- intervals into one block ----
static int larger_first(const void *left, const void *right) {
  const struct interval *a = left, *b = right;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
  return (a->id > b->id) - (a->id < b->id);
}

// Lowest gap for `item` between those placed before it that live at the same time. `by_offset`
// [count] lists them by offset; the item is inserted.
static void interval_fit(struct interval *items, int32_t *by_offset, int32_t count, int32_t item) {
  struct interval *mine = &items[item];
  int64_t offset = 0;
  for (int32_t i = 0; i < count; i++) {
    const struct interval *other = &items[by_offset[i]];
    if (other->last < mine->first || other->first > mine->last) continue;
    if (other->offset >= offset + mine->bytes) break; // sorted: the gap before it is wide enough
    if (other->offset + other->bytes > offset) offset = other->offset + other->bytes;
  }
  mine->offset = offset;
  int32_t at = count;
  while (at > 0 && items[by_offset[at - 1]].offset > offset) {
    by_offset[at] = by_offset[at - 1];
    at--;
  }
  by_offset[at] = item;
}

// Greedy by size, as it wastes little: every interval gets an offset such that no two that meet in
// time overlap. False when the sum does not fit 63 bits.
static bool intervals_place(struct interval *items, int32_t *scratch, int32_t count,
                            int64_t *total) {
  int64_t sum = 0;
  *total = 0;
  for (int32_t i = 0; i < count; i++)
    if (__builtin_add_overflow(sum, items[i].bytes, &sum)) return false;
  if (count > 0) qsort(items, (size_t)count, sizeof *items, larger_first);
  for (int32_t i = 0; i < count; i++) {
    interval_fit(items, scratch, i, i);
    if (items[i].offset + items[i].bytes > *total) *total = items[i].offset + items[i].bytes;
  }
  return true;
}

// rows * cols elements rounded up to the alignment; false when that overflows.
static bool aligned_bytes(int64_t rows, int64_t cols, enum dtype dtype, int64_t *bytes) {
  if (__builtin_mul_overflow(rows, cols, bytes)) return false;
  if (__builtin_mul_overflow(*bytes, (int64_t)dtype_bytes(dtype), bytes)) return false;
  if (__builtin_add_overflow(*bytes, ALIGN_BYTES - 1, bytes)) return false;
  *bytes &= ~(int64_t)(ALIGN_BYTES - 1);
  return true;
}

// ---- lifetimes ----
static int32_t count_buffers(const struct planner *planner) {
  return planner->graph->n_tensors + planner->graph->n_nodes;
}

static bool lies_in_memory(const struct operand *operand) {
  return operand->place != PLACE_WEIGHT && operand->place != PLACE_POSITIONS &&
         operand->place != PLACE_STEP;
}

static void find_lifetimes(struct planner *planner) {
  const struct plan *plan = planner->plan;
  for (int32_t b = 0; b < count_buffers(planner); b++)
    planner->buffers[b].first_step = planner->buffers[b].last_step = -1;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in; i++) {
      if (!lies_in_memory(&step->in[i])) continue;
      struct buffer *buffer = planner_buffer(planner, step, &step->in[i]);
      buffer->used = true;
      buffer->last_step = s;
    }
    for (int i = 0; i < step->n_out; i++) {
      struct buffer *buffer = planner_buffer(planner, step, &step->out[i]);
      if (!buffer->used) buffer->first_step = s;
      buffer->used = true;
      buffer->last_step = s;
    }
  }
  for (int32_t t = 0; t < planner->graph->n_tensors; t++)
    if (planner->wanted[t]) {
      planner->buffers[planner->buffer_of[t]].used = true;
      planner->buffers[planner->buffer_of[t]].last_step = plan->n_steps;
    }
}

// ---- chains ----
// Does every row of the step's results depend on the same rows of its operands only?
static bool is_row_local(const struct step *step) {
  if (step->kind == STEP_LINEAR) return true;
  if (step->kind != STEP_ROW) return false;
  for (int i = 0; i < step->row.n_inputs; i++)
    if (step->row.inputs[i].cls >= IN_POOL_MEAN) return false;
  return true;
}

struct chain_search {
  struct interval items[CHAIN_MAX_STEPS * STEP_MAX_OUT];
  int32_t scratch[CHAIN_MAX_STEPS * STEP_MAX_OUT];
  int32_t count;
  int64_t bytes;
};

// The tensors that only steps [first, last] see, placed in a tile; false when the tile would be too
// large.
static bool chain_fits(struct planner *planner, int32_t first, int32_t last,
                       struct chain_search *search) {
  search->count = 0;
  for (int32_t s = first; s <= last; s++) {
    const struct step *step = &planner->plan->steps[s];
    for (int i = 0; i < step->n_out; i++) {
      const struct buffer *buffer = planner_buffer(planner, step, &step->out[i]);
      if (buffer->last_step > last) continue;
      struct interval *item = &search->items[search->count++];
      *item = (struct interval){
          .first = s, .last = buffer->last_step, .id = (int32_t)(buffer - planner->buffers)};
      if (!aligned_bytes(planner->caps->tile_rows, buffer->cols, buffer->dtype, &item->bytes))
        return false;
    }
  }
  return intervals_place(search->items, search->scratch, search->count, &search->bytes) &&
         search->bytes <= planner->caps->tile_bytes;
}

// The last step of the longest chain from `first` whose tile fits; its tensors are placed.
static int32_t grow_chain(struct planner *planner, int32_t first, struct chain_search *search) {
  const struct plan *plan = planner->plan;
  int32_t last = first;
  if (!planner->caps->row_chains || planner->mode == FUSION_OFF ||
      !is_row_local(&plan->steps[first]))
    return last;
  while (last + 1 < plan->n_steps && last + 1 - first < CHAIN_MAX_STEPS &&
         is_row_local(&plan->steps[last + 1]) &&
         plan->steps[last + 1].rows == plan->steps[first].rows &&
         chain_fits(planner, first, last + 1, search))
    last++;
  if (last == first || !chain_fits(planner, first, last, search)) return last;
  for (int32_t i = 0; i < search->count; i++) {
    struct buffer *buffer = &planner->buffers[search->items[i].id];
    buffer->place = PLACE_TILE;
    buffer->offset_bytes = search->items[i].offset;
  }
  if (search->bytes > planner->plan->tile_bytes) planner->plan->tile_bytes = search->bytes;
  return last;
}

static enum status make_chains(struct planner *planner) {
  struct plan *plan = planner->plan;
  struct chain_search *search = malloc(sizeof *search);
  if (!search)
    return error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  int32_t chain = 0;
  for (int32_t s = 0; s < plan->n_steps; chain++) {
    int32_t last = grow_chain(planner, s, search);
    for (; s <= last; s++)
      plan->steps[s].chain = (uint16_t)chain;
  }
  free(search);
  return STATUS_OK;
}

// ---- arena ----
static bool buffer_bytes(const struct planner *planner, const struct buffer *buffer,
                         int64_t *bytes) {
  int64_t rows = planner->limits.max_tokens; // B <= T
  if (buffer->rows == ROWS_SEQS) rows = planner->limits.max_seqs;
  if (buffer->rows ==
      ROWS_SCORES) { // sum of s^2 is largest when all sequences are as long as they may be
    int64_t longest = planner->limits.max_seqlen < rows ? planner->limits.max_seqlen : rows;
    if (__builtin_mul_overflow(rows, longest, &rows)) return false;
  }
  return aligned_bytes(rows, buffer->cols, buffer->dtype, bytes);
}

static int32_t chain_at(const struct plan *plan, int32_t step) {
  if (step < 0) return -1;
  return step < plan->n_steps ? plan->steps[step].chain : INT32_MAX;
}

static enum status place_arena(struct planner *planner) {
  struct plan *plan = planner->plan;
  int32_t n_buffers = count_buffers(planner), count = 0;
  enum status status = STATUS_OK;
  struct interval *items = calloc((size_t)n_buffers + 1, sizeof *items);
  int32_t *scratch = calloc((size_t)n_buffers + 1, sizeof *scratch);
  bool fits = true;
  if (!items || !scratch) {
    status = error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
    goto out;
  }
  for (int32_t b = 0; b < n_buffers && fits; b++) {
    struct buffer *buffer = &planner->buffers[b];
    if (!buffer->used || buffer->place == PLACE_TILE) continue;
    buffer->place = PLACE_ARENA;
    struct interval *item = &items[count++];
    *item = (struct interval){.first = chain_at(plan, buffer->first_step),
                              .last = chain_at(plan, buffer->last_step),
                              .id = b};
    fits = buffer_bytes(planner, buffer, &item->bytes);
  }
  if (!fits || !intervals_place(items, scratch, count, &plan->arena_bytes)) {
    status = error_set(planner->err, STATUS_RESOURCE_EXHAUSTED,
                       "activations of %d tokens in sequences of up to %d do not fit any memory",
                       planner->limits.max_tokens, planner->limits.max_seqlen);
    goto out;
  }
  for (int32_t i = 0; i < count; i++) {
    planner->buffers[items[i].id].offset_bytes = items[i].offset;
    planner->buffers[items[i].id].bytes = items[i].bytes;
  }
out:
  free(items);
  free(scratch);
  return status;
}

// ---- operands ----
static void operand_place(struct planner *planner, const struct step *step,
                          struct operand *operand) {
  if (!lies_in_memory(operand)) return;
  const struct buffer *buffer = planner_buffer(planner, step, operand);
  FW_ASSERT(buffer->used && buffer->place != PLACE_NONE);
  int32_t column = operand->tensor >= 0 ? planner->slice_col[operand->tensor] : 0;
  operand->place = buffer->place;
  operand->stride = buffer->cols;
  operand->offset_bytes = buffer->offset_bytes + column * (int64_t)dtype_bytes(operand->dtype);
}

static struct operand signature_operand(struct planner *planner, int32_t tensor) {
  const struct tensor *t = &planner->graph->tensors[tensor];
  struct operand operand = {
      .tensor = tensor, .cols = t->cols, .stride = t->cols, .dtype = t->dtype, .rows = t->rows};
  operand_place(planner, NULL, &operand);
  return operand;
}

static void place_signature(struct planner *planner) {
  const struct graph *graph = planner->graph;
  struct plan *plan = planner->plan;
  for (int32_t t = 0; t < graph->n_tensors; t++) {
    const struct tensor *tensor = &graph->tensors[t];
    if (tensor->kind != TENSOR_INPUT) continue;
    if (tensor->index >= plan->n_inputs) plan->n_inputs = tensor->index + 1;
    if (planner->buffers[t].used) plan->inputs[tensor->index] = signature_operand(planner, t);
  }
  plan->n_outputs = graph->n_outputs;
  for (int32_t i = 0; i < graph->n_outputs; i++) {
    int32_t tensor = planner->root[graph->outputs[i]];
    plan->outputs[i] = signature_operand(planner, tensor);
    plan->output_is_input[i] =
        graph->tensors[tensor].kind == TENSOR_INPUT ? graph->tensors[tensor].index : -1;
  }
}

// Which signature outputs need each step: backwards from the outputs, a whole step at a time.
static enum status mark_needed(struct planner *planner) {
  struct plan *plan = planner->plan;
  uint8_t *needed = calloc((size_t)count_buffers(planner) + 1, 1);
  if (!needed)
    return error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  for (int32_t t = 0; t < planner->graph->n_tensors; t++)
    needed[planner->buffer_of[t]] |= planner->wanted[t];
  for (int32_t s = plan->n_steps - 1; s >= 0; s--) {
    struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_out; i++)
      step->needed_by |= needed[planner_buffer(planner, step, &step->out[i]) - planner->buffers];
    for (int i = 0; i < step->n_in; i++)
      if (lies_in_memory(&step->in[i]))
        needed[planner_buffer(planner, step, &step->in[i]) - planner->buffers] |= step->needed_by;
  }
  free(needed);
  return STATUS_OK;
}

enum status planner_place(struct planner *planner) {
  struct plan *plan = planner->plan;
  find_lifetimes(planner);
  enum status status = make_chains(planner);
  if (status == STATUS_OK) status = place_arena(planner);
  if (status == STATUS_OK) status = mark_needed(planner);
  if (status != STATUS_OK) return status;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in; i++)
      operand_place(planner, step, &step->in[i]);
    for (int i = 0; i < step->n_out; i++)
      operand_place(planner, step, &step->out[i]);
  }
  place_signature(planner);
  planner->placed = true;
  return STATUS_OK;
}
