// Three small charts as inline SVG, for the HTML report: grouped or stacked bars, lines over
// categories, ratios with intervals. NAN values are left out, and so is a
// chart without a value above 0. Pure text to a FILE.
#ifndef CLIENT_SVG_H
#define CLIENT_SVG_H

#include "client/ab.h"
#include <stdio.h>

#define SVG_CATEGORIES 128
#define SVG_SERIES 8
#define SVG_LABEL_BYTES 40

struct svg_chart {
  const char *title, *unit; // the unit is written at the axis
  char category[SVG_CATEGORIES][SVG_LABEL_BYTES];
  int n_categories;
  const char *series[SVG_SERIES];
  int n_series;
  double value[SVG_SERIES][SVG_CATEGORIES];
};

struct svg_ratio {
  char label[64];
  struct ab_estimate estimate;
};

void svg_escape(FILE *out, const char *text); // for element content and quoted attributes
void svg_bars(FILE *out, const struct svg_chart *chart, bool stacked);
void svg_lines(FILE *out, const struct svg_chart *chart);
void svg_ratios(FILE *out, const char *title, const struct svg_ratio *rows, int n);
double svg_nice_top(
    double highest); // the axis' end: a round number with round quarters, not below `highest`

#endif
