// ModelInferRequest messages, made once and sent many times: header bytes by hand, tensors as one
// body, both with the gRPC prefix in place, so that a send is two references. A payload has one
// head for each variant (A/B: fused and unfused differ in one parameter) and one shared body.
#ifndef CLIENT_PAYLOAD_H
#define CLIENT_PAYLOAD_H

#include "client/options.h"
#include "client/tensor.h"

#define PAYLOAD_INPUTS 16
#define PAYLOAD_VARIANTS 2
#define GRPC_PREFIX_BYTES 5

struct request_input { // one request's tensors, before encoding
  struct infer_tensor tensors[PAYLOAD_INPUTS];
  int n_tensors;
  int64_t tokens; // rows of work in it: real tokens, or batch rows for a model without sequences
};
void request_input_free(struct request_input *input);

struct payload {
  struct slice head[PAYLOAD_VARIANTS]; // prefix, model, parameters, input and output descriptions
  struct slice body;                   // raw_input_contents
  int64_t tokens;
};

struct payload_options {
  const char *model, *version;          // version may be NULL
  const struct text_list *outputs;      // may be NULL: all
  const char *fusion[PAYLOAD_VARIANTS]; // parameter `fusion` of each variant; NULL: not sent
};

struct payload_set {
  struct payload *items;
  int n, capacity;
  size_t total_bytes;
};

// Encode and append. RESOURCE_EXHAUSTED when out of memory or past 4 GiB - 1 in one message.
MUST_USE enum status payload_set_add(struct payload_set *set, const struct payload_options *options,
                                     const struct request_input *input, struct error *err);
void payload_set_free(struct payload_set *set);

#endif
