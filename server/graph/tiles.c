// Tiles of products and attentions, and what a unit of a GPU takes for those that it gets.
// docs/PLANNER.md says where each number is from.
#include "graph/tiles.h"

#include "graph/cost.h"
#include "kernels/gemm/x3_tiles.h"

#include <math.h>

#define US 1e6
// Fused attention
#define ATTENTION_TILE 128 // queries that pass over the keys and values together
#define ATTENTION_HALF 64  // of them, that one of its two halves computes; all of them in fp32
#define ATTENTION_ENDS                                                                             \
  0.75                  // keys for each column of a head, as long as which its start and end take
#define ATTENTION_FEW 2 // tiles a unit in fp32, and with fewer blocks take half a tile each;
#define ATTENTION_FEW_START 0.83 // then it takes this share of a tile's time,
#define ATTENTION_FEW_EACH 0.37  // and for each block of a unit this
#define ATTENTION_FEW_KEYS 32    // and a tile as many keys more, to start and to end
// The kernels of an unfused attention in fp32 (kernels/attention/products_simple.cu)
#define SIMPLE_TILE 64
#define SIMPLE_SLAB 16
// Products in fp32 (kernels/gemm/x3_tiles.h)
#define X3_RATE                                                                                    \
  (74e12 / 132)          // operations a second of one unit, of the device that is measured there
#define X3_LAUNCH_US 3.0 // of what a launch takes there, launch_us and start_us
#define X3_ADD 0.28e-9   // seconds of a unit for each value of a residual
// Products of 16 bits
#define WIDE_WRITE 40e9  // bytes a second of a result in fp32 that a unit writes,
#define WIDE_READ 25e9   // and of a residual that it reads, while it computes nothing else
#define LIST_VALUES 12e9 // values a second that go through a list of operations, likewise,
#define LIST_ROWS 7e9    // and more where it has a value a row
// A product with a norm behind it
#define NORM_ROWS 128     // of a group of blocks that computes a product and the norm of its result
#define NORM_BLOCKS 8     // of such a group at most
#define NORM_START 1e-6   // seconds to finish the rows of a group, whatever it has
#define NORM_COLUMN 15e-9 // and for each column of a block

static double least(double a, double b) {
  return a < b ? a : b;
}
static double most(double a, double b) {
  return a > b ? a : b;
}

double rows_at(enum row_kind rows, const struct batch_size *batch) {
  if (rows == ROWS_SEQS) return (double)batch->n_seqs;
  return rows == ROWS_SCORES ? (double)batch->sum_sq : (double)batch->n_tokens;
}

// In fp32, where attention does not run on what products run on.
static bool attention_is_plain(const struct kernel_work *work, const struct device_rates *rates) {
  return work->dtype == DTYPE_F32 && work->kind != STEP_LINEAR && rates->attention_f32 > 0;
}

static double product_rate(const struct kernel_work *work, const struct device_rates *rates) {
  double rate =
      rates->product[work->dtype] > 0 ? rates->product[work->dtype] : rates->product[DTYPE_F32];
  if (attention_is_plain(work, rates)) {
    rate = rates->attention_f32;
  } else if (rates->units == 0 && work->kind != STEP_LINEAR) {
    rate = rates->product[DTYPE_F32]; // a CPU's attention computes in fp32 of any dtype
  }
  bool own = rates->library_epilogues && work->kind == STEP_LINEAR &&
             product_class_of(work, rates) == CLASS_OWN;
  return own ? rate * rates->fused_product : rate;
}

double epilogue_seconds(const struct kernel_work *work, const struct device_rates *rates,
                        const struct batch_size *batch) {
  double special = traffic_at(&work->epilogue_special, batch),
         plain = traffic_at(&work->epilogue_flops, batch) - special;
  bool exact = work->dtype == DTYPE_F32 && rates->epilogue_f32 > 0;
  return special / (exact ? rates->epilogue_f32 : rates->epilogue) + plain / rates->vector;
}

// ---- products ----
bool epilogue_in_tiles(const struct kernel_work *work, const struct device_rates *rates) {
  return work->kind == STEP_LINEAR && rates->units > 0 && work->dtype == DTYPE_F32 &&
         product_class_of(work, rates) == CLASS_PLAIN;
}

// In fp32, of the tile that the kernel chooses. Its epilogue hides behind nothing: one tile's takes
// what the multiprocessor would have for another's products.
static double x3_seconds(const struct kernel_work *work, const struct device_rates *rates, double m,
                         const struct batch_size *batch) {
  if (m < 1) return 0;
  const struct x3_tile *tile = &x3_tiles[x3_pick((int64_t)m, work->n, work->k, rates->units)];
  int64_t rounds = x3_rounds(tile, (int64_t)m, work->n, rates->units);
  double slower = X3_RATE / (product_rate(work, rates) / rates->units),
         product = work->k * x3_us_of_k(tile, rounds) * slower,
         values = (double)rounds * tile->rows * tile->cols, // of a unit
      all = m * work->n;
  double behind = epilogue_seconds(work, rates, batch) * values / (all / rates->units);
  if (work->epilogue_kinds & 1u << EPI_ADD) behind += values * X3_ADD;
  return (most(tile->start_us - X3_LAUNCH_US, 0) + product) / US + behind;
}

// Seconds of a unit, at the end of a large tile on our own kernel, for what passes in fp32,
// straight from and into registers, and for a finish, operation by operation, while products wait.
static double wide_seconds(const struct kernel_work *work, const struct device_rates *rates,
                           double values) {
  double seconds = 0;
  if (product_class_of(work, rates) != CLASS_OWN || !rates->library_epilogues) return 0;
  if (work->y_bytes == 4) seconds += values * 4 / WIDE_WRITE;
  if (work->add_bytes == 4) seconds += values * 4 / WIDE_READ;
  if (work->epilogue_kinds & NOT_OF_A_LIBRARY) seconds += values / LIST_VALUES;
  if (work->finish_rows) seconds += values / LIST_ROWS;
  return seconds;
}

// A product by tiles of its result, of the size that takes least: so many rounds of all units, each
// as long as a tile's operations or the loading of its operands. However few rows there are, the
// smallest tile is loaded step by step of k. A library has tiles that we have not; our kernel for
// few rows has the small ones.
static double tiled_seconds(const struct kernel_work *work, const struct device_rates *rates,
                            double m) {
  static const struct {
    int32_t rows, cols;
    bool librarys;
  } tiles[] = {{128, 192, false}, {128, 128, false}, {64, 64, false},
               {64, 32, false},   {128, 96, true},   {64, 16, true}};
  double best = INFINITY, unit = product_rate(work, rates) / rates->units,
         bytes = (double)dtype_bytes(work->dtype);
  enum product_class of = product_class_of(work, rates);
  bool library = rates->library_epilogues && of == CLASS_LIBRARY,
       own = rates->library_epilogues && of == CLASS_OWN;
  // as gemm_pick_small has it
  bool few = m <= 64 || ceil(m / 64) * ceil(work->n / 64.0) <= 2 * rates->units;
  for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
    double rows = tiles[i].rows, cols = tiles[i].cols;
    if (tiles[i].librarys && !library) continue;
    if (rows < 128 && own && !few) continue;
    double rounds = ceil(ceil(m / rows) * ceil(work->n / cols) / rates->units),
           loaded = (least(rows, m) + least(cols, work->n)) * work->k * bytes,
           wide = rows >= 128 ? wide_seconds(work, rates, rows * cols) : 0;
    best = least(
        best, rounds * (most(2 * rows * cols * work->k / unit, loaded / rates->unit_load) + wide));
  }
  double smallest = 64 + (library ? 16 : 32);
  return most(best, smallest * (double)work->k * bytes / rates->unit_load);
}

// A product with a norm behind it by groups of blocks that hold whole rows between them, 128 at a
// time. Its rows are finished while no products run.
double grouped_seconds(const struct kernel_work *work, const struct device_rates *rates, double m) {
  int32_t chunk = work->n % 96 == 0 && work->n <= 768 ? 96 : 128; // as gemm_norm_chunk has it
  double best = INFINITY, unit = product_rate(work, rates) / rates->units;
  for (int32_t cols = chunk; cols <= 2 * chunk; cols += chunk) {
    int32_t blocks = work->n / cols;
    if (work->n % cols != 0 || blocks > NORM_BLOCKS || blocks > rates->units) continue;
    double rounds = ceil(ceil(m / NORM_ROWS) / floor((double)rates->units / blocks)),
           loaded = (double)(NORM_ROWS + cols) * work->k * (double)dtype_bytes(work->dtype);
    best = least(
        best, rounds * (most(2.0 * NORM_ROWS * cols * work->k / unit, loaded / rates->unit_load) +
                        NORM_START + cols * NORM_COLUMN));
  }
  return best;
}

// ---- attention ----
// A fused attention by tiles of queries of one head, over all keys of their sequence. A tile takes
// as much longer, to start and to end, as if the sequence had so many keys more as it has queries;
// in fp32, where small heads leave room for more blocks to hide it, by the columns of a head.
static double attention_seconds(const struct kernel_work *work, const struct device_rates *rates,
                                const struct batch_size *batch) {
  double seconds = traffic_at(&work->product_flops, batch) / product_rate(work, rates) +
                   traffic_at(&work->softmax_flops, batch) / rates->softmax;
  double length = (double)batch->sum_sq / most((double)batch->n_tokens, 1);
  if (rates->units == 0 || length <= 0) return seconds;
  bool plain = attention_is_plain(work, rates);
  double tile = plain ? ATTENTION_HALF : ATTENTION_TILE;
  double mean = (double)batch->n_tokens / (double)batch->n_seqs, tiles_each = ceil(mean / tile),
         tiles = work->heads * (double)batch->n_seqs * tiles_each;
  bool few = plain && tiles < ATTENTION_FEW * rates->units;
  double ends = few     ? ATTENTION_FEW_KEYS
                : plain ? least(tile, ATTENTION_ENDS * work->head_dim)
                        : tile;
  // of a causal one, the tile on the diagonal is computed in full
  double counted = work->causal ? (length + 1) / 2 : length,
         keys = (work->causal ? (length + tile) / 2 : length) + ends;
  double one =
      seconds * keys / counted * tile / (double)batch->n_tokens * rates->units / work->heads;
  double blocks = work->heads * (double)batch->n_seqs * ceil(mean / (ATTENTION_HALF / 2.0));
  if (few) return one * (ATTENTION_FEW_START + ATTENTION_FEW_EACH * ceil(blocks / rates->units));
  // half a tile takes as long, but two of them share a unit
  double used = ceil(mean / ATTENTION_HALF) * ATTENTION_HALF / (tiles_each * tile);
  return most(one, one * used * ceil(tiles / rates->units));
}

// The products of an unfused attention in fp32, by tiles of 64 queries and as many keys, or columns
// of a head. One of fewer columns takes no less while it is alone on its unit.
static double simple_seconds(const struct kernel_work *work, const struct device_rates *rates,
                             const struct batch_size *batch) {
  double length = (double)batch->sum_sq / most((double)batch->n_tokens, 1),
         mean = (double)batch->n_tokens / most((double)batch->n_seqs, 1),
         down = ceil(mean / SIMPLE_TILE), tiles = work->heads * (double)batch->n_seqs * down,
         dim = ceil(work->head_dim / (double)SIMPLE_SLAB) * SIMPLE_SLAB;
  double unit = product_rate(work, rates) / rates->units, ops = 2.0 * SIMPLE_TILE * SIMPLE_TILE;
  if (work->kind == STEP_SCORES) return ceil(tiles * down / rates->units) * ops * dim / unit;
  double cols = dim <= SIMPLE_TILE / 2.0 ? SIMPLE_TILE / 2.0 : SIMPLE_TILE;
  double rounds = ceil(tiles * ceil(dim / cols) / rates->units);
  return most(rounds * cols / SIMPLE_TILE, 1) * ops * length / unit;
}

double product_seconds(const struct kernel_work *work, const struct device_rates *rates,
                       const struct batch_size *batch) {
  if (work->kind == STEP_ATTENTION) return attention_seconds(work, rates, batch);
  if (epilogue_in_tiles(work, rates))
    return x3_seconds(work, rates, rows_at(work->rows, batch), batch);
  if (work->kind == STEP_LINEAR && rates->units > 0)
    return tiled_seconds(work, rates, rows_at(work->rows, batch));
  bool scores = work->kind == STEP_SCORES || work->kind == STEP_CONTEXT;
  if (scores && rates->units > 0 && attention_is_plain(work, rates))
    return simple_seconds(work, rates, batch);
  return traffic_at(&work->product_flops, batch) / product_rate(work, rates);
}
