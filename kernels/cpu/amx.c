// Our own bf16 product on AMX tiles. See kernels/cpu/own.h.
//
// Tiles 0..3 are 32 x 32 sums, 4 and 5 are 16 (or fewer) rows of x by 32 of k, 6 and 7 are 32 of k
// by 16 columns of the weights. Per 32 of k: two loads of x, two of weights, four products of 16
// cycles each, so the products bound it.
#include "kernels/cpu/own.h"

#include "kernels/cpu/product.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))
#define TILE_PAIRS 256 // uint16 pairs of one weight tile: 16 x 16

struct tile_config { // what ldtilecfg reads: 64 bytes
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Rows of the upper and lower half of a block; 0 of the lower: it is not used.
AMX static void configure(int32_t upper, int32_t lower) {
  struct tile_config c __attribute__((aligned(64))) = {.palette = 1};
  for (int t = 0; t < 8; t++)
    c.row_bytes[t] = 64;
  int32_t low = lower ? lower : 1;
  const int32_t rows[8] = {upper, upper, low, low, upper, low, 16, 16};
  for (int t = 0; t < 8; t++)
    c.rows[t] = (uint8_t)rows[t];
  _tile_loadconfig(&c);
}

// Fetches `lines` (a multiple of 16) cache lines of weights that will be needed soon and may lie in
// memory.
static inline const char *fetch(const char *next, int32_t lines) {
  for (int32_t i = 0; i < lines; i += 16, next += 1024) {
#define LINE(j) __builtin_prefetch(next + 64 * (j), 0, 2)
    LINE(0), LINE(1), LINE(2), LINE(3), LINE(4), LINE(5), LINE(6), LINE(7);
    LINE(8), LINE(9), LINE(10), LINE(11), LINE(12), LINE(13), LINE(14), LINE(15);
#undef LINE
  }
  return next;
}

AMX static void micro_both(const uint16_t *x, int64_t stride, int32_t upper, const uint16_t *w,
                           int32_t k, float *out, const char *next, int32_t lines) {
  const uint16_t *lower = x + upper * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int32_t i = 0; i < k; i += 32, w += 4 * TILE_PAIRS) {
    _tile_loadd(6, w, 64);
    _tile_loadd(4, x + i, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 2 * TILE_PAIRS, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + i, stride * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    next = fetch(next, lines);
  }
  _tile_stored(0, out, OWN_GROUP_COLS * 4);
  _tile_stored(1, out + 16, OWN_GROUP_COLS * 4);
  _tile_stored(2, out + upper * OWN_GROUP_COLS, OWN_GROUP_COLS * 4);
  _tile_stored(3, out + upper * OWN_GROUP_COLS + 16, OWN_GROUP_COLS * 4);
}

AMX static void micro_upper(const uint16_t *x, int64_t stride, const uint16_t *w, int32_t k,
                            float *out, const char *next, int32_t lines) {
  _tile_zero(0);
  _tile_zero(1);
  for (int32_t i = 0; i < k; i += 32, w += 4 * TILE_PAIRS) {
    _tile_loadd(6, w, 64);
    _tile_loadd(4, x + i, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 2 * TILE_PAIRS, 64);
    _tile_dpbf16ps(1, 4, 7);
    next = fetch(next, lines);
  }
  _tile_stored(0, out, OWN_GROUP_COLS * 4);
  _tile_stored(1, out + 16, OWN_GROUP_COLS * 4);
}

// Columns [first, first + cols) of the call: sums of block `b` of the rows, then the epilogue.
// Every block fetches its share of the panels that come after this group's, so that memory is read
// evenly and ahead of need.
AMX static void run_group(const struct product_call *c, int32_t first, int32_t cols, int32_t b,
                          int32_t blocks, void (*epilogue_run)(const struct epilogue_call *call)) {
  int32_t begin = c->rows * b / blocks, rows = c->rows * (b + 1) / blocks - begin;
  int32_t upper = rows < 16 ? rows : 16, lines = blocks == 1 ? 32 : 16;
  const uint16_t *x = (const uint16_t *)c->x + begin * c->x_stride;
  const char *next = (const char *)((const uint16_t *)c->weights + (int64_t)(first + cols) * c->k);
  if (first + cols >= c->n && c->next) next = c->next;
  next += (int64_t)b * (cols / AMX_COLS) * 64 * lines * (c->k / 32);
  for (int32_t col = 0; col < cols; col += AMX_COLS) {
    const uint16_t *w = (const uint16_t *)c->weights + (int64_t)(first + col) * c->k;
    if (rows > upper)
      micro_both(x, c->x_stride, upper, w, c->k, c->sums + col, next, lines);
    else
      micro_upper(x, c->x_stride, w, c->k, c->sums + col, next, lines);
    next += (int64_t)64 * lines * (c->k / 32);
  }
  epilogue_rectangle(&c->epilogue, c->sums, OWN_GROUP_COLS, begin, rows, first, cols, epilogue_run);
}

AMX void amx_product_run(const struct product_call *c,
                         void (*epilogue_run)(const struct epilogue_call *call)) {
  int32_t blocks = (c->rows + 31) / 32, configured = 0;
  for (int32_t first = 0; first < c->n; first += OWN_GROUP_COLS) {
    int32_t cols = c->n - first < OWN_GROUP_COLS ? c->n - first : OWN_GROUP_COLS;
    for (int32_t b = 0; b < blocks; b++) {
      int32_t rows = c->rows * (b + 1) / blocks - c->rows * b / blocks;
      if (rows != configured) configure(rows < 16 ? rows : 16, rows < 16 ? 0 : rows - 16);
      configured = rows;
      run_group(c, first, cols, b, blocks, epilogue_run);
    }
  }
  _tile_release();
}

bool amx_supports(int32_t k) {
  return k % 32 == 0;
}
#else
bool amx_supports(int32_t k) {
  (void)k;
  return false;
}

void amx_product_run(const struct product_call *c,
                     void (*epilogue_run)(const struct epilogue_call *call)) {
  (void)c, (void)epilogue_run;
}
#endif

size_t amx_bytes(int32_t n, int32_t k) {
  return (size_t)((n + AMX_COLS - 1) / AMX_COLS * AMX_COLS) * (size_t)k * sizeof(uint16_t);
}

// Element (column, i) of the slice goes to panel, step of 32 of k, tile of 16 columns, pair of k,
// column, half.
void amx_pack(uint16_t *out, const uint16_t *w, int32_t n, int32_t k) {
  memset(out, 0, amx_bytes(n, k));
  for (int32_t col = 0; col < n; col++) {
    uint16_t *tile =
        out + (size_t)(col / AMX_COLS * AMX_COLS) * (size_t)k + (size_t)(col % AMX_COLS / 16) * 512;
    for (int32_t i = 0; i < k; i++)
      tile[(size_t)(i / 32) * 1024 + (size_t)(i % 32 / 2 * 32 + col % 16 * 2 + i % 2)] =
          w[(size_t)col * (size_t)k + (size_t)i];
  }
}
