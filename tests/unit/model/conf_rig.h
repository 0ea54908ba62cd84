// A weights file and a folder for the model files of test_model_conf and test_model_steps: parse
// one, and say what came of it.
#ifndef UNIT_MODEL_CONF_RIG_H
#define UNIT_MODEL_CONF_RIG_H

#include "folder.h"
#include "weights_file.h"

static char weights_path[300];

// Matrices up.weight [8, 4], down.weight [4, 8], table.weight [10, 4]; vectors up.bias [8],
// down.bias [4].
static inline int setup(void **state) {
  const char *header =
      "{\"up.weight\":{\"dtype\":\"F32\",\"shape\":[8,4],\"data_offsets\":[0,128]},"
      "\"down.weight\":{\"dtype\":\"F32\",\"shape\":[4,8],\"data_offsets\":[128,256]},"
      "\"table.weight\":{\"dtype\":\"F16\",\"shape\":[10,4],\"data_offsets\":[256,336]},"
      "\"up.bias\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[336,368]},"
      "\"down.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[368,384]}}";
  setup_folder(state);
  snprintf(weights_path, sizeof weights_path, "%s/w.safetensors", folder);
  write_weights(weights_path, header, 384);
  return 0;
}

static inline int teardown(void **state) {
  unlink(weights_path);
  return teardown_folder(state);
}

static inline struct model *parse(const char *text, const struct plan_caps *caps,
                                  enum status *code) {
  struct model *model = NULL;
  write_file(path, text, strlen(text));
  collected = (struct collect){0};
  *code = model_parse(path, &conf, caps, collect_error, &collected, &model);
  return model;
}

static inline struct model *accepts(const char *text) {
  enum status code;
  struct model *model = parse(text, NULL, &code);
  assert_string_equal(collected.text, "");
  assert_int_equal(code, STATUS_OK);
  assert_non_null(model);
  return model;
}

static inline void refuses(const char *text, const char *errors) {
  enum status code;
  struct model *model = parse(text, NULL, &code);
  if (code == STATUS_OK) {
    print_error("accepted:\n%s\n", text);
    model_put(model);
  }
  assert_string_equal(collected.text, errors);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
  assert_string_equal(collected.file, path);
}

// A model of synthetic weights with one [batch, 4] input and the given steps, the first on line 5;
// the output is y.
static inline const char *with_steps(const char *steps) {
  static char text[4096];
  snprintf(
      text, sizeof text,
      "name: m\nweights: {synthetic: {}}\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"
      "graph:\n%soutputs: [y]\n",
      steps);
  return text;
}

static inline void refuses_steps(const char *steps, const char *errors) {
  refuses(with_steps(steps), errors);
}

// The same with sequences: input x [batch, seq, 12].
static inline const char *with_sequence_steps(const char *steps) {
  static char text[4096];
  snprintf(text, sizeof text,
           "name: m\nweights: {synthetic: {}}\n"
           "inputs: [{name: x, dtype: fp32, shape: [batch, seq, 12]}]\ngraph:\n%soutputs: [y]\n",
           steps);
  return text;
}

// "op out<in,in out<in" of a graph, for comparing whole graphs.
static inline const char *nodes_text(const struct model *model) {
  static char text[8192];
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < model->graph.n_nodes; i++) {
    const struct node *node = &model->graph.nodes[i];
    const struct tensor *tensors = model->graph.tensors;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s %s <", op_name(node->op),
                             tensors[node->out].name);
    for (int j = 0; j < node->n_in; j++)
      used += (size_t)snprintf(text + used, sizeof text - used, " %s", tensors[node->in[j]].name);
    used += (size_t)snprintf(text + used, sizeof text - used, "\n");
  }
  return text;
}

static inline void becomes(const char *text, const char *nodes) {
  struct model *model = accepts(text);
  assert_string_equal(nodes_text(model), nodes);
  model_put(model);
}

#endif
