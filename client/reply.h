// ModelInferResponse by hand: the cost parameters (hot path, no allocation) and, for `infer`,
// outputs by slices. The server is trusted no more than a file: counts and lengths are checked.
#ifndef CLIENT_REPLY_H
#define CLIENT_REPLY_H

#include "client/tensor.h"

#define REPLY_OUTPUTS 16
#define REPLY_TEXT_BYTES 24

// The cost parameters that our server puts into each reply (docs/CLIENT.md describes them). Others
// serve them not at all: `present` says which came.
enum cost {
  COST_QUEUE_US,
  COST_COPY_IN_US,
  COST_COMPUTE_US,
  COST_COPY_OUT_US,
  COST_TOTAL_US,
  COST_BATCH_REQUESTS,
  COST_BATCH_TOKENS,
  COST_KERNELS,
  COST_READ_BYTES,
  COST_WRITE_BYTES,
  COST_UNFUSED_BYTES,
  COST_GBPS,
  COST_COUNT,
};
const char *cost_name(enum cost cost); // the parameter's key: "queue_us"

struct reply_cost {
  uint32_t present; // bit per enum cost
  int next_key;     // where the look-up of the next key begins
  double value[COST_COUNT];
  char fusion[REPLY_TEXT_BYTES], device[REPLY_TEXT_BYTES],
      batch_close[REPLY_TEXT_BYTES]; // "" when absent
};

struct reply_output {
  struct slice name;
  enum datatype type;
  int rank;
  int64_t dims[TENSOR_RANK];
  struct slice raw;
};

struct reply {
  struct slice model_name, model_version, id;
  struct reply_cost cost;
  struct reply_output outputs[REPLY_OUTPUTS];
  int n_outputs;
};

// Cost only, from the message's first bytes: `captured` may stop anywhere (a serializer writes
// parameters before payloads). False when malformed.
bool reply_scan_cost(struct slice captured, struct reply_cost *cost);
// All of a complete message; slices borrow from it. INVALID_ARGUMENT when malformed, when raw
// contents do not match the outputs in number, or typed contents are used (named in the message).
MUST_USE enum status reply_parse(struct slice message, struct reply *reply, struct error *err);

#endif
