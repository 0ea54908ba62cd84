// Operations a second over operations a byte, both logarithmic: roofs of memory, cache and
// arithmetic, and each kind of kernel as a dot whose area is its share of the plan's time. Numbers
// stand beside the dots, led to them by a line, so that none lies on another.
#include "explain/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PLOT_LEFT 116
#define PLOT_WIDTH 610
#define PLOT_HEIGHT 470
#define LEGEND_X 770
#define LEGEND_ROW 17
#define POINTS_MAX 24 // of one plan that are drawn and listed; the text has all
#define BOXES_MAX (2 * POINTS_MAX + 64)
#define BADGE 9 // half of a number's box

struct box {
  double x, y, width, height;
};

struct plot {
  const struct facts *facts;
  struct out *out;
  double top, x_low, x_high, y_low, y_high; // logarithms
  struct box boxes[BOXES_MAX];              // taken by numbers and labels
  int n_boxes;
};

static double x_of(const struct plot *plot, double value) {
  return PLOT_LEFT + PLOT_WIDTH * (log10(value) - plot->x_low) / (plot->x_high - plot->x_low);
}
static double y_of(const struct plot *plot, double value) {
  return plot->top +
         PLOT_HEIGHT * (1 - (log10(value) - plot->y_low) / (plot->y_high - plot->y_low));
}

static bool drawn(const struct fact_plan *plan, const struct fact_point *point) {
  double intensity = plan->kernels[point->kernel].intensity;
  return isfinite(intensity) && intensity > 0 && facts_point_rate(plan, point) > 0;
}

static int32_t shown_points(const struct fact_plan *plan) {
  return plan->n_points < POINTS_MAX ? plan->n_points : POINTS_MAX;
}

// ---- scales ----
static void widen(double value, double *low, double *high) {
  double at = log10(value);
  if (at < *low) *low = at;
  if (at > *high) *high = at;
}

static void scales(struct plot *plot) {
  const struct device_rates *rates = plot->facts->rates;
  double bandwidth = facts_bandwidth(plot->facts);
  double product = rates->product[plot->facts->model->compute];
  plot->x_low = plot->y_low = INFINITY;
  plot->x_high = plot->y_high = -INFINITY;
  if (product <= 0) product = rates->vector;
  widen(rates->vector / bandwidth / 4, &plot->x_low, &plot->x_high);
  widen(product / bandwidth * 4, &plot->x_low, &plot->x_high);
  widen(product * 2, &plot->y_low, &plot->y_high);
  widen(rates->vector / 4, &plot->y_low, &plot->y_high);
  for (int mode = 0; mode < SIDES; mode++) {
    const struct fact_plan *plan = &plot->facts->plans[mode];
    for (int32_t p = 0; p < shown_points(plan); p++) {
      if (!drawn(plan, &plan->points[p])) continue;
      double intensity = plan->kernels[plan->points[p].kernel].intensity;
      widen(intensity / 1.8, &plot->x_low, &plot->x_high);
      widen(intensity * 2.5, &plot->x_low, &plot->x_high);
      widen(facts_point_rate(plan, &plan->points[p]) / 2, &plot->y_low, &plot->y_high);
      widen(facts_point_rate(plan, &plan->points[p]) * 2, &plot->y_low, &plot->y_high);
    }
  }
}

// ---- grid ----
static void x_line(struct plot *plot, double value, bool labelled) {
  char text[32];
  double x = x_of(plot, value);
  if (x < PLOT_LEFT - 0.5 || x > PLOT_LEFT + PLOT_WIDTH + 0.5) return;
  out_add(plot->out, "<path d=\"M%.1f %.1fV%.1f\" class=\"%s\"/>\n", x, plot->top,
          plot->top + PLOT_HEIGHT, labelled ? "grid" : "minor");
  if (!labelled) return;
  snprintf(text, sizeof text, "%g", value);
  svg_text(plot->out, x, plot->top + PLOT_HEIGHT + 18, "dim mid", text);
}

static void y_line(struct plot *plot, double value, bool labelled) {
  char text[OUT_NUMBER];
  double y = y_of(plot, value);
  if (y < plot->top - 0.5 || y > plot->top + PLOT_HEIGHT + 0.5) return;
  out_add(plot->out, "<path d=\"M%d %.1fH%d\" class=\"%s\"/>\n", PLOT_LEFT, y,
          PLOT_LEFT + PLOT_WIDTH, labelled ? "grid" : "minor");
  if (!labelled) return;
  double unit = pow(1000, floor(log10(value) / 3 + 1e-9)); // 1, 10 or 100 of something
  out_rate(unit, "FLOP", text);
  char number[2 * OUT_NUMBER];
  snprintf(number, sizeof number, "%.0f%s", value / unit, strchr(text, ' '));
  svg_text(plot->out, PLOT_LEFT - 8, y + 4, "dim end", number);
}

static void grid(struct plot *plot) {
  for (int pass = 0; pass < 2; pass++) { // decades over what lies between
    for (int e = (int)floor(plot->x_low); e <= (int)ceil(plot->x_high); e++)
      for (int step = 1; step <= 9; step++)
        if ((step == 1) == (pass == 1)) x_line(plot, step * pow(10, e), step == 1);
    for (int e = (int)floor(plot->y_low); e <= (int)ceil(plot->y_high); e++)
      for (int step = 1; step <= 9; step++)
        if ((step == 1) == (pass == 1)) y_line(plot, step * pow(10, e), step == 1);
  }
  out_add(plot->out, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" class=\"axis\"/>\n",
          PLOT_LEFT, plot->top, PLOT_WIDTH, PLOT_HEIGHT);
  svg_text(plot->out, PLOT_LEFT + PLOT_WIDTH / 2.0, plot->top + PLOT_HEIGHT + 38, "mid",
           "operations for each byte of operands (FLOP/B)");
  out_add(plot->out, "<text transform=\"translate(%d %.1f) rotate(-90)\" class=\"mid\">", 22,
          plot->top + PLOT_HEIGHT / 2.0);
  out_raw(plot->out, "operations a second, predicted</text>\n");
}

// ---- roofs ----
static void take(struct plot *plot, double x, double y, double width, double height) {
  if (plot->n_boxes < BOXES_MAX) plot->boxes[plot->n_boxes++] = (struct box){x, y, width, height};
}

static bool overlaps(const struct plot *plot, const struct box *box) {
  if (box->x < PLOT_LEFT || box->x + box->width > PLOT_LEFT + PLOT_WIDTH || box->y < plot->top ||
      box->y + box->height > plot->top + PLOT_HEIGHT)
    return true;
  for (int i = 0; i < plot->n_boxes; i++) {
    const struct box *other = &plot->boxes[i];
    if (box->x < other->x + other->width && other->x < box->x + box->width &&
        box->y < other->y + other->height && other->y < box->y + box->height)
      return true;
  }
  return false;
}

static double radius_of(const struct fact_plan *plan, const struct fact_point *point) {
  double share = plan->total.us > 0 ? point->us / plan->total.us : 0;
  return 3 + 11 * sqrt(share);
}

// A stretch of a line, and text along it: the baseline `off` pixels to its upper left.
struct slant {
  double x, y, along_x, along_y, length, off;
};

// Small boxes along the text; taken, or only looked at.
static bool slant_boxes(struct plot *plot, const struct slant *line, double from, double width,
                        bool taken) {
  for (int i = 0; i * 8.0 < width; i++) {
    double at = from + i * 8.0, away = line->off + 4;
    struct box box = {line->x + at * line->along_x + away * line->along_y - 6,
                      line->y + at * line->along_y - away * line->along_x - 6, 12, 12};
    if (taken)
      take(plot, box.x, box.y, box.width, box.height);
    else if (overlaps(plot, &box))
      return false;
  }
  return true;
}

static void slant_text(struct plot *plot, const struct slant *line, const char *text) {
  double width = 0.6 * 11 * (double)strlen(text), from = 16;
  while (from + width < line->length && !slant_boxes(plot, line, from, width, false))
    from += 12;
  if (from + width >= line->length) return; // no room along it; the text names the rates, too
  slant_boxes(plot, line, from, width, true);
  out_add(plot->out, "<text transform=\"translate(%.1f %.1f) rotate(%.1f)\" class=\"small dim\">",
          line->x + from * line->along_x + line->off * line->along_y,
          line->y + from * line->along_y - line->off * line->along_x,
          atan2(line->along_y, line->along_x) * 180 / M_PI);
  out_xml(plot->out, text);
  out_raw(plot->out, "</text>\n");
}

// The roof of `bandwidth` up to the rate `peak`, as far as it is inside the plot; its label above
// the line or below.
static void slope(struct plot *plot, double bandwidth, double peak, const char *class,
                  const char *text, bool above) {
  double low = log10(bandwidth); // of the rate at one operation a byte
  double x_from = plot->x_low, x_to = log10(peak) - low;
  if (x_from + low < plot->y_low) x_from = plot->y_low - low;
  if (x_to > plot->x_high) x_to = plot->x_high;
  if (x_from >= x_to) return;
  double x1 = x_of(plot, pow(10, x_from)), y1 = y_of(plot, pow(10, x_from + low));
  double x2 = x_of(plot, pow(10, x_to)), y2 = y_of(plot, pow(10, x_to + low));
  out_add(plot->out, "<path d=\"M%.1f %.1fL%.1f %.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class);
  double length = hypot(x2 - x1, y2 - y1);
  if (length < 1) return;
  struct slant line = {x1, y1, (x2 - x1) / length, (y2 - y1) / length, length, above ? 6 : -15};
  slant_text(plot, &line, text);
}

// Its label stands above it, or else below, as far to the right as no dot is in the way.
static void ceiling(struct plot *plot, double bandwidth, double rate, const char *class,
                    const char *text) {
  double from = log10(rate / bandwidth), width = 0.6 * 11 * (double)strlen(text);
  if (from < plot->x_low) from = plot->x_low;
  if (from >= plot->x_high || log10(rate) > plot->y_high) return;
  double y = y_of(plot, rate), begin = x_of(plot, pow(10, from));
  out_add(plot->out, "<path d=\"M%.1f %.1fH%d\" class=\"%s\"/>\n", begin, y, PLOT_LEFT + PLOT_WIDTH,
          class);
  const double right = PLOT_LEFT + PLOT_WIDTH - 8 - width, above = y - 18, below = y + 4;
  struct box box = {right, above, width, 14};
  while (overlaps(plot, &box) && (box.x > begin || box.y < below)) {
    box.x -= 10;
    if (box.x <= begin && box.y < below) box.x = right, box.y = below;
  }
  if (box.x <= begin) box.x = right, box.y = above; // no room at all
  svg_text(plot->out, box.x, box.y + 11, "small dim", text);
  take(plot, box.x, box.y, width, 14);
}

static void roofs(struct plot *plot) {
  const struct device_rates *rates = plot->facts->rates;
  const enum dtype compute = plot->facts->model->compute;
  double memory = facts_bandwidth(plot->facts), product = rates->product[compute];
  char number[OUT_NUMBER], text[96];
  if (product < rates->vector) product = rates->vector;
  if (rates->cache > memory) {
    snprintf(text, sizeof text, "cache %s", out_rate(rates->cache, "B", number));
    slope(plot, rates->cache, product, "roof2", text, true);
  }
  snprintf(text, sizeof text, "main memory %s", out_rate(memory, "B", number));
  slope(plot, memory, product, "roof", text, false);
  double fastest = rates->cache > memory ? rates->cache : memory;
  if (product > rates->vector) {
    snprintf(text, sizeof text, "%s products %s", dtype_name(compute),
             out_rate(product, "FLOP", number));
    ceiling(plot, fastest, product, "roof", text);
  }
  snprintf(text, sizeof text, "row programs %s", out_rate(rates->vector, "FLOP", number));
  ceiling(plot, fastest, rates->vector, product > rates->vector ? "roof2" : "roof", text);
}

// ---- points ----
// A free place for a number near (x, y): rings of growing size, above first.
static struct box place_number(const struct plot *plot, double x, double y, double radius) {
  struct box box = {x - BADGE, y - BADGE, 2 * BADGE, 2 * BADGE};
  for (int ring = 0; radius + 12 + ring * 7.0 < 240; ring++)
    for (int turn = 0; turn < 16; turn++) {
      double away = radius + 12 + ring * 7.0;
      int side = turn % 2 ? (turn + 1) / 2 : -(turn / 2);
      double angle = -M_PI / 2 + side * M_PI / 8;
      box.x = x + away * cos(angle) - BADGE;
      box.y = y + away * sin(angle) - BADGE;
      if (!overlaps(plot, &box)) return box;
    }
  return box;
}

static void badge(struct out *out, double x, double y, const char *kind, enum side mode,
                  const char *name) {
  out_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"%s%s\"/>\n", x, y, BADGE - 1.0,
          mode == SIDE_FUSED ? "" : "ring ", kind);
  svg_text(out, x, y + 3.8, mode == SIDE_FUSED ? "badge on" : "badge", name);
}

static void dots(struct plot *plot, enum side mode) {
  const struct fact_plan *plan = &plot->facts->plans[mode];
  for (int32_t p = 0; p < shown_points(plan); p++) {
    const struct fact_point *point = &plan->points[p];
    const struct fact_kernel *kernel = &plan->kernels[point->kernel];
    if (!drawn(plan, point)) continue;
    double x = x_of(plot, kernel->intensity), y = y_of(plot, facts_point_rate(plan, point));
    double radius = radius_of(plan, point);
    out_add(plot->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"%s %s\"/>\n", x, y,
            radius, mode == SIDE_FUSED ? "dot" : "ring", svg_kind(kernel->step));
  }
}

static void take_dots(struct plot *plot, enum side mode) {
  const struct fact_plan *plan = &plot->facts->plans[mode];
  for (int32_t p = 0; p < shown_points(plan); p++) {
    const struct fact_point *point = &plan->points[p];
    if (!drawn(plan, point)) continue;
    double x = x_of(plot, plan->kernels[point->kernel].intensity), half = radius_of(plan, point);
    take(plot, x - half, y_of(plot, facts_point_rate(plan, point)) - half, 2 * half, 2 * half);
  }
}

static void numbers(struct plot *plot, enum side mode) {
  const struct fact_plan *plan = &plot->facts->plans[mode];
  char name[FACTS_POINT];
  for (int32_t p = 0; p < shown_points(plan); p++) {
    const struct fact_point *point = &plan->points[p];
    const struct fact_kernel *kernel = &plan->kernels[point->kernel];
    if (!drawn(plan, point)) continue;
    double x = x_of(plot, kernel->intensity), y = y_of(plot, facts_point_rate(plan, point));
    struct box box = place_number(plot, x, y, radius_of(plan, point));
    take(plot, box.x, box.y, box.width, box.height);
    out_add(plot->out, "<path d=\"M%.1f %.1fL%.1f %.1f\" class=\"lead\"/>\n", x, y, box.x + BADGE,
            box.y + BADGE);
    badge(plot->out, box.x + BADGE, box.y + BADGE, svg_kind(kernel->step), mode,
          facts_point_name(mode, p, name));
  }
}

// ---- legend ----
static double legend(const struct facts *facts, enum side mode, struct out *out, double y) {
  const struct fact_plan *plan = &facts->plans[mode];
  char name[FACTS_POINT], text[FACTS_LABEL], shown[64], number[OUT_NUMBER];
  snprintf(text, sizeof text, "%s: %d kernel%s, %s",
           mode == SIDE_FUSED ? "fused (full dots)" : "one op at a time (rings)",
           plan->total.launches, plan->total.launches == 1 ? "" : "s",
           out_us(plan->total.us, number));
  svg_text(out, LEGEND_X, y, "h2 small", text);
  for (int32_t p = 0; p < shown_points(plan); p++) {
    const struct fact_point *point = &plan->points[p];
    const struct fact_kernel *kernel = &plan->kernels[point->kernel];
    y += LEGEND_ROW;
    badge(out, LEGEND_X + BADGE, y - 4, svg_kind(kernel->step), mode,
          facts_point_name(mode, p, name));
    svg_text(out, LEGEND_X + 26, y, "small",
             out_clean(facts_label(kernel->step, text), svg_fits(250, 11), shown, sizeof shown));
    snprintf(text, sizeof text, "%dx", point->count);
    svg_text(out, LEGEND_X + 318, y, "small dim end", text);
    snprintf(text, sizeof text, "%.1f %%",
             plan->total.us > 0 ? 100 * point->us / plan->total.us : 0);
    svg_text(out, SVG_WIDTH - SVG_MARGIN, y, "small dim end", text);
  }
  if (plan->n_points > POINTS_MAX) {
    y += LEGEND_ROW;
    snprintf(text, sizeof text, "and %d kinds more, which the text lists",
             plan->n_points - POINTS_MAX);
    svg_text(out, LEGEND_X + 26, y, "small dim", text);
  }
  return y;
}

double svg_roofline(const struct facts *facts, struct out *out, double top) {
  struct plot plot = {.facts = facts, .out = out, .top = top + 40};
  svg_title(out, top, "Roofline",
            "Under the slope a kernel waits for memory, under the ceiling for arithmetic. A dot's "
            "area is its share of the plan's time; above the slope, operands come from the cache.");
  scales(&plot);
  for (int mode = 0; mode < SIDES; mode++)
    take_dots(&plot, (enum side)mode);
  grid(&plot);
  roofs(&plot);
  for (int mode = 0; mode < SIDES; mode++)
    dots(&plot, (enum side)mode);
  for (int mode = SIDES - 1; mode >= 0; mode--)
    numbers(&plot, (enum side)mode);
  double y = legend(facts, SIDE_FUSED, out, plot.top + 10);
  y = legend(facts, SIDE_OFF, out, y + 34);
  y += LEGEND_ROW;
  svg_text(out, LEGEND_X, y + 10, "small dim",
           "Blue: products; purple: attention; green: work on rows.");
  svg_text(out, LEGEND_X, y + 24, "small dim",
           "Kernels without operations or operands in memory are not drawn.");
  double bottom = plot.top + PLOT_HEIGHT + 44;
  return y + 30 > bottom ? y + 30 : bottom;
}
