// The picture's parts, one under the other, each as high as it needs to be. Private to the folder.
#ifndef EXPLAIN_SVG_H
#define EXPLAIN_SVG_H

#include "explain/facts.h"

#define SVG_WIDTH 1200
#define SVG_MARGIN 40
#define SVG_INNER (SVG_WIDTH - 2 * SVG_MARGIN)

// Each draws from `top` down and returns where it ends.
double svg_roofline(const struct facts *facts, struct out *out, double top);
double svg_plans(const struct facts *facts, struct out *out, double top);
double svg_memory(const struct facts *facts, struct out *out, double top);

// "product", "attention", "row": the class that colours a kernel.
const char *svg_kind(const struct step *step);
void svg_text(struct out *out, double x, double y, const char *class, const char *text);
void svg_title(struct out *out, double y, const char *title, const char *more);
// Characters of a font of `size` pixels that fit `width` pixels, of any usual sans-serif face.
int svg_fits(double width, double size);

#endif
