// Mistakes in the steps of model files: told with their place, each once, none hiding another.
#include "conf_rig.h"

// ---- mistakes in steps ----------------------------------------------------------------------

static void step_mistakes(void **state) {
  (void)state;
  refuses_steps("  - liner: {weights: a}\n",
                "5:5: graph[0].liner: unknown op or block \"liner\"; did you mean \"linear\"?\n"
                "6:11: outputs[0]: no input and no output of an earlier step is called \"y\"\n");
  refuses_steps("  - convolution\n  - relu: {out: y}\n",
                "5:5: graph[0]: unknown op or block \"convolution\"; docs/MODELS.md lists them\n");
  refuses_steps("  - relu: {out: y}\n  - {relu: {}, gelu: {}}\n",
                "6:5: graph[1]: expected one op or block, as in \"- linear: {weights: a}\", found "
                "a map of several keys\n");
  refuses_steps("  - relu: 5\n  - relu: {out: y}\n",
                "5:11: graph[0].relu: expected a map (key: value), found 5\n");
  refuses_steps(
      "  - linear: {weights: l, featurs: 8, out: y}\n",
      "5:26: graph[0].linear.featurs: unknown key \"featurs\"; did you mean \"features\"?\n");
  refuses_steps(
      "  - linear: {weights: l, features: 1000000000, out: y}\n",
      "5:36: graph[0].linear.features: expected an integer from 1 to 16777216, found 1000000000\n");
  refuses_steps(
      "  - linear: {weights: l, features: 1e9, out: y}\n",
      "5:36: graph[0].linear.features: expected an integer from 1 to 16777216, found 1e9\n");
  refuses_steps("  - linear: {features: 4, out: y}\n",
                "5:13: graph[0].linear: expected one of the keys \"weights\" (a prefix) and "
                "\"weight\" (a name), found none\n");
  refuses_steps(
      "  - linear: {weight: l, bias: true, features: 4, out: y}\n",
      "5:31: graph[0].linear.bias: expected a name: with \"weight\" the bias is named in full\n");
  refuses_steps("  - layer_norm: {weights: n, eps: nan, out: y}\n",
                "5:35: graph[0].layer_norm.eps: expected a number from 0 to 1, found nan\n");
  refuses_steps("  - scale: {out: y}\n", "5:12: graph[0].scale: key \"factor\" is missing\n");
  refuses_steps("  - scale: {factor: inf, out: y}\n",
                "5:21: graph[0].scale.factor: expected a number from -1e+30 to 1e+30, found inf\n");
  // 0, and what is 0 as a float, would say "1/sqrt of the head size" to the graph.
  refuses(with_sequence_steps("  - attention: {in: [x, x, x], heads: 2, factor: 1e-60, out: y}\n"),
          "5:50: graph[0].attention.factor: expected a number from 1e-30 to 1e+06, found 1e-60\n");
  refuses_steps("  - add: {in: x, out: y}\n",
                "5:15: graph[0].add.in: expected 2 tensors in `in`, found 1\n");
  refuses_steps(
      "  - relu: {in: z, out: y}\n",
      "5:16: graph[0].relu.in: no input and no output of an earlier step is called \"z\"\n");
  refuses_steps("  - relu: {out: y}\n  - relu: {out: y}\n",
                "6:17: graph[1].relu.out: there is a tensor \"y\" already\n");
  refuses_steps("  - relu: {out: x}\n  - relu: {out: y}\n",
                "5:17: graph[0].relu.out: there is a tensor \"x\" already\n");
  refuses_steps(
      "  - bias: {weight: w, out: h}\n  - linear: {weight: w, features: 8, out: y}\n",
      "6:13: graph[1].linear: weight \"w\" is [8, 4] here and [1, 4] elsewhere in the graph\n");
  refuses_steps("  - embedding: {in: positions, weights: p, rows: 4, features: 4, out: y}\n",
                "5:21: graph[0].embedding.in: \"positions\" needs an input with a seq dimension\n");
}

static void one_mistake_does_not_hide_the_next_nor_repeat_itself(void **state) {
  (void)state;
  refuses_steps(
      "  - relu: {in: nothing, out: h}\n"
      "  - linear: {in: h, weights: l, features: 4, out: k}\n"
      "  - gelu: {form: erv}\n"
      "  - add: {in: [h, k], out: y}\n",
      "5:16: graph[0].relu.in: no input and no output of an earlier step is called \"nothing\"\n"
      "7:18: graph[2].gelu.form: expected one of erf, tanh, found erv; did you mean \"erf\"?\n");
  // What a repeat would have made is not missed behind it, however many times it was meant.
  refuses_steps("  - repeat: {times: 3, body: [{gelu: {form: erv, out: \"h.{i}\"}}]}\n"
                "  - relu: {in: h.2, out: y}\n",
                "5:45: graph[0].repeat.body[0].gelu.form: expected one of erf, tanh, found erv; "
                "did you mean \"erf\"?\n");
  refuses_steps("  - repeat: {times: two, body: [{relu: {out: \"h.{i}\"}}]}\n"
                "  - relu: {in: h.1, out: y}\n",
                "5:21: graph[0].repeat.times: expected an integer from 1 to 1024, found two\n");
  refuses_steps("  - repeat: {times: 3, body: [{gelu: {form: erv, out: \"h.{i}\"}}]}\n"
                "  - relu: {in: h.3, out: y}\n",
                "5:45: graph[0].repeat.body[0].gelu.form: expected one of erf, tanh, found erv; "
                "did you mean \"erf\"?\n"
                "6:16: graph[1].relu.in: no input and no output of an earlier step is called "
                "\"h.3\"\n");
}

static void what_a_broken_step_makes_is_not_missed(void **state) {
  (void)state;
  static const char behind[] = "  - relu: {in: h, out: k}\n  - gelu: {form: erv, out: y}\n";
  static const char erv[] =
      "gelu.form: expected one of erf, tanh, found erv; did you mean \"erf\"?\n";
  static const struct {
    const char *step, *mistake;
  } cases[] = {
      {"linear: {weights: l, features: 4, ot: h}",
       "5:39: graph[0].linear.ot: unknown key \"ot\"; did you mean \"out\"?\n"},
      {"liner: {weights: l, output: h}",
       "5:5: graph[0].liner: unknown op or block \"liner\"; did you mean \"linear\"?\n"},
      {"relu: {out: [h]}", "5:17: graph[0].relu.out: expected text, found a list\n"},
      {"relu: [h]", "5:11: graph[0].relu: expected a map (key: value), found a list\n"},
      {"{op: relu, out: h}", "5:5: graph[0]: expected one op or block, as in \"- linear: {weights: "
                             "a}\", found a map of several keys\n"},
      {"repeat: {times: 2, bdy: [{relu: {out: h}}]}",
       "5:24: graph[0].repeat.bdy: unknown key \"bdy\"; did you mean \"body\"?\n"},
      {"repeat: {times: 2, body: {relu: {out: h}}}",
       "5:30: graph[0].repeat.body: expected a list, found a map\n"},
      {"repeat: {times: 2, as: \"{j}\", body: [{relu: {out: h}}]}",
       "5:28: graph[0].repeat.as: expected a word, found \"{j}\"\n"},
      {"repeat: {times: 2, body: [{relu: {in: nothing}}, {repeat: {times: 2, as: j, body: [{relu: "
       "{out: h}}]}}]}",
       "5:43: graph[0].repeat.body[0].relu.in: no input and no output of an earlier step is called "
       "\"nothing\"\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char steps[400], errors[400];
    snprintf(steps, sizeof steps, "  - %s\n%s", cases[i].step, behind);
    snprintf(errors, sizeof errors, "%s7:18: graph[2].%s", cases[i].mistake, erv);
    refuses_steps(steps, errors);
  }
  // Nor is what a graph would have made that nobody found.
  refuses(
      "name: m\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\ngrap: [{relu: {out: y}}]\n"
      "outputs: [y]\n",
      "3:1: grap: unknown key \"grap\"; did you mean \"graph\"?\n1:1: key \"graph\" is missing\n");
}

static void a_mistake_is_told_once(void **state) {
  (void)state;
  refuses_steps("  - &step {gelu: {form: erv}}\n  - *step\n  - relu: {out: y}\n  - *step\n",
                "5:25: graph[0].gelu.form: expected one of erf, tanh, found erv; did you mean "
                "\"erf\"?\n");
  refuses("name: m\ninputs:\n  - {name: x, dtype: fp32, shape: [batch, 4]}\n"
          "  - {name: x, dtype: fp32, shape: [batch, 4]}\n"
          "  - {name: x, dtype: fp32, shape: [batch, 4]}\n"
          "graph: [{relu: {out: y}}]\noutputs: [y]\n",
          "4:5: inputs[1]: a second input \"x\"\n5:5: inputs[2]: a second input \"x\"\n");
  refuses(
      "name: m\ninputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\ngraph: [{relu: {out: y}}]\n"
      "outputs: [y, {name: z, from: y}, {name: u, from: y}]\n",
      "4:14: outputs[1]: output \"y\" already is this tensor\n"
      "4:34: outputs[2]: output \"y\" already is this tensor\n");
}

// What is shown goes to a terminal: no escape sequences of a file's, no half characters.
static void messages_are_printable(void **state) {
  (void)state;
  refuses_steps(
      "  - \"a\\e[31m\\n\\x9b\\u00e9\"\n  - relu: {out: y}\n",
      "5:5: graph[0]: unknown op or block \"a?[31m???\u00e9\"; docs/MODELS.md lists them\n");
  char steps[400], errors[400], name[200] = "", shown[200] = "";
  size_t used = 0;
  for (int i = 0; i < 60; i++)
    used += (size_t)snprintf(name + used, sizeof name - used, "%s", i == 0 ? "a" : "\u00e9");
  snprintf(shown, sizeof shown, "%.99s?", name); // 100 bytes end within a character
  snprintf(steps, sizeof steps, "  - %s\n  - relu: {out: y}\n", name);
  snprintf(errors, sizeof errors,
           "5:5: graph[0]: unknown op or block \"%s\"; docs/MODELS.md lists them\n", shown);
  refuses_steps(steps, errors);
}

static void a_file_without_keys_says_what_it_wants(void **state) {
  (void)state;
  const char *wanted = "the file has no keys; expected \"name\", \"inputs\", \"graph\" and "
                       "\"outputs\"\n";
  char message[200];
  snprintf(message, sizeof message, "1:1: %s", wanted);
  refuses("", message);
  refuses("# nothing yet\n", message);
  refuses("name: m\n", "1:1: key \"inputs\" is missing\n1:1: key \"graph\" is missing\n"
                       "1:1: key \"outputs\" is missing\n");
}

static void ten_thousand_mistakes_take_no_time(void **state) {
  (void)state;
  static char text[400000];
  size_t used = (size_t)snprintf(text, sizeof text, "%s", with_steps(""));
  used = (size_t)(strstr(text, "outputs:") - text);
  for (int i = 0; i < 10000; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "  - relu: {in: nothing%d}\n", i);
  snprintf(text + used, sizeof text - used, "outputs: [y]\n");
  enum status code;
  assert_null(parse(text, NULL, &code));
  assert_int_equal(collected.n, LIMIT_CONF_ERRORS);
}

static void heads_must_divide(void **state) {
  (void)state;
  const struct {
    const char *keys, *errors;
  } cases[] = {
      {"heads: 0",
       "5:30: graph[0].attention_block.heads: expected an integer from 1 to 4096, found 0\n"},
      {"heads: 5",
       "5:30: graph[0].attention_block.heads: 5 heads do not divide 12 columns evenly\n"},
      {"heads: 4, kv_heads: 3",
       "5:43: graph[0].attention_block.kv_heads: 3 kv heads do not divide 4 heads evenly\n"},
      {"causal: false", "5:22: graph[0].attention_block: key \"heads\" is missing\n"},
      {"heads: 4096, head_dim: 16777216",
       "5:30: graph[0].attention_block.heads: heads x head_dim is more than 16777216\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char steps[256];
    snprintf(steps, sizeof steps, "  - attention_block: {%s, out: y}\n", cases[i].keys);
    refuses(with_sequence_steps(steps), cases[i].errors);
  }
}

static void repeat_mistakes(void **state) {
  (void)state;
  refuses_steps("  - repeat: {times: 3, body: [{relu: {out: y}}]}\n",
                "5:44: graph[0].repeat.body[0].relu.out: there is a tensor \"y\" already; inside a "
                "repeat, use its counter "
                "in the name\n");
  refuses_steps(
      "  - repeat: {times: 3, as: k, body: [{bias: {weight: 'b.{i}'}}]}\n  - relu: {out: y}\n",
      "5:54: graph[0].repeat.body[0].bias.weight: \"{i}\" names no counter of a repeat around it; "
      "expected {k} or "
      "{k+1}\n");
  refuses_steps("  - repeat: {times: 5000, body: [relu]}\n  - relu: {out: y}\n",
                "5:21: graph[0].repeat.times: expected an integer from 1 to 1024, found 5000\n");
  refuses_steps("  - repeat: {body: [relu]}\n  - relu: {out: y}\n",
                "5:13: graph[0].repeat: key \"times\" is missing\n");
  refuses_steps(
      "  - repeat: {times: 2, body: [{repeat: {times: 2, body: [relu]}}]}\n  - relu: {out: y}\n",
      "5:40: graph[0].repeat.body[0].repeat: a repeat around this one counts with \"i\" already\n");
  refuses_steps(
      "  - repeat: {times: 1000, as: a, body: [{repeat: {times: 1000, as: b, body: []}}]}\n"
      "  - relu: {out: y}\n",
      "5:77: graph[0].repeat.body[0].repeat.body: expected at least one step\n");
  // A billion steps behind an error make no nodes that could be too many; found by fuzzing.
  refuses_steps("  - reluu\n  - repeat: {times: 1000, as: a, body: [{repeat: {times: 1000, as: b, "
                "body: [{repeat: {times: 1000, body: [relu]}}]}}]}\n  - relu: {out: y}\n",
                "5:5: graph[0]: unknown op or block \"reluu\"; did you mean \"relu\"?\n");
  // A billion steps: the graph's limit stops it, and says so once.
  refuses_steps("  - repeat: {times: 1000, as: a, body: [{repeat: {times: 1000, as: b, body: "
                "[{repeat: {times: 1000, "
                "body: [relu]}}]}}]}\n  - relu: {out: y}\n",
                "5:108: graph[0].repeat.body[0].repeat.body[0].repeat.body[0]: relu: more than "
                "4096 nodes, or out of memory\n");
}

static void misshapen_weights_are_told_where_they_are_used(void **state) {
  (void)state;
  refuses("name: m\nweights: {file: w.safetensors}\ninputs: [{name: x, dtype: fp32, shape: [batch, "
          "8]}]\ngraph:\n"
          "  - linear: {weights: up}\n  - linear: {weights: dwon}\n  - layer_norm: {weights: down, "
          "out: y}\noutputs: [y]\n",
          "5:13: graph[0].linear: weight \"up.weight\" has the shape [8, 4]; expected [8, 8]\n"
          "6:13: graph[1].linear: weight \"dwon.weight\" is not in the weights file; the nearest "
          "is \"down.weight\"\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(step_mistakes),
      cmocka_unit_test(one_mistake_does_not_hide_the_next_nor_repeat_itself),
      cmocka_unit_test(what_a_broken_step_makes_is_not_missed),
      cmocka_unit_test(a_mistake_is_told_once),
      cmocka_unit_test(messages_are_printable),
      cmocka_unit_test(a_file_without_keys_says_what_it_wants),
      cmocka_unit_test(ten_thousand_mistakes_take_no_time),
      cmocka_unit_test(heads_must_divide),
      cmocka_unit_test(repeat_mistakes),
      cmocka_unit_test(misshapen_weights_are_told_where_they_are_used),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
