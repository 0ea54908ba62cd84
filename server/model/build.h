// Inside model/: from the `graph:` of a model file to nodes. Steps (ops), blocks made of steps,
// repeats.
//
// A mistake in one step does not hide those of the next: the step's output becomes BUILD_UNKNOWN,
// and a step that reads an unknown tensor is only checked for its own keys.
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "conf/yaml.h"
#include "model/model.h"
#include "model/weights.h"

#define BUILD_NONE (-1)    // no such tensor
#define BUILD_UNKNOWN (-2) // could not be made because of an error that was reported
#define BUILD_SCOPES 4     // nested repeats
#define BUILD_STEPS                                                                                \
  (4 * LIMIT_GRAPH_NODES) // with repeats written out; behind an error steps make no nodes
#define BUILD_BROKEN 64   // names that are remembered as broken; with more, none is missed

struct builder {
  struct conf_report *report;
  struct model *model;
  const struct plan_caps *caps; // of the device; NULL: not known
  struct weights *weights;      // NULL: the file names none
  bool weights_broken;          // could not be opened: said once, not for each weight
  bool rows_unknown; // an input's shape is wrong: whether there are sequences, nobody knows
  int32_t current;   // what a step without `in` reads: the output of the one before
  // Graph tensor of an input in the compute dtype; BUILD_NONE: not made yet; BUILD_UNKNOWN: there
  // is an error in it, which was reported.
  int32_t input_tensor[LIMIT_MODEL_INPUTS];
  int n_steps; // that were tried
  int n_scopes;
  struct {
    const char *as;
    int32_t value;
  } scopes[BUILD_SCOPES];
  char broken[BUILD_BROKEN][LIMIT_NAME_BYTES]; // names of outputs that are BUILD_UNKNOWN
  int n_broken;
};

// A step may have made a tensor of a name that cannot be known: no name is missed from here on.
void build_forgive_names(struct builder *b);

// ---- build.c: names, tensors, weights, nodes ------------------------------------------------
// `{i}`, `{i+1}`, `{i-1}` in `text` replaced by the counters of the repeats around; into
// out[LIMIT_NAME_BYTES].
bool build_expand(struct builder *b, const struct conf_node *at, const char *text, char *out);
bool build_name(struct builder *b, const struct conf_node *at,
                char *out); // text, expanded, checked as a tensor's name
// The tensor called `name` for a step to read: an input (in the compute dtype), `positions` or an
// earlier output.
int32_t build_find(struct builder *b, const struct conf_node *at, const char *name);
// The step's inputs: key `in` (text or list), or the step before. Exactly `n` of them; false:
// reported. ids may be BUILD_UNKNOWN.
bool build_inputs(struct builder *b, const struct conf_node *step, int n, int32_t *ids);
// Name of the step's output: key `out`, or "<word>#<n>".
bool build_out_name(struct builder *b, const struct conf_node *step, const char *word, char *out);
// Inputs and output name of a step; both are checked before it says false.
bool build_ends(struct builder *b, const struct conf_node *step, int n, int32_t *ids,
                const char *word, char *out);
// Adds the node; `at` is blamed for errors. BUILD_UNKNOWN when an input is unknown or the graph
// refuses it.
int32_t build_node(struct builder *b, const struct conf_node *at, struct node node,
                   const char *out_name, enum dtype out_dtype);
// A weight's graph tensor; matrices in the compute dtype, vectors in fp32 or as the device asks
// (plan_caps). BUILD_UNKNOWN when there is none like it.
int32_t build_weight(struct builder *b, const struct conf_node *at, const char *name,
                     enum weight_form form, int32_t rows, int32_t cols);
// Can the device compute in a floating dtype that the file names at `at`? false: reported.
bool build_dtype(struct builder *b, const struct conf_node *at, enum dtype dtype);
const struct tensor *build_tensor(const struct builder *b, int32_t id);
// Rows of matrix `name`: `given` (> 0: key `features` and the like), or what the weights file says;
// 0: reported.
int32_t build_rows(struct builder *b, const struct conf_node *at, const char *name, int32_t given,
                   const char *key);

// ---- steps.c --------------------------------------------------------------------------------
// All steps of a list, in order.
void build_steps(struct builder *b, const struct conf_node *list);
int32_t build_linear(struct builder *b, const struct conf_node *at, int32_t x, const char *prefix,
                     bool bias, int32_t features, const char *features_key, const char *out_name);
enum norm_kind { NORM_LAYER, NORM_RMS };
int32_t build_norm(struct builder *b, const struct conf_node *at, int32_t x, enum norm_kind kind,
                   const char *prefix, double eps, const char *out_name);
int32_t build_activation(struct builder *b, const struct conf_node *at, int32_t x,
                         enum activation act, const char *out_name);
int32_t build_pair(struct builder *b, const struct conf_node *at, enum op op, int32_t x, int32_t y,
                   const char *out_name);

// ---- blocks.c -------------------------------------------------------------------------------
typedef int32_t (*build_fn)(struct builder *b, const struct conf_node *step);
int32_t build_mlp(struct builder *b, const struct conf_node *step);
int32_t build_attention_block(struct builder *b, const struct conf_node *step);
int32_t build_encoder_layer(struct builder *b, const struct conf_node *step);

#endif
