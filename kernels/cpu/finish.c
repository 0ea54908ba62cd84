// A row program on a piece of a result. See kernels/cpu/epilogue.h.
#include "kernels/cpu/epilogue.h"

static struct view piece_of(struct view v, enum row_input_class cls, int64_t row, int64_t col) {
  int64_t r = cls == IN_FULL || cls == IN_PER_ROW ? row : 0,
          c = cls == IN_FULL || cls == IN_PER_COL ? col : 0;
  v.data = (char *)v.data + (r * v.stride + c) * (int64_t)dtype_bytes(v.dtype);
  return v;
}

void finish_run(const struct finish *finish, float *sums, int64_t stride, int64_t row, int32_t rows,
                int64_t col, int32_t cols) {
  const struct row_program *program = &finish->kernel->program;
  struct view inputs[ROW_MAX_INPUTS], outputs[ROW_MAX_OUTPUTS];
  for (int32_t at = 0; at < cols; at += FINISH_COLS) {
    struct row_call call = {.inputs = inputs,
                            .outputs = outputs,
                            .n_rows = rows,
                            .n_cols = cols - at < FINISH_COLS ? cols - at : FINISH_COLS,
                            .scratch = finish->scratch};
    inputs[0] = (struct view){sums + at, stride, call.n_cols, DTYPE_F32};
    for (int i = 1; i < program->n_inputs; i++)
      inputs[i] = piece_of(finish->inputs[i - 1], program->inputs[i].cls, row, col + at);
    for (int i = 0; i < program->n_outputs; i++)
      outputs[i] = piece_of(finish->outputs[i], IN_FULL, row, col + at);
    finish->row_run(finish->kernel, &call);
  }
}

// Rows far apart in memory are what a processor does not foresee.
void finish_fetch(const struct finish *finish, int64_t row, int32_t rows, int64_t col,
                  int32_t cols) {
  const struct row_program *program = &finish->kernel->program;
  for (int i = 1; i < program->n_inputs; i++) {
    const struct view *v = &finish->inputs[i - 1];
    if (program->inputs[i].cls != IN_FULL) continue;
    int64_t element = (int64_t)dtype_bytes(v->dtype);
    for (int32_t r = 0; r < rows; r++) {
      const char *line = (const char *)v->data + ((row + r) * v->stride + col) * element;
      for (int64_t at = 0; at < cols * element; at += 64)
        __builtin_prefetch(line + at, 0, 2);
    }
  }
}
