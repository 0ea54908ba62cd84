#include "graph/shapes.h"

#include <stdio.h>
#include <string.h>

const char *shape_epilogue(const struct epilogue_op *ops, int n, char out[SHAPE_EPILOGUE_BYTES]) {
  static const char *const kinds[] = {"bias", "act", "scale", "add", "mul"};
  size_t used = 0;
  out[0] = '\0';
  for (int i = 0; i < n; i++) {
    const char *word = ops[i].kind == EPI_ACT ? activation_name((enum activation)ops[i].act)
                       : ops[i].kind < sizeof kinds / sizeof *kinds ? kinds[ops[i].kind]
                                                                    : "?";
    int length = snprintf(out + used, SHAPE_EPILOGUE_BYTES - used, "%s%s", i ? "," : "", word);
    if (length < 0 || (size_t)length >= SHAPE_EPILOGUE_BYTES - used) return out;
    used += (size_t)length;
  }
  return out;
}

static double ratio(double a, double b) {
  return a > b ? a / b : b / a;
}

const struct measured_shape *shape_find(const struct shape_table *table,
                                        const struct linear_problem *problem, int64_t m) {
  char epilogue[SHAPE_EPILOGUE_BYTES];
  const struct measured_shape *best = NULL;
  if (!table || m < 1) return NULL;
  shape_epilogue(problem->epilogue, problem->n_epilogue, epilogue);
  for (int32_t i = 0; i < table->n; i++) {
    const struct measured_shape *shape = &table->shapes[i];
    if (shape->n != problem->n || shape->k != problem->k || shape->x_dtype != problem->x_dtype ||
        shape->y_dtype != problem->y_dtype || strcmp(shape->epilogue, epilogue) != 0)
      continue;
    if (ratio(shape->m, (double)m) > 2) continue;
    if (!best || ratio(shape->m, (double)m) < ratio(best->m, (double)m)) best = shape;
  }
  return best;
}
