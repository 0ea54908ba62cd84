#include "client/file.h"
#include "client/npy.h"
#include "harness/cmocka_all.h"
#include <unistd.h>

// A version-1 file with this header text and `data_bytes` zero bytes of data, in malloc'd memory of
// exactly its size, so that a sanitizer sees a read past the end.
static struct slice file_of(const char *header, size_t data_bytes) {
  const size_t n = strlen(header);
  uint8_t *file = malloc(10 + n + data_bytes);
  memcpy(file, "\x93NUMPY\x01\x00", 8);
  file[8] = (uint8_t)n;
  file[9] = (uint8_t)(n >> 8);
  memcpy(file + 10, header, n);
  memset(file + 10 + n, 0, data_bytes);
  return (struct slice){file, 10 + n + data_bytes};
}

static enum status parse(const char *header, size_t data_bytes, struct infer_tensor *out,
                         struct error *err) {
  struct slice file = file_of(header, data_bytes), data = {0};
  *out = (struct infer_tensor){0};
  const enum status status = npy_parse(file, out, &data, err);
  if (status == STATUS_OK) assert_int_equal(data.bytes, data_bytes);
  file_free(&file);
  return status;
}

static void header_as_numpy_writes_it_is_read(void **state) {
  (void)state;
  struct infer_tensor t;
  struct error err;
  assert_int_equal(
      parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", 24, &t, &err),
      0);
  assert_int_equal(t.type, TYPE_FP32);
  assert_int_equal(t.rank, 2);
  assert_int_equal(t.dims[0], 2);
  assert_int_equal(t.dims[1], 3);
  assert_int_equal(
      parse("{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }\n", 40, &t, &err), 0);
  assert_int_equal(t.type, TYPE_INT64);
  assert_int_equal(parse("{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", 1, &t, &err),
                   0);
  assert_int_equal(t.rank, 0);
  assert_int_equal(
      parse("{\"shape\": (0, 4), \"descr\": \"<f2\", \"fortran_order\": False}", 0, &t, &err), 0);
  assert_int_equal(
      parse("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3), }\n", 12, &t, &err), 0);
}

static void hostile_headers_are_refused(void **state) {
  (void)state;
  static const char *const headers[] = {
      "",
      "{",
      "}",
      "{}",
      "{'descr'",
      "{'descr':",
      "{'descr': '<f4",
      "[]",
      "{'descr': '<f4', 'fortran_order': False}",               // no shape
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", // a number, no tuple
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2,}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2.5,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", // product
                                                                                     // overflows
      "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905,)}", // times 4 wraps
                                                                                   // to 4
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",    // rank 9
      "{'descr': '<f4', 'fortran_order': maybe, 'shape': (2,)}",
      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", // twice
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
      "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", // big-endian
      "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}",
      "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}",
  };
  for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
    struct infer_tensor t;
    struct error err = {0};
    const enum status status = parse(headers[i], 4, &t, &err);
    if (status != STATUS_INVALID_ARGUMENT) fail_msg("accepted (status %d): %s", status, headers[i]);
    assert_true(err.message[0] != 0);
  }
}

static void data_must_be_as_long_as_the_shape_says(void **state) {
  (void)state;
  const char *header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  struct infer_tensor t;
  struct error err;
  assert_int_equal(parse(header, 23, &t, &err), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(header, 25, &t, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "25 bytes"));
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  struct slice file = file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", 4),
               data;
  for (size_t n = 0; n < file.bytes; n++) {
    struct infer_tensor t = {0};
    struct error err;
    uint8_t *cut = malloc(n ? n : 1);
    memcpy(cut, file.data, n);
    if (npy_parse((struct slice){cut, n}, &t, &data, &err) == STATUS_OK)
      fail_msg("accepted %zu bytes", n);
    free(cut);
  }
  file_free(&file);
}

static void header_length_past_the_file_is_refused(void **state) {
  (void)state;
  struct infer_tensor t = {0};
  struct slice data;
  struct error err;
  uint8_t v1[] = "\x93NUMPY\x01\x00\xff\xff{}";
  uint8_t v2[] = "\x93NUMPY\x02\x00\xff\xff\xff\xff{}";
  uint8_t v9[] = "\x93NUMPY\x09\x00\x02\x00{}";
  assert_int_equal(npy_parse((struct slice){v1, sizeof v1 - 1}, &t, &data, &err),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(npy_parse((struct slice){v2, sizeof v2 - 1}, &t, &data, &err),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(npy_parse((struct slice){v2, 10}, &t, &data, &err), STATUS_INVALID_ARGUMENT);
  assert_int_equal(npy_parse((struct slice){v9, sizeof v9 - 1}, &t, &data, &err),
                   STATUS_INVALID_ARGUMENT);
}

static void version_2_has_a_longer_length(void **state) {
  (void)state;
  const char *header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }\n";
  const size_t n = strlen(header);
  uint8_t file[256] = "\x93NUMPY\x02\x00";
  struct infer_tensor t = {0};
  struct slice data;
  struct error err;
  file[8] = (uint8_t)n;
  memcpy(file + 12, header, n);
  assert_int_equal(npy_parse((struct slice){file, 12 + n + 4}, &t, &data, &err), 0);
  assert_int_equal(t.type, TYPE_INT32);
  assert_ptr_equal(data.data, file + 12 + n);
}

static void what_is_written_is_read_again(void **state) {
  (void)state;
  char path[] = "/tmp/fusewire_npy_XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  const float values[6] = {1, 2, 3, 4, 5, -6};
  const int64_t dims[2] = {3, 2};
  struct infer_tensor t = {0};
  struct error err;
  const struct slice data = {(const uint8_t *)values, sizeof values};
  assert_int_equal(npy_write(path, TYPE_FP32, dims, 2, data, &err), 0);
  assert_int_equal(npy_read(path, &t, &err), 0);
  assert_int_equal(t.rank, 2);
  assert_int_equal(t.dims[0], 3);
  assert_memory_equal(t.data, values, sizeof values);
  tensor_free(&t);
  struct slice file;
  assert_int_equal(file_read(path, &file, &err), 0);
  assert_int_equal((file.bytes - sizeof values) % 64, 0); // NumPy aligns the data
  file_free(&file);
  assert_int_equal(npy_write(path, TYPE_BYTES, dims, 2, data, &err), STATUS_INVALID_ARGUMENT);
  unlink(path);
  assert_int_equal(npy_read(path, &t, &err), STATUS_NOT_FOUND);
  assert_int_equal(npy_read("/tmp", &t, &err), STATUS_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(header_as_numpy_writes_it_is_read),
      cmocka_unit_test(hostile_headers_are_refused),
      cmocka_unit_test(data_must_be_as_long_as_the_shape_says),
      cmocka_unit_test(every_truncation_is_refused),
      cmocka_unit_test(header_length_past_the_file_is_refused),
      cmocka_unit_test(version_2_has_a_longer_length),
      cmocka_unit_test(what_is_written_is_read_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
