// The explanation as a picture: figures, the roofline with every kernel on it, the two plans side
// by side, the arena over time. One self-contained SVG; every name goes through out_xml.
#include "explain/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_HEIGHT 190

static const char style[] =
    "<style>\n"
    "text{font-family:'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;"
    "font-size:12px;fill:#1f2933}\n"
    ".h1{font-size:24px;font-weight:600}\n"
    ".h2{font-size:17px;font-weight:600}\n"
    ".dim{fill:#66727f}\n"
    ".small{font-size:11px}\n"
    ".end{text-anchor:end}\n"
    ".mid{text-anchor:middle}\n"
    ".big{font-size:20px;font-weight:600}\n"
    ".grid{stroke:#e4e8ec;stroke-width:1}\n"
    ".minor{stroke:#f2f4f6;stroke-width:1}\n"
    ".axis{stroke:#9aa5b1;stroke-width:1;fill:none}\n"
    ".roof{stroke:#334155;stroke-width:2;fill:none}\n"
    ".roof2{stroke:#334155;stroke-width:1.3;fill:none;stroke-dasharray:6 4}\n"
    ".lead{stroke:#9aa5b1;stroke-width:.8}\n"
    ".product{fill:#3d74b8}\n"
    ".attention{fill:#8a5cb5}\n"
    ".row{fill:#2f9873}\n"
    ".tint{fill-opacity:.16}\n"
    ".dot{fill-opacity:.55}\n"
    ".ring{fill:#fff;fill-opacity:.5;stroke-width:1.6}\n"
    ".ring.product{stroke:#3d74b8;fill:#fff}\n"
    ".ring.attention{stroke:#8a5cb5;fill:#fff}\n"
    ".ring.row{stroke:#2f9873;fill:#fff}\n"
    ".badge{font-size:10.5px;font-weight:600;text-anchor:middle}\n"
    ".on{fill:#fff}\n"
    ".weights{fill:#b8c1cc}\n"
    ".moves{fill:#e08a3c}\n"
    ".frame{fill:none;stroke:#9aa5b1;stroke-width:1.2;stroke-dasharray:4 3}\n"
    ".link{stroke:#c3cbd4;stroke-width:1;fill:none}\n"
    ".card{fill:#f6f8fa}\n"
    ".cell{stroke:#fff;stroke-width:.6}\n"
    "</style>\n";

// ---- parts ----
const char *svg_kind(const struct step *step) {
  if (step->kind == STEP_LINEAR) return "product";
  return step->kind == STEP_ROW ? "row" : "attention";
}

void svg_text(struct out *out, double x, double y, const char *class, const char *text) {
  out_add(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
  out_xml(out, text);
  out_raw(out, "</text>\n");
}

void svg_title(struct out *out, double y, const char *title, const char *more) {
  svg_text(out, SVG_MARGIN, y, "h2", title);
  svg_text(out, SVG_MARGIN, y + 19, "dim", more);
}

int svg_fits(double width, double size) {
  return (int)(width / (0.6 * size));
}

// ---- figures ----
static void bar(struct out *out, double x, double y, double width, double share,
                const char *class) {
  out_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"6\" rx=\"2\" class=\"%s\"/>\n",
          x, y, width * (share > 0.005 ? share : 0.005), class);
}

static void card(struct out *out, int index, const char *what, double off, double on,
                 const char *(*number)(double, char *)) {
  const double width = (SVG_INNER - 3 * 16) / 4.0, x = SVG_MARGIN + index * (width + 16), y = 82;
  char a[OUT_NUMBER], b[OUT_NUMBER], text[96];
  double most = off > on ? off : on;
  out_add(out,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"92\" rx=\"6\" class=\"card\"/>\n", x,
          y, width);
  svg_text(out, x + 14, y + 22, "dim", what);
  svg_text(out, x + 14, y + 50, "big", number(on, b));
  snprintf(text, sizeof text, "from %s", number(off, a));
  svg_text(out, x + width - 14, y + 50, "dim end", text);
  if (off > 0) {
    snprintf(text, sizeof text, "%.0f %% %s", fabs(100 * (1 - on / off)),
             on <= off ? "less" : "more");
    svg_text(out, x + width - 14, y + 22, "dim end", text);
  }
  bar(out, x + 14, y + 64, width - 28, most > 0 ? off / most : 0, "weights");
  bar(out, x + 14, y + 74, width - 28, most > 0 ? on / most : 0, "moves");
}

static const char *whole(double value, char *buffer) {
  snprintf(buffer, OUT_NUMBER, "%.0f", value);
  return buffer;
}

static void header(const struct facts *facts, struct out *out) {
  const struct model *model = facts->model;
  const struct fact_plan *off = &facts->plans[SIDE_OFF], *on = &facts->plans[SIDE_FUSED];
  char line[400], name[64], device[100];
  snprintf(line, sizeof line, "%s: %s, and one operation at a time",
           out_clean(model->name, 60, name, sizeof name), "fused");
  svg_text(out, SVG_MARGIN, 44, "h1", line);
  snprintf(line, sizeof line, "%s %s, %lld %s%s", facts->caps->name,
           out_clean(facts->caps->description, 90, device, sizeof device),
           (long long)facts->batch.n_tokens, model->has_sequences ? "tokens" : "rows",
           model->has_sequences ? "" : " a batch");
  if (model->has_sequences) {
    size_t used = strlen(line);
    snprintf(line + used, sizeof line - used, " in %lld sequence%s", (long long)facts->batch.n_seqs,
             facts->batch.n_seqs == 1 ? "" : "s");
  }
  size_t used = strlen(line);
  snprintf(line + used, sizeof line - used, ", %s; times are predicted from %s",
           dtype_name(model->compute),
           facts->measured ? "rates measured on this device" : "default rates, not measured here");
  svg_text(out, SVG_MARGIN, 66, "dim", line);
  card(out, 0, "kernels", off->total.launches, on->total.launches, whole);
  card(out, 1, "bytes of operands", facts_moved(&off->total), facts_moved(&on->total), out_bytes);
  card(out, 2, "through main memory", facts_expected(&off->total), facts_expected(&on->total),
       out_bytes);
  card(out, 3, "predicted time", off->total.us, on->total.us, out_us);
}

void explain_svg(const struct facts *facts, struct out *out) {
  // The height is known last: the parts are drawn first.
  struct out body = {.most = out->most};
  header(facts, &body);
  double y = svg_roofline(facts, &body, HEADER_HEIGHT + 22);
  y = svg_plans(facts, &body, y + 44);
  y = svg_memory(facts, &body, y + 44);
  int height = (int)y + SVG_MARGIN;
  out_add(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
          "height=\"%d\" role=\"img\">\n<title>",
          SVG_WIDTH, height, SVG_WIDTH, height);
  out_xml(out, facts->model->name);
  out_raw(out, ": roofline, plans with and without fusion, memory</title>\n");
  out_raw(out, style);
  out_add(out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", SVG_WIDTH, height);
  if (body.data) out_write(out, body.data, body.used);
  out_raw(out, "</svg>\n");
  if (body.failed != STATUS_OK) out->failed = body.failed;
  out_free(&body);
}
