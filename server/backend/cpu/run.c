// Execution of a bound plan by the whole team: every thread walks the segments, and takes pieces of
// each.
//
// A segment of row-local steps is cut into tiles of rows. Each thread takes tiles through all steps
// of the segment, with intermediates in its own tile scratch and no barrier. Who finds no tile left
// helps the others with theirs: they lay each step out on their desk (desk.h), a product by
// columns, a row program by rows. So few rows (one tile) are shared by all threads from the first
// step on. Attention steps are pieces of (sequence, head, queries).
//
// Nothing waits for a thread, only for work that a thread has taken: one that was interrupted, or
// whose core is slow, takes less and delays nobody.
#include "backend/cpu/cpu_device.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/cpu/epilogue.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

struct execution {
  struct lane *lane;
  const struct bound_plan *bound;
  const struct batch_geometry *geometry;
  uint8_t outputs;
  _Atomic bool failed;
};

struct worker {
  struct execution *e;
  int index, n;
  struct thread_space *space;
  char *tile;       // tile scratch in use: its own, or that of a thread it helps
  int64_t tile_row; // first row of the tile
};

static int64_t rows_of(const struct execution *e, enum row_kind rows) {
  return rows == ROWS_SEQS ? e->geometry->n_seqs : e->geometry->n_tokens;
}

// A view whose data is row `row` of the operand.
static struct view operand_view(const struct worker *w, const struct bound_step *b,
                                const struct operand *operand, int in, int64_t row) {
  struct view v = {.stride = operand->stride, .cols = operand->cols, .dtype = operand->dtype};
  int64_t row_bytes = operand->stride * (int64_t)dtype_bytes(operand->dtype);
  switch (operand->place) {
  case PLACE_ARENA:
    v.data = w->e->lane->arena + operand->offset_bytes + row * row_bytes;
    break;
  case PLACE_TILE:
    v.data = w->tile + operand->offset_bytes + (row - w->tile_row) * row_bytes;
    break;
  case PLACE_WEIGHT:
    FW_ASSERT(in >= 0);
    v.data = b->weights[in], v.stride = operand->cols;
    break;
  case PLACE_POSITIONS:
    v.data = (void *)(uintptr_t)(w->e->geometry->positions + row), v.stride = 1;
    break;
  default:
    break;
  }
  return v;
}

static bool starts_at_zero(enum row_input_class cls) {
  return cls != IN_FULL && cls != IN_PER_ROW;
}

static void run_row_step(const struct worker *w, const struct bound_step *b, int64_t row,
                         int64_t n_rows) {
  const struct step *step = b->step;
  struct view inputs[STEP_MAX_IN], outputs[STEP_MAX_OUT];
  for (int i = 0; i < step->n_in; i++) {
    const struct row_input *input = step_row_input(step, i);
    bool whole = (b->before && i >= step->before_in) || (input && starts_at_zero(input->cls));
    inputs[i] = operand_view(w, b, &step->in[i], i, whole ? 0 : row);
  }
  for (int i = 0; i < step->n_out; i++)
    outputs[i] = operand_view(w, b, &step->out[i], -1, row);
  struct row_before before = {.kernel = b->before};
  if (b->before) {
    before.inputs = inputs + step->before_in, before.n_inputs = step->n_in - step->before_in;
    before.table_rows = b->weight_rows + step->before_in;
    before.rows = w->space->finish;
    before.scratch = before.rows + row_before_floats(b->before);
  }
  struct row_call call = {.inputs = inputs,
                          .before = &before,
                          .outputs = outputs,
                          .table_rows = b->weight_rows,
                          .row0 = row,
                          .n_rows = n_rows,
                          .geometry = w->e->geometry,
                          .scratch = w->space->kernel};
  w->e->bound->device->ops->row_run(b->row, &call);
}

struct finish_views {
  struct view inputs[STEP_MAX_IN], outputs[STEP_MAX_OUT];
  struct finish finish;
};

// What the step does on its result before it is written, from row `row` on; NULL: nothing.
static const struct finish *finish_of(const struct worker *w, const struct bound_step *b,
                                      int64_t row, struct finish_views *views) {
  const struct step *step = b->step;
  if (!b->finish) return NULL;
  for (int i = step->finish_in; i < step->n_in; i++) {
    enum row_input_class cls = step->finish.inputs[i - step->finish_in + 1].cls;
    views->inputs[i - step->finish_in] =
        operand_view(w, b, &step->in[i], i, starts_at_zero(cls) ? 0 : row);
  }
  for (int i = 0; i < step->n_out; i++)
    views->outputs[i] = operand_view(w, b, &step->out[i], -1, row);
  views->finish = (struct finish){.kernel = b->finish,
                                  .inputs = views->inputs,
                                  .outputs = views->outputs,
                                  .scratch = w->space->finish,
                                  .row_run = w->e->bound->device->ops->row_run};
  return &views->finish;
}

static void run_product(const struct worker *w, const struct bound_step *b, int32_t unit,
                        int32_t n_units, int64_t row, int64_t n_rows, const void *next) {
  const struct step *step = b->step;
  struct view operands[EPILOGUE_MAX];
  for (int i = 0; i < step->linear.n_epilogue; i++) {
    uint8_t kind = step->linear.epilogue[i].kind;
    if (kind != EPI_BIAS && kind != EPI_ADD && kind != EPI_MUL) continue;
    int in = step->linear.epilogue[i].operand;
    operands[i] = operand_view(w, b, &step->in[in], in, row);
  }
  struct finish_views views;
  struct product_run run = {.thread = w->index,
                            .unit = unit,
                            .n_units = n_units,
                            .next = next,
                            .rows = (int32_t)n_rows,
                            .x = operand_view(w, b, &step->in[0], 0, row).data,
                            .y = operand_view(w, b, &step->out[0], -1, row).data,
                            .operands = operands,
                            .workspace = w->space->product,
                            .finish = finish_of(w, b, row, &views)};
  if (!product_run(b->product, &run))
    atomic_store_explicit(&w->e->failed, true, memory_order_relaxed);
}

// The thread's own processor time, so that a step is not charged for what else the machine does.
static int64_t thread_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int64_t timing_start(const struct worker *w) {
  return w->e->bound->device->timing ? thread_ns() : 0;
}

static void timing_stop(const struct worker *w, int32_t step, int64_t start) {
  if (start) w->space->step_ns[step] += thread_ns() - start;
}

static int64_t wait_start(const struct worker *w) {
  return w->e->bound->device->timing ? clock_now_ns() : 0;
}

static void wait_stop(const struct worker *w, int64_t start) {
  if (start) w->space->wait_ns += clock_now_ns() - start;
}

static bool is_needed(const struct worker *w, int32_t step) {
  return w->e->bound->plan->steps[step].needed_by & w->e->outputs;
}

// ---- tiles ----
#define SHARED_ROWS 8 // rows of one unit of a row step

// A row that is made from all tokens of a sequence is a unit of its own.
static int32_t unit_rows(const struct bound_step *b) {
  return b->before ? 1 : SHARED_ROWS;
}

struct tile {
  const struct segment *segment;
  struct segment_state *state;
  int64_t n_tiles, row, n_rows;
};

// All rows of one tile through one step, by one thread.
static void run_step_alone(const struct worker *w, const struct tile *tile, int32_t index) {
  const struct bound_step *b = &w->e->bound->steps[index];
  int64_t start = timing_start(w);
  if (b->step->kind == STEP_ROW) {
    run_row_step(w, b, tile->row, tile->n_rows);
  } else {
    bool last = index + 1 == tile->segment->first + tile->segment->count;
    const struct product *next = last ? tile->segment->product : b->next;
    run_product(w, b, 0, product_units(b->product), tile->row, tile->n_rows,
                next ? product_unit_weights(next, 0) : NULL);
  }
  timing_stop(w, index, start);
}

// The weights that this thread wants after a claim: what follows in its range, or its range of the
// next product.
static const void *weights_after(const struct worker *w, const struct bound_step *b,
                                 const struct desk_claim *claim) {
  if (claim->next >= 0) return product_unit_weights(b->product, claim->next);
  if (!b->next) return NULL;
  return product_unit_weights(b->next, desk_first(product_units(b->next), w->index, w->n));
}

// Takes some units of what lies on a desk, and does them. False: there are none.
static bool run_units(const struct worker *w, struct desk *desk) {
  struct desk_claim claim;
  if (!desk_take(desk, w->index, &claim)) return false;
  const struct desk_job *job = &claim.job;
  const struct bound_step *b = &w->e->bound->steps[job->step];
  struct worker helper = *w;
  helper.tile = job->tile, helper.tile_row = job->row;
  int64_t start = timing_start(w);
  if (b->step->kind == STEP_ROW) {
    int64_t begin = (int64_t)claim.unit * unit_rows(b),
            end = begin + (int64_t)claim.n_units * unit_rows(b);
    if (end > job->n_rows) end = job->n_rows;
    run_row_step(&helper, b, job->row + begin, end - begin);
  } else {
    run_product(&helper, b, claim.unit, claim.n_units, job->row, job->n_rows,
                weights_after(w, b, &claim));
  }
  timing_stop(w, job->step, start);
  desk_done(desk, w->e->bound->device->team, claim.n_units);
  return true;
}

_Static_assert(PRODUCT_UNITS_MAX <= DESK_UNITS_MAX, "every product fits on a desk");

static void run_step_shared(const struct worker *w, const struct tile *tile, int32_t index) {
  struct device *device = w->e->bound->device;
  struct desk *desk = desk_of(device->desks, w->index);
  const struct bound_step *b = &w->e->bound->steps[index];
  struct desk_job job = {index, (int32_t)tile->n_rows, tile->row, w->tile};
  int32_t units = b->step->kind == STEP_ROW
                      ? (int32_t)((tile->n_rows + unit_rows(b) - 1) / unit_rows(b))
                      : product_units(b->product);
  desk_lay(desk, &job, units, w->index, tile->n_tiles == 1);
  while (run_units(w, desk)) {
  }
  int64_t start = wait_start(w);
  desk_wait(desk, device->team);
  wait_stop(w, start);
}

static void run_tile(struct worker *w, const struct tile *tile) {
  w->tile = w->space->tile;
  w->tile_row = tile->row;
  const struct segment *segment = tile->segment;
  for (int32_t i = segment->first; i < segment->first + segment->count; i++) {
    if (!is_needed(w, i)) continue;
    bool others_idle =
        atomic_load_explicit(&tile->state->next, memory_order_relaxed) >= tile->n_tiles;
    if (w->n > 1 && others_idle)
      run_step_shared(w, tile, i);
    else
      run_step_alone(w, tile, i);
  }
}

static bool help_others(const struct worker *w) {
  for (int i = 1; i < w->n; i++)
    if (run_units(w, desk_of(w->e->bound->device->desks, (w->index + i) % w->n))) return true;
  return false;
}

// Until all pieces of a segment are done.
static void wait_pieces(const struct worker *w, struct segment_state *state, uint32_t n_pieces,
                        bool help) {
  int64_t start = wait_start(w), helped = 0;
  struct team *team = w->e->bound->device->team;
  for (int spins = 0; atomic_load_explicit(&state->done, memory_order_acquire) != n_pieces;) {
    int64_t begin = wait_start(w);
    if (help && help_others(w)) {
      spins = 0;
      if (begin) helped += clock_now_ns() - begin;
    } else if (++spins < team_spins(team))
      team_relax();
    else
      team_doze(team, &state->done, n_pieces);
  }
  wait_stop(w, start ? start + helped : 0);
}

static void run_tiles(struct worker *w, const struct segment *segment, struct segment_state *state,
                      int64_t n_rows) {
  // Tiles of equal height, and as many as the threads can share evenly; few rows make one, which
  // all share.
  int64_t n_tiles = (n_rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
  if (n_tiles > 1) n_tiles = (n_tiles + w->n - 1) / w->n * w->n;
  struct tile tile = {.segment = segment, .state = state, .n_tiles = n_tiles};
  for (;;) {
    int64_t t = atomic_fetch_add_explicit(&state->next, 1, memory_order_relaxed);
    if (t >= n_tiles) break;
    tile.row = n_rows * t / n_tiles;
    tile.n_rows = n_rows * (t + 1) / n_tiles - tile.row;
    if (tile.n_rows > 0) run_tile(w, &tile);
    team_count(w->e->bound->device->team, &state->done, 1, (uint32_t)n_tiles);
  }
  wait_pieces(w, state, (uint32_t)n_tiles, true);
}

// ---- attention ----
static void attention_piece(const struct worker *w, const struct bound_step *b, int32_t seq,
                            int32_t head, int32_t first) {
  const struct step *step = b->step;
  const struct cpu_ops *ops = w->e->bound->device->ops;
  const int32_t *cu = w->e->geometry->cu_seqlens;
  int32_t left = cu[seq + 1] - cu[seq] - first;
  struct attention_call call = {.problem = &step->attention,
                                .geometry = w->e->geometry,
                                .seq = seq,
                                .head = head,
                                .first = first,
                                .count = left < ATTENTION_QUERIES ? left : ATTENTION_QUERIES,
                                .scratch = w->space->kernel};
  struct finish_views views;
  switch (step->kind) {
  case STEP_ATTENTION:
    call.q = operand_view(w, b, &step->in[0], 0, 0);
    call.k = operand_view(w, b, &step->in[1], 1, 0);
    call.v = operand_view(w, b, &step->in[2], 2, 0);
    call.o = operand_view(w, b, &step->out[0], -1, 0);
    call.finish = finish_of(w, b, 0, &views);
    ops->attention_run(&call);
    break;
  case STEP_SCORES:
    call.q = operand_view(w, b, &step->in[0], 0, 0);
    call.k = operand_view(w, b, &step->in[1], 1, 0);
    call.scores = operand_view(w, b, &step->out[0], -1, 0).data;
    ops->scores_run(&call);
    break;
  case STEP_CONTEXT:
    call.scores = operand_view(w, b, &step->in[0], 0, 0).data;
    call.v = operand_view(w, b, &step->in[1], 1, 0);
    call.o = operand_view(w, b, &step->out[0], -1, 0);
    ops->context_run(&call);
    break;
  default:
    call.scores = operand_view(w, b, &step->out[0], -1, 0).data;
    if (step->kind == STEP_SCORES_SCALE)
      ops->scale_run(&call);
    else
      ops->softmax_run(&call);
    break;
  }
}

static void run_attention(const struct worker *w, int32_t index, struct segment_state *state) {
  const struct bound_step *b = &w->e->bound->steps[index];
  const struct batch_geometry *g = w->e->geometry;
  int64_t start = timing_start(w), base = 0; // base: pieces before sequence `seq`
  uint32_t mine = 0;
  int64_t piece = atomic_fetch_add_explicit(&state->next, 1, memory_order_relaxed);
  for (int32_t seq = 0; seq < g->n_seqs; seq++) {
    int32_t length = g->cu_seqlens[seq + 1] - g->cu_seqlens[seq];
    int32_t tiles = (length + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
    int64_t pieces = (int64_t)tiles * b->step->attention.heads;
    while (piece < base + pieces) {
      int64_t at = piece - base;
      attention_piece(w, b, seq, (int32_t)(at / tiles), (int32_t)(at % tiles) * ATTENTION_QUERIES);
      mine++;
      piece = atomic_fetch_add_explicit(&state->next, 1, memory_order_relaxed);
    }
    base += pieces;
  }
  timing_stop(w, index, start);
  if (mine) team_count(w->e->bound->device->team, &state->done, mine, (uint32_t)base);
  wait_pieces(w, state, (uint32_t)base, false);
}

// ---- the walk ----
static void run_thread(void *arg, int index) {
  struct execution *e = arg;
  const struct bound_plan *bound = e->bound;
  struct worker w = {
      .e = e, .index = index, .n = team_size(bound->device->team), .space = &bound->threads[index]};
  if (bound->device->timing) {
    memset(w.space->step_ns, 0, (size_t)bound->plan->n_steps * sizeof(int64_t));
    w.space->wait_ns = 0;
  }
  for (int32_t i = 0; i < bound->n_segments; i++) {
    const struct segment *segment = &bound->segments[i];
    if (!(segment->needed_by & e->outputs)) continue;
    if (segment->row_local)
      run_tiles(&w, segment, &bound->states[i],
                rows_of(e, bound->plan->steps[segment->first].rows));
    else
      run_attention(&w, segment->first, &bound->states[i]);
  }
}

// The team's first thread is whoever calls: the executor, which neither opened the device nor
// loaded the plan, and OpenMP's thread count is a setting of each thread.
static void caller_init(void) {
  static _Thread_local bool ready;
  if (ready) return;
  product_thread_init();
  ready = true;
}

enum status cpu_run(struct lane *lane, const struct bound_plan *bound,
                    const struct batch_geometry *geometry, uint8_t outputs) {
  FW_ASSERT(geometry->n_tokens >= 1 && geometry->n_tokens <= bound->plan->limits.max_tokens);
  FW_ASSERT(geometry->n_seqs >= 1 && geometry->n_seqs <= bound->plan->limits.max_seqs);
  FW_ASSERT(bound->plan->arena_bytes <= lane->arena_bytes);
  caller_init();
  int64_t start = clock_now_ns();
  for (int32_t i = 0; i < bound->n_segments; i++) {
    atomic_store_explicit(&bound->states[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&bound->states[i].done, 0, memory_order_relaxed);
  }
  struct execution e = {.lane = lane, .bound = bound, .geometry = geometry, .outputs = outputs};
  team_run(bound->device->team, run_thread, &e);
  lane->times.compute_ns += clock_now_ns() - start;
  return atomic_load_explicit(&e.failed, memory_order_relaxed) ? STATUS_INTERNAL : STATUS_OK;
}
