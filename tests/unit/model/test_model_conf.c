// Model files: what they become, and mistakes around the graph told with their place, what was
// expected and what was found. Those of steps: test_model_steps.c.
#include "conf_rig.h"

// ---- what files become ----------------------------------------------------------------------

static void the_signature_has_the_wires_names_dtypes_and_shapes(void **state) {
  (void)state;
  struct model *model = accepts(
      "name: e\nversion: 7\nweights: {synthetic: {seed: 3, scale: 0.1}}\nfusion: ab\nmax_seqlen: "
      "9\n"
      "batch: {max_tokens: 100, max_requests: 5, max_delay: 20, queue_requests: 30}\n"
      "inputs:\n"
      "  - {name: input_ids, dtype: int64, shape: [batch, seq]}\n"
      "  - {name: attention_mask, dtype: int64, shape: [batch, seq], role: mask, optional: true}\n"
      "graph:\n"
      "  - embedding: {in: input_ids, weights: words, rows: 50, features: 8, out: h}\n"
      "  - pool: {kind: mean, out: p}\n"
      "outputs: [{name: last_hidden_state, from: h}, {name: sentence, from: p, dtype: fp16}]\n");
  assert_string_equal(model->name, "e");
  assert_string_equal(model->version, "7");
  assert_true(model->has_sequences && model->graph.has_sequences);
  assert_int_equal(model->max_seqlen, 9);
  assert_int_equal(model->batch.max_tokens, 100);
  assert_int_equal(model->max_request_rows, 100);
  assert_int_equal(model->batch.max_delay_ns, 20000);
  assert_true(model->fusion_available[FUSION_ON] && model->fusion_available[FUSION_OFF]);
  assert_int_equal(model->fusion_default, FUSION_ON);
  const struct signature_tensor *ids = &model->inputs[0], *mask = &model->inputs[1];
  assert_int_equal(ids->index_limit, 50);
  assert_int_equal(ids->row_elements, 1);
  assert_true(ids->per_token);
  assert_false(ids->optional);
  assert_int_equal(mask->role, ROLE_MASK);
  assert_true(mask->optional);
  const struct signature_tensor *hidden = &model->outputs[0], *sentence = &model->outputs[1];
  assert_int_equal(hidden->rank, 3);
  assert_int_equal(hidden->dims[0], DIM_BATCH);
  assert_int_equal(hidden->dims[1], DIM_SEQ);
  assert_int_equal(hidden->dims[2], 8);
  assert_int_equal(hidden->dtype, DTYPE_F32);
  assert_int_equal(sentence->rank, 2);
  assert_false(sentence->per_token);
  assert_int_equal(sentence->dtype, DTYPE_F16);
  assert_string_equal(nodes_text(model),
                      "embedding h < input_ids words.weight\npool p < h\ncast cast#2 < p\n");
  assert_int_equal(model->graph.n_outputs, 2);
  model_put(model);
}

static void steps_read_the_one_before_unless_they_say_otherwise(void **state) {
  (void)state;
  becomes(
      with_steps(
          "  - relu\n  - scale: {factor: 2, out: a}\n  - tanh:\n  - add: {in: [a, x], out: y}\n"),
      "relu relu#0 < x\nscale a < relu#0\ntanh tanh#2 < a\nadd y < a x\n");
}

static void every_op_has_a_word(void **state) {
  (void)state;
  becomes(
      with_steps("  - linear: {weights: l, features: 6}\n"
                 "  - linear: {weights: l2, features: 4, bias: false}\n"
                 "  - linear: {weight: full.w, bias: full.b, features: 4}\n"
                 "  - layer_norm: {weights: n}\n  - rms_norm: {weights: r, eps: 1.0e-6}\n"
                 "  - gelu: {form: tanh}\n  - gelu\n  - relu\n  - silu\n  - tanh\n  - sigmoid\n"
                 "  - softmax\n  - normalize: {eps: 0.001}\n  - identity\n  - bias: {weight: v}\n"
                 "  - mul: {weight: g}\n  - add: {weight: v}\n  - cast: {to: fp32, out: c}\n"
                 "  - reduce: {kind: max, out: m}\n  - mul: {in: [c, m], out: y}\n"),
      "linear linear#0 < x l.weight l.bias\nlinear linear#1 < linear#0 l2.weight\n"
      "linear linear#2 < linear#1 full.w full.b\n"
      "layer_norm layer_norm#3 < linear#2 n.weight n.bias\n"
      "rms_norm rms_norm#4 < layer_norm#3 r.weight\ngelu gelu#5 < rms_norm#4\n"
      "gelu gelu#6 < gelu#5\nrelu relu#7 < gelu#6\nsilu silu#8 < relu#7\ntanh tanh#9 < silu#8\n"
      "sigmoid sigmoid#10 < tanh#9\nsoftmax softmax#11 < sigmoid#10\n"
      "normalize normalize#12 < softmax#11\nidentity identity#13 < normalize#12\n"
      "bias bias#14 < identity#13 v\nmul mul#15 < bias#14 g\nadd add#16 < mul#15 v\n"
      "cast c < add#16\nreduce m < c\nmul y < c m\n");
}

static void a_repeat_counts_in_names(void **state) {
  (void)state;
  becomes(with_steps("  - repeat:\n      times: 2\n      as: k\n      body:\n"
                     "        - bias: {weight: 'b.{k}', out: 'h.{k+1}'}\n"
                     "        - repeat: {times: 2, body: [{bias: {weight: 'c.{k}.{i}'}}]}\n"
                     "  - add: {in: [h.1, h.2], out: y}\n"),
          "bias h.1 < x b.0\nbias bias#1 < h.1 c.0.0\nbias bias#2 < bias#1 c.0.1\n"
          "bias h.2 < bias#2 b.1\nbias bias#4 < h.2 c.1.0\nbias bias#5 < bias#4 c.1.1\nadd y < h.1 "
          "h.2\n");
}

static void an_mlp_becomes_its_ops(void **state) {
  (void)state;
  becomes(with_steps("  - mlp: {weights: f, hidden: 8, out: y}\n"),
          "linear y/up < x f.up.weight f.up.bias\ngelu y/activation < y/up\n"
          "linear y < y/activation f.down.weight f.down.bias\n");
  becomes(
      with_steps("  - mlp: {up: a, down: b, gate: c, hidden: 8, activation: silu, bias: false, "
                 "norm: pre,\n"
                 "          norm_kind: rms_norm, norm_weights: n, residual: true, out: y}\n"),
      "rms_norm y/norm < x n.weight\nlinear y/up < y/norm a.weight\n"
      "linear y/gate < y/norm c.weight\nsilu y/activation < y/gate\n"
      "mul y/gated < y/activation y/up\nlinear y/output < y/gated b.weight\nadd y < y/output x\n");
}

static void an_attention_block_becomes_its_ops(void **state) {
  (void)state;
  becomes(
      with_sequence_steps("  - attention_block: {weights: a, heads: 3, kv_heads: 1, causal: true,\n"
                          "      norm: post, residual: true, output: o, out: y}\n"),
      "linear y/query < x a.query.weight a.query.bias\nlinear y/key < x a.key.weight a.key.bias\n"
      "linear y/value < x a.value.weight a.value.bias\nattention y/context < y/query y/key "
      "y/value\n"
      "linear y/output < y/context a.o.weight a.o.bias\nadd y/residual < y/output x\n"
      "layer_norm y < y/residual a.norm.weight a.norm.bias\n");
  struct model *model = accepts(
      with_sequence_steps("  - attention_block: {heads: 3, kv_heads: 1, causal: true, out: y}\n"));
  const struct node *node = &model->graph.nodes[3];
  assert_int_equal(node->op, OP_ATTENTION);
  assert_int_equal(node->attrs.heads, 3);
  assert_int_equal(node->attrs.kv_heads, 1);
  assert_true(node->attrs.causal);
  assert_int_equal(model->graph.tensors[node->in[0]].cols, 12);
  assert_int_equal(model->graph.tensors[node->in[1]].cols, 4);
  model_put(model);
}

static void an_encoder_layer_norms_before_or_after(void **state) {
  (void)state;
  becomes(with_sequence_steps(
              "  - encoder_layer: {heads: 3, hidden: 8, norm: pre, bias: false, out: y}\n"),
          "layer_norm y/attention.norm < x attention_norm.weight attention_norm.bias\n"
          "linear y/attention.query < y/attention.norm query.weight\n"
          "linear y/attention.key < y/attention.norm key.weight\n"
          "linear y/attention.value < y/attention.norm value.weight\n"
          "attention y/attention.context < y/attention.query y/attention.key y/attention.value\n"
          "linear y/attention.output < y/attention.context attention_output.weight\n"
          "add y/attention < y/attention.output x\n"
          "layer_norm y/mlp.norm < y/attention output_norm.weight output_norm.bias\n"
          "linear y/mlp.up < y/mlp.norm up.weight\ngelu y/mlp.activation < y/mlp.up\n"
          "linear y/mlp.output < y/mlp.activation down.weight\nadd y < y/mlp.output y/attention\n");
  struct model *model =
      accepts(with_sequence_steps("  - encoder_layer: {heads: 3, hidden: 8, out: y}\n"));
  assert_int_equal(model->graph.n_nodes, 12);
  assert_int_equal(model->graph.nodes[11].op, OP_LAYER_NORM); // post is the default
  model_put(model);
}

static void dims_come_from_the_weights_file(void **state) {
  (void)state;
  struct model *model = accepts(
      "name: m\nweights: {file: w.safetensors}\ninputs: [{name: i, dtype: int32, shape: [batch]}]\n"
      "graph: [{embedding: {weights: table}}, {linear: {weights: up}}, {linear: {weights: down, "
      "out: y}}]\n"
      "outputs: [y]\n");
  assert_int_equal(model->inputs[0].index_limit, 10);
  assert_int_equal(model->outputs[0].dims[1], 4);
  assert_int_equal(model->weights.n_weights, 5);
  assert_int_equal(model->weights.weights[0].stored_dtype, DTYPE_F16);
  assert_false(model->has_sequences);
  assert_int_equal(model->max_seqlen, 1);
  model_put(model);
}

static enum dtype dtype_of(const struct model *model, const char *name) {
  int32_t id = graph_find_tensor(&model->graph, name);
  if (id < 0) fail_msg("no tensor %s", name);
  return model->graph.tensors[id].dtype;
}

static void bf16_computes_between_casts_with_fp32_vectors(void **state) {
  (void)state;
  struct model *model =
      accepts("name: m\ncompute: bf16\nweights: {synthetic: {}}\n"
              "inputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"
              "graph: [{layer_norm: {weights: n}}, {linear: {weights: l, features: 4, out: h}},\n"
              "  {add: {in: [h, x], out: s}}]\noutputs: [{name: y, from: s}]\n");
  assert_string_equal(nodes_text(model),
                      "cast cast#0 < x\nlayer_norm layer_norm#1 < cast#0 n.weight n.bias\n"
                      "linear h < layer_norm#1 l.weight l.bias\nadd s < h cast#0\n"
                      "cast cast#4 < s\n");
  assert_int_equal(dtype_of(model, "x"), DTYPE_F32);
  assert_int_equal(dtype_of(model, "layer_norm#1"), DTYPE_BF16);
  assert_int_equal(dtype_of(model, "l.weight"), DTYPE_BF16);
  assert_int_equal(dtype_of(model, "l.bias"), DTYPE_F32);
  assert_int_equal(dtype_of(model, "n.weight"), DTYPE_F32);
  assert_int_equal(dtype_of(model, "s"), DTYPE_BF16);
  assert_int_equal(model->graph.tensors[model->graph.outputs[0]].dtype, DTYPE_F32);
  assert_int_equal(model->outputs[0].dtype, DTYPE_F32);
  model_put(model);
}

// Where the device asks for it. The last product's result is cast: its plan keeps that bias in
// fp32, which the graph does not say.
static void vectors_are_in_the_compute_dtype_where_the_device_asks(void **state) {
  (void)state;
  static const char text[] =
      "name: m\ncompute: bf16\nweights: {synthetic: {}}\n"
      "inputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"
      "graph: [{layer_norm: {weights: n}}, {linear: {weights: l, features: 4}},\n"
      "  {mul: {weight: gate}}, {gelu: {}}, {linear: {weights: m, features: 4, out: h}}]\n"
      "outputs: [{name: y, from: h}]\n";
  struct plan_caps caps = {.epilogue_max = 4, .epilogue_kinds = 0x1f, .vectors_as_compute = true};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  enum status code;
  struct model *model = parse(text, &caps, &code);
  assert_string_equal(collected.text, "");
  static const char *const narrow[] = {"n.weight", "n.bias", "l.weight",
                                       "l.bias",   "gate",   "m.bias"};
  for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
    assert_int_equal(dtype_of(model, narrow[i]), DTYPE_BF16);
  const struct plan *plan = model->plans[FUSION_ON];
  const struct step *last = &plan->steps[plan->n_steps - 1];
  assert_int_equal(last->kind, STEP_LINEAR);
  assert_int_equal(last->out[0].dtype, DTYPE_F32);
  assert_int_equal(last->in[2].dtype, DTYPE_F32);
  for (int32_t s = 0; s + 1 < plan->n_steps; s++)
    for (int i = 0; i < plan->steps[s].n_in; i++)
      if (plan->steps[s].in[i].place == PLACE_WEIGHT)
        assert_int_equal(plan->steps[s].in[i].dtype, DTYPE_BF16);
  model_put(model);
}

static void an_input_may_be_an_output(void **state) {
  (void)state;
  becomes("name: m\ninputs: [{name: x, dtype: fp32, shape: [batch, 2, 3]}]\ngraph: [{identity: "
          "{out: z}}]\n"
          "outputs: [{name: y, from: x, shape: [batch, 6]}, z]\n",
          "identity z < x\nidentity identity#1 < x\n");
}

// ---- mistakes around the graph --------------------------------------------------------------

static void missing_and_unknown_keys_are_told_together(void **state) {
  (void)state;
  refuses("nam: m\nfusoin: on\n",
          "1:1: nam: unknown key \"nam\"; did you mean \"name\"?\n"
          "2:1: fusoin: unknown key \"fusoin\"; did you mean \"fusion\"?\n"
          "1:1: key \"name\" is missing\n1:1: key \"inputs\" is missing\n"
          "1:1: key \"graph\" is missing\n1:1: key \"outputs\" is missing\n");
}

static void identity_and_modes_are_checked(void **state) {
  (void)state;
  refuses(
      "name: a b\nversion: 1/2\ncompute: fp64\nfusion: maybe\nbatch: {max_tokens: 0, delay: 1}\n"
      "inputs: []\ngraph: [relu]\noutputs: [y]\n",
      "1:7: name: expected letters, digits, \".\", \"_\" and \"-\", found \"a b\"\n"
      "2:10: version: expected letters, digits, \".\", \"_\" and \"-\", found \"1/2\"\n"
      "3:10: compute: expected one of fp32, fp16, bf16, found fp64; did you mean \"fp32\"?\n"
      "4:9: fusion: expected one of on, off, ab, auto, found maybe\n"
      "5:24: batch.delay: unknown key \"delay\"; expected one of max_tokens, max_requests, "
      "max_delay, "
      "queue_requests\n"
      "5:21: batch.max_tokens: expected an integer from 1 to 1048576, found 0\n"
      "6:9: inputs: expected 1 to 16 inputs, found 0\n");
}

static void a_compute_type_the_device_lacks_is_refused(void **state) {
  (void)state;
  struct plan_caps caps = {.dtype_ok = {[DTYPE_F32] = true}};
  enum status code;
  struct model *model = parse("name: m\ncompute: bf16\ninputs: []\n", &caps, &code);
  assert_null(model);
  assert_non_null(strstr(collected.text,
                         "2:10: compute: this device does not compute in bf16; it does in fp32\n"));
  // Wherever the file names it.
  model = parse("name: m\n"
                "inputs: [{name: x, dtype: fp32, shape: [batch, 4]}, {name: z, dtype: fp16, "
                "shape: [batch, 4]}]\n"
                "graph: [{add: {in: [x, z]}}, {cast: {to: bf16}}, {relu: {in: x, out: y}}]\n"
                "outputs: [{name: y, dtype: bf16}]\n",
                &caps, &code);
  assert_null(model);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
  assert_string_equal(
      collected.text,
      "2:70: inputs[1].dtype: this device does not compute in fp16; it does in fp32\n"
      "3:42: graph[1].cast.to: this device does not compute in bf16; it does in fp32\n"
      "4:28: outputs[0].dtype: this device does not compute in bf16; it does in fp32\n");
}

static void words_may_stand_in_quotes(void **state) {
  (void)state;
  struct model *model =
      accepts("{\"name\": \"m\", \"fusion\": \"on\", \"inputs\": [{\"name\": \"x\", "
              "\"dtype\": \"fp32\", \"shape\": [\"batch\", \"seq\", 4]}], \"graph\": "
              "[{\"relu\": {\"out\": \"y\"}}], \"outputs\": [\"y\"]}");
  assert_true(model->has_sequences);
  assert_int_equal(model->inputs[0].row_elements, 4);
  model_put(model);
  refuses(
      "name: m\ninputs: [{name: x, dtype: fp32, shape: ['batch', '4']}]\n"
      "graph: [relu: {out: y}]\noutputs: [y]\n",
      "2:50: inputs[0].shape[1]: expected an integer from 1 to 16777216, found the text \"4\"\n");
}

static void input_mistakes(void **state) {
  (void)state;
  const struct {
    const char *inputs, *errors;
  } cases[] = {
      {"{name: x, dtype: fp32, shape: [batch, seq, 4, seq]}",
       "2:47: inputs[0].shape[3]: batch stands first and seq second\n"},
      {"{name: x, dtype: fp32, shape: [4, batch]}",
       "2:32: inputs[0].shape[0]: the first dimension is always batch\n"},
      {"{name: x, dtype: fp32, shape: []}",
       "2:31: inputs[0].shape: expected 1 to 8 dimensions, found 0\n"},
      {"{name: x, dtype: fp32, shape: [batch, 1000000000]}",
       "2:39: inputs[0].shape[1]: expected an integer from 1 to 16777216, found 1000000000\n"},
      {"{name: x, dtype: fp32, shape: [batch, 16777216, 16777216]}",
       "2:31: inputs[0].shape: more than 16777216 elements in one row\n"},
      {"{name: x, dtype: fp33, shape: [batch]}",
       "2:18: inputs[0].dtype: expected one of fp32, fp16, bf16, int64, int32, found fp33; did you "
       "mean \"fp32\"?\n"},
      {"{name: x, dtype: int64, shape: [batch, 4]}",
       "2:1: inputs[0]: an input of int64 has one index per row: [batch] or [batch, seq]\n"},
      {"{name: x, dtype: fp32, shape: [batch, seq], role: mask}",
       "2:1: inputs[0]: a mask or lengths input is int64 or int32, found fp32\n"},
      {"{name: x, dtype: int64, shape: [batch], role: mask}",
       "2:1: inputs[0]: a mask has the shape [batch, seq]\n"},
      {"{name: x, dtype: int64, shape: [batch, seq], role: lengths}",
       "2:1: inputs[0]: lengths have the shape [batch]\n"},
      {"{name: positions, dtype: fp32, shape: [batch]}",
       "2:8: inputs[0].name: \"positions\" is a name that the graph uses itself\n"},
      {"{name: 'a b', dtype: fp32, shape: [batch]}",
       "2:8: inputs[0].name: a name may not contain blanks, quotes, # or what is not ASCII\n"},
      {"{dtype: fp32, shape: [batch], rol: mask}",
       "2:31: inputs[0].rol: unknown key \"rol\"; did you mean \"role\"?\n"
       "2:1: inputs[0]: key \"name\" is missing\n"},
      {"{name: x, dtype: fp32, shape: [batch, 16385], optional: true}",
       "2:1: inputs[0]: an optional input has rows of at most 65536 bytes, these have 65540\n"},
      {"5", "2:1: inputs[0]: expected a map (key: value), found 5\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[1024];
    // The map begins at line 2, column 1.
    snprintf(text, sizeof text,
             "{name: m, graph: [{relu: {out: y}}], outputs: [y], inputs: [\n%s]}\n",
             cases[i].inputs);
    refuses(text, cases[i].errors);
  }
}

static void inputs_are_checked_together(void **state) {
  (void)state;
#define INPUTS(list) "name: m\ninputs: [" list "]\ngraph: [{relu: {out: y}}]\noutputs: [y]\n"
#define WIDE "{name: wide, dtype: fp32, shape: [batch, seq]}"
  refuses(INPUTS(WIDE ", " WIDE), "2:58: inputs[1]: a second input \"wide\"\n");
  refuses(INPUTS(WIDE ", {name: m, dtype: int64, shape: [batch, seq], role: mask}, "
                      "{name: n, dtype: int64, shape: [batch], role: lengths}"),
          "2:9: inputs: expected one mask or lengths input, found several\n");
  refuses(INPUTS("{name: x, dtype: fp32, shape: [batch, 4]}, {name: n, dtype: int32, shape: "
                 "[batch], role: lengths}"),
          "2:9: inputs: a mask or lengths input needs a data input with a seq dimension\n");
  refuses(INPUTS("{name: m, dtype: int64, shape: [batch, seq], role: mask}"),
          "2:9: inputs: expected an input that is no mask and not optional, with a seq dimension: "
          "it gives a request its size\n");
  refuses("name: m\ninputs: [{name: ids, dtype: int64, shape: [batch, seq]}"
          ", {name: extra, dtype: fp32, shape: [batch, 4]}]\nweights: {synthetic: {}}\n"
          "graph: [{embedding: {weights: w, rows: 4, features: 4, out: y}}]\noutputs: [y]\n",
          "2:58: inputs[1]: no step reads \"extra\"; an input that is ignored must be optional\n");
  refuses("name: m\ninputs: [{name: ids, dtype: int64, shape: [batch, seq]}"
          ", {name: my_mask, dtype: int64, shape: [batch, seq], optional: true}]\n"
          "weights: {synthetic: {}}\n"
          "graph: [{embedding: {weights: w, rows: 4, features: 4, out: y}}]\noutputs: [y]\n",
          "2:58: inputs[1]: no step reads \"my_mask\", so padding would count as tokens; expected "
          "role: mask\n");
}

static void weights_sources_are_checked(void **state) {
  (void)state;
#define WEIGHTS(w)                                                                                 \
  "name: m\nweights: " w "\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"                 \
  "graph: [{linear: {weights: up, out: y}}, {linear: {weights: down, out: z}}]\noutputs: [z]\n"
  refuses(WEIGHTS("{}"),
          "2:10: weights: expected one of the keys \"file\" and \"synthetic\", found none\n");
  refuses(WEIGHTS("{file: a, synthetic: {}}"),
          "2:10: weights: expected one of the keys \"file\" and \"synthetic\", found both\n");
  refuses(WEIGHTS("w.safetensors"),
          "2:10: weights: expected a map (key: value), found w.safetensors\n");
  refuses(
      WEIGHTS("{synthetic: {seed: -1, scale: .nan}}"),
      "2:29: weights.synthetic.seed: expected an integer from 0 to 9223372036854775807, found -1\n"
      "2:40: weights.synthetic.scale: expected a number from 0 to 1e+06, found .nan\n"
      "4:18: graph[0].linear: key \"features\" is missing: synthetic weights have no shape of "
      "their own\n"
      "4:51: graph[1].linear: key \"features\" is missing: synthetic weights have no shape of "
      "their own\n");
  char errors[512];
  snprintf(errors, sizeof errors,
           "2:17: weights.file: %s/none.safetensors: cannot be read: No such file or directory\n",
           folder);
  refuses(WEIGHTS("{file: none.safetensors}"), errors); // told once, not for every weight
  snprintf(errors, sizeof errors, "2:17: weights.file: %s/m.yaml: the header should have", folder);
  enum status code;
  (void)parse(WEIGHTS("{file: m.yaml}"), NULL, &code);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
  assert_memory_equal(collected.text, errors, strlen(errors));
  refuses(
      "name: m\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\ngraph: [{linear: {weights: "
      "up, out: y}}]\n"
      "outputs: [y]\n",
      "3:18: graph[0].linear: weight \"up.weight\" is needed, but the model has no `weights:`\n");
}

static void output_mistakes(void **state) {
  (void)state;
#define OUTPUTS(list)                                                                              \
  "name: m\ninputs: [{name: x, dtype: fp32, shape: [batch, seq, 4]}]\n"                            \
  "graph: [{relu: {out: hidden}}]\noutputs: " list "\n"
  refuses(OUTPUTS("[]"), "4:10: outputs: expected 1 to 8 outputs, found 0\n");
  refuses(OUTPUTS("[hiden]"),
          "4:11: outputs[0]: no tensor \"hiden\" above; did you mean \"hidden\"?\n");
  refuses(OUTPUTS("[zzz]"),
          "4:11: outputs[0]: no input and no output of an earlier step is called \"zzz\"; the "
          "last step above makes \"hidden\"\n");
  refuses(OUTPUTS("[hidden, {name: h2, from: hidden}]"),
          "4:19: outputs[1]: output \"hidden\" already is this tensor\n");
  refuses(OUTPUTS("[{name: y, from: hidden}, {name: y, from: x}]"),
          "4:36: outputs[1]: output \"y\" already exists\n");
  refuses(OUTPUTS("[{name: y, from: hidden, shape: [batch, 4]}]"),
          "4:42: outputs[0].shape: the graph makes [batch, seq, 4] of it\n");
  refuses(OUTPUTS("[{name: y, from: hidden, dtype: int64}]"),
          "4:42: outputs[0].dtype: expected one of fp32, fp16, bf16, found int64\n");
}

static void sequence_limits_must_fit(void **state) {
  (void)state;
#define SEQ(keys)                                                                                  \
  "name: m\n" keys                                                                                 \
  "weights: {synthetic: {}}\ninputs: [{name: i, dtype: int64, shape: [batch, seq]}]\n"             \
  "graph: [{embedding: {in: positions, weights: p, rows: 16, features: 4, out: y}}, "              \
  "{embedding: {in: i, weights: w, rows: 9, features: 4, out: z}}]\noutputs: [y, z]\n"
  struct model *model = accepts(SEQ(""));
  assert_int_equal(model->max_seqlen, 16); // from the table
  model_put(model);
  refuses(SEQ("max_seqlen: 17\n"),
          "2:13: max_seqlen: 17 positions, but the position table has 16 rows\n");
  refuses(SEQ("max_seqlen: 12\nbatch: {max_tokens: 8}\n"),
          "2:13: max_seqlen: 12 tokens in a sequence, but batch.max_tokens is 8\n");
  refuses("name: m\nmax_seqlen: 5\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\ngraph: "
          "[{relu: {out: y}}]\n"
          "outputs: [y]\n",
          "2:1: max_seqlen: no input has a seq dimension\n");
}

static void a_missing_model_file_is_not_found(void **state) {
  (void)state;
  struct model *model = NULL;
  collected = (struct collect){0};
  assert_int_equal(
      model_parse("/nonexistent/m.yaml", &conf, NULL, collect_error, &collected, &model),
      STATUS_NOT_FOUND);
  assert_string_equal(collected.text, "0:0: cannot be read: No such file or directory\n");
  assert_string_equal(collected.file, "/nonexistent/m.yaml");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_signature_has_the_wires_names_dtypes_and_shapes),
      cmocka_unit_test(steps_read_the_one_before_unless_they_say_otherwise),
      cmocka_unit_test(every_op_has_a_word),
      cmocka_unit_test(a_repeat_counts_in_names),
      cmocka_unit_test(an_mlp_becomes_its_ops),
      cmocka_unit_test(an_attention_block_becomes_its_ops),
      cmocka_unit_test(an_encoder_layer_norms_before_or_after),
      cmocka_unit_test(dims_come_from_the_weights_file),
      cmocka_unit_test(bf16_computes_between_casts_with_fp32_vectors),
      cmocka_unit_test(vectors_are_in_the_compute_dtype_where_the_device_asks),
      cmocka_unit_test(an_input_may_be_an_output),
      cmocka_unit_test(missing_and_unknown_keys_are_told_together),
      cmocka_unit_test(identity_and_modes_are_checked),
      cmocka_unit_test(a_compute_type_the_device_lacks_is_refused),
      cmocka_unit_test(words_may_stand_in_quotes),
      cmocka_unit_test(input_mistakes),
      cmocka_unit_test(inputs_are_checked_together),
      cmocka_unit_test(weights_sources_are_checked),
      cmocka_unit_test(output_mistakes),
      cmocka_unit_test(sequence_limits_must_fit),
      cmocka_unit_test(a_missing_model_file_is_not_found),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
