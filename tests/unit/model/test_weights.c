// The weight table: shapes checked against the file; synthetic data seeded, near normal, and
// stable.
#include "weights_file.h"

#include "model/weights.h"

#include <math.h>

static char path[300];

// layer.weight F32 [3, 2], layer.bias BF16 [3], ids I64 [1], cube F32 [1, 1, 1]
static int setup(void **state) {
  (void)state;
  const char *header =
      "{\"layer.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
      "\"layer.bias\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
      "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[30,38]},"
      "\"cube\":{\"dtype\":\"F32\",\"shape\":[1,1,1],\"data_offsets\":[38,42]}}";
  snprintf(path, sizeof path, "%s/w.safetensors", temp_folder());
  write_weights(path, header, 42);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  unlink(path);
  *strrchr(path, '/') = '\0';
  return rmdir(path);
}

static void a_file_gives_shapes_and_data(void **state) {
  (void)state;
  struct weights *weights = NULL;
  struct error err;
  int32_t rows = 0, cols = 0, a = -1, b = -1, again = -1;
  assert_int_equal(weights_open_file(path, &weights, &err), STATUS_OK);
  assert_true(weights_shape(weights, "layer.weight", &rows, &cols));
  assert_int_equal(rows, 3);
  assert_int_equal(cols, 2);
  assert_true(weights_shape(weights, "layer.bias", &rows, &cols));
  assert_int_equal(rows, 1);
  assert_false(weights_shape(weights, "cube", &rows, &cols));
  assert_false(weights_shape(weights, "nothing", &rows, &cols));
  assert_int_equal(weights_add(weights, "layer.weight", WEIGHT_MATRIX, 3, 2, &a, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "layer.bias", WEIGHT_VECTOR, 1, 3, &b, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "layer.weight", WEIGHT_MATRIX, 3, 2, &again, &err),
                   STATUS_OK);
  assert_int_equal(a, 0);
  assert_int_equal(b, 1);
  assert_int_equal(again, 0);
  assert_int_equal(weights_fill(weights, &err), STATUS_OK);
  struct weight_table table = weights_table(weights);
  assert_int_equal(table.n_weights, 2);
  assert_string_equal(table.weights[1].name, "layer.bias");
  assert_int_equal(table.weights[1].stored_dtype, DTYPE_BF16);
  assert_non_null(table.weights[0].data);
  weights_close(weights);
}

static void refuses(const char *name, enum weight_form form, int32_t rows, int32_t cols,
                    const char *message) {
  struct weights *weights = NULL;
  struct error err = {0};
  int32_t id;
  assert_int_equal(weights_open_file(path, &weights, &err), STATUS_OK);
  assert_int_not_equal(weights_add(weights, name, form, rows, cols, &id, &err), STATUS_OK);
  assert_string_equal(err.message, message);
  weights_close(weights);
}

static void missing_and_misshapen_weights_are_named(void **state) {
  (void)state;
  refuses("layer.weigth", WEIGHT_MATRIX, 3, 2,
          "weight \"layer.weigth\" is not in the weights file; the nearest is \"layer.weight\"");
  refuses("a.prefix.that.the.file.has.not.layer.weight", WEIGHT_MATRIX, 3, 2,
          "weight \"a.prefix.that.the.file.has.not.layer.weight\" is not in the weights file; the "
          "nearest is \"layer.weight\"");
  refuses("weight", WEIGHT_MATRIX, 3, 2,
          "weight \"weight\" is not in the weights file; the nearest is \"layer.weight\"");
  refuses("something.else", WEIGHT_MATRIX, 3, 2,
          "weight \"something.else\" is not in the weights file");
  refuses("far.from.anything.bias", WEIGHT_VECTOR, 1, 2,
          "weight \"far.from.anything.bias\" is not in the weights file; `bias: false` says that "
          "there is none");
  refuses("layer.weight", WEIGHT_MATRIX, 2, 3,
          "weight \"layer.weight\" has the shape [3, 2]; expected [2, 3]");
  refuses("layer.weight", WEIGHT_VECTOR, 1, 2,
          "weight \"layer.weight\" has the shape [3, 2]; expected [2]");
  refuses("layer.bias", WEIGHT_MATRIX, 1, 3,
          "weight \"layer.bias\" has the shape [3]; expected [1, 3]");
  refuses("cube", WEIGHT_VECTOR, 1, 1, "weight \"cube\" has the shape [1, 1, 1]; expected [1]");
  refuses("cube", WEIGHT_MATRIX, 0, 0,
          "weight \"cube\" has the shape [1, 1, 1]; expected a matrix of at most 2^24 rows and "
          "columns");
  refuses("ids", WEIGHT_VECTOR, 1, 1,
          "weight \"ids\" has the dtype I64; expected F32, F16 or BF16");
}

static void one_name_has_one_shape(void **state) {
  (void)state;
  struct weights *weights = NULL;
  struct error err;
  int32_t id;
  assert_int_equal(weights_open_synthetic(1, 0.02, &weights, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "w", WEIGHT_MATRIX, 4, 4, &id, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "w", WEIGHT_MATRIX, 4, 8, &id, &err),
                   STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "weight \"w\" is [4, 8] here and [4, 4] elsewhere in the graph");
  weights_close(weights);
}

static void absurd_synthetic_sizes_are_refused_before_any_memory(void **state) {
  (void)state;
  struct weights *weights = NULL;
  struct error err;
  int32_t id;
  assert_int_equal(weights_open_synthetic(1, 0.02, &weights, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "w", WEIGHT_MATRIX, LIMIT_DIM, LIMIT_DIM, &id, &err),
                   STATUS_RESOURCE_EXHAUSTED);
  assert_string_equal(err.message,
                      "weight \"w\" of [16777216, 16777216] brings the synthetic weights "
                      "above 68719476736 bytes");
  char name[32];
  for (int i = 0; i <= LIMIT_WEIGHTS; i++) {
    snprintf(name, sizeof name, "v%d", i);
    enum status code = weights_add(weights, name, WEIGHT_VECTOR, 1, 4, &id, &err);
    assert_int_equal(code, i < LIMIT_WEIGHTS ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED);
  }
  weights_close(weights);
}

// The values of one synthetic weight among others; freed with *out.
static const float *synthesize(uint64_t seed, double scale, const char *before, const char *name,
                               enum weight_form form, struct weights **out) {
  struct error err;
  int32_t id;
  assert_int_equal(weights_open_synthetic(seed, scale, out, &err), STATUS_OK);
  if (before != NULL)
    assert_int_equal(weights_add(*out, before, WEIGHT_MATRIX, 3, 5, &id, &err), STATUS_OK);
  assert_int_equal(weights_add(*out, name, form, form == WEIGHT_MATRIX ? 256 : 1, 256, &id, &err),
                   STATUS_OK);
  assert_null(weights_table(*out).weights[id].data);
  assert_int_equal(weights_fill(*out, &err), STATUS_OK);
  const float *data = weights_table(*out).weights[id].data;
  assert_int_equal((uintptr_t)data % 64, 0);
  assert_int_equal(weights_fill(*out, &err), STATUS_OK); // once only
  assert_ptr_equal(weights_table(*out).weights[id].data, data);
  return data;
}

static void synthetic_values_depend_on_seed_and_name_only(void **state) {
  (void)state;
  struct weights *w[4];
  size_t bytes = 256 * 256 * sizeof(float);
  const float *a = synthesize(1, 0.02, NULL, "w", WEIGHT_MATRIX, &w[0]);
  const float *b = synthesize(1, 0.02, "x", "w", WEIGHT_MATRIX, &w[1]);
  const float *seed = synthesize(2, 0.02, NULL, "w", WEIGHT_MATRIX, &w[2]);
  const float *name = synthesize(1, 0.02, NULL, "v", WEIGHT_MATRIX, &w[3]);
  assert_memory_equal(a, b, bytes);
  assert_int_not_equal(memcmp(a, seed, bytes), 0);
  assert_int_not_equal(memcmp(a, name, bytes), 0);
  assert_true(a[0] != a[1]);
  for (int i = 0; i < 4; i++)
    weights_close(w[i]);
}

static void synthetic_values_have_the_asked_spread(void **state) {
  (void)state;
  struct weights *weights;
  const float *w = synthesize(7, 0.5, NULL, "w", WEIGHT_MATRIX, &weights);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int n = 256 * 256;
  for (int i = 0; i < n; i++) {
    sum += w[i];
    squares += (double)w[i] * w[i];
    fourth += (double)w[i] * w[i] * w[i] * w[i];
    if (i > 0) neighbours += (double)w[i] * w[i - 1];
  }
  double variance = squares / n, kurtosis = fourth / n / (variance * variance);
  print_message("mean %g deviation %g kurtosis %g correlation %g\n", sum / n, sqrt(variance),
                kurtosis, neighbours / squares);
  assert_true(fabs(sum / n) < 0.5 * 5 / 256); // 5 sigma of the mean
  assert_true(fabs(sqrt(variance) - 0.5) < 0.01);
  assert_true(fabs(kurtosis - 2.7) < 0.1); // four uniform variates: 3 - 1.2 / 4
  assert_true(fabs(neighbours / squares) < 5.0 / 256);
  weights_close(weights);
}

static void gains_are_around_one(void **state) {
  (void)state;
  struct weights *weights;
  const float *w = synthesize(7, 0.02, NULL, "norm.weight", WEIGHT_GAIN, &weights);
  for (int i = 0; i < 256; i++)
    if (fabsf(w[i] - 1) > 0.1F) fail_msg("gain %d is %g", i, (double)w[i]);
  weights_close(weights);
}

static void no_weights_are_an_empty_table(void **state) {
  (void)state;
  assert_int_equal(weights_table(NULL).n_weights, 0);
  assert_int_equal(weights_fill(NULL, NULL), STATUS_OK);
  weights_close(NULL);
}

static void after_binding_the_file_may_be_overwritten_and_cut(void **state) {
  (void)state;
  struct weights *weights = NULL;
  struct error err;
  int32_t matrix, table, vector;
  const char *header = "{\"m\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                       "\"t\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]},"
                       "\"v\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[16,20]}}";
  char file[sizeof path + 8];
  uint8_t bytes[512] = {(uint8_t)strlen(header)};
  memcpy(bytes + 8, header, strlen(header));
  memset(bytes + 8 + strlen(header), 'a', 20);
  snprintf(file, sizeof file, "%s.kept", path);
  write_file(file, bytes, 8 + strlen(header) + 20);
  assert_int_equal(weights_open_file(file, &weights, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "m", WEIGHT_MATRIX, 1, 2, &matrix, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "t", WEIGHT_MATRIX, 1, 2, &table, &err), STATUS_OK);
  assert_int_equal(weights_add(weights, "t", WEIGHT_TABLE, 1, 2, &table, &err), STATUS_OK); // both
  assert_int_equal(weights_add(weights, "v", WEIGHT_VECTOR, 1, 2, &vector, &err), STATUS_OK);
  assert_int_equal(weights_fill(weights, &err), STATUS_OK);
  const struct weight *all = weights_table(weights).weights;
  assert_memory_equal(all[matrix].data, "aaaaaaaa", 8); // for the back ends to pack
  memset(bytes + 8 + strlen(header), 'b', 20);
  FILE *again = fopen(file, "r+"); // in place: the same inode
  assert_int_equal(fwrite(bytes, 1, 8 + strlen(header) + 20, again), 8 + strlen(header) + 20);
  assert_int_equal(fclose(again), 0);
  assert_memory_equal(all[table].data, "aaaaaaaa", 8);
  assert_memory_equal(all[vector].data, "aaaa", 4);
  weights_let_go(weights);
  assert_int_equal(truncate(file, 0), 0);
  assert_null(all[matrix].data);
  assert_memory_equal(all[table].data, "aaaaaaaa", 8);
  assert_memory_equal(all[vector].data, "aaaa", 4);
  weights_let_go(weights); // once only
  weights_close(weights);
  unlink(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_gives_shapes_and_data),
      cmocka_unit_test(missing_and_misshapen_weights_are_named),
      cmocka_unit_test(one_name_has_one_shape),
      cmocka_unit_test(absurd_synthetic_sizes_are_refused_before_any_memory),
      cmocka_unit_test(synthetic_values_depend_on_seed_and_name_only),
      cmocka_unit_test(synthetic_values_have_the_asked_spread),
      cmocka_unit_test(gains_are_around_one),
      cmocka_unit_test(no_weights_are_an_empty_table),
      cmocka_unit_test(after_binding_the_file_may_be_overwritten_and_cut),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
