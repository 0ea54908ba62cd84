// A pass over the tiles of one row. See kernels/cpu/row.h.
//
// Rows that share no line are gone through by wide tiles of twelve vectors. A sum waits three or
// four cycles for the one before it and a core starts two to four of them a cycle: of eight vectors
// a long chain on AVX2 spends a fifth of its time waiting, while twelve leave room for operands in
// the 16 registers. They are variables of one function with a case for every operation.
//
// Other rows, shorter ones, and what is left of a row go by tiles of eight vectors: of one row, or
// four each of two rows where those share operands (a bias is then fetched once for both) or are
// short. They are the arguments of the operations' functions, so they stay in registers from one to
// the next: each function ends in a call of the next operation's, which the compiler makes a jump.
// What is left after that goes through the same operations one by one with two vectors, one, or
// part of one.
//
// Either way two short operations are one, in a loop for as often as the same two follow each
// other: fewer jumps, of which a processor foresees only so many in a row (eleven, then one missed
// in each tile, on the machine where this was measured). What is too long for so many live vectors
// goes through memory (tile_call).
//
// Bound: memory, up to some sixteen sums and products of each value (fusion-chain-cpu.csv in
// bench/results).
#ifndef KERNELS_CPU_SIMD_ROW_TILE_H
#define KERNELS_CPU_SIMD_ROW_TILE_H

#include "kernels/cpu/row.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"

#define WIDE_VECTORS 12
#define TILE_VECTORS 8
#define HALF_VECTORS 4
// A long pass has hardly more than one tile in flight, too little to wait for memory meanwhile: so
// what will be read is asked for ahead, and what will be written too (a store that finds its line
// elsewhere holds up those behind it).
#define READ_AHEAD_BYTES 4096
#define WRITE_AHEAD_BYTES 2048
#define WIDE_FLOATS (WIDE_VECTORS * VL)
#define TILE_FLOATS (TILE_VECTORS * VL)
#define HALF_FLOATS (HALF_VECTORS * VL)
// A tile for each register, and one to lay the accumulator down in.
#define STASH_FLOATS ((ROW_MAX_REGS + 1) * WIDE_FLOATS)

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
  uint8_t wide;      // case of the wide tiles: a code, or WIDE_OF two
  uint8_t times;     // how often the pair comes
  int64_t row_bytes; // from one row to the next
};

#define EACH_VECTOR(F, how)                                                                        \
  F(0, how)                                                                                        \
  F(1, how)                                                                                        \
  F(2, how)                                                                                        \
  F(3, how) F(4, how) F(5, how) F(6, how) F(7, how) F(8, how) F(9, how) F(10, how) F(11, how)
#define PLACE(j, bytes)                                                                            \
  (w == WIDE_VECTORS ? at + j * VL * bytes                                                         \
                     : at + (j < HALF_VECTORS ? 0 : op->gap) + j % HALF_VECTORS * VL * bytes)
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
    vf low = vf_set(op->scalar[0]), high = w == TILE_VECTORS ? vf_set(op->scalar[1]) : low;        \
    EACH_VECTOR(WITH_ONE, formula)                                                                 \
    return;                                                                                        \
  }
#define BF16_OPERAND(j) vf_load_bf16((const uint16_t *)PLACE(j, 2))
#define AHEAD(j, bytes, distance)                                                                  \
  if (w > j && whole && j * VL * bytes % 64 == 0)                                                  \
    __builtin_prefetch(PLACE(j, bytes) + (distance & op->moves));
#define READ_AHEAD(j, bytes) AHEAD(j, bytes, READ_AHEAD_BYTES)
#define WRITE_AHEAD(j, bytes) AHEAD(j, bytes, WRITE_AHEAD_BYTES)
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

// What is too long for the live vectors goes through memory.
static __attribute__((noinline)) void tile_call(const struct tile_op *op, int64_t c, float *stash,
                                                int32_t n) {
  float *line = stash + ROW_MAX_REGS * WIDE_FLOATS, *fetched = stash + op->aux * WIDE_FLOATS;
  if (op->code == PASS_ACT) {
    activate_floats((enum activation)op->aux, line, line, n);
    return;
  }
  if (op->code == PASS_ROUND || op->code == PASS_ROUND_BF16) {
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
                       const int w, const bool whole, const int32_t n, vf v[WIDE_VECTORS]) {
  float *line = stash + ROW_MAX_REGS * WIDE_FLOATS;
  bool narrow = code == PASS_LOAD_BF16 || code == PASS_SAVE_BF16;
  const bool tight = w == WIDE_VECTORS && SIMD_BYTES < 64; // 16 registers: no room to round bf16
  char *at = op->at + (narrow ? c * 2 : (c & op->moves) * 4);
  switch (code) {
  case PASS_LOAD:
    EACH_VECTOR(READ_AHEAD, 4)
    EACH_VECTOR(SET, OPERAND)
    return;
  case PASS_SAVE:
    EACH_VECTOR(WRITE_AHEAD, 4)
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
    if (tight) break;
    EACH_VECTOR(SET, ROUND_BF16)
    return;
  case PASS_LOAD_BF16:
    if (!whole) break;
    EACH_VECTOR(READ_AHEAD, 2)
    EACH_VECTOR(SET, BF16_OPERAND)
    return;
  case PASS_SAVE_BF16:
    if (!whole || tight) break;
    EACH_VECTOR(WRITE_AHEAD, 2)
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
    vf v[WIDE_VECTORS] = {v0, v1, v2, v3, v4, v5, v6, v7};                                         \
    tile_apply(PASS_##name, op, c, stash, TILE_VECTORS, true, TILE_FLOATS, v);                     \
    op[1].run(op + 1, c, stash, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);                   \
  }
PASS_CODES(TILE_FUNCTION)

#define TILE_ENTRY(name) [PASS_##name] = tile_##name,
static tile_function *const tile_functions[] = {PASS_CODES(TILE_ENTRY)[PASS_END] = tile_end};

// Two short operations, `times` times.
#if defined(__x86_64__)
#define ROUNDED(j, how)                                                                            \
  __asm__("" : "+v"(v[j])); // or a product and a sum would become one rounding
#else
#define ROUNDED(j, how) __asm__("" : "+w"(v[j]));
#endif
#define TILE_STEP(code, i, w, floats)                                                              \
  tile_apply(PASS_##code, op + i, c, stash, w, true, floats, v);                                   \
  EACH_VECTOR(ROUNDED, )
#define TILE_STEPS(first, second, w, floats)                                                       \
  const struct tile_op *end = op + 2 * op->times;                                                  \
  do {                                                                                             \
    TILE_STEP(first, 0, w, floats)                                                                 \
    TILE_STEP(second, 1, w, floats)                                                                \
    op += 2;                                                                                       \
    __asm__("" : "+r"(op)); /* or where the loop ends is worked out by a product */                \
  } while (op != end);
#define TILE_PAIR(first, second)                                                                   \
  static void tile_##first##_##second(const struct tile_op *op, int64_t c, float *stash, vf v0,    \
                                      vf v1, vf v2, vf v3, vf v4, vf v5, vf v6, vf v7) {           \
    vf v[WIDE_VECTORS] = {v0, v1, v2, v3, v4, v5, v6, v7};                                         \
    TILE_STEPS(first, second, TILE_VECTORS, TILE_FLOATS)                                           \
    op->run(op, c, stash, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);                         \
  }
#define PAIRS_WITH(F, first)                                                                       \
  F(first, ADD) F(first, SUB) F(first, MUL) F(first, ADD_ONE) F(first, MUL_ONE)
#define ALL_PAIRS(F)                                                                               \
  PAIRS_WITH(F, ADD)                                                                               \
  PAIRS_WITH(F, SUB) PAIRS_WITH(F, MUL) PAIRS_WITH(F, ADD_ONE) PAIRS_WITH(F, MUL_ONE)
ALL_PAIRS(TILE_PAIR)

enum wide_case {
  WIDE_PAIRS = PASS_END,
#define WIDE_OF(first, second) WIDE_##first##_##second
#define WIDE_NAME(first, second) WIDE_OF(first, second),
  ALL_PAIRS(WIDE_NAME)
};
struct tile_pair {
  tile_function *run;
  uint8_t wide; // 0: the two are none
};
#define PAIR_ENTRY(first, second)                                                                  \
  [PASS_##first][PASS_##second] = {tile_##first##_##second, WIDE_OF(first, second)},
static const struct tile_pair tile_pairs[PASS_END + 1][PASS_END + 1] = {ALL_PAIRS(PAIR_ENTRY)};

// What runs each of n operations, perhaps with some after it; ops[n] is PASS_END.
static void ready_tiles(struct tile_op *ops, int n) {
  struct tile_op *op = ops;
  while (op < ops + n) {
    const struct tile_op *end = op;
    uint8_t first = op->code, second = op[1].code;
    struct tile_pair pair = tile_pairs[first][second];
    while (pair.run && end->code == first && end[1].code == second)
      end += 2;
    op->run = pair.run ? pair.run : tile_functions[first];
    op->wide = pair.run ? pair.wide : first;
    op->times = (uint8_t)((end - op) / 2);
    op += pair.run ? end - op : 1;
  }
  op->run = tile_end, op->wide = PASS_END;
}

// ---- wide tiles ----
#define WIDE_ONE(name)                                                                             \
  case PASS_##name:                                                                                \
    TILE_STEP(name, 0, WIDE_VECTORS, WIDE_FLOATS)                                                  \
    op++;                                                                                          \
    break;
#define WIDE_PAIR(first, second)                                                                   \
  case WIDE_OF(first, second): {                                                                   \
    TILE_STEPS(first, second, WIDE_VECTORS, WIDE_FLOATS)                                           \
    break;                                                                                         \
  }

// How many columns go by wide tiles: all that fill some, less a tile where the rest would be half a
// smaller one and no other.
INLINE int32_t wide_cols(int32_t cols) {
  int32_t tiles = cols / WIDE_FLOATS, left = cols % WIDE_FLOATS;
  if (tiles > 0 && left >= HALF_FLOATS && left < TILE_FLOATS) tiles--;
  return tiles * WIDE_FLOATS;
}

// The first `cols` columns of one row, which are whole wide tiles.
static __attribute__((noinline)) void wide_tiles(const struct tile_op *ops, int32_t cols,
                                                 float *stash) {
  vf v[WIDE_VECTORS] = {{0}};
  for (int32_t c = 0; c < cols; c += WIDE_FLOATS)
    for (const struct tile_op *op = ops; op->wide != PASS_END;)
      switch (op->wide) {
        PASS_CODES(WIDE_ONE)
        ALL_PAIRS(WIDE_PAIR)
      default:
        __builtin_unreachable();
      }
}

// ---- what is left of a row ----
INLINE void tile_part(const struct tile_op *op, int64_t c, float *stash, const int w,
                      const bool whole, const int32_t n) {
  vf v[WIDE_VECTORS] = {{0}};
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

// Whole tiles of one row or of two from column `c` on; the last operation is PASS_END. Returns the
// column after them.
static int32_t tiles_of_rows(const struct tile_op *ops, int32_t rows, int32_t c, int32_t cols,
                             float *stash) {
  const vf zero = {0};
  const int32_t width = rows == 2 ? HALF_FLOATS : TILE_FLOATS;
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
#undef READ_AHEAD
#undef WRITE_AHEAD
#undef SAVE_BF16
#undef LAY_DOWN
#undef TAKE_UP
#undef RELU
#undef ROUND_BF16
#undef TILE_FUNCTION
#undef TILE_ENTRY
#undef ROUNDED
#undef TILE_STEP
#undef TILE_STEPS
#undef TILE_PAIR
#undef PAIRS_WITH
#undef ALL_PAIRS
#undef WIDE_OF
#undef WIDE_NAME
#undef PAIR_ENTRY
#undef WIDE_ONE
#undef WIDE_PAIR
#undef TILE_CASE

#endif
