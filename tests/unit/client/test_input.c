#include "client/input.h"
#include "harness/cmocka_all.h"
#include <unistd.h>

static struct oip_model bert(void) {
  struct oip_model model = {.n_inputs = 3};
  static const char *const names[3] = {"input_ids", "attention_mask", "token_type_ids"};
  for (int i = 0; i < 3; i++) {
    model.inputs[i] = (struct oip_tensor){.type = TYPE_INT64, .rank = 2, .dims = {-1, -1}};
    snprintf(model.inputs[i].name, sizeof model.inputs[i].name, "%s", names[i]);
  }
  return model;
}

static int64_t at(const struct infer_tensor *tensor, size_t index) {
  int64_t value = 0;
  memcpy(&value, tensor->data + 8 * index, 8);
  return value;
}

static void unlike_rows_are_padded_and_masked(void **state) {
  (void)state;
  const struct oip_model model = bert();
  const int64_t lengths[2] = {2, 3}, ids[5] = {11, 12, 21, 22, 23};
  const struct input_rows rows = {2, lengths, ids};
  struct request_input input;
  struct rng rng = {1};
  struct error err;
  assert_int_equal(input_make(&model, &rows, 100, &rng, &input, &err), 0);
  assert_int_equal(input.n_tensors, 3);
  assert_int_equal(input.tokens, 5);
  assert_int_equal(input.tensors[0].dims[0], 2);
  assert_int_equal(input.tensors[0].dims[1], 3);
  const int64_t want_ids[6] = {11, 12, 0, 21, 22, 23}, want_mask[6] = {1, 1, 0, 1, 1, 1};
  for (size_t i = 0; i < 6; i++) {
    assert_int_equal(at(&input.tensors[0], i), want_ids[i]);
    assert_int_equal(at(&input.tensors[1], i), want_mask[i]);
    assert_int_equal(at(&input.tensors[2], i), 0);
  }
  request_input_free(&input);
}

// Whatever they are called; in a model without sequences they are ids.
static void integers_one_a_row_beside_sequences_are_lengths(void **state) {
  (void)state;
  struct oip_model model = bert();
  model.n_inputs = 2;
  model.inputs[1].rank = 1;
  snprintf(model.inputs[1].name, sizeof model.inputs[1].name, "n");
  const int64_t lengths[2] = {2, 3}, ids[5] = {11, 12, 21, 22, 23};
  const struct input_rows rows = {2, lengths, ids};
  struct request_input input;
  struct rng rng = {1};
  struct error err;
  assert_true(input_takes_ids(&model));
  assert_int_equal(input_make(&model, &rows, 100, &rng, &input, &err), 0);
  assert_int_equal(at(&input.tensors[1], 0), 2);
  assert_int_equal(at(&input.tensors[1], 1), 3);
  assert_int_equal(input.tokens, 5);
  request_input_free(&input);
  model.inputs[0].rank = 1;
  const int64_t one[2] = {1, 1}, row_ids[2] = {11, 12};
  const struct input_rows single = {2, one, row_ids};
  assert_int_equal(input_make(&model, &single, 100, &rng, &input, &err), 0);
  assert_int_equal(at(&input.tensors[1], 1), 12);
  request_input_free(&input);
  model.inputs[0].rank = 2;
  model.inputs[0].type = TYPE_FP32; // vectors and their lengths: nothing to put ids into
  assert_false(input_takes_ids(&model));
}

static void random_ids_stay_below_the_limit_and_repeat_with_the_seed(void **state) {
  (void)state;
  const struct oip_model model = bert();
  const int64_t lengths[1] = {500};
  const struct input_rows rows = {1, lengths, NULL};
  struct request_input a, b;
  struct rng rng_a = {5}, rng_b = {5};
  struct error err;
  assert_int_equal(input_make(&model, &rows, 9, &rng_a, &a, &err), 0);
  assert_int_equal(input_make(&model, &rows, 9, &rng_b, &b, &err), 0);
  for (size_t i = 0; i < 500; i++)
    assert_in_range(at(&a.tensors[0], i), 1, 9);
  assert_memory_equal(a.tensors[0].data, b.tensors[0].data, a.tensors[0].bytes);
  request_input_free(&a);
  request_input_free(&b);
}

// Sizes that a server claims and no message has take no memory.
static void inputs_larger_than_a_message_are_refused(void **state) {
  (void)state;
  struct oip_model model = {.n_inputs = 2};
  const int64_t lengths[2] = {1, 1};
  const struct input_rows rows = {2, lengths, NULL};
  struct request_input input;
  struct rng rng = {1};
  struct error err;
  model.inputs[0] =
      (struct oip_tensor){.name = "x", .type = TYPE_FP32, .rank = 2, .dims = {-1, 1 << 10}};
  model.inputs[1] = model.inputs[0];
  model.inputs[1].dims[1] = (INT64_C(1) << 29) - (1 << 10); // the first one's more than the rest
  assert_int_equal(input_make(&model, &rows, 1, &rng, &input, &err), STATUS_RESOURCE_EXHAUSTED);
  assert_string_equal(err.message, "x: FP32 [2, 536869888] has 4294959104 bytes, and a message has "
                                   "no room for more than 4294959103");
  model.inputs[1].dims[1] = INT64_C(1) << 43;
  assert_int_equal(input_make(&model, &rows, 1, &rng, &input, &err), STATUS_RESOURCE_EXHAUSTED);
}

static void models_without_sequences_count_rows(void **state) {
  (void)state;
  struct oip_model model = {.n_inputs = 1};
  model.inputs[0] =
      (struct oip_tensor){.name = "x", .type = TYPE_FP32, .rank = 2, .dims = {-1, 64}};
  const int64_t lengths[3] = {1, 1, 1};
  const struct input_rows rows = {3, lengths, NULL};
  struct request_input input;
  struct rng rng = {1};
  struct error err;
  assert_false(input_has_sequences(&model));
  assert_int_equal(input_make(&model, &rows, 9, &rng, &input, &err), 0);
  assert_int_equal(input.tokens, 3);
  assert_int_equal(input.tensors[0].bytes, 3 * 64 * 4);
  for (size_t i = 0; i < 192; i++) {
    float value = 9;
    memcpy(&value, input.tensors[0].data + 4 * i, 4);
    assert_true(value >= -1 && value <= 1);
  }
  request_input_free(&input);
}

static void half_values_are_finite_and_small(void **state) {
  (void)state;
  struct oip_model model = {.n_inputs = 1};
  struct rng rng = {1};
  struct error err;
  const int64_t lengths[1] = {1};
  const struct input_rows rows = {1, lengths, NULL};
  model.inputs[0] =
      (struct oip_tensor){.name = "x", .type = TYPE_BF16, .rank = 2, .dims = {-1, 256}};
  struct request_input input;
  assert_int_equal(input_make(&model, &rows, 9, &rng, &input, &err), 0);
  for (size_t i = 0; i < 256; i++) {
    const uint16_t bits =
        (uint16_t)(input.tensors[0].data[2 * i] | input.tensors[0].data[2 * i + 1] << 8);
    assert_true((bits & 0x7fff) < 0x3f80); // |value| < 1
  }
  request_input_free(&input);
}

static void tensors_that_cannot_be_made_are_refused(void **state) {
  (void)state;
  struct oip_model model = {.n_inputs = 1};
  struct rng rng = {1};
  struct error err;
  struct request_input input;
  const int64_t lengths[1] = {1};
  const struct input_rows rows = {1, lengths, NULL};
  model.inputs[0] = (struct oip_tensor){.name = "x", .type = TYPE_BYTES, .rank = 1, .dims = {-1}};
  assert_int_equal(input_make(&model, &rows, 9, &rng, &input, &err), STATUS_INVALID_ARGUMENT);
  model.inputs[0] = (struct oip_tensor){
      .name = "x", .type = TYPE_FP32, .rank = 2, .dims = {INT64_MAX, INT64_MAX}};
  assert_int_equal(input_make(&model, &rows, 9, &rng, &input, &err), STATUS_OUT_OF_RANGE);
}

// ---- token ids from a file ----

struct seen {
  int n;
  int64_t rows[8], tokens[8];
};

static enum status see(const struct input_rows *rows, void *arg, struct error *err) {
  struct seen *seen = arg;
  (void)err;
  assert_true(seen->n < 8);
  seen->rows[seen->n] = rows->n;
  for (int64_t i = 0; i < rows->n; i++)
    seen->tokens[seen->n] += rows->lengths[i];
  seen->n++;
  return STATUS_OK;
}

static enum status read_text(const char *text, int64_t batch, struct seen *seen,
                             struct error *err) {
  char path[] = "/tmp/fusewire_lines_XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  *seen = (struct seen){0};
  *err = (struct error){0};
  const enum status status = input_read_lines(path, batch, see, seen, err);
  unlink(path);
  return status;
}

static void each_line_is_a_request(void **state) {
  (void)state;
  struct seen seen;
  struct error err;
  assert_int_equal(read_text("[1,2,3]\n\n {\"input_ids\": [4, 5]}\r\n[[1],[2,3]]", 1, &seen, &err),
                   0);
  assert_int_equal(seen.n, 3);
  assert_int_equal(seen.tokens[0], 3);
  assert_int_equal(seen.tokens[1], 2);
  assert_int_equal(seen.rows[2], 2);
  assert_int_equal(seen.tokens[2], 3);
}

static void lines_are_gathered_into_batches(void **state) {
  (void)state;
  struct seen seen;
  struct error err;
  assert_int_equal(read_text("[1]\n[2,2]\n[3,3,3]\n", 2, &seen, &err), 0);
  assert_int_equal(seen.n, 2);
  assert_int_equal(seen.rows[0], 2);
  assert_int_equal(seen.tokens[0], 3);
  assert_int_equal(seen.rows[1], 1); // what is left
}

static void bad_lines_are_named(void **state) {
  (void)state;
  static const char *const bad[] = {"[1]\n{",         "[1]\n[]",
                                    "[1]\n[1,\"a\"]", "[1]\n[1.5]",
                                    "[1]\n7",         "[1]\n{\"x\":1}",
                                    "[1]\n[[1],2]",   "[1]\n[[]]",
                                    "[1]\n[1] [2]",   "[1]\n[99999999999999999999]"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct seen seen;
    struct error err;
    if (read_text(bad[i], 1, &seen, &err) != STATUS_INVALID_ARGUMENT)
      fail_msg("accepted %s", bad[i]);
    assert_int_equal(err.line, 2);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unlike_rows_are_padded_and_masked),
      cmocka_unit_test(integers_one_a_row_beside_sequences_are_lengths),
      cmocka_unit_test(random_ids_stay_below_the_limit_and_repeat_with_the_seed),
      cmocka_unit_test(inputs_larger_than_a_message_are_refused),
      cmocka_unit_test(models_without_sequences_count_rows),
      cmocka_unit_test(half_values_are_finite_and_small),
      cmocka_unit_test(tensors_that_cannot_be_made_are_refused),
      cmocka_unit_test(each_line_is_a_request),
      cmocka_unit_test(lines_are_gathered_into_batches),
      cmocka_unit_test(bad_lines_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
