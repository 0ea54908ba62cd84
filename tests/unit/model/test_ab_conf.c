// The key `ab` of a model file.
#include "folder.h"

static struct model *parse_text(const char *text) {
  struct model *model = NULL;
  write_file(path, text, strlen(text));
  collected = (struct collect){0};
  enum status status = model_parse(path, &conf, NULL, collect_error, &collected, &model);
  assert_int_equal(status == STATUS_OK, model != NULL);
  return model;
}

// A model whose lines 2 and on are these, with these outputs of the step y.
static struct model *parse_outputs(const char *lines, const char *outputs) {
  char text[2048];
  snprintf(text, sizeof text,
           "name: m\n%s\nweights: {synthetic: {}}\n"
           "inputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"
           "graph:\n  - linear: {weights: l, features: 4, out: y}\noutputs: [%s]\n",
           lines, outputs);
  return parse_text(text);
}

static struct model *parse(const char *lines) {
  return parse_outputs(lines, "y");
}

static struct model *accepts(const char *lines) {
  struct model *model = parse(lines);
  assert_string_equal(collected.text, "");
  assert_non_null(model);
  return model;
}

static void refuses(const char *lines, const char *errors) {
  struct model *model = parse(lines);
  if (model) model_put(model);
  assert_null(model);
  assert_string_equal(collected.text, errors);
}

static void a_share_may_run_unfused(void **state) {
  (void)state;
  struct model *model = accepts("fusion: ab\nab: {unfused_share: 0.5}");
  assert_false(share_takes(&model->unfused));
  assert_true(share_takes(&model->unfused));
  model_put(model);
  model = accepts("fusion: ab");
  assert_false(share_takes(&model->unfused) || share_takes(&model->unfused));
  model_put(model);
}

static void shadows_have_sizes_and_an_alarm(void **state) {
  (void)state;
  struct model *model = accepts("fusion: ab\nab: {shadow: 0.05}");
  const struct model_shadow *shadow = &model->shadow;
  assert_true(shadow->share == 0.05 && shadow->alarm == 1e-4);
  assert_int_equal(shadow->max_rows, 512);
  assert_int_equal(shadow->slots, 2);
  model_put(model);
  model = accepts("fusion: ab\ncompute: bf16\nbatch: {max_tokens: 64}\nab: {shadow: 1, seed: 9}");
  shadow = &model->shadow;
  assert_true(shadow->share == 1 && shadow->alarm == 0.05);
  assert_int_equal(shadow->max_rows, 64); // no request is larger
  assert_int_equal(shadow->seed, 9);
  model_put(model);
  model = accepts("fusion: ab\nab: {shadow: 1, alarm: 1e-7, shadow_tokens: 9, shadow_slots: 5}");
  shadow = &model->shadow;
  assert_true(shadow->alarm == 1e-7);
  assert_int_equal(shadow->max_rows, 9);
  assert_int_equal(shadow->slots, 5);
  model_put(model);
  // An output of 16 bits moves by its rounding, whatever it was computed in.
  model = parse_outputs("fusion: ab\nab: {shadow: 1}", "y, {name: z, from: y, dtype: fp16}");
  assert_true(model && model->shadow.alarm == 1e-2);
  model_put(model);
  // Integers under another name are no coarser than the floats.
  model = parse_text("name: m\nfusion: ab\nab: {shadow: 1}\nweights: {synthetic: {}}\n"
                     "inputs: [{name: ids, dtype: int64, shape: [batch, seq]}]\ngraph:\n"
                     "  - identity: {in: ids, out: same}\n"
                     "  - embedding: {in: same, weight: w, rows: 9, features: 4, out: y}\n"
                     "outputs: [y]\n");
  assert_string_equal(collected.text, "");
  assert_true(model && model->shadow.alarm == 1e-4);
  model_put(model);
  model = accepts("fusion: ab\nab: {unfused_share: 1}");
  assert_true(model->shadow.share == 0);
  model_put(model);
}

static void shadows_mistakes_are_told(void **state) {
  (void)state;
  refuses("fusion: ab\nbatch: {max_tokens: 64}\nab: {shadow: -1, alarm: -2, shadow_tokens: 65, "
          "shadow_slots: 65}",
          "4:14: ab.shadow: expected a number from 0 to 1, found -1\n"
          "4:25: ab.alarm: expected a number from 0 to 1e+09, found -2\n"
          "4:44: ab.shadow_tokens: expected an integer from 1 to 64, found 65\n"
          "4:62: ab.shadow_slots: expected an integer from 1 to 64, found 65\n");
  refuses("fusion: ab\nab: {alarm: 1e-3}",
          "3:6: ab.alarm: is for shadows, and ab.shadow is not set\n");
}

static void it_is_for_models_with_both_plans(void **state) {
  (void)state;
  refuses("ab: {unfused_share: 0.5}", "2:1: ab: needs fusion: ab, which loads both plans\n");
  refuses("fusion: auto\nab: {unfused_share: 0.5}",
          "3:1: ab: needs fusion: ab, which loads both plans\n");
}

static void mistakes_are_told(void **state) {
  (void)state;
  refuses("fusion: ab\nab: 3", "3:5: ab: expected a map (key: value), found 3\n");
  refuses("fusion: ab\nab: {unfused_share: 1.5, sede: 1, seed: -1}",
          "3:26: ab.sede: unknown key \"sede\"; did you mean \"seed\"?\n"
          "3:21: ab.unfused_share: expected a number from 0 to 1, found 1.5\n"
          "3:41: ab.seed: expected an integer from 0 to 9223372036854775807, found -1\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_share_may_run_unfused),
      cmocka_unit_test(it_is_for_models_with_both_plans),
      cmocka_unit_test(mistakes_are_told),
      cmocka_unit_test(shadows_have_sizes_and_an_alarm),
      cmocka_unit_test(shadows_mistakes_are_told),
  };
  return cmocka_run_group_tests(tests, setup_folder, teardown_folder);
}
