// The arena over time: each rectangle is a buffer, from the kernel that writes it to the last one
// that reads it, at its place in memory. Both plans at one scale.
#include "explain/svg.h"

#include <stdio.h>

#define PANEL_WIDTH 520
#define PANEL_HEIGHT 240
#define BUFFERS_MAX 1500 // of one plan that are drawn

// Of the kernel that writes it; inputs are grey.
static const char *buffer_kind(const struct fact_plan *plan, const struct fact_buffer *buffer) {
  return buffer->first < 0 ? "weights" : svg_kind(plan->kernels[buffer->first].step);
}

static void buffer_box(const struct facts *facts, const struct fact_plan *plan,
                       const struct fact_buffer *buffer, double left, double top, double per_byte,
                       struct out *out) {
  char name[64], size[OUT_NUMBER], shown[96]; // one over the whole panel has 78
  int32_t n = plan->plan->n_steps, first = buffer->first < 0 ? 0 : buffer->first,
          last = buffer->last >= n ? n - 1 : buffer->last;
  double step = (double)PANEL_WIDTH / n, x = left + first * step, width = (last - first + 1) * step;
  double height = (double)buffer->bytes * per_byte;
  double y = top + PANEL_HEIGHT - (double)buffer->offset_bytes * per_byte - height;
  out_add(
      out,
      "<rect x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\" class=\"cell dot %s\"><title>", x,
      y, width, height, buffer_kind(plan, buffer));
  out_xml(out, out_name(facts_tensor_name(facts, buffer->tensor), 60, name, sizeof name));
  out_add(out, ": %s at %lld, kernels %d to %d</title></rect>\n",
          out_bytes((double)buffer->bytes, size), (long long)buffer->offset_bytes, first, last);
  if (height < 13 || width < 40) return;
  svg_text(out, x + width / 2, y + height / 2 + 4, "small mid",
           out_name(facts_tensor_name(facts, buffer->tensor), svg_fits(width - 4, 11), shown,
                    sizeof shown));
}

static void panel(const struct facts *facts, enum side mode, double left, double top, double most,
                  struct out *out) {
  const struct fact_plan *plan = &facts->plans[mode];
  char text[128], size[OUT_NUMBER];
  double per_byte = most > 0 ? PANEL_HEIGHT / most : 0;
  snprintf(text, sizeof text, "%s: arena of %s", mode == SIDE_FUSED ? "fused" : "one op at a time",
           out_bytes((double)plan->plan->arena_bytes, size));
  svg_text(out, left, top - 8, "small", text);
  out_add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" class=\"axis\"/>\n", left,
          top, PANEL_WIDTH, PANEL_HEIGHT);
  int drawn = 0;
  for (int32_t b = 0; b < plan->n_buffers && drawn < BUFFERS_MAX; b++) {
    if (plan->buffers[b].place != PLACE_ARENA || plan->plan->n_steps == 0) continue;
    buffer_box(facts, plan, &plan->buffers[b], left, top, per_byte, out);
    drawn++;
  }
  if (plan->plan->n_steps == 0)
    snprintf(text, sizeof text, "no kernels");
  else
    snprintf(text, sizeof text, "kernels 0 to %d, in their order", plan->plan->n_steps - 1);
  svg_text(out, left + PANEL_WIDTH / 2.0, top + PANEL_HEIGHT + 18, "small dim mid", text);
}

double svg_memory(const struct facts *facts, struct out *out, double top) {
  double off = (double)facts->plans[SIDE_OFF].plan->arena_bytes,
         on = (double)facts->plans[SIDE_FUSED].plan->arena_bytes;
  const struct plan_limits *limits = &facts->plans[SIDE_FUSED].plan->limits;
  char text[200];
  snprintf(text, sizeof text,
           "Where intermediates lie, and from which kernel to which, laid out for the largest "
           "batch of %d %s. What is not alive at one time shares its place. Inputs are grey.",
           limits->max_tokens, facts->model->has_sequences ? "tokens" : "rows");
  svg_title(out, top, "Memory", text);
  double most = off > on ? off : on, y = top + 52;
  panel(facts, SIDE_OFF, SVG_MARGIN, y, most, out);
  panel(facts, SIDE_FUSED, SVG_WIDTH - SVG_MARGIN - PANEL_WIDTH, y, most, out);
  return y + PANEL_HEIGHT + 24;
}
