// A text that grows. Failures (no memory, longer than wanted) are kept and looked at once, at the
// end. Names of models and tensors come from outside: they go through `out_clean` or `out_xml`.
#ifndef EXPLAIN_OUT_H
#define EXPLAIN_OUT_H

#include "base/status.h"

struct out {
  char *data; // NULL before the first byte; else followed by a zero byte
  size_t used, room;
  size_t most;        // bytes; 0: no limit
  enum status failed; // STATUS_OK so far
};

void out_add(struct out *out, const char *format, ...) PRINTF_LIKE(2, 3);
void out_raw(struct out *out, const char *text);
void out_write(struct out *out, const char *data, size_t bytes);
// `count` times.
void out_fill(struct out *out, char what, int count);
// For element content and quoted attributes; what is not printable ASCII becomes '?'.
void out_xml(struct out *out, const char *text);
void out_free(struct out *out);

// What is not printable ASCII becomes '?': nothing drives a terminal or breaks a document. At most
// `width` characters (>= 0), and what fits into buffer[bytes] (>= 1), of which the last two are
// ".." when it was cut. Returns `buffer`.
const char *out_clean(const char *text, int width, char *buffer, size_t bytes);
// The same for names of tensors, which differ at their ends: where one is too long, ".." stands in
// its middle.
const char *out_name(const char *text, int width, char *buffer, size_t bytes);

// Numbers for people, three digits: "1.57 MB", "12.3 us", "2.10 GFLOP". Into buffer[OUT_NUMBER];
// returned.
#define OUT_NUMBER 32
const char *out_bytes(double bytes, char *buffer);
const char *out_us(double us, char *buffer);
const char *out_flops(double flops, char *buffer);
const char *out_rate(double per_second, const char *unit, char *buffer); // "150 GFLOP/s"

#endif
