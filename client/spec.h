// The small languages of option values. Pure; each returns false and leaves the output alone when
// the text is not of its form. Numbers are checked for overflow; nothing may follow them.
#ifndef CLIENT_SPEC_H
#define CLIENT_SPEC_H

#include "client/tensor.h"

#define SPEC_LIST_MAX 64

bool spec_integer(const char *text, int64_t *out);
bool spec_real(const char *text, double *out); // finite
bool spec_duration(const char *text,
                   int64_t *out_ns); // 250ms, 10s, 2m, 1h, 500us; bare: seconds; >= 0
bool spec_range(const char *text, int64_t *low,
                int64_t *high); // "32" or "8..128", 1 <= low <= high
// "1,4,16", "1:16:5" (start:end:step, end included when hit), and mixtures. Values >= 1, at most
// SPEC_LIST_MAX.
bool spec_int_list(const char *text, int64_t out[SPEC_LIST_MAX], int *n);
bool spec_real_list(const char *text, double out[SPEC_LIST_MAX], int *n); // "100,250.5": values > 0

// "name=file.npy" (type and shape from the file) or "name:INT64:1x16=file.raw" ("1,16" is as good).
// Fills name, type and shape of `out`; type is TYPE_NONE where the file decides. `path` is borrowed
// from `text`.
MUST_USE enum status spec_input(const char *text, struct infer_tensor *out, const char **path,
                                struct error *err);

#endif
