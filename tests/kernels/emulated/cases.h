// The kernels that the emulation runs: print.c writes them out, test_emulated.c runs them.
#ifndef EMULATED_CASES_H
#define EMULATED_CASES_H

#include "kernels/codegen/codegen.h"
#include "kernels/cuda/before_recipes.h"

struct emulated_case {
  const struct recipe *recipe, *before_recipe; // before_recipe NULL: no work before a pooling
  struct row_program row, before;
  bool clusters;
  enum row_variant variant;
};
#define EMULATED_RECIPES ((int)(sizeof recipes / sizeof *recipes))
#define EMULATED_BEFORE 26
#define EMULATED_CASES (EMULATED_RECIPES + EMULATED_BEFORE)

// Case n, and its kernel's shape. False: there is no such variant of it.
static inline bool emulated_case(int n, struct emulated_case *out, struct row_ir *before_ir,
                                 struct row_ir *ir, struct row_tile *tile) {
  static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16};
  static const int32_t recipe_cols[] = {33, 128, 768, 7, 1, 96, 200},
                       cols[] = {96, 7, 768, 33, 1, 1024, 64, 3000, 384, 1100, 2048, 65};
  static const enum row_input_class classes[] = {IN_POOL_MEAN, IN_POOL_MAX, IN_POOL_CLS};
  memset(out, 0, sizeof *out);
  out->clusters = n % 3 != 0;
  if (n < EMULATED_RECIPES) {
    out->recipe = &recipes[n];
    recipe_program(out->recipe, dtypes[n % 3], recipe_cols[n % 7], &out->row);
  } else {
    int at = n - EMULATED_RECIPES, tokens = at % TOKEN_RECIPES, pool = at % POOL_RECIPES;
    out->before_recipe = &token_recipes[tokens], out->recipe = &pool_recipes[pool];
    before_programs(tokens, pool, classes[(at + at / 3) % 3], dtypes[(at / 2) % 3], cols[at % 12],
                    &out->before, &out->row);
  }
  if (!row_ir_build(&out->row, ir)) return false;
  ir->clusters = out->clusters;
  if (out->before_recipe && !row_ir_build_before(&out->before, out->row.n_inputs, 0, before_ir, ir))
    return false;
  for (int v = ROW_VARIANT_VECTOR; v <= ROW_VARIANT_SCALAR; v++)
    if (row_tile_choose(ir, out->variant = (enum row_variant)v, tile)) return true;
  return false;
}

#endif
