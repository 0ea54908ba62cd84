// A pass over the tiles of one row. See kernels/cpu/row.h.
//
// A whole tile is eight vectors, which hide the latency of an addition and leave room for operands
// in the 16 registers of AVX2: of one row, or four each of two rows where those share operands (a
// bias is then fetched once for both). They are the arguments of the operations' functions, so they
// stay in registers from one to the next: each function ends in a call of the next operation's,
// which the compiler makes a jump. What is left of a row goes through the same operations one by
// one with two vectors, one, or part of one.
#ifndef KERNELS_CPU_SIMD_ROW_TILE_H
#define KERNELS_CPU_SIMD_ROW_TILE_H

#include "kernels/cpu/row.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"

#define TILE_VECTORS 8
#define HALF_VECTORS 4
// A long pass has hardly more than one tile in flight, too little to wait for memory meanwhile.
#define AHEAD_BYTES 1024
#define TILE_FLOATS (TILE_VECTORS * VL)
#define HALF_FLOATS (HALF_VECTORS * VL)
// A tile for each register, and one to lay the accumulator down in.
#define STASH_FLOATS ((ROW_MAX_REGS + 1) * TILE_FLOATS)

struct tile_op;
typedef void tile_function(const struct tile_op *op, int64_t c, float *stash, vf v0, vf v1, vf v2,
                           vf v3, vf v4, vf v5, vf v6, vf v7);

// A pass_op whose operand is known: of the row that is worked on.
struct tile_op {
  tile_function *run; // of a whole tile
  char *at;           // column 0 of the block
  int64_t moves;      // all ones; 0: `at` is a tile of the stash, the same at every column
  int64_t gap;        // bytes from the first vector of the tile to the fifth
  float scalar[2];    // forms with _ONE: of the first four vectors and of the others
  uint8_t code, aux;
  uint8_t dtype;     // of what lies at `at`
  uint8_t per_row;   // the scalars are read anew at each row
  int64_t row_bytes; // from one row to the next
};

#define EACH_VECTOR(F, how)                                                                        \
  F(0, how) F(1, how) F(2, how) F(3, how) F(4, how) F(5, how) F(6, how) F(7, how)
#define PLACE(j, bytes) (at + (j < HALF_VECTORS ? 0 : op->gap) + j % HALF_VECTORS * VL * bytes)
#define FLOATS_AT(j) ((float *)PLACE(j, 4))
#define OPERAND(j) (whole ? vf_load(FLOATS_AT(j)) : vf_load_n(FLOATS_AT(j), n))
#define SET(j, formula)                                                                            \
  if (w > j) v[j] = formula(j);
#define DO(j, what)                                                                                \
  if (w > j) what(j);
#define WITH_MEMORY(j, formula)                                                                    \
  if (w > j) {                                                                                     \
    vf x = v[j], y = OPERAND(j);                                                                   \
    v[j] = formula;                                                                                \
  }
#define WITH_ONE(j, formula)                                                                       \
  if (w > j) {                                                                                     \
    vf x = v[j], y = j < HALF_VECTORS ? low : high;                                                \
    v[j] = formula;                                                                                \
  }
#define BINARY(name, formula)                                                                      \
  case PASS_##name:                                                                                \
    EACH_VECTOR(WITH_MEMORY, formula)                                                              \
    return;                                                                                        \
  case PASS_##name##_ONE: {                                                                        \
    vf low = vf_set(op->scalar[0]), high = w > HALF_VECTORS ? vf_set(op->scalar[1]) : low;         \
    EACH_VECTOR(WITH_ONE, formula)                                                                 \
    return;                                                                                        \
  }
#define BF16_OPERAND(j) vf_load_bf16((const uint16_t *)PLACE(j, 2))
#define AHEAD(j, distance)                                                                         \
  if (w > j && whole && j * VL % 16 == 0) __builtin_prefetch(PLACE(j, 4) + distance);
#define SAVE(j) (whole ? vf_store(FLOATS_AT(j), v[j]) : vf_store_n(FLOATS_AT(j), v[j], n))
#define SAVE_BF16(j) vf_store_bf16((uint16_t *)PLACE(j, 2), v[j])
#define LAY_DOWN(j) vf_store(line + j * VL, v[j])
#define TAKE_UP(j) vf_load(line + j * VL)
#define RELU(j) vf_relu(v[j])
#define ROUND_BF16(j) ((vf)(vf_bf16_bits(v[j]) << 16))

INLINE void tile_convert(const struct tile_op *op, char *at, float *line, float *fetched,
                         int32_t n) {
  if (op->code == PASS_FETCH)
    load_floats(fetched, at, (enum dtype)op->dtype, n);
  else if (op->code == PASS_LOAD_BF16)
    load_floats(line, at, DTYPE_BF16, n);
  else
    store_floats(at, (enum dtype)op->dtype, line, n);
}

// What is too long for eight live vectors goes through memory.
static __attribute__((noinline)) void tile_call(const struct tile_op *op, int64_t c, float *stash,
                                                int32_t n) {
  float *line = stash + ROW_MAX_REGS * TILE_FLOATS, *fetched = stash + op->aux * TILE_FLOATS;
  if (op->code == PASS_ACT) {
    activate_floats((enum activation)op->aux, line, line, n);
    return;
  }
  if (op->code == PASS_ROUND) {
    round_floats((enum dtype)op->aux, line, line, n);
    return;
  }
  char *at = op->at + c * element_bytes((enum dtype)op->dtype);
  tile_convert(op, at, line, fetched, n < HALF_FLOATS ? n : HALF_FLOATS);
  if (n > HALF_FLOATS)
    tile_convert(op, at + op->gap, line + HALF_FLOATS, fetched + HALF_FLOATS, n - HALF_FLOATS);
}

// One operation on `n` floats from column `c` on: w vectors, or (not whole) fewer than one.
INLINE void tile_apply(const uint8_t code, const struct tile_op *op, int64_t c, float *stash,
                       const int w, const bool whole, const int32_t n, vf v[TILE_VECTORS]) {
  float *line = stash + ROW_MAX_REGS * TILE_FLOATS;
  bool narrow = code == PASS_LOAD_BF16 || code == PASS_SAVE_BF16;
  char *at = op->at + (narrow ? c * 2 : (c & op->moves) * 4);
  switch (code) {
  case PASS_LOAD:
    EACH_VECTOR(AHEAD, AHEAD_BYTES)
    EACH_VECTOR(SET, OPERAND)
    return;
  case PASS_SAVE:
    EACH_VECTOR(DO, SAVE)
    return;
    BINARY(ADD, x + y)
    BINARY(SUB, x - y)
    BINARY(MUL, x * y)
    BINARY(DIV, x / y)
    BINARY(MAX, vf_max(x, y))
    BINARY(SUB_FROM, y - x)
    BINARY(DIV_INTO, y / x)
    BINARY(MAX_WITH, vf_max(y, x))
  case PASS_RELU:
    EACH_VECTOR(SET, RELU)
    return;
  case PASS_ROUND_BF16:
    EACH_VECTOR(SET, ROUND_BF16)
    return;
  case PASS_LOAD_BF16:
    if (!whole) break;
    EACH_VECTOR(SET, BF16_OPERAND)
    return;
  case PASS_SAVE_BF16:
    if (!whole) break;
    EACH_VECTOR(DO, SAVE_BF16)
    return;
  default:
    break;
  }
  EACH_VECTOR(DO, LAY_DOWN)
  tile_call(op, c, stash, n);
  EACH_VECTOR(SET, TAKE_UP)
}

// ---- whole tiles ----
static void tile_end(const struct tile_op *op, int64_t c, float *stash, vf v0, vf v1, vf v2, vf v3,
                     vf v4, vf v5, vf v6, vf v7) {
  (void)op, (void)c, (void)stash;
  (void)v0, (void)v1, (void)v2, (void)v3, (void)v4, (void)v5, (void)v6, (void)v7;
}

#define TILE_FUNCTION(name)                                                                        \
  static void tile_##name(const struct tile_op *op, int64_t c, float *stash, vf v0, vf v1, vf v2,  \
                          vf v3, vf v4, vf v5, vf v6, vf v7) {                                     \
    vf v[TILE_VECTORS] = {v0, v1, v2, v3, v4, v5, v6, v7};                                         \
    tile_apply(PASS_##name, op, c, stash, TILE_VECTORS, true, TILE_FLOATS, v);                     \
    op[1].run(op + 1, c, stash, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);                   \
  }
PASS_CODES(TILE_FUNCTION)

#define TILE_ENTRY(name) [PASS_##name] = tile_##name,
static tile_function *const tile_functions[] = {PASS_CODES(TILE_ENTRY)[PASS_END] = tile_end};

// Two short operations in one function, and the same two twice: fewer jumps, of which a processor
// foresees only so many in a row (eleven, then one missed in each tile, on the machine where this
// was measured).
#if defined(__x86_64__)
#define ROUNDED(j, how)                                                                            \
  __asm__("" : "+v"(v[j])); // or a product and a sum would become one rounding
#else
#define ROUNDED(j, how) __asm__("" : "+w"(v[j]));
#endif
#define TILE_STEP(code, i)                                                                         \
  tile_apply(PASS_##code, op + i, c, stash, TILE_VECTORS, true, TILE_FLOATS, v);                   \
  EACH_VECTOR(ROUNDED, )
#define TILE_PAIR(first, second)                                                                   \
  static void tile_##first##_##second(const struct tile_op *op, int64_t c, float *stash, vf v0,    \
                                      vf v1, vf v2, vf v3, vf v4, vf v5, vf v6, vf v7) {           \
    vf v[TILE_VECTORS] = {v0, v1, v2, v3, v4, v5, v6, v7};                                         \
    TILE_STEP(first, 0)                                                                            \
    TILE_STEP(second, 1)                                                                           \
    op[2].run(op + 2, c, stash, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);                   \
  }                                                                                                \
  static void twice_##first##_##second(const struct tile_op *op, int64_t c, float *stash, vf v0,   \
                                       vf v1, vf v2, vf v3, vf v4, vf v5, vf v6, vf v7) {          \
    vf v[TILE_VECTORS] = {v0, v1, v2, v3, v4, v5, v6, v7};                                         \
    TILE_STEP(first, 0)                                                                            \
    TILE_STEP(second, 1)                                                                           \
    TILE_STEP(first, 2)                                                                            \
    TILE_STEP(second, 3)                                                                           \
    op[4].run(op + 4, c, stash, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);                   \
  }
#define TILE_PAIRS(F, first)                                                                       \
  F(first, ADD) F(first, SUB) F(first, MUL) F(first, ADD_ONE) F(first, MUL_ONE)
#define ALL_PAIRS(F)                                                                               \
  TILE_PAIRS(F, ADD)                                                                               \
  TILE_PAIRS(F, SUB) TILE_PAIRS(F, MUL) TILE_PAIRS(F, ADD_ONE) TILE_PAIRS(F, MUL_ONE)
ALL_PAIRS(TILE_PAIR)

struct tile_pair {
  tile_function *once, *twice;
};
#define PAIR_ENTRY(first, second)                                                                  \
  [PASS_##first][PASS_##second] = {tile_##first##_##second, twice_##first##_##second},
static const struct tile_pair tile_pairs[PASS_END + 1][PASS_END + 1] = {ALL_PAIRS(PAIR_ENTRY)};

// What runs operation `i` of n, perhaps with those after it.
INLINE tile_function *tile_function_of(const struct tile_op *ops, int i, int n) {
  const struct tile_pair *pair = &tile_pairs[ops[i].code][i + 1 < n ? ops[i + 1].code : PASS_END];
  if (!pair->once) return tile_functions[ops[i].code];
  bool again = i + 3 < n && ops[i + 2].code == ops[i].code && ops[i + 3].code == ops[i + 1].code;
  return again ? pair->twice : pair->once;
}

// ---- what is left of a row ----
INLINE void tile_part(const struct tile_op *op, int64_t c, float *stash, const int w,
                      const bool whole, const int32_t n) {
  vf v[TILE_VECTORS] = {{0}};
  for (;; op++) {
    switch (op->code) {
#define TILE_CASE(name)                                                                            \
  case PASS_##name:                                                                                \
    tile_apply(PASS_##name, op, c, stash, w, whole, n, v);                                         \
    break;
      PASS_CODES(TILE_CASE)
    default:
      return;
    }
  }
}

// Whole tiles of one row or of two; the last operation is PASS_END. Returns the column after them.
static int32_t tiles_of_rows(const struct tile_op *ops, int32_t rows, int32_t cols, float *stash) {
  const vf zero = {0};
  const int32_t width = rows == 2 ? HALF_FLOATS : TILE_FLOATS;
  int32_t c = 0;
  for (; c + width <= cols; c += width)
    ops->run(ops, c, stash, zero, zero, zero, zero, zero, zero, zero, zero);
  return c;
}

// The columns from `c` on of one row.
static void rest_of_row(const struct tile_op *ops, int32_t c, int32_t cols, float *stash) {
  for (; c + 2 * VL <= cols; c += 2 * VL)
    tile_part(ops, c, stash, 2, true, 2 * VL);
  for (; c + VL <= cols; c += VL)
    tile_part(ops, c, stash, 1, true, VL);
  if (c < cols) tile_part(ops, c, stash, 1, false, cols - c);
}

#undef PLACE
#undef EACH_VECTOR
#undef FLOATS_AT
#undef OPERAND
#undef SET
#undef DO
#undef WITH_MEMORY
#undef WITH_ONE
#undef BINARY
#undef BF16_OPERAND
#undef SAVE
#undef AHEAD
#undef SAVE_BF16
#undef LAY_DOWN
#undef TAKE_UP
#undef RELU
#undef ROUND_BF16
#undef TILE_FUNCTION
#undef TILE_ENTRY
#undef ROUNDED
#undef TILE_PAIR
#undef TILE_PAIRS
#undef ALL_PAIRS
#undef PAIR_ENTRY
#undef TILE_STEP
#undef TILE_CASE

#endif
