// The growing text of one scrape. Writes what fits and counts what would have been needed.
#ifndef OBS_EXPO_H
#define OBS_EXPO_H

#include "base/status.h"

struct expo {
  char *out;
  size_t bytes, used;
};
void expo_text(struct expo *expo, const char *format, ...) PRINTF_LIKE(2, 3);
void expo_family(struct expo *expo, const char *name, const char *type,
                 const char *help); // HELP and TYPE lines
const char *expo_escaped(const char *value, char *out,
                         size_t out_bytes); // a label value: \\ " and newline escaped

// Triton's nv_inference_* names over the same counters, so that dashboards and autoscalers made for
// it work (expo_triton.c).
void triton_families(struct expo *expo);
void shadow_families(struct expo *expo); // expo_shadow.c

#endif
