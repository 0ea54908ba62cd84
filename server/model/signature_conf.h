// The signature in a model file: the key `inputs`, and what inputs and outputs have in common.
//
// A mistake in an input does not hide those of the graph: the input is there, as BUILD_UNKNOWN, so
// that no step misses it and none is blamed for what nobody knows of it.
#ifndef MODEL_SIGNATURE_CONF_H
#define MODEL_SIGNATURE_CONF_H

#include "model/build.h"

#define SIGNATURE_FLOATS "fp32|fp16|bf16"
#define SIGNATURE_DTYPES SIGNATURE_FLOATS "|int64|int32"
extern const enum dtype signature_dtypes[]; // by the index of a word of these

bool signature_is_index(enum dtype dtype); // int64 or int32
// Name of an input or output; what is wrong with it is reported, and may be in `out`. `node` may be
// NULL.
void signature_read_name(struct builder *b, const struct conf_node *node,
                         struct signature_tensor *out);
// rank, dims, row_elements, per_token. False: reported.
bool signature_read_shape(struct conf_report *report, const struct conf_node *node,
                          struct signature_tensor *out);
// The inputs of the model, those with mistakes included: model->inputs, n_inputs, has_sequences,
// and of the builder input_tensor, rows_unknown and (where a name could not be read, so that any
// may be it) broken.
void signature_read_inputs(struct builder *b, const struct conf_node *root);

#endif
