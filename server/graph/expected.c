// The cache as a list of chunks in order of use, and the walks of each kind of step over it
// (docs/TRAFFIC.md says what the model leaves out).
#include "graph/expected.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
// Bytes of a chunk, and in how many a batch is walked, for the sake of time: a batch of more bytes
// is walked in larger ones, down to one set of them in the whole cache. Where steps touch several
// times the cache each, and so leave nothing to the next, chunks grow on: what a model file asks
// for does not decide how long it is looked at.
#define LEAST_CHUNK 8192
#define MOST_CHUNKS 16384
#define MOST_STEP_CHUNKS 1024       // of a step, on average
#define MOST_ARENA_CHUNKS (1 << 20) // touched or not
#define MOST_GROUPS 8               // of rows of one product

// ---- the cache ----
// Chunks are numbered: arena after arena, then weight after weight. Each belongs to one set, picked
// by a hash of its number, and a set keeps WAYS of them. So what is walked over in turns is not
// lost all at once as it outgrows the cache, but more and more of it. What makes room is one of
// those that were used longest ago, drawn by lot: of a tensor that was just written and does not
// quite fit, its reader finds a part, as it does on the card, where strict order would lose all of
// it. What is only read goes in below the newest of what was written: what streams through a
// kernel leaves before its result, of which the next one finds more than it would behind a copy.
#define WAYS 64
#define OLD_SHARE 0.4    // of a set, those that may be drawn
#define OLDEST_SHARE 0.2 // of the draws, the one used longest ago
#define ABOVE_SHARE 0.11 // of a set, those not yet written to memory that what is read is below
#define BELOW_MOST 1.0 // sets' worth of reads in a row that go in so: then the written ones are old
#define UNWRITTEN_SHARE 0.61 // of a set: written ones beyond go to memory, the longest unused first
struct set {
  int32_t first, last, n, n_unwritten; // first: that was used longest ago
  int32_t below;                       // reads since the last write
};
struct chunk {
  int32_t before, after; // in its set
  bool cached;
  int32_t writer;   // step that wrote to it last
  double unwritten; // part of it that is to be written to memory
};
struct cache {
  bool unbounded;
  struct set *sets;
  struct chunk *chunks;
  int64_t chunk; // bytes
  int32_t n_sets, ways, unwritten_ways, above_ways;
  uint32_t lot;                // the same in each walk
  int32_t step;                // that walks
  struct step_expected *steps; // [n_steps]
};

static struct set *set_of(const struct cache *c, int32_t i) {
  uint32_t hash = (uint32_t)i * 2654435761u;
  hash ^= hash >> 15, hash *= 2246822519u, hash ^= hash >> 13;
  return &c->sets[hash % (uint32_t)c->n_sets];
}

static void set_remove(struct cache *c, struct set *set, int32_t i) {
  const struct chunk *k = &c->chunks[i];
  *(k->before == NONE ? &set->first : &c->chunks[k->before].after) = k->after;
  *(k->after == NONE ? &set->last : &c->chunks[k->after].before) = k->before;
  set->n--;
}

// Behind the chunk `before`, or as the first.
static void set_insert(struct cache *c, struct set *set, int32_t i, int32_t before) {
  int32_t after = before == NONE ? set->first : c->chunks[before].after;
  c->chunks[i].before = before, c->chunks[i].after = after;
  *(before == NONE ? &set->first : &c->chunks[before].after) = i;
  *(after == NONE ? &set->last : &c->chunks[after].before) = i;
  set->n++;
}

// What a chunk that is read goes in behind.
static int32_t below_unwritten(struct cache *c, struct set *set) {
  int32_t i = set->last;
  if (set->below++ > (int32_t)(BELOW_MOST * c->ways)) return i;
  for (int32_t n = c->above_ways; n > 0 && i != NONE && c->chunks[i].unwritten > 0; n--)
    i = c->chunks[i].before;
  return i;
}

static void write_back(struct cache *c, struct set *set, int32_t i) {
  if (c->chunks[i].unwritten <= 0) return;
  double bytes = (double)c->chunk * c->chunks[i].unwritten;
  c->steps[c->step].now.write += bytes;
  c->steps[c->chunks[i].writer].own_write += bytes;
  c->chunks[i].unwritten = 0;
  set->n_unwritten--;
}

// What makes room.
static int32_t draw(struct cache *c, const struct set *set) {
  c->lot = c->lot * 1664525u + 1013904223u;
  double u = (double)(c->lot >> 8) / (1 << 24);
  int32_t i = set->first;
  for (int n = (int)(OLD_SHARE / (1 - OLDEST_SHARE) * (u - OLDEST_SHARE) * set->n); n > 0; n--)
    i = c->chunks[i].after;
  return i;
}

// `part` of the chunk are bytes that count.
static void touch(struct cache *c, int32_t i, double part, bool write) {
  struct chunk *chunk = &c->chunks[i];
  struct set *set = set_of(c, i);
  if (chunk->cached)
    set_remove(c, set, i);
  else if (!write)
    c->steps[c->step].now.read += (double)c->chunk * part;
  if (write) {
    set->n_unwritten += chunk->unwritten <= 0;
    // small tensors side by side in one chunk, or the same one again
    if (chunk->unwritten < part) chunk->unwritten = part;
    chunk->writer = c->step;
    set->below = 0;
  }
  chunk->cached = true;
  set_insert(c, set, i, write ? set->last : below_unwritten(c, set));
  if (c->unbounded) return;
  if (set->n > c->ways) {
    int32_t old = draw(c, set);
    write_back(c, set, old);
    c->chunks[old].cached = false;
    set_remove(c, set, old);
  }
  if (set->n_unwritten > c->unwritten_ways) {
    int32_t oldest = set->first;
    while (c->chunks[oldest].unwritten <= 0)
      oldest = c->chunks[oldest].after;
    write_back(c, set, oldest);
  }
}

static enum status cache_init(struct cache *c, int64_t bytes, int64_t n_chunks) {
  if (n_chunks >= INT32_MAX) return STATUS_RESOURCE_EXHAUSTED;
  int64_t held = bytes > 0 ? bytes / c->chunk : 0, n_sets = held / WAYS;
  c->unbounded = bytes < 0;
  if (n_sets < 1) n_sets = 1;
  c->ways = (int32_t)(held / n_sets); // WAYS, or somewhat more of few sets
  c->unwritten_ways = (int32_t)(UNWRITTEN_SHARE * c->ways);
  c->above_ways = (int32_t)(ABOVE_SHARE * c->ways + 0.5);
  c->n_sets = n_sets > n_chunks ? (int32_t)n_chunks : (int32_t)n_sets;
  c->sets = calloc((size_t)c->n_sets, sizeof *c->sets);
  c->chunks = calloc((size_t)n_chunks + 1, sizeof *c->chunks);
  if (!c->sets || !c->chunks) return STATUS_RESOURCE_EXHAUSTED;
  for (int32_t i = 0; i < c->n_sets; i++)
    c->sets[i].first = c->sets[i].last = NONE;
  return STATUS_OK;
}

static void cache_free(struct cache *c) {
  free(c->sets), free(c->chunks);
}

// ---- where operands lie ----
struct walker {
  struct cache cache;
  const struct cache_facts *cache_facts;
  const struct plan *plan;
  const struct product_walk *walks;
  const struct expected_batch *batch;
  int64_t arena_bytes, arena_chunks, *weight_chunk; // [n_weights] first chunk
  int32_t n_weights;
};

// Consecutive memory that a step passes over; `part` of it are bytes of the operands.
struct region {
  int64_t offset, bytes; // from chunk 0
  double part;
  bool write, weight;
};

static int64_t rows_of(const struct walker *w, enum row_kind rows) {
  return rows == ROWS_TOKENS   ? w->batch->n_tokens
         : rows == ROWS_SEQS   ? w->batch->n_seqs
         : rows == ROWS_SCORES ? w->batch->sum_sq
                               : 1;
}

static int64_t weight_bytes(const struct step *step, int i) {
  const struct operand *o = &step->in[i];
  int64_t rows = step->kind == STEP_LINEAR && i == 1 ? step->linear.n : 1;
  return rows * o->cols * (int64_t)dtype_bytes(o->dtype);
}

static bool is_table(const struct step *step, int i) {
  const struct row_input *input = step_row_input(step, i);
  return input && input->cls == IN_GATHER;
}

// From its first byte to its last.
static int64_t operand_bytes(const struct walker *w, const struct operand *o) {
  int64_t stride = o->stride > 0 ? o->stride : o->cols, rows = rows_of(w, o->rows);
  return rows > 0 ? ((rows - 1) * stride + o->cols) * (int64_t)dtype_bytes(o->dtype) : 0;
}

static bool region_of(const struct walker *w, const struct operand *o, int64_t weight, int arena,
                      struct region *out) {
  *out = (struct region){.part = 1};
  if (o->place == PLACE_WEIGHT) {
    out->offset = w->weight_chunk[o->weight[0]] * w->cache.chunk, out->bytes = weight;
    out->weight = true;
    return true;
  }
  if (o->place != PLACE_ARENA) return false;
  out->offset = arena * w->arena_chunks * w->cache.chunk + o->offset_bytes;
  out->bytes = operand_bytes(w, o);
  out->part = o->stride > 0 ? (double)o->cols / (double)o->stride : 1;
  return out->bytes > 0;
}

// Columns of one wide buffer are one region.
static int add_region(struct region *regions, int n, const struct region *r) {
  for (int i = 0; i < n; i++) {
    struct region *o = &regions[i];
    bool overlap = r->offset < o->offset + o->bytes && o->offset < r->offset + r->bytes;
    if (o->write != r->write || !overlap) continue;
    if (r->offset == o->offset && r->bytes == o->bytes) return n; // the same data again
    int64_t end = o->offset + o->bytes, other = r->offset + r->bytes;
    if (r->offset < o->offset) o->offset = r->offset;
    o->bytes = (end > other ? end : other) - o->offset;
    o->part = o->part + r->part < 1 ? o->part + r->part : 1;
    return n;
  }
  regions[n] = *r;
  return n + 1;
}

// The part [from, to) of a region, in fractions of it.
static void walk_part(struct cache *c, const struct region *r, double from, double to) {
  int64_t begin = r->offset + (int64_t)((double)r->bytes * from),
          end = r->offset + (int64_t)((double)r->bytes * to);
  int64_t chunk = c->chunk;
  // all of its chunks together count as its bytes
  int64_t n = (r->offset + r->bytes + chunk - 1) / chunk - r->offset / chunk;
  double part = n > 0 ? r->part * (double)r->bytes / (double)(n * chunk) : 0;
  // a chunk belongs to the part in which it begins, the first to whoever has it
  int64_t first = from > 0 ? (begin + chunk - 1) / chunk : begin / chunk;
  for (int64_t i = first; i * chunk < end; i++)
    touch(c, (int32_t)i, part, r->write);
}

// ---- steps ----
#define STEP_REGIONS (STEP_MAX_IN + STEP_MAX_OUT)
#define PART_BYTES 262144 // of each operand that all blocks of a kernel work on at a time

static void gather(struct walker *w, const struct step *step, int i) {
  // Rows anywhere in a table: taken as not cached, but each found when it is gathered again.
  const struct operand *table = &step->in[i];
  int64_t rows = rows_of(w, step_row_space(step, i));
  if (w->cache_facts->bytes != 0 && table->n_rows > 0 && rows > table->n_rows) rows = table->n_rows;
  w->cache.steps[w->cache.step].now.read +=
      (double)rows * table->cols * (double)dtype_bytes(table->dtype);
}

static int step_regions(struct walker *w, const struct step *step, int arena,
                        struct region *regions) {
  struct region r;
  int n = 0;
  for (int i = 0; i < step->n_in; i++) {
    if (is_table(step, i)) {
      gather(w, step, i);
    } else if (region_of(w, &step->in[i], weight_bytes(step, i), arena, &r)) {
      n = add_region(regions, n, &r);
    }
  }
  for (int i = 0; i < step->n_out; i++) {
    if (!region_of(w, &step->out[i], 0, arena, &r)) continue;
    r.write = true;
    n = add_region(regions, n, &r);
  }
  return n;
}

// All operands side by side, from row to row; what rows share, weights, at the first.
static void walk_rows(struct walker *w, const struct region *regions, int n, double from,
                      double to) {
  int64_t most = 1;
  for (int i = 0; i < n; i++) {
    if (regions[i].weight)
      walk_part(&w->cache, &regions[i], 0, 1);
    else if (regions[i].bytes > most)
      most = regions[i].bytes;
  }
  double part = w->cache.chunk > PART_BYTES ? (double)w->cache.chunk : PART_BYTES;
  int parts = (int)((double)most * (to - from) / part) + 1;
  for (int p = 0; p < parts; p++) {
    for (int i = 0; i < n; i++) {
      if (!regions[i].weight)
        walk_part(&w->cache, &regions[i], from + (to - from) * p / parts,
                  from + (to - from) * (p + 1) / parts);
    }
  }
}

// Groups of rows, each with all of W; what that reads again is read_again's.
static void walk_product(struct walker *w, const struct step *step, const struct product_walk *walk,
                         struct region *regions, int n) {
  int64_t m = rows_of(w, step->rows), rows = walk->rows > 0 ? walk->rows : m;
  if (rows < m / MOST_GROUPS) rows = m / MOST_GROUPS; // W is touched often enough to stay or to go
  for (int64_t row = 0; row < m; row += rows) {
    walk_rows(w, regions, n, (double)row / (double)m,
              row + rows < m ? (double)(row + rows) / (double)m : 1);
    for (int i = 0; i < n; i++)
      if (regions[i].weight) regions[i].part = 0;
  }
}

// ---- formulas ----
// The share that is not found any more, of what comes round after so many bytes. The slopes are
// measured ones (docs/TRAFFIC.md).
static double missed(double passed, double held, double middle, double slope) {
  return held <= 0 ? 1 : 1 / (1 + exp((middle - passed / held) / slope));
}

struct cache_facts cache_facts_of(const struct device_rates *rates) {
  double bytes = (double)rates->cache_bytes;
  return (struct cache_facts){(int64_t)(rates->kept * bytes), rates->kept_product * bytes};
}

// Half is lost when a tensor and the one made of it, of the same size, fill the cache: copies of 20
// MB lose 22 %, of 24 MB 78 %, in a cache that holds 46.
double expected_lost(double passed, const struct cache_facts *cache) {
  return cache->bytes < 0 ? 0 : missed(2 * passed, (double)cache->bytes, 0.96, 0.07);
}

// Of x, by the library's product, each time that it comes round: most of it where x and three
// groups of columns of W do not fit, a fifth where they do but the result that streams by does not.
// Fitted to nine products by themselves and to those of encoder stacks (docs/TRAFFIC.md).
static double roughly_lost(double operands, double result, double held) {
  if (held <= 0) return 1;
  double large = missed(operands, held, 1.53, 0.15);
  return 0.63 * large + 0.2 * (1 - large) * missed(result, held, 1.85, 0.1);
}

double product_read_again(const struct product_sizes *sizes, const struct product_walk *walk,
                          const struct cache_facts *cache) {
  double m = sizes->m, n = sizes->n, es = sizes->x_bytes, y_es = sizes->y_bytes;
  double rows = walk->rows > 0 && walk->rows < m ? walk->rows : m,
         cols = walk->cols > 0 && walk->cols < n ? walk->cols : n;
  if (m <= 0 || cache->bytes < 0) return 0;
  double x = rows * sizes->k * es, all_w = n * sizes->k * es, some_w = cols * sizes->k * es;
  double lost_w = missed(x + all_w + rows * n * y_es, cache->product_bytes, 1.05, 0.09),
         lost_x = missed(x + some_w + rows * cols * y_es, cache->product_bytes, 0.98, 0.09);
  double again_w = ceil(m / rows) - 1, again_x = ceil(n / cols) - 1;
  if (walk->roughly) {
    lost_x = roughly_lost(x + 3 * some_w, m * n * y_es, (double)cache->bytes);
    if (again_x < 0.15) again_x = 0.15; // even a single group of columns
  }
  return again_w * all_w * lost_w + again_x * m * sizes->k * es * lost_x;
}

// Of an element of what a product's blocks write. A result that is saved on the way to the last
// counts by three quarters (fitted to the one product with two that was counted).
static double result_bytes(const struct step *step) {
  int saved = step_saved(step);
  double bytes = (double)dtype_bytes(step->out[saved].dtype);
  for (int i = 0; i < saved; i++)
    bytes += 0.75 * (double)dtype_bytes(step->out[i].dtype);
  return bytes;
}

static double read_again(const struct walker *w, const struct step *step,
                         const struct product_walk *walk) {
  const struct linear_problem *p = &step->linear;
  struct product_sizes sizes = {.m = (double)rows_of(w, step->rows),
                                .n = p->n,
                                .k = p->k,
                                .x_bytes = (double)dtype_bytes(p->x_dtype),
                                .y_bytes = result_bytes(step)};
  return product_read_again(&sizes, walk, w->cache_facts);
}

static void walk_batch(struct walker *w, int arena) {
  for (int32_t s = 0; s < w->plan->n_steps; s++) {
    const struct step *step = &w->plan->steps[s];
    struct region regions[STEP_REGIONS];
    if (!(step->needed_by & w->batch->outputs)) continue;
    w->cache.step = s;
    int n = step_regions(w, step, arena, regions);
    if (step->kind == STEP_LINEAR && w->walks) {
      walk_product(w, step, &w->walks[s], regions, n);
      w->cache.steps[s].now.read += read_again(w, step, &w->walks[s]);
    } else {
      walk_rows(w, regions, n, 0, 1);
    }
  }
}

// ---- all of it ----
static enum status number_chunks(struct walker *w, int64_t *n_chunks) {
  const struct plan *plan = w->plan;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    for (int i = 0; i < plan->steps[s].n_in; i++) {
      const struct operand *o = &plan->steps[s].in[i];
      if (o->place == PLACE_WEIGHT && o->weight[0] >= w->n_weights) w->n_weights = o->weight[0] + 1;
    }
  }
  w->weight_chunk = calloc((size_t)w->n_weights + 1, sizeof *w->weight_chunk);
  if (!w->weight_chunk) return STATUS_RESOURCE_EXHAUSTED;
  w->arena_chunks = w->arena_bytes / w->cache.chunk + 1;
  *n_chunks = w->arena_chunks * w->batch->n_arenas;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    for (int i = 0; i < plan->steps[s].n_in; i++) {
      const struct operand *o = &plan->steps[s].in[i];
      if (o->place != PLACE_WEIGHT || w->weight_chunk[o->weight[0]] || is_table(&plan->steps[s], i))
        continue;
      w->weight_chunk[o->weight[0]] = *n_chunks;
      *n_chunks += weight_bytes(&plan->steps[s], i) / w->cache.chunk + 1;
    }
  }
  return STATUS_OK;
}

// What the steps walk over: bytes in all, those between the columns of a wide buffer too, and how
// far into an arena. A batch may be larger than those that the plan has memory for.
static void measure(struct walker *w, double *walked) {
  *walked = 0;
  w->arena_bytes = w->plan->arena_bytes;
  for (int32_t s = 0; s < w->plan->n_steps; s++) {
    const struct step *step = &w->plan->steps[s];
    if (!(step->needed_by & w->batch->outputs)) continue;
    for (int i = 0; i < step->n_in + step->n_out; i++) {
      const struct operand *o = i < step->n_in ? &step->in[i] : &step->out[i - step->n_in];
      if (o->place == PLACE_WEIGHT && i < step->n_in && !is_table(step, i))
        *walked += (double)weight_bytes(step, i);
      if (o->place != PLACE_ARENA) continue;
      int64_t bytes = operand_bytes(w, o);
      *walked += (double)bytes;
      if (o->offset_bytes + bytes > w->arena_bytes) w->arena_bytes = o->offset_bytes + bytes;
    }
  }
}

// As fine as the time allows.
static int64_t chunk_of(struct walker *w, int64_t cache_bytes) {
  const struct expected_batch *batch = w->batch;
  struct traffic_total sum =
      plan_traffic(w->plan, batch->outputs, batch->n_tokens, batch->n_seqs, batch->sum_sq);
  double moved = sum.read_bytes + sum.write_bytes, walked,
         most = (double)MOST_STEP_CHUNKS * w->plan->n_steps;
  int64_t chunk = LEAST_CHUNK;
  measure(w, &walked);
  if (most < MOST_CHUNKS) most = MOST_CHUNKS;
  while (moved / (double)chunk > MOST_CHUNKS && 2 * chunk * WAYS <= cache_bytes)
    chunk *= 2;
  while (walked / (double)chunk > most ||
         (double)w->arena_bytes * batch->n_arenas / (double)chunk > MOST_ARENA_CHUNKS)
    chunk *= 2;
  return chunk;
}

enum status plan_expected_steps(const struct plan *plan, const struct cache_facts *cache,
                                const struct product_walk *walks,
                                const struct expected_batch *batch, struct step_expected *steps) {
  struct walker w = {.cache_facts = cache, .plan = plan, .walks = walks, .batch = batch};
  int64_t n_chunks = 0;
  w.cache.chunk = chunk_of(&w, cache->bytes);
  w.cache.steps = steps;
  enum status status = number_chunks(&w, &n_chunks);
  if (status == STATUS_OK) status = cache_init(&w.cache, cache->bytes, n_chunks);
  for (int round = 0; status == STATUS_OK && round < 2; round++) { // the second: the steady state
    memset(steps, 0, (size_t)plan->n_steps * sizeof *steps);
    for (int arena = 0; arena < batch->n_arenas; arena++)
      walk_batch(&w, arena);
  }
  for (int32_t s = 0; s < plan->n_steps; s++) {
    steps[s].now.read /= batch->n_arenas, steps[s].now.write /= batch->n_arenas;
    steps[s].own_write /= batch->n_arenas;
  }
  cache_free(&w.cache);
  free(w.weight_chunk);
  return status;
}

enum status plan_expected(const struct plan *plan, const struct cache_facts *cache,
                          const struct product_walk *walks, const struct expected_batch *batch,
                          struct expected *steps, struct expected *total) {
  struct step_expected *of = calloc((size_t)plan->n_steps + 1, sizeof *of);
  if (!of) return STATUS_RESOURCE_EXHAUSTED;
  enum status status = plan_expected_steps(plan, cache, walks, batch, of);
  *total = (struct expected){0, 0};
  for (int32_t s = 0; s < plan->n_steps && status == STATUS_OK; s++) {
    total->read += of[s].now.read, total->write += of[s].now.write;
    if (steps) steps[s] = of[s].now;
  }
  free(of);
  return status;
}
