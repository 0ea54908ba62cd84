// Our own fp32 product, and bf16 by way of it, compiled once for each instruction set. See
// kernels/cpu/own.h.
//
// The micro-kernel keeps ROWS x 2 vectors of sums in registers: one weight vector pair is loaded
// for ROWS x 2 multiply-adds, and x comes as broadcasts. 14 rows fill the 32 registers of AVX-512,
// 6 the 16 of AVX2.
#include "kernels/cpu/own.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/table.h"

#if SIMD_BYTES == 64
#define MR 14
#else
#define MR 6
#endif
#define PANEL (2 * VL)
#define GROUP PRODUCT_GROUP

// Where rows 0..13 of x begin, as five pointers and one stride: row 7 is p[1] + 4 strides. Each
// address is then one operand of a load (base + index * 1, 2, 4 or 8), and fourteen pointers need
// not fit the general registers.
static const uint8_t row_base[14] = {0, 0, 0, 1, 0, 1, 2, 1, 0, 3, 3, 3, 4, 3};
static const uint8_t row_step[14] = {0, 1, 2, 0, 4, 2, 0, 4, 8, 0, 1, 2, 0, 4};

#define X_AT(r) (*(const float *)(p[row_base[r]] + row_step[r] * stride + 4 * ahead))

// Keeps the compiler from working the pointers out again into one for each row.
#define OPAQUE()                                                                                   \
  __asm__("" : "+r"(p[0]), "+r"(p[1]), "+r"(p[2]), "+r"(p[3]), "+r"(p[4]), "+r"(stride))

// Sums of row r are the variables lo##r and hi##r, not an array: they must never leave the
// registers.
#define EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13)
#define DECLARE(r) vf lo##r = {0}, hi##r = {0};
#define RESUME(r)                                                                                  \
  if (rows > r) {                                                                                  \
    lo##r = vf_load(out + r * GROUP);                                                              \
    hi##r = vf_load(out + r * GROUP + VL);                                                         \
  }
#define MULTIPLY(r)                                                                                \
  if (rows > r) {                                                                                  \
    vf b = vf_set(X_AT(r));                                                                        \
    lo##r += b * w0;                                                                               \
    hi##r += b * w1;                                                                               \
  }
#define STORE(r)                                                                                   \
  if (rows > r) {                                                                                  \
    vf_store(out + r * GROUP, lo##r);                                                              \
    vf_store(out + r * GROUP + VL, hi##r);                                                         \
  }
#define STEP(k_ahead)                                                                              \
  do {                                                                                             \
    enum { ahead = k_ahead };                                                                      \
    const float *at = w + ahead * PANEL;                                                           \
    vf w0 = vf_load(at), w1 = vf_load(at + VL);                                                    \
                                                                                                   \
    EACH_ROW(MULTIPLY)                                                                             \
  } while (0)

struct micro_call {
  const float *x, *w;
  int64_t x_stride;
  int32_t k;
  bool resume; // add to the sums in `out`
  float *out;
  const char *next; // weights that will be needed soon and may lie in memory
};

// `lines` of the next weights are fetched into the second-level cache for every four of k.
INLINE void micro(const int rows, const struct micro_call *c, const int lines) {
  const float *x = c->x, *w = c->w;
  const char *next = c->next;
  float *out = c->out;
  int64_t x_stride = c->x_stride;
  int32_t k = c->k;
  EACH_ROW(DECLARE)
  if (c->resume) {
    EACH_ROW(RESUME)
  }
  int64_t stride = x_stride * 4; // bytes
  const char *p[5];              // rows 0, 3, 6, 9, 12
  for (int i = 0; i < 5; i++)
    p[i] = (const char *)x + 3 * i * stride;
  int32_t i = 0;
  for (; i + 4 <= k; i += 4, w += 4 * PANEL) {
    OPAQUE();
    STEP(0);
    STEP(1);
    STEP(2);
    STEP(3);
    for (int j = 0; j < lines; j++)
      __builtin_prefetch(next + 64 * j, 0, 2);
    next += 64 * lines;
    for (int j = 0; j < 5; j++)
      p[j] += 16;
  }
  for (; i < k; i++, w += PANEL) {
    STEP(0);
    for (int j = 0; j < 5; j++)
      p[j] += 4;
  }
  EACH_ROW(STORE)
}

// Four of k are 8 lines of weights on AVX-512, 4 on AVX2. Fewer blocks of rows fetch more of them
// each; blocks are of equal height, so several of them are never low.
#if SIMD_BYTES == 64
#define MICRO_CASE(n)                                                                              \
  case n:                                                                                          \
    if (2 * n < MR || lines == 8)                                                                  \
      micro(n, c, 8);                                                                              \
    else if (3 * n < 2 * MR - 1 || lines == 4)                                                     \
      micro(n, c, 4);                                                                              \
    else if (lines == 3)                                                                           \
      micro(n, c, 3);                                                                              \
    else                                                                                           \
      micro(n, c, 2);                                                                              \
    break;
static int fetched_lines(int32_t blocks, int32_t block) {
  static const uint8_t lines_of[] = {8, 8, 4, 3};
  (void)block;
  return blocks < 4 ? lines_of[blocks] : 2;
}
#else
#define MICRO_CASE(n)                                                                              \
  case n:                                                                                          \
    if (2 * n < MR || lines == 4)                                                                  \
      micro(n, c, 4);                                                                              \
    else if (lines == 2)                                                                           \
      micro(n, c, 2);                                                                              \
    else if (lines == 1)                                                                           \
      micro(n, c, 1);                                                                              \
    else                                                                                           \
      micro(n, c, 0);                                                                              \
    break;
static int fetched_lines(int32_t blocks, int32_t block) {
  int lines = blocks == 1 ? 4 : blocks < 4 ? 2 : 1;
  return block * lines < 4 ? lines : 0;
}
#endif

static void micro_rows(int rows, const struct micro_call *c, int lines) {
  switch (rows) {
    MICRO_CASE(1)
    MICRO_CASE(2)
    MICRO_CASE(3)
    MICRO_CASE(4)
    MICRO_CASE(5)
    MICRO_CASE(6)
#if MR > 6
    MICRO_CASE(7)
    MICRO_CASE(8)
    MICRO_CASE(9)
    MICRO_CASE(10)
    MICRO_CASE(11)
    MICRO_CASE(12)
    MICRO_CASE(13)
    MICRO_CASE(14)
#endif
  default:
    break;
  }
}

// x as floats, and where the pieces of a panel come from.
struct source {
  const float *x;
  int64_t x_stride;
  float *wide; // bf16: a piece of a panel is widened to here; NULL: panels are fp32
};

// k in [at, at + depth) of one panel, all rows. While the blocks of rows work on this piece of the
// weights, each fetches its share of the piece after it, so that memory is read evenly and ahead of
// need. One copy of the code, for fp32 and bf16.
__attribute__((noinline)) static void run_panel(const struct product_call *c,
                                                const struct source *source, int32_t col,
                                                const float *w, int32_t at, int32_t depth,
                                                const char *next) {
  int32_t blocks = (c->rows + MR - 1) / MR;
  for (int32_t b = 0; b < blocks; b++) {
    int32_t begin = c->rows * b / blocks, rows = c->rows * (b + 1) / blocks - begin;
    int lines = fetched_lines(blocks, b);
    struct micro_call call = {.x = source->x + begin * source->x_stride + at,
                              .w = w,
                              .x_stride = source->x_stride,
                              .k = depth,
                              .resume = at > 0,
                              .out = c->sums + begin * GROUP + col % GROUP,
                              .next = next};
    micro_rows(rows, &call, lines);
    next += (int64_t)lines * 16 * depth;
  }
}

// `bytes` of an element of the packed weights.
INLINE void run_columns(const struct product_call *call, const struct source *source, int bytes) {
  int32_t parts = (call->k + OWN_DEPTH - 1) / OWN_DEPTH;
  for (int32_t col = 0; col < call->n; col += PANEL) {
    const char *panel = (const char *)call->weights + (int64_t)col * call->k * bytes;
    for (int32_t part = 0; part < parts; part++) {
      int64_t k = call->k; // times parts: wider than 32 bits from a million on
      int32_t at = (int32_t)(k * part / parts / 4 * 4);
      int32_t end = part + 1 == parts ? call->k : (int32_t)(k * (part + 1) / parts / 4 * 4);
      const char *w = panel + (int64_t)at * PANEL * bytes;
      const char *next = panel + (int64_t)end * PANEL * bytes;
      if (end == call->k && col + PANEL >= call->n && call->next) next = call->next;
      if (bytes == 2) {
        load_bf16_floats(source->wide, (const uint16_t *)w, (end - at) * PANEL);
        w = (const char *)source->wide;
      }
      run_panel(call, source, col, (const float *)w, at, end - at, next);
    }
    int32_t first = col / GROUP * GROUP, done = col + PANEL;
    if (done % GROUP != 0 && done < call->n) continue;
    int32_t cols = (done < call->n ? done : call->n) - first;
    epilogue_rectangle(&call->epilogue, call->sums, GROUP, 0, call->rows, first, cols,
                       SIMD_NAME(epilogue_run));
  }
}

void SIMD_NAME(product_f32_run)(const struct product_call *call) {
  struct source source = {.x = call->x, .x_stride = call->x_stride};
  run_columns(call, &source, 4);
}

void SIMD_NAME(product_bf16_run)(const struct product_call *call) {
  float *wide = call->sums + OWN_SUMS_FLOATS;
  int64_t stride = ((int64_t)call->k + 15) & ~INT64_C(15);
  for (int32_t r = 0; r < call->rows; r++)
    load_bf16_floats(wide + r * stride, (const uint16_t *)call->x + r * call->x_stride, call->k);
  struct source source = {.x = wide, .x_stride = stride, .wide = wide + PRODUCT_ROWS * stride};
  run_columns(call, &source, 2);
}
