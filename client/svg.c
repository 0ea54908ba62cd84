#include "client/svg.h"
#include <math.h>

#define WIDTH 720
#define HEIGHT 300
#define LEFT 64
#define RIGHT 12
#define TOP 54
#define BOTTOM 40
#define PLOT_WIDTH (WIDTH - LEFT - RIGHT)
#define PLOT_HEIGHT (HEIGHT - TOP - BOTTOM)

void svg_escape(FILE *out, const char *text) {
  for (; *text; text++) {
    switch (*text) {
    case '<':
      fputs("&lt;", out);
      break;
    case '>':
      fputs("&gt;", out);
      break;
    case '&':
      fputs("&amp;", out);
      break;
    case '"':
      fputs("&quot;", out);
      break;
    default:
      fputc(*text, out);
    }
  }
}

double svg_nice_top(double highest) {
  if (!(highest > 0)) return 1;
  const double power = pow(10, floor(log10(highest)));
  static const double steps[] = {1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10};
  for (int i = 0; i < 11; i++) {
    if (steps[i] * power >= highest * (1 - 1e-9)) return steps[i] * power;
  }
  return 10 * power;
}

static double highest_of(const struct svg_chart *chart, bool stacked) {
  double highest = 0;
  for (int c = 0; c < chart->n_categories; c++) {
    double sum = 0;
    for (int s = 0; s < chart->n_series; s++) {
      const double value = chart->value[s][c];
      if (isnan(value)) continue;
      sum = stacked ? sum + value : value;
      if (sum > highest) highest = sum;
    }
  }
  return highest;
}

static double y_of(double value, double top) {
  return TOP + PLOT_HEIGHT * (1 - value / top);
}

static void open_chart(FILE *out, const char *title, int height) {
  fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><title>", WIDTH, height);
  svg_escape(out, title);
  fprintf(out, "</title><text x=\"0\" y=\"16\" class=\"title\">");
  svg_escape(out, title);
  fputs("</text>\n", out);
}

static void frame(FILE *out, const struct svg_chart *chart, double top) {
  open_chart(out, chart->title, HEIGHT);
  for (int i = 0; i <= 4; i++) {
    const double y = y_of(top * i / 4, top);
    fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>", LEFT,
            WIDTH - RIGHT, y, y);
    fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"tick end\">%.6g</text>\n", LEFT - 6, y + 4,
            top * i / 4);
  }
  fprintf(out, "<text x=\"0\" y=\"%d\" class=\"tick\">", TOP - 10);
  svg_escape(out, chart->unit);
  fputs("</text>\n", out);
  for (int s = 0; s < chart->n_series; s++) { // the legend
    const int x = LEFT + s * (PLOT_WIDTH / (chart->n_series > 4 ? chart->n_series : 4));
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" class=\"s%d\"/><text x=\"%d\" "
            "y=\"%d\" class=\"tick\">",
            x, TOP - 28, s, x + 14, TOP - 19);
    svg_escape(out, chart->series[s]);
    fputs("</text>\n", out);
  }
}

static void category_labels(FILE *out, const struct svg_chart *chart) {
  const double step = (double)PLOT_WIDTH / chart->n_categories;
  const int every = (chart->n_categories + 11) / 12; // at most 12 fit
  for (int c = 0; c < chart->n_categories; c += every) {
    fprintf(out, "<text x=\"%.1f\" y=\"%d\" class=\"tick mid\">", LEFT + step * (c + 0.5),
            HEIGHT - BOTTOM + 18);
    svg_escape(out, chart->category[c]);
    fputs("</text>\n", out);
  }
}

void svg_bars(FILE *out, const struct svg_chart *chart, bool stacked) {
  if (!(highest_of(chart, stacked) > 0)) return;
  const double top = svg_nice_top(highest_of(chart, stacked));
  const double step = (double)PLOT_WIDTH / chart->n_categories;
  const double group = step * 0.72 < 160 ? step * 0.72 : 160;
  const double width = stacked ? group : group / chart->n_series;
  frame(out, chart, top);
  for (int c = 0; c < chart->n_categories; c++) {
    double base = 0, x = LEFT + step * c + (step - group) / 2;
    for (int s = 0; s < chart->n_series; s++) {
      const double value = chart->value[s][c];
      if (!isnan(value)) {
        const double y = y_of(base + value, top);
        fprintf(out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"s%d\"><title>",
                x, y, width, y_of(base, top) - y, s);
        svg_escape(out, chart->series[s]);
        fprintf(out, ": %.6g ", value);
        svg_escape(out, chart->unit);
        fputs("</title></rect>\n", out);
        if (stacked) base += value;
      }
      if (!stacked) x += width;
    }
  }
  category_labels(out, chart);
  fputs("</svg>\n", out);
}

void svg_lines(FILE *out, const struct svg_chart *chart) {
  if (!(highest_of(chart, false) > 0)) return;
  const double top = svg_nice_top(highest_of(chart, false));
  const double step = (double)PLOT_WIDTH / chart->n_categories;
  frame(out, chart, top);
  for (int s = 0; s < chart->n_series; s++) {
    fprintf(out, "<polyline class=\"l%d\" points=\"", s);
    for (int c = 0; c < chart->n_categories; c++) {
      if (isnan(chart->value[s][c])) continue;
      fprintf(out, "%.1f,%.1f ", LEFT + step * (c + 0.5), y_of(chart->value[s][c], top));
    }
    fputs("\"/>\n", out);
    for (int c = 0; c < chart->n_categories; c++) {
      if (isnan(chart->value[s][c])) continue;
      fprintf(
          out,
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" class=\"s%d\"><title>%.6g</title></circle>\n",
          LEFT + step * (c + 0.5), y_of(chart->value[s][c], top), s, chart->value[s][c]);
    }
  }
  category_labels(out, chart);
  fputs("</svg>\n", out);
}

void svg_ratios(FILE *out, const char *title, const struct svg_ratio *rows, int n) {
  double low = 1, high = 1;
  const int left = 200, row_height = 26, height = 60 + n * row_height;
  for (int i = 0; i < n; i++) {
    const struct ab_estimate *e = &rows[i].estimate;
    low = fmin(low, isnan(e->low) ? e->ratio : e->low);
    high = fmax(high, isnan(e->high) ? e->ratio : e->high);
  }
  const double from = low - 0.05 * (high - low) - 0.01, to = high + 0.05 * (high - low) + 0.01;
  const double scale = (WIDTH - left - 130) / (to - from);
  open_chart(out, title, height);
  fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"30\" y2=\"%d\" class=\"one\"/>",
          left + (1 - from) * scale, left + (1 - from) * scale, height - 24);
  fprintf(out, "<text x=\"%.1f\" y=\"%d\" class=\"tick mid\">1 (no difference)</text>\n",
          left + (1 - from) * scale, height - 8);
  for (int i = 0; i < n; i++) {
    const struct ab_estimate *e = &rows[i].estimate;
    const int y = 44 + i * row_height;
    fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"tick end\">", left - 10, y + 4);
    svg_escape(out, rows[i].label);
    fputs("</text>", out);
    if (isnan(e->ratio)) continue;
    if (!isnan(e->low)) {
      fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"l0\"/>",
              left + (e->low - from) * scale, left + (e->high - from) * scale, y, y);
    }
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%d\" r=\"4.5\" class=\"s0\"/>",
            left + (e->ratio - from) * scale, y);
    fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"tick end\">%.3f [%.3f, %.3f]</text>\n", WIDTH - 8,
            y + 4, e->ratio, e->low, e->high);
  }
  fputs("</svg>\n", out);
}
