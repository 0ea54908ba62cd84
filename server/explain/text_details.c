// The second half of the text: edges with their reasons, memory, batch sizes, the roofline.
#include "explain/facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- parts of both halves ----
void text_heading(struct out *out, const char *title) {
  out_add(out, "\n\n%s\n", title);
  out_fill(out, '-', (int)strlen(title));
  out_raw(out, "\n");
}

void text_gutter(struct out *out, const struct fold *fold, int32_t at) {
  if (fold->times == 1)
    out_raw(out, "         ");
  else if (at == 0)
    out_add(out, "%5dx | ", fold->times);
  else
    out_raw(out, "       | ");
}

// ---- edges ----
enum edge_state { EDGE_FUSED, EDGE_CHAINED, EDGE_APART, EDGE_STATES };
static const char *const edge_words[EDGE_STATES] = {"fused", "chained", "apart"};

static enum edge_state edge_state(const struct decision *decision) {
  return decision->fused ? EDGE_FUSED : decision->chained ? EDGE_CHAINED : EDGE_APART;
}

// Edges that differ in their layer only are one line.
struct edge_line {
  uint64_t alike;
  int32_t first, count;    // the first edge of the kind, and how many
  double apart_us, one_us; // of all
  bool shown;
};

static int by_kind(const void *left, const void *right) {
  const struct edge_line *a = left, *b = right;
  if (a->alike != b->alike) return a->alike < b->alike ? -1 : 1;
  return (a->first > b->first) - (a->first < b->first);
}

static int by_place(const void *left, const void *right) {
  const struct edge_line *a = left, *b = right;
  return (a->first > b->first) - (a->first < b->first);
}

// The kinds of edges in the order of their first ones; how many.
static int32_t edge_kinds(const struct facts *facts, struct edge_line *lines) {
  int32_t n = 0;
  for (int32_t e = 0; e < facts->n_edges; e++)
    lines[e] = (struct edge_line){.alike = facts->edges[e].alike,
                                  .first = e,
                                  .count = 1,
                                  .apart_us = facts->edges[e].apart.us,
                                  .one_us = facts->edges[e].fused.us};
  qsort(lines, (size_t)facts->n_edges, sizeof *lines, by_kind);
  for (int32_t e = 0; e < facts->n_edges; e++) {
    if (n == 0 || lines[n - 1].alike != lines[e].alike) {
      lines[n++] = lines[e];
      continue;
    }
    lines[n - 1].count++;
    lines[n - 1].apart_us += lines[e].apart_us;
    lines[n - 1].one_us += lines[e].one_us;
  }
  qsort(lines, (size_t)n, sizeof *lines, by_place);
  return n;
}

// "relu a -> add b" in EDGE_WIDTH: where that is too little, both names lose what they must.
enum { EDGE_WIDTH = 72 };

static void edge_ends(const struct node *from, const struct node *to, const char *arrow,
                      const struct tensor *tensors, char ends[EDGE_WIDTH + 1]) {
  const char *first = tensors[from->out].name, *second = tensors[to->out].name;
  char left[EDGE_WIDTH + 1], right[EDGE_WIDTH + 1];
  int room =
      EDGE_WIDTH - (int)(strlen(op_name(from->op)) + strlen(op_name(to->op)) + strlen(arrow) + 4);
  int a = (int)strlen(first), b = (int)strlen(second);
  if (a + b > room) {
    int half = room / 2;
    a = a < half ? a : b < half ? room - b : half;
    b = room - a < b ? room - a : b;
  }
  snprintf(ends, EDGE_WIDTH + 1, "%s %s %s %s %s", op_name(from->op),
           out_name(first, a, left, sizeof left), arrow, op_name(to->op),
           out_name(second, b, right, sizeof right));
}

static void edge_text(const struct facts *facts, const struct edge_line *line, struct out *out) {
  const struct graph *graph = &facts->model->graph;
  const struct fact_edge *edge = &facts->edges[line->first];
  const struct node *from = &graph->nodes[edge->decision->producer],
                    *to = &graph->nodes[edge->decision->consumer];
  char ends[EDGE_WIDTH + 1], a[OUT_NUMBER], b[OUT_NUMBER];
  edge_ends(from, to, edge->beside ? "beside" : "->", graph->tensors, ends);
  if (line->count > 1)
    out_add(out, "%5dx   ", line->count);
  else
    out_raw(out, "         ");
  out_add(out, "%-*s", EDGE_WIDTH, ends);
  if (edge->beside)
    out_add(out, " %10s %9s", "", "");
  else
    out_add(out, " %10s %9s", out_bytes(edge->bytes[SIDE_OFF], a),
            out_bytes(edge->bytes[SIDE_FUSED], b));
  if (edge->weighed)
    out_add(out, " %9s %9s", out_us(line->apart_us / line->count, a),
            out_us(line->one_us / line->count, b));
  out_raw(out, "\n");
}

static bool same_reason(const struct decision *a, const struct decision *b) {
  return a->fused == b->fused && strcmp(a->reason, b->reason) == 0;
}

static void reason_text(const struct facts *facts, struct edge_line *lines, int32_t n,
                        int32_t first, struct out *out) {
  const struct decision *said = facts->edges[lines[first].first].decision;
  int32_t count = 0;
  for (int32_t i = first; i < n; i++)
    if (same_reason(said, facts->edges[lines[i].first].decision)) count += lines[i].count;
  out_add(out, "\n    %s: %s (%d)\n", edge_words[edge_state(said)], said->reason, count);
  for (int32_t i = first; i < n; i++) {
    if (!same_reason(said, facts->edges[lines[i].first].decision)) continue;
    edge_text(facts, &lines[i], out);
    lines[i].shown = true;
  }
}

static void edges_text(const struct facts *facts, struct out *out) {
  struct edge_line *lines = calloc((size_t)facts->n_edges + 1, sizeof *lines);
  int32_t n_of[EDGE_STATES] = {0};
  double bytes[SIDES] = {0};
  char a[OUT_NUMBER], b[OUT_NUMBER];
  if (!lines) {
    out->failed = STATUS_RESOURCE_EXHAUSTED;
    return;
  }
  for (int32_t e = 0; e < facts->n_edges; e++) {
    n_of[edge_state(facts->edges[e].decision)]++;
    for (int mode = 0; mode < SIDES; mode++)
      bytes[mode] += facts->edges[e].bytes[mode];
  }
  text_heading(out, "Edges: what passes between operations, fused or not, and why");
  out_add(out,
          "%d of %d edges are fused, %d chained (two kernels, nothing through memory), %d apart.\n"
          "What passes along all of them moves %s through memory one op at a time, %s fused.",
          n_of[EDGE_FUSED], facts->n_edges, n_of[EDGE_CHAINED], n_of[EDGE_APART],
          out_bytes(bytes[SIDE_OFF], a), out_bytes(bytes[SIDE_FUSED], b));
  if (facts->plans[SIDE_OFF].score_bytes > 0)
    out_add(out, "\nInside attention, score matrices move %s and %s.",
            out_bytes(facts->plans[SIDE_OFF].score_bytes, a),
            out_bytes(facts->plans[SIDE_FUSED].score_bytes, b));
  out_add(out,
          "\nPredicted times are of the two kernels apart and of the one, where both were "
          "possible, each by itself:\nits operands come from main memory, but for what the first "
          "leaves in the cache for the second.\n\n         %-*s %10s %9s %9s %9s\n",
          EDGE_WIDTH, "from -> to", "one a time", "fused", "two", "one");
  int32_t n = edge_kinds(facts, lines);
  for (int state = 0; state < EDGE_STATES; state++)
    for (int32_t i = 0; i < n; i++)
      if (!lines[i].shown && (int)edge_state(facts->edges[lines[i].first].decision) == state)
        reason_text(facts, lines, n, i, out);
  free(lines);
}

// ---- memory ----
static const char *life_end(int32_t at, int32_t n, char *text) {
  if (at < 0)
    snprintf(text, 16, "in");
  else if (at >= n)
    snprintf(text, 16, "out");
  else
    snprintf(text, 16, "%d", at);
  return text;
}

static void buffer_line(const struct facts *facts, const struct fact_plan *plan,
                        const struct fact_buffer *buffer, struct out *out) {
  char name[64], shape[64], first[16], last[16], life[40], a[OUT_NUMBER];
  snprintf(shape, sizeof shape, "[%s, %d] %s", facts_rows_word(buffer->rows), buffer->cols,
           dtype_name(buffer->dtype));
  snprintf(life, sizeof life, "%s..%s", life_end(buffer->first, plan->plan->n_steps, first),
           life_end(buffer->last, plan->plan->n_steps, last));
  out_add(out, "%-34s %-24s %-6s %12lld %10s   %s\n",
          out_name(facts_tensor_name(facts, buffer->tensor), 34, name, sizeof name), shape,
          buffer->place == PLACE_TILE ? "tile" : "arena", (long long)buffer->offset_bytes,
          out_bytes((double)buffer->bytes, a), life);
}

static void memory_text(const struct facts *facts, const struct fact_plan *plan, const char *title,
                        struct out *out) {
  const struct plan_limits *limits = &plan->plan->limits;
  char a[OUT_NUMBER];
  text_heading(out, title);
  out_add(out, "One arena of %s (%lld bytes)", out_bytes((double)plan->plan->arena_bytes, a),
          (long long)plan->plan->arena_bytes);
  out_add(out, ", laid out for the largest batch: %d %s", limits->max_tokens,
          facts->model->has_sequences ? "tokens" : "rows");
  if (facts->model->has_sequences) out_add(out, " in sequences of up to %d", limits->max_seqlen);
  out_raw(out, ".\nWhat is not needed at the same time shares its place.");
  if (plan->plan->tile_bytes > 0)
    out_add(out, " A tile is a few rows at a time, in %s of scratch\nof each thread.",
            out_bytes((double)plan->plan->tile_bytes, a));
  out_add(out, "\n\n         %-34s %-24s %-6s %12s %10s   %s\n", "holds", "shape", "in", "offset",
          "bytes", "kernels");
  for (int32_t f = 0; f < plan->n_buffer_folds; f++) {
    const struct fold *fold = &plan->buffer_folds[f];
    for (int32_t i = 0; i < fold->period; i++) {
      text_gutter(out, fold, i);
      buffer_line(facts, plan, &plan->buffers[fold->first + i], out);
    }
  }
}

// ---- batch sizes ----
static void sizes_text(const struct facts *facts, struct out *out) {
  const struct fact_sizes *sizes = &facts->sizes;
  if (sizes->n == 0) return;
  char a[OUT_NUMBER];
  long long ran = (long long)sizes->ran_tokens, own = (long long)facts->batch.n_tokens;
  text_heading(out, "Batch sizes that are captured as CUDA graphs");
  out_add(out,
          "A batch of up to %d tokens is replayed as a graph made for the next larger size; larger "
          "ones run at\ntheir own. The rows that fill it up belong to nobody. %d graphs in all, "
          "for %d sizes and",
          sizes->sizes[sizes->n - 1].tokens, sizes->n_graphs, sizes->n);
  if (sizes->n_seqs == 1) out_raw(out, " any number of sequences.\n");
  for (int i = 0; i < sizes->n_seqs && sizes->n_seqs > 1; i++)
    out_add(out, "%s %lld%s", i ? "," : " up to", 1LL << (2 * i),
            i + 1 == sizes->n_seqs ? " sequences.\n" : "");
  out_add(out, "This batch: %lld tokens run as %lld, %.1f %% of the rows wasted, %s of time.\n\n",
          own, ran, 100 * (double)(ran - own) / (double)ran, out_us(sizes->waste_us, a));
  out_add(out, "         %6s   %-14s %12s %12s\n", "size", "for batches of", "worst waste",
          "mean waste");
  for (int32_t i = 0; i < sizes->n; i++) {
    const struct fact_size *size = &sizes->sizes[i];
    char range[40];
    snprintf(range, sizeof range, size->fewest < size->tokens ? "%d..%d" : "%d", size->fewest,
             size->tokens);
    out_add(out, "         %6d   %-14s %10.1f %% %10.1f %%\n", size->tokens, range,
            100 * size->worst, 100 * size->mean);
  }
}

// ---- roofline ----
static void point_line(const struct facts *facts, const struct fact_plan *plan, int32_t index,
                       struct out *out) {
  const struct fact_point *point = &plan->points[index];
  const struct fact_kernel *kernel = &plan->kernels[point->kernel];
  char label[FACTS_LABEL], shown[64], name[FACTS_POINT], x[OUT_NUMBER], a[OUT_NUMBER],
      b[OUT_NUMBER], c[OUT_NUMBER];
  double rate = facts_point_rate(plan, point), roof = facts_roof(facts, kernel);
  snprintf(x, sizeof x, isfinite(kernel->intensity) ? "%.3g" : "-", kernel->intensity);
  out_add(out, "%8s  %4dx %-36s %7s %15s %15s %6.0f %% %9s %5.1f %%\n",
          facts_point_name(plan->side, index, name), point->count,
          out_clean(facts_label(kernel->step, label), 36, shown, sizeof shown), x,
          out_rate(rate, "FLOP", a), out_rate(roof, "FLOP", b), roof > 0 ? 100 * rate / roof : 0,
          out_us(point->us, c), plan->total.us > 0 ? 100 * point->us / plan->total.us : 0);
}

static void roofline_text(const struct facts *facts, struct out *out) {
  const enum dtype compute = facts->model->compute;
  char a[OUT_NUMBER];
  text_heading(out, "Roofline: what bounds each kernel");
  out_add(
      out,
      "A kernel that does few operations for each byte of its operands (FLOP/B) waits for memory: "
      "its roof is\nintensity times %s, or more where it finds them in the cache. Above %.3g "
      "FLOP/B a row program, above\n%.3g a product in %s, is bound by arithmetic. Fusing moves "
      "work to the right: the same operations for fewer bytes.\n\n",
      out_rate(facts_bandwidth(facts), "B", a), facts->rates->vector / facts_bandwidth(facts),
      facts->rates->product[compute] / facts_bandwidth(facts), dtype_name(compute));
  for (int mode = SIDES - 1; mode >= 0; mode--) {
    const struct fact_plan *plan = &facts->plans[mode];
    out_add(out, "%s%8s  %5s %-36s %7s %15s %15s %8s %9s %7s\n", mode == SIDE_OFF ? "\n" : "",
            "point", "", mode == SIDE_FUSED ? "fused" : "one op at a time", "FLOP/B", "predicted",
            "roof", "of it", "in all", "share");
    for (int32_t p = 0; p < plan->n_points; p++)
      point_line(facts, plan, p, out);
  }
}

void explain_text_details(const struct facts *facts, struct out *out) {
  edges_text(facts, out);
  memory_text(facts, &facts->plans[SIDE_FUSED], "Memory of the fused plan", out);
  memory_text(facts, &facts->plans[SIDE_OFF], "Memory, one op at a time", out);
  sizes_text(facts, out);
  roofline_text(facts, out);
}
