// Life of a model over a fake back end: bind, failure in the middle, counts; and the registry.
#include "unit/conf/collect.h"

#include "model/model.h"

static struct collect collected;
static struct server_conf conf;

// ---- a back end that counts
// -------------------------------------------------------------------------

static int loads, unloads, fail_at; // fail_at: which load says no; 0: none
static struct weight_table seen;

static enum status fake_load(struct device *device, const struct plan *plan,
                             const struct weight_table *weights, struct bound_plan **out,
                             struct error *err) {
  (void)device;
  (void)plan;
  seen = *weights;
  if (++loads == fail_at) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "does not fit");
  *out = (struct bound_plan *)(uintptr_t)loads;
  return STATUS_OK;
}

static void fake_unload(struct device *device, struct bound_plan *bound) {
  (void)device;
  assert_non_null(bound);
  unloads++;
}

static const struct backend_ops fake = {.name = "fake", .load = fake_load, .unload = fake_unload};
static struct device *devices[2];

static struct model *make(const char *name, const char *version, const char *fusion) {
  static const struct plan_caps caps = {
      .dtype_ok = {[DTYPE_F32] = true}, .epilogue_kinds = 1, .epilogue_max = 1};
  char text[512], path[300];
  struct model *model = NULL;
  const char *folder = temp_folder();
  snprintf(text, sizeof text,
           "name: %s\nversion: '%s'\nfusion: %s\nweights: {synthetic: {seed: 5}}\n"
           "inputs: [{name: x, dtype: fp32, shape: [batch, 4]}]\n"
           "graph: [{linear: {weights: l, features: 4}}, {gelu: {out: y}}]\noutputs: [y]\n",
           name, version, fusion);
  snprintf(path, sizeof path, "%s/m.yaml", folder);
  write_file(path, text, strlen(text));
  server_conf_defaults(&conf);
  collected = (struct collect){0};
  enum status code = model_parse(path, &conf, &caps, collect_error, &collected, &model);
  unlink(path);
  rmdir(folder);
  assert_string_equal(collected.text, "");
  assert_int_equal(code, STATUS_OK);
  loads = unloads = fail_at = 0;
  return model;
}

// ---- tests
// ----------------------------------------------------------------------------------------

static void binding_loads_each_mode_on_each_device(void **state) {
  (void)state;
  struct error err;
  struct model *model = make("m", "1", "ab");
  assert_null(model->weights.weights[0].data); // synthetic data are made when they are needed
  assert_int_equal(model_bind(model, &fake, devices, 2, &err), STATUS_OK);
  assert_int_equal(loads, 4);
  assert_int_equal(seen.n_weights, 2);
  assert_non_null(seen.weights[1].data);
  assert_non_null(model->metrics[FUSION_ON]);
  assert_non_null(model->metrics[FUSION_OFF]);
  model_put(model);
  assert_int_equal(unloads, 4);
}

// This device's products take a bias alone, so nothing but the names differs between the modes.
static void auto_is_bound_as_the_mode_that_it_comes_out_as(void **state) {
  (void)state;
  struct error err;
  struct model *model = make("m", "1", "auto");
  assert_non_null(model->plans[FUSION_AUTO]);
  assert_int_equal(model->auto_is, FUSION_ON);
  assert_int_equal(model->fusion_default, FUSION_ON);
  assert_int_equal(model_bind(model, &fake, devices, 1, &err), STATUS_OK);
  assert_int_equal(loads, 1);
  assert_non_null(model->bound[0][FUSION_ON]);
  assert_null(model->bound[0][FUSION_AUTO]);
  model_put(model);
  assert_int_equal(unloads, 1);
}

static void one_mode_binds_one_plan_but_knows_the_traffic_of_both(void **state) {
  (void)state;
  struct error err;
  struct model *model = make("m", "1", "off");
  assert_int_equal(model_bind(model, &fake, devices, 1, &err), STATUS_OK);
  assert_int_equal(loads, 1);
  assert_null(model->bound[0][FUSION_ON]);
  assert_non_null(model->plans[FUSION_ON]);
  assert_null(model->metrics[FUSION_ON]);
  assert_int_equal(model->fusion_default, FUSION_OFF);
  model_put(model);
  assert_int_equal(unloads, 1);
}

static void a_failed_bind_unloads_what_it_loaded(void **state) {
  (void)state;
  for (int at = 1; at <= 4; at++) {
    struct error err = {0};
    struct model *model = make("m", "1", "ab");
    fail_at = at;
    assert_int_equal(model_bind(model, &fake, devices, 2, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(err.message, "does not fit");
    model_put(model);
    assert_int_equal(unloads, at - 1);
  }
}

static void the_last_put_frees(void **state) {
  (void)state;
  struct error err;
  struct model *model = make("m", "1", "on");
  assert_int_equal(model_bind(model, &fake, devices, 1, &err), STATUS_OK);
  model_get(model);
  model_put(model);
  assert_int_equal(unloads, 0);
  model_put(model);
  assert_int_equal(unloads, 1);
}

static struct slice slice(const char *text) {
  return (struct slice){(const uint8_t *)text, strlen(text)};
}

static void models_are_found_by_name_and_version(void **state) {
  (void)state;
  struct registry *registry = NULL;
  struct error err;
  assert_int_equal(registry_open(&registry), STATUS_OK);
  struct model *a1 = make("a", "1", "on"), *a2 = make("a", "2", "on"), *b = make("b", "1", "on");
  assert_int_equal(registry_add(registry, a1, &err), STATUS_OK);
  assert_int_equal(registry_add(registry, a2, &err), STATUS_OK);
  assert_int_equal(registry_add(registry, b, &err), STATUS_OK);
  assert_ptr_equal(registry_find(registry, slice("a"), slice("1")), a1);
  assert_ptr_equal(registry_find(registry, slice("a"), slice("2")), a2);
  assert_ptr_equal(registry_find(registry, slice("a"), slice("")), a2); // the one added last
  const char *const versions[] = {"3", "01", "-1", "abc", "99999999999999999999", "1 "};
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    assert_null(registry_find(registry, slice("a"), slice(versions[i])));
  assert_null(registry_find(registry, slice("c"), slice("")));
  assert_null(registry_find(registry, slice(""), slice("")));
  assert_null(registry_find(registry, slice("ab"), slice("1")));
  assert_null(registry_find(registry, (struct slice){NULL, 0}, (struct slice){NULL, 0}));
  assert_int_equal(registry_count(registry), 3);
  assert_ptr_equal(registry_at(registry, 2), b);
  registry_close(registry);
}

static void a_misspelt_name_finds_its_nearest(void **state) {
  (void)state;
  struct registry *registry = NULL;
  struct error err;
  assert_int_equal(registry_open(&registry), STATUS_OK);
  assert_null(registry_nearest(registry, slice("minilm")));
  const char *const names[] = {"minilm", "minilm-bf16", "bert-base", "a", "minilm"};
  for (int i = 0; i < 5; i++)
    assert_int_equal(registry_add(registry, make(names[i], i == 4 ? "2" : "1", "on"), &err), 0);
  const struct {
    const char *name, *nearest;
  } cases[] = {{"minlm", "minilm"},
               {"MINILM", "minilm"},
               {"MiniLM-BF16", "minilm-bf16"},
               {"minilm-bf61", "minilm-bf16"},
               {"bertbase", "bert-base"},
               {"bert_base", "bert-base"},
               {"bert-large", NULL},
               {"b", NULL}, // whatever is as short would do
               {"", NULL},
               {"nobody", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *found = registry_nearest(registry, slice(cases[i].name));
    if (cases[i].nearest)
      assert_string_equal(found, cases[i].nearest);
    else
      assert_null(found);
  }
  uint8_t bytes[4096] = "minilm"; // zeros are bytes like others
  assert_null(registry_nearest(registry, (struct slice){bytes, sizeof bytes}));
  assert_null(registry_nearest(registry, (struct slice){NULL, 0}));
  assert_int_equal(registry_set(registry, 2, NULL, MODEL_UNAVAILABLE, "", &err), STATUS_OK);
  assert_null(registry_nearest(registry, slice("bertbase"))); // it does not serve
  registry_close(registry);
}

static void a_second_model_of_one_name_and_version_is_refused(void **state) {
  (void)state;
  struct registry *registry = NULL;
  struct error err;
  assert_int_equal(registry_open(&registry), STATUS_OK);
  struct model *again = make("a", "1", "on");
  assert_int_equal(registry_add(registry, make("a", "1", "on"), &err), STATUS_OK);
  assert_int_equal(registry_add(registry, again, &err), STATUS_ALREADY_EXISTS);
  assert_non_null(strstr(err.message, "model \"a\" version 1 "));
  model_put(again); // still the caller's
  registry_close(registry);
}

static void the_registry_is_bounded(void **state) {
  (void)state;
  struct registry *registry = NULL;
  struct error err;
  char version[16];
  assert_int_equal(registry_open(&registry), STATUS_OK);
  for (int i = 0; i <= LIMIT_MODELS; i++) {
    snprintf(version, sizeof version, "%d", i);
    struct model *model = make("a", version, "on");
    enum status code = registry_add(registry, model, &err);
    assert_int_equal(code, i < LIMIT_MODELS ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED);
    if (code != STATUS_OK) model_put(model);
  }
  registry_close(registry);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(binding_loads_each_mode_on_each_device),
      cmocka_unit_test(auto_is_bound_as_the_mode_that_it_comes_out_as),
      cmocka_unit_test(one_mode_binds_one_plan_but_knows_the_traffic_of_both),
      cmocka_unit_test(a_failed_bind_unloads_what_it_loaded),
      cmocka_unit_test(the_last_put_frees),
      cmocka_unit_test(models_are_found_by_name_and_version),
      cmocka_unit_test(a_misspelt_name_finds_its_nearest),
      cmocka_unit_test(a_second_model_of_one_name_and_version_is_refused),
      cmocka_unit_test(the_registry_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
