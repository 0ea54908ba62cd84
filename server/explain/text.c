// The explanation as text, for a reader who has never seen the code: what is compared, the graph,
// the kernels of both plans. text_details.c goes on with edges, memory and the roofline.
#include "explain/facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- what it is about ----
static void served(const struct facts *facts, struct out *out) {
  const struct model *model = facts->model;
  const char *before = "";
  out_raw(out, "served    ");
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    if (!model->fusion_available[mode]) continue;
    out_add(out, "%sfusion %s", before, fusion_name((enum fusion_mode)mode));
    before = ", ";
  }
  if (strcmp(model->fusion_word, "auto") == 0 && model->auto_is != FUSION_AUTO)
    out_add(out, ", as which the file's auto comes out; computed in %s\n",
            dtype_name(model->compute));
  else
    out_add(out, "; by default %s, computed in %s\n", fusion_name(model->fusion_default),
            dtype_name(model->compute));
  out_add(out, "plan      fusion %s, held against one op at a time (off). ",
          fusion_name(facts->plans[SIDE_FUSED].plan->mode));
  out_add(out, "Of what can be fused (on), the cost model would take %s (auto)\n",
          model->auto_is == FUSION_ON    ? "all"
          : model->auto_is == FUSION_OFF ? "nothing"
                                         : "a part");
}

static void about(const struct facts *facts, struct out *out) {
  const struct model *model = facts->model;
  char name[LIMIT_NAME_BYTES + 1], version[40], device[160], a[OUT_NUMBER], b[OUT_NUMBER],
      c[OUT_NUMBER];
  out_clean(model->name, LIMIT_NAME_BYTES, name, sizeof name);
  out_add(out, "%s, version %s: what Fusewire makes of it\n", name,
          out_clean(model->version, 32, version, sizeof version));
  out_fill(out, '=', (int)(strlen(name) + strlen(version)) + 37);
  out_add(out, "\n\ndevice    %s: %s\n", facts->caps->name,
          out_clean(facts->caps->description, 120, device, sizeof device));
  out_add(out, "          memory %s, row programs %s", out_rate(facts_bandwidth(facts), "B", a),
          out_rate(facts->rates->vector, "FLOP", b));
  out_add(out, ", %s products %s, %.3g us to start a kernel\n", dtype_name(model->compute),
          out_rate(facts->rates->product[model->compute], "FLOP", c), facts->rates->launch_us);
  out_raw(out, facts->measured
                   ? "          (measured on this device)\n"
                   : "          (defaults: `fusewired tune` measures this device's own)\n");
  out_add(out, "batch     %lld %s", (long long)facts->batch.n_tokens,
          model->has_sequences ? "tokens" : "rows");
  if (model->has_sequences)
    out_add(out, " in %lld sequence%s of up to %lld", (long long)facts->batch.n_seqs,
            facts->batch.n_seqs == 1 ? "" : "s", (long long)facts->longest);
  out_add(out, "; --tokens and --seqs choose another\n");
  served(facts, out);
  out_raw(out,
          "\nA model is a graph of operations. Run one op at a time, each is a kernel that reads "
          "its operands\nfrom memory and writes its result back. Fused, one kernel does several "
          "operations, and what passes\nbetween them stays in registers or in the core's cache: "
          "fewer bytes, fewer kernels, the same result.\n");
}

static void summary_line(struct out *out, const char *what, double off, double on,
                         const char *(*number)(double, char *)) {
  char a[OUT_NUMBER], b[OUT_NUMBER];
  out_add(out, "%-34s %14s %14s", what, number(off, a), number(on, b));
  if (off > 0) out_add(out, " %12.0f %%", 100 * (off - on) / off);
  out_raw(out, "\n");
}

static const char *whole(double value, char *buffer) {
  snprintf(buffer, OUT_NUMBER, "%.0f", value);
  return buffer;
}

// What is saved of next to nothing is not worth a number.
#define MEMORY_LEAST 0.01

static void memory_lines(const struct cost *off, const struct cost *on, struct out *out) {
  char a[OUT_NUMBER], b[OUT_NUMBER];
  double through = facts_expected(off);
  if (through >= MEMORY_LEAST * facts_moved(off))
    summary_line(out, "of these through main memory", through, facts_expected(on), out_bytes);
  else
    out_add(out, "%-34s %14s %14s\n", "of these through main memory", out_bytes(through, a),
            out_bytes(facts_expected(on), b));
  out_add(out, "%-34s %14s %14s\n", "  at least", out_bytes(facts_lower(off), a),
          out_bytes(facts_lower(on), b));
  out_add(out, "%-34s %14s %14s\n", "  at most", out_bytes(facts_upper(off), a),
          out_bytes(facts_upper(on), b));
}

static void summary(const struct facts *facts, struct out *out) {
  const struct fact_plan *off = &facts->plans[SIDE_OFF], *on = &facts->plans[SIDE_FUSED];
  const struct plan_limits *limits = &on->plan->limits;
  char most[96];
  text_heading(out, "In short");
  out_add(out, "%-34s %14s %14s %14s\n", "for this batch", "one op a time", "fused", "saved");
  summary_line(out, "kernels", off->total.launches, on->total.launches, whole);
  summary_line(out, "bytes read", off->total.read.compulsory, on->total.read.compulsory, out_bytes);
  summary_line(out, "bytes written", off->total.write.compulsory, on->total.write.compulsory,
               out_bytes);
  summary_line(out, "both", facts_moved(&off->total), facts_moved(&on->total), out_bytes);
  memory_lines(&off->total, &on->total, out);
  summary_line(out, "operations", off->total.flops, on->total.flops, out_flops);
  summary_line(out, "predicted time", off->total.us, on->total.us, out_us);
  snprintf(most, sizeof most, "intermediates, %d %s", limits->max_tokens,
           facts->model->has_sequences ? "tokens" : "rows");
  summary_line(out, most, (double)off->plan->arena_bytes, (double)on->plan->arena_bytes, out_bytes);
  out_raw(out, "\nBytes are those of the kernels' operands, each once a kernel (docs/TRAFFIC.md); "
               "what an earlier kernel left in\nthe cache does not come through main memory. Times "
               "are predicted (docs/PLANNER.md), not measured.\n");
}

// ---- graph ----
static void tensor_shape(const struct tensor *tensor, char *text, size_t bytes) {
  if (tensor->rows == ROWS_FIXED)
    snprintf(text, bytes, "[%d, %d] %s", tensor->n_rows, tensor->cols, dtype_name(tensor->dtype));
  else
    snprintf(text, bytes, "[%s, %d] %s", facts_rows_word(tensor->rows), tensor->cols,
             dtype_name(tensor->dtype));
}

// Widths of the columns: what stands in them, but for names that are longer than all lines can
// afford.
struct columns {
  int name, shape;
};
enum { NAME_LEAST = 26, NAME_MOST = 44, SHAPE_LEAST = 24, OPERAND_MOST = 60 };

static void widen(const struct tensor *result, struct columns *columns) {
  char shape[64];
  int name = (int)strlen(result->name);
  tensor_shape(result, shape, sizeof shape);
  if (name > NAME_MOST) name = NAME_MOST;
  if (name > columns->name) columns->name = name;
  if ((int)strlen(shape) > columns->shape) columns->shape = (int)strlen(shape);
}

static void node_line(const struct facts *facts, int32_t index, const struct columns *columns,
                      struct out *out) {
  const struct graph *graph = &facts->model->graph;
  const struct node *node = &graph->nodes[index];
  const struct tensor *result = &graph->tensors[node->out];
  char name[OPERAND_MOST + 1], shape[64];
  tensor_shape(result, shape, sizeof shape);
  out_add(out, "%4d  %-10s -> %-*s %-*s of ", index, op_name(node->op), columns->name,
          out_name(result->name, columns->name, name, sizeof name), columns->shape, shape);
  for (int i = 0; i < node->n_in; i++)
    out_add(out, "%s%s", i ? ", " : "",
            out_name(graph->tensors[node->in[i]].name, OPERAND_MOST, name, sizeof name));
  if (node->op == OP_ATTENTION)
    out_add(out, "; %d heads%s", node->attrs.heads, node->attrs.causal ? ", causal" : "");
  if (!plan_runs(facts->plans[SIDE_OFF].plan, index) && node->op != OP_IDENTITY)
    out_raw(out, "; never runs, no output needs it");
  out_raw(out, "\n");
}

static void graph_text(const struct facts *facts, struct out *out) {
  const struct graph *graph = &facts->model->graph;
  struct columns columns = {NAME_LEAST, SHAPE_LEAST};
  text_heading(out, "The graph: operations and what they make");
  for (int32_t f = 0; f < facts->n_node_folds; f++)
    for (int32_t i = 0; i < facts->node_folds[f].period; i++)
      widen(&graph->tensors[graph->nodes[facts->node_folds[f].first + i].out], &columns);
  for (int32_t f = 0; f < facts->n_node_folds; f++) {
    const struct fold *fold = &facts->node_folds[f];
    for (int32_t i = 0; i < fold->period; i++) {
      text_gutter(out, fold, i);
      node_line(facts, fold->first + i, &columns, out);
    }
  }
}

// ---- kernels ----
static const char *intensity(double value, char *buffer) {
  snprintf(buffer, OUT_NUMBER, isfinite(value) ? "%.3g" : "-", value);
  return buffer;
}

static void kernel_line(const struct fact_plan *plan, const struct fold *fold, int32_t at,
                        struct out *out) {
  const struct fact_kernel *kernel = &plan->kernels[fold->first + at];
  struct cost cost = facts_mean(plan, fold, at);
  char label[FACTS_LABEL], shown[64], point[FACTS_POINT], a[OUT_NUMBER], b[OUT_NUMBER],
      c[OUT_NUMBER], d[OUT_NUMBER], e[OUT_NUMBER], f[OUT_NUMBER], g[OUT_NUMBER], h[OUT_NUMBER];
  out_add(out, "%4d %4s  %-34s %8s %8s %8s %8s %8s %11s %6s %8s  %s\n", fold->first + at,
          facts_point_name(plan->side, kernel->point, point),
          out_clean(facts_label(kernel->step, label), 34, shown, sizeof shown),
          out_bytes(cost.read.compulsory, a), out_bytes(cost.write.compulsory, b),
          out_bytes(facts_expected(&cost), c), out_bytes(facts_lower(&cost), g),
          out_bytes(facts_upper(&cost), h), out_flops(cost.flops, d),
          intensity(kernel->intensity, e), out_us(cost.us, f), cost_bound_name(cost.bound));
}

// On a CPU consecutive kernels may run tile by tile: a bracket around them would not fit the line,
// so they are named.
static void chains(const struct fact_plan *plan, struct out *out) {
  bool any = false;
  for (int32_t f = 0; f < plan->n_folds; f++) {
    const struct fold *fold = &plan->folds[f];
    for (int32_t i = fold->first, last; i < fold->first + fold->period; i = last + 1) {
      last = i;
      while (last + 1 < fold->first + fold->period &&
             plan->kernels[last + 1].step->chain == plan->kernels[i].step->chain)
        last++;
      if (last == i) continue;
      out_add(out, "%s%d..%d", any ? ", " : "\nRun as one pass, a tile of rows at a time: kernels ",
              i, last);
      if (fold->times > 1) out_add(out, " (and alike, %d times)", fold->times);
      any = true;
    }
  }
  if (any)
    out_raw(out, ".\nWhat only they read stays in a tile in the core's cache "
                 "and costs no memory traffic.\n");
}

static void kernels_text(const struct fact_plan *plan, const char *title, struct out *out) {
  text_heading(out, title);
  out_add(out, "         %4s %4s  %-34s %8s %8s %8s %8s %8s %11s %6s %8s  %s\n", "#", "at",
          "what it does", "reads", "writes", "memory", "least", "most", "operations", "FLOP/B",
          "time", "bound by");
  for (int32_t f = 0; f < plan->n_folds; f++) {
    const struct fold *fold = &plan->folds[f];
    for (int32_t i = 0; i < fold->period; i++) {
      text_gutter(out, fold, i);
      kernel_line(plan, fold, i, out);
    }
  }
  chains(plan, out);
}

static bool repeats(const struct fact_plan *plan) {
  for (int32_t f = 0; f < plan->n_folds; f++)
    if (plan->folds[f].times > 1) return true;
  return false;
}

void explain_text(const struct facts *facts, struct out *out) {
  about(facts, out);
  summary(facts, out);
  graph_text(facts, out);
  kernels_text(&facts->plans[SIDE_FUSED], "The fused plan: kernels in their order", out);
  out_raw(out,
          "\n\"at\": the kernel's point in the roofline below. \"memory\": of what it reads and "
          "writes, what is not found in\nthe cache, and what it reads again; \"least\", \"most\": "
          "the bounds of that (docs/TRAFFIC.md).");
  if (repeats(&facts->plans[SIDE_FUSED]))
    out_raw(out, "\n\"12x |\": lines that come so many times over, with the mean of what differs.");
  out_raw(out, "\n");
  kernels_text(&facts->plans[SIDE_OFF], "One op at a time: kernels in their order", out);
  explain_text_details(facts, out);
}
