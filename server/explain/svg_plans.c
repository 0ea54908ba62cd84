// The two plans side by side: at the left one kernel an operation, at the right the kernels that do
// the same fused, each as high as what it replaces. Bars are bytes of operands, weights apart from
// what passes between kernels. What repeats is drawn once, in a frame.
#include "explain/svg.h"

#include <stdio.h>
#include <string.h>

#define ROW 21
#define GAP 5
#define LEFT_X 92
#define LEFT_WIDTH 300
#define LEFT_BAR 402
#define BAR_WIDTH 110 // the same for both: one scale
#define RIGHT_X 678
#define RIGHT_WIDTH 300
#define RIGHT_BAR 990
#define ROWS_MAX 160

struct pair {
  const struct facts *facts;
  struct out *out;
  double y;
  double most; // bytes of the largest kernel, for the bars
  int rows;
};

static double fixed_bytes(const struct fact_kernel *kernel) {
  double fixed = kernel->step->traffic.read.fixed;
  return fixed < kernel->cost.read.compulsory ? fixed : kernel->cost.read.compulsory;
}

static void bars(const struct pair *pair, const struct fact_kernel *kernel, double x, double y,
                 double width) {
  char text[OUT_NUMBER];
  double moved = facts_moved(&kernel->cost), weights = fixed_bytes(kernel);
  double scale = pair->most > 0 ? width / pair->most : 0;
  out_add(pair->out,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"8\" class=\"weights\"/>"
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"8\" class=\"moves\"/>\n",
          x, y - 4, weights * scale, x + weights * scale, y - 4, (moved - weights) * scale);
  svg_text(pair->out, x + moved * scale + 5, y + 4, "small dim", out_bytes(moved, text));
}

static void kernel_box(const struct pair *pair, enum side mode, const struct fact_kernel *kernel,
                       double x, double y, double width, double height) {
  char label[FACTS_LABEL], shown[64], time[OUT_NUMBER], point[FACTS_POINT];
  out_add(pair->out,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" class=\"%s tint\"/>"
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"4\" height=\"%.1f\" class=\"%s\"/>\n",
          x, y, width, height, svg_kind(kernel->step), x, y, height, svg_kind(kernel->step));
  svg_text(pair->out, x + 26, y + height / 2 + 4, "small dim end",
           facts_point_name(mode, kernel->point, point));
  svg_text(
      pair->out, x + 34, y + height / 2 + 4, "small",
      out_clean(facts_label(kernel->step, label), svg_fits(width - 96, 11), shown, sizeof shown));
  svg_text(pair->out, x + width - 8, y + height / 2 + 4, "small dim end",
           out_us(kernel->cost.us, time));
}

// What an earlier kernel of the fused plan computes, too: no kernel of its own at the left.
static void again(struct pair *pair, int32_t node) {
  char text[96];
  const struct graph *graph = &pair->facts->model->graph;
  snprintf(text, sizeof text, "%s, computed again", op_name(graph->nodes[node].op));
  svg_text(pair->out, LEFT_X + 34, pair->y + (ROW - 3) / 2.0 + 4, "small dim", text);
  pair->y += ROW;
  pair->rows++;
}

// The unfused kernels of the nodes of one fused kernel, and that one beside them.
static void group(struct pair *pair, const struct fact_kernel *fused) {
  const struct fact_plan *off = &pair->facts->plans[SIDE_OFF],
                         *on = &pair->facts->plans[SIDE_FUSED];
  double top = pair->y;
  for (int i = 0; i < fused->step->n_nodes; i++) {
    int32_t node = fused->step->nodes[i];
    if (on->first_step[node] != fused - on->kernels) {
      again(pair, node);
      continue;
    }
    for (int32_t s = off->first_step[node]; s >= 0 && s <= off->last_step[node]; s++) {
      kernel_box(pair, SIDE_OFF, &off->kernels[s], LEFT_X, pair->y, LEFT_WIDTH, ROW - 3);
      bars(pair, &off->kernels[s], LEFT_BAR, pair->y + (ROW - 3) / 2.0, BAR_WIDTH);
      pair->y += ROW;
      pair->rows++;
    }
  }
  if (pair->y == top) pair->y += ROW;
  double height = pair->y - top - 3, middle = top + height / 2;
  out_add(pair->out, "<path d=\"M%d %.1fh8V%.1fh-8M%d %.1fH%d\" class=\"link\"/>\n", RIGHT_X - 62,
          top, top + height, RIGHT_X - 54, middle, RIGHT_X - 8);
  out_add(pair->out, "<path d=\"M%d %.1fl-6 -4v8z\" fill=\"#9aa5b1\"/>\n", RIGHT_X - 5, middle);
  kernel_box(pair, SIDE_FUSED, fused, RIGHT_X, top, RIGHT_WIDTH, height);
  bars(pair, fused, RIGHT_BAR, middle, BAR_WIDTH);
  pair->y += GAP;
}

// Steps that run as one pass over a tile: a line along them.
static void chain_line(const struct pair *pair, const struct fact_plan *on, int32_t first,
                       int32_t last, const double *tops) {
  for (int32_t i = first, end; i <= last; i = end + 1) {
    end = i;
    while (end < last && on->kernels[end + 1].step->chain == on->kernels[i].step->chain)
      end++;
    if (end == i) continue;
    out_add(pair->out, "<path d=\"M%d %.1fV%.1f\" stroke=\"#1f2933\" stroke-width=\"2.5\"/>\n",
            RIGHT_X - 3, tops[i - first], tops[end + 1 - first] - GAP - 3);
  }
}

static void stretch(struct pair *pair, const struct fold *fold, int32_t count) {
  const struct fact_plan *on = &pair->facts->plans[SIDE_FUSED];
  if (fold->times > 1) pair->y += 8;
  double top = pair->y, tops[ROWS_MAX + 2];
  int32_t i = 0;
  for (; i < count && pair->rows < ROWS_MAX; i++) {
    tops[i] = pair->y;
    group(pair, &on->kernels[fold->first + i]);
  }
  tops[i] = pair->y;
  if (i > 0) chain_line(pair, on, fold->first, fold->first + i - 1, tops);
  if (fold->times == 1) return;
  char text[32];
  out_add(pair->out,
          "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" rx=\"6\" class=\"frame\"/>\n",
          LEFT_X - 10, top - 6, SVG_WIDTH - SVG_MARGIN - LEFT_X + 10, pair->y - top + 4);
  snprintf(text, sizeof text, "%d x", fold->times);
  svg_text(pair->out, LEFT_X - 18, (top + pair->y) / 2 + 4, "h2 end", text);
  pair->y += 8;
}

static void totals(struct pair *pair) {
  char number[OUT_NUMBER], moved[OUT_NUMBER], text[128];
  for (int mode = 0; mode < SIDES; mode++) {
    const struct fact_plan *plan = &pair->facts->plans[mode];
    snprintf(text, sizeof text, "%d kernel%s, %s of operands, %s", plan->total.launches,
             plan->total.launches == 1 ? "" : "s", out_bytes(facts_moved(&plan->total), moved),
             out_us(plan->total.us, number));
    svg_text(pair->out, mode == SIDE_OFF ? LEFT_X : RIGHT_X, pair->y + 20, "h2 small", text);
  }
  pair->y += 24;
}

static void heads(struct pair *pair) {
  svg_text(pair->out, LEFT_X, pair->y, "small dim", "one op at a time: a kernel each");
  svg_text(pair->out, LEFT_X + LEFT_WIDTH - 8, pair->y, "small dim end", "time");
  svg_text(pair->out, LEFT_BAR, pair->y, "small dim", "bytes");
  svg_text(pair->out, RIGHT_X, pair->y, "small dim", "fused");
  svg_text(pair->out, RIGHT_X + RIGHT_WIDTH - 8, pair->y, "small dim end", "time");
  svg_text(pair->out, RIGHT_BAR, pair->y, "small dim", "bytes");
  pair->y += 16;
}

double svg_plans(const struct facts *facts, struct out *out, double top) {
  const struct fact_plan *on = &facts->plans[SIDE_FUSED];
  struct pair pair = {.facts = facts, .out = out, .y = top + 48};
  for (int mode = 0; mode < SIDES; mode++)
    for (int32_t k = 0; k < facts->plans[mode].plan->n_steps; k++) {
      double moved = facts_moved(&facts->plans[mode].kernels[k].cost);
      if (moved > pair.most) pair.most = moved;
    }
  svg_title(out, top, "The two plans",
            "Bytes of a kernel's operands: weights and tables grey, what passes between kernels "
            "orange. A black line joins kernels that run as one pass, tile by tile.");
  heads(&pair);
  int32_t f = 0;
  for (; f < on->n_folds && pair.rows < ROWS_MAX; f++)
    stretch(&pair, &on->folds[f], on->folds[f].period);
  if (pair.rows >= ROWS_MAX) {
    svg_text(out, LEFT_X, pair.y + 12, "dim", "... the rest is in the text and in the JSON");
    pair.y += 24;
  }
  totals(&pair);
  return pair.y;
}
