// What the planner made of a model, for people and for programs: the graph, its kernels with and
// without fusion, every edge with the reason why it was fused or not, bytes and microseconds,
// memory, batch sizes that are captured as CUDA graphs, the roofline. docs/EXPLAIN.md is the manual
// of the three formats.
//
// A pure function of a parsed model (bound to a device or not; weights are not looked at) and a
// batch. It allocates and takes a few milliseconds for a large model: for cold calls and commands,
// never for a request. Any thread.
#ifndef EXPLAIN_EXPLAIN_H
#define EXPLAIN_EXPLAIN_H

#include "model/model.h"

enum explain_format { EXPLAIN_TEXT, EXPLAIN_JSON, EXPLAIN_SVG, EXPLAIN_FORMATS };
const char *explain_format_name(enum explain_format format); // "text", "json", "svg"
// False: no such word.
bool explain_format_find(const char *word, enum explain_format *out);
// "on", "auto", or "" for the model's default; false: no such word.
bool explain_fusion_find(const char *word, enum fusion_mode *out);
const char *explain_content_type(enum explain_format format); // "image/svg+xml" and so on

struct explain_options {
  const struct model *model;      // its plans are made
  enum fusion_mode fusion;        // which plan to hold against one op at a time: FUSION_ON,
                                  // FUSION_AUTO; FUSION_OFF (0): the model's default of them
  const struct device_caps *caps; // of the device that they are made for
  bool rates_measured;            // on this device; else defaults
  int64_t tokens, seqs;           // of the batch to speak of; 0: a moderate one
  enum explain_format format;
  size_t most_bytes; // longest document wanted; 0: no limit
};

// The document, malloc'd and followed by a zero byte. INVALID_ARGUMENT (names the field): such a
// batch cannot be. RESOURCE_EXHAUSTED: out of memory, or longer than most_bytes.
MUST_USE enum status explain_write(const struct explain_options *options, char **out,
                                   size_t *out_bytes, struct error *err);

#endif
