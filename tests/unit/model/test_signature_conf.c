// Mistakes in a model file's inputs beside mistakes in its graph: each is told, and none that is
// not there.
#include "folder.h"

// The inputs stand on line 2 from column 1 on, the steps from line 4 on, the output y on the last
// line.
static void refuses(const char *inputs, const char *steps, const char *errors) {
  char text[4096];
  struct model *model = NULL;
  int n = snprintf(text, sizeof text,
                   "weights: {synthetic: {}}\ninputs: [%s]\ngraph:\n%sname: m\noutputs: [y]\n",
                   inputs, steps);
  write_file(path, text, (size_t)n);
  collected = (struct collect){0};
  enum status code = model_parse(path, &conf, NULL, collect_error, &collected, &model);
  if (code == STATUS_OK) {
    print_error("accepted:\n%s\n", text);
    model_put(model);
  }
  assert_string_equal(collected.text, errors);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
}

#define X "{name: x, dtype: fp32, shape: [batch, seq, 8]}"
#define BAD_X "{name: x, dtype: fp33, shape: [batch, seq, 8]}"
#define BAD_X_SAYS                                                                                 \
  "2:27: inputs[0].dtype: expected one of fp32, fp16, bf16, int64, int32, found fp33; did you "    \
  "mean \"fp32\"?\n"

static void mistakes_in_the_graph_are_told_behind_those_in_the_inputs(void **state) {
  (void)state;
  refuses(BAD_X,
          "  - linear: {weights: a, features: 4, in: x, out: h}\n"
          "  - gelu: {form: erv, in: h, out: g}\n"
          "  - add: {in: [g, hh], out: y}\n",
          BAD_X_SAYS
          "5:18: graph[1].gelu.form: expected one of erf, tanh, found erv; did you mean "
          "\"erf\"?\n"
          "6:19: graph[2].add.in[1]: no input and no output of an earlier step is called "
          "\"hh\"\n");
  refuses(BAD_X, "  - relu: {in: x, out: z}\n",
          BAD_X_SAYS
          "6:11: outputs[0]: no input and no output of an earlier step is called \"y\"\n");
  // Of two good inputs and a bad one, only what touches the bad one is left alone.
  refuses(X
          ", {name: n, dtype: fp32, shape: [batch, seq, 0]}, {name: w, dtype: fp32, shape: [batch, "
          "seq, 4]}",
          "  - add: {in: [x, n], out: a}\n  - add: {in: [x, w], out: y}\n",
          "2:101: inputs[1].shape[2]: expected an integer from 1 to 16777216, found 0\n"
          "5:10: graph[1].add: add: b \"w\" is [tokens, 4], expected [tokens, 8], [tokens, 1] or a "
          "weight [1, 8] or [1, 1]\n");
}

static void what_nobody_can_know_is_no_mistake(void **state) {
  (void)state;
  // Nothing is known of x: neither its columns, nor whether there are sequences.
  const char *const steps =
      "  - attention: {heads: 3, in: [x, x, x], out: a}\n"
      "  - embedding: {weights: p, rows: 4, features: 8, in: positions, out: b}\n"
      "  - pool: {kind: mean, in: b, out: c}\n  - add: {in: [a, b], out: d}\n"
      "  - encoder_layer: {weights: l, heads: 3, hidden: 5, in: d, out: e}\n"
      "  - add: {in: [e/attention, c], out: y}\n";
  refuses("{name: x, dtype: fp32, shape: [batch, sek, 8]}", steps,
          "2:48: inputs[0].shape[1]: expected an integer from 1 to 16777216, found sek\n");
  refuses("{name: x, dtype: fp32}", steps, "2:10: inputs[0]: key \"shape\" is missing\n");
  refuses("5", steps, "2:10: inputs[0]: expected a map (key: value), found 5\n");
  // Nor what an input is called that has no name, or a bad one.
  refuses("{nmae: x, dtype: fp32, shape: [batch, seq, 8]}", "  - relu: {in: x, out: y}\n",
          "2:11: inputs[0].nmae: unknown key \"nmae\"; did you mean \"name\"?\n"
          "2:10: inputs[0]: key \"name\" is missing\n");
  refuses("{name: 'x{i}', dtype: fp32, shape: [batch, seq, 8]}", "  - relu: {in: x0, out: y}\n",
          "2:17: inputs[0].name: \"{i}\" names no counter of a repeat around it; expected {i} or "
          "{i+1}\n");
  // A second x is one mistake, not one for each step that reads x.
  refuses(X ", " X, "  - relu: {in: x, out: y}\n", "2:58: inputs[1]: a second input \"x\"\n");
  // Whether rows are tokens or sequences hangs on the input that lacks its dimension.
  refuses(
      "{name: x, dtype: fp32, shape: [batch, 8]}, {name: k, dtype: int32, shape: [batch], role: "
      "lengths}",
      "  - pool: {kind: mean, in: x, out: y}\n",
      "2:9: inputs: a mask or lengths input needs a data input with a seq dimension\n");
}

static void one_key_hides_no_other_of_its_step(void **state) {
  (void)state;
  const struct {
    const char *step, *error;
  } cases[] = {
      {"scale: {factor: much, ", "expected a number from -1e+30 to 1e+30, found much"},
      {"gelu: {form: 5, ", "expected one of erf, tanh, found 5"},
      {"cast: {to: int8, ", "expected one of fp32, fp16, bf16, found int8"},
      {"reduce: {kind: 5, ", "expected one of sum, mean, max, found 5"},
      {"pool: {kind: 5, ", "expected one of mean, cls, max, found 5"},
      {"normalize: {eps: 2, ", "expected a number from 0 to 1, found 2"},
      {"bias: {weight: [], ", "expected text, found a list"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    snprintf(text, sizeof text, "  - relu: {out: h}\n  - %sin: hh, out: h}\n  - relu: {out: y}\n",
             cases[i].step);
    collected = (struct collect){0};
    char file[1024];
    int n = snprintf(file, sizeof file,
                     "name: m\nweights: {synthetic: {}}\ninputs: [" X "]\ngraph:\n%soutputs: [y]\n",
                     text);
    struct model *model = NULL;
    write_file(path, file, (size_t)n);
    assert_int_equal(model_parse(path, &conf, NULL, collect_error, &collected, &model),
                     STATUS_INVALID_ARGUMENT);
    assert_int_equal(collected.n, 3);
    assert_non_null(strstr(collected.text, cases[i].error));
    assert_non_null(strstr(collected.text, "no tensor \"hh\" above; did you mean \"h\"?"));
    assert_non_null(strstr(collected.text, "there is a tensor \"h\" already"));
  }
  // Nor does a count that is none hide the steps that it counts.
  refuses(X,
          "  - repeat: {times: two, body: [{gelu: {form: 5, out: \"h.{i}\"}}]}\n"
          "  - relu: {in: h.7, out: y}\n",
          "4:21: graph[0].repeat.times: expected an integer from 1 to 1024, found two\n"
          "4:47: graph[0].repeat.body[0].gelu.form: expected one of erf, tanh, found 5\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mistakes_in_the_graph_are_told_behind_those_in_the_inputs),
      cmocka_unit_test(what_nobody_can_know_is_no_mistake),
      cmocka_unit_test(one_key_hides_no_other_of_its_step),
  };
  return cmocka_run_group_tests(tests, setup_folder, teardown_folder);
}
