// Buffers of a plan, read back from the operands of its steps: where each lies, from when until
// when.
#include "explain/facts.h"

#include <stdlib.h>

#define ALIGN_BYTES 64

// Most rows of a buffer, as the planner placed it.
static int64_t most_rows(const struct facts *facts, const struct plan *plan,
                         const struct operand *operand) {
  int64_t tokens = plan->limits.max_tokens, longest = plan->limits.max_seqlen;
  if (operand->place == PLACE_TILE) return facts->caps->plan.tile_rows;
  if (operand->rows == ROWS_SEQS) return plan->limits.max_seqs;
  if (operand->rows == ROWS_SCORES) return tokens * (longest < tokens ? longest : tokens);
  return tokens;
}

static bool in_memory(const struct operand *operand) {
  return operand->place == PLACE_ARENA || operand->place == PLACE_TILE;
}

static void buffer_begin(const struct facts *facts, struct fact_plan *out,
                         const struct operand *operand, int32_t chain, int32_t step) {
  int64_t row = operand->stride * (int64_t)dtype_bytes(operand->dtype);
  int64_t bytes = most_rows(facts, out->plan, operand) * row;
  struct fact_buffer *buffer = &out->buffers[out->n_buffers++];
  *buffer = (struct fact_buffer){.tensor = operand->tensor,
                                 .place = operand->place,
                                 .chain = operand->place == PLACE_TILE ? chain : -1,
                                 .offset_bytes = operand->offset_bytes,
                                 .bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES,
                                 .cols = (int32_t)operand->stride,
                                 .rows = operand->rows,
                                 .dtype = operand->dtype,
                                 .first = step,
                                 .last = step};
}

// The buffer that holds the operand at this time: of those over its first row, the one that was
// written last, since two that live at one time do not overlap. Columns of a wider buffer begin
// inside its first row.
static struct fact_buffer *buffer_of(const struct fact_plan *out, const struct operand *operand,
                                     int32_t chain) {
  for (int32_t b = out->n_buffers - 1; b >= 0; b--) {
    struct fact_buffer *buffer = &out->buffers[b];
    int64_t row = buffer->cols * (int64_t)dtype_bytes(buffer->dtype);
    if (buffer->place == operand->place && (buffer->chain < 0 || buffer->chain == chain) &&
        operand->offset_bytes >= buffer->offset_bytes &&
        operand->offset_bytes < buffer->offset_bytes + row)
      return buffer;
  }
  return NULL;
}

static void use(const struct fact_plan *out, const struct operand *operand, int32_t chain,
                int32_t step) {
  struct fact_buffer *buffer = in_memory(operand) ? buffer_of(out, operand, chain) : NULL;
  if (buffer && buffer->last < step) buffer->last = step;
}

// A step that works in place (scores) writes the buffer that it reads.
static bool in_place(const struct step *step, const struct operand *operand) {
  for (int i = 0; i < step->n_in; i++)
    if (in_memory(&step->in[i]) && step->in[i].place == operand->place &&
        step->in[i].tensor == operand->tensor && step->in[i].offset_bytes == operand->offset_bytes)
      return true;
  return false;
}

static bool fold_buffers(const struct facts *facts, struct fact_plan *out) {
  uint64_t *keys = calloc((size_t)out->n_buffers + 1, sizeof *keys);
  if (!keys) return false;
  for (int32_t b = 0; b < out->n_buffers; b++) {
    struct fact_buffer *buffer = &out->buffers[b];
    int32_t life = buffer->last - buffer->first;
    uint64_t hash = hash_name(hash_begin(), facts_tensor_name(facts, buffer->tensor));
    hash = hash_bytes(hash, &life, sizeof life);
    hash = hash_bytes(hash, &buffer->offset_bytes, sizeof buffer->offset_bytes);
    hash = hash_bytes(hash, &buffer->bytes, sizeof buffer->bytes);
    keys[b] = buffer->alike = hash_bytes(hash, &buffer->place, sizeof buffer->place);
  }
  out->buffer_folds = fold_make(keys, out->n_buffers, &out->n_buffer_folds);
  free(keys);
  return out->buffer_folds != NULL;
}

bool facts_buffers(const struct facts *facts, struct fact_plan *out) {
  const struct plan *plan = out->plan;
  size_t most = LIMIT_MODEL_INPUTS + 1;
  for (int32_t s = 0; s < plan->n_steps; s++)
    most += plan->steps[s].n_out;
  out->buffers = calloc(most, sizeof *out->buffers);
  if (!out->buffers) return false;
  for (int32_t i = 0; i < plan->n_inputs; i++)
    if (in_memory(&plan->inputs[i])) buffer_begin(facts, out, &plan->inputs[i], -1, -1);
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in; i++)
      use(out, &step->in[i], step->chain, s);
    for (int i = 0; i < step->n_out; i++)
      if (in_memory(&step->out[i]) && !in_place(step, &step->out[i]))
        buffer_begin(facts, out, &step->out[i], step->chain, s);
  }
  for (int32_t i = 0; i < plan->n_outputs; i++)
    use(out, &plan->outputs[i], -1, plan->n_steps);
  return fold_buffers(facts, out);
}
