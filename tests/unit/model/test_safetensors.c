// safetensors files: right ones are read, hostile ones are refused with the reason.
#include "unit/conf/collect.h"

#include "model/safetensors.h"

#include <sys/stat.h>

static uint8_t *blob;
static size_t blob_bytes;

// Length, header text, `data_bytes` bytes counting 0, 1, 2, ... `claimed` is the length written (or
// the true one).
static void make(const char *header, size_t data_bytes, uint64_t claimed) {
  size_t n = strlen(header);
  free(blob);
  blob_bytes = 8 + n + data_bytes;
  blob = malloc(blob_bytes); // exact: address sanitizer sees one byte too many
  assert_non_null(blob);
  uint64_t length = claimed != 0 ? claimed : n;
  for (int i = 0; i < 8; i++)
    blob[i] = (uint8_t)(length >> (8 * i));
  memcpy(blob + 8, header, n);
  for (size_t i = 0; i < data_bytes; i++)
    blob[8 + n + i] = (uint8_t)i;
}

static void refuses(const char *header, size_t data_bytes, const char *message) {
  struct safetensors *file = NULL;
  struct error err = {0};
  make(header, data_bytes, 0);
  enum status code = safetensors_parse(blob, blob_bytes, "x.safetensors", &file, &err);
  if (code == STATUS_OK) print_error("accepted: %s\n", header);
  if (message[strlen(message) - 1] == ':') // the rest is jansson's, which may change
    err.message[strlen(message)] = '\0';
  assert_string_equal(err.message, message);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.file, "x.safetensors");
  assert_null(file);
}

static int teardown(void **state) {
  (void)state;
  free(blob);
  blob = NULL;
  return 0;
}

static void tensors_are_found_with_shape_dtype_and_data(void **state) {
  (void)state;
  struct safetensors *file = NULL;
  struct error err;
  make("{\"__metadata__\":{\"format\":\"pt\"},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[2,26]},"
       "\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]},"
       "\"s\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[26,28]},"
       "\"i\":{\"dtype\":\"I64\",\"shape\":[0,4],\"data_offsets\":[28,28]}}   ",
       28, 0);
  assert_int_equal(safetensors_parse(blob, blob_bytes, "x", &file, &err), STATUS_OK);
  assert_int_equal(safetensors_count(file), 4);
  const struct safetensors_entry *b = safetensors_find(file, "b");
  assert_non_null(b);
  assert_int_equal(b->rank, 2);
  assert_int_equal(b->dims[1], 3);
  assert_int_equal(b->dtype, DTYPE_F32);
  assert_int_equal(b->bytes, 24);
  assert_int_equal(*(const uint8_t *)b->data, 2); // unaligned: byte 2 of the data
  assert_int_equal(safetensors_find(file, "a")->dtype, DTYPE_BF16);
  assert_int_equal(safetensors_find(file, "s")->rank, 0);
  assert_int_equal(safetensors_find(file, "i")->dtype, DTYPE_INVALID);
  assert_string_equal(safetensors_find(file, "i")->dtype_word, "I64");
  assert_null(safetensors_find(file, "__metadata__"));
  assert_null(safetensors_find(file, "c"));
  assert_string_equal(safetensors_at(file, 0)->name, "a");
  safetensors_close(file);
}

static void lengths_are_checked(void **state) {
  (void)state;
  struct safetensors *file = NULL;
  struct error err;
  assert_int_equal(safetensors_parse("abcdefg", 7, "x", &file, &err), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "7 bytes: too short for a safetensors file");
  assert_int_equal(safetensors_parse("PK\3\4abcdefgh", 12, "x", &file, &err),
                   STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "a zip archive, as PyTorch saves; expected a safetensors file");
  const uint64_t claims[] = {3, 1000, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7};
  for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
    char message[160];
    make("{}", 0, claims[i]);
    assert_int_equal(safetensors_parse(blob, blob_bytes, "x", &file, &err),
                     STATUS_INVALID_ARGUMENT);
    snprintf(message, sizeof message,
             "the header should have %llu bytes, but the file has only 2 after its length",
             (unsigned long long)claims[i]);
    assert_string_equal(err.message, message);
  }
  make("{}", LIMIT_SAFETENSORS_HEADER + 16, LIMIT_SAFETENSORS_HEADER + 1);
  assert_int_equal(safetensors_parse(blob, blob_bytes, "x", &file, &err), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "a header of 4194305 bytes; at most 4194304 are read");
}

static void headers_that_are_no_flat_object_are_refused(void **state) {
  (void)state;
  refuses("", 0, "the header is not right JSON:");
  refuses("{", 0, "the header is not right JSON:");
  refuses("[]", 0, "the header is not a JSON object");
  refuses("{}", 0, "the file has no tensors");
  refuses("{\"__metadata__\":{}}", 0, "the file has no tensors");
  refuses("{\"a\":{\"shape\":[[[[]]]]}}", 0, "the header nests more than 3 deep at byte 15");
  refuses("{\"a\":5}", 0, "tensor \"a\": not an object");
  refuses("{\"a\":{},\"a\":{}}", 0, "the header is not right JSON:");
  refuses("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "the header is not right JSON:");
  refuses("{\"\xff\":{}}", 0, "the header is not right JSON:");
}

static void a_deep_or_wide_header_costs_little(void **state) {
  (void)state;
  size_t n = 3 << 20;
  char *text = malloc(n + 1);
  memset(text, '[', n);
  text[n] = '\0';
  refuses(text, 0, "the header nests more than 3 deep at byte 3");
  for (size_t i = 0; i < n; i += 3)
    memcpy(text + i, "[],", 3);
  text[0] = '{';
  refuses(text, 0, "the header has more than 32768 tensors");
  free(text);
}

static void dtypes_and_shapes_are_checked(void **state) {
  (void)state;
  refuses("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor \"a\": dtype is not text");
  refuses("{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
          "tensor \"a\": unknown dtype \"F33\"");
  refuses("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1,
          "tensor \"a\": shape is not a list of at most 8 sizes");
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
          "tensor \"a\": shape is not a list of at most 8 sizes");
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1,
          "tensor \"a\": shape[0] is not a size");
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1,
          "tensor \"a\": shape[0] is not a size");
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
          "tensor \"a\": the product of its shape overflows");
  refuses("{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
          "tensor \"a\": the product of its shape overflows");
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1,
          "the header is not right JSON:");
}

static void offsets_are_checked(void **state) {
  (void)state;
#define A(shape, offsets)                                                                          \
  "{\"a\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
  refuses(A("[4]", "[0]"), 4, "tensor \"a\": data_offsets is not a pair of integers");
  refuses(A("[4]", "{}"), 4, "tensor \"a\": data_offsets is not a pair of integers");
  refuses(A("[4]", "[0,4.0]"), 4, "tensor \"a\": data_offsets is not a pair of integers");
  refuses(A("[4]", "[4,0]"), 4, "tensor \"a\": data_offsets [4, 0] are no range");
  refuses(A("[4]", "[-4,0]"), 4, "tensor \"a\": data_offsets [-4, 0] are no range");
  refuses(A("[4]", "[0,5]"), 4, "tensor \"a\": its data end at 5, the file's at 4");
  refuses(A("[4]", "[9223372036854775803,9223372036854775807]"), 4,
          "tensor \"a\": its data end at 9223372036854775807, the file's at 4");
  refuses(A("[4]", "[0,3]"), 4, "tensor \"a\": shape and dtype make 4 bytes, data_offsets 3");
  refuses(A("[4]", "[0,4]"), 5, "the tensors end at byte 4 of the data, the file at 5");
  refuses(A("[3]", "[1,4]"), 4, "tensor \"a\" leaves a hole before it at byte 1 of the data");
}

static void tensors_may_not_overlap_or_leave_holes(void **state) {
  (void)state;
#define TWO(b0, b1)                                                                                \
  "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"                                \
  "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" b0 "," b1 "]}}"
  refuses(TWO("2", "6"), 8, "tensor \"b\" overlaps another one at byte 2 of the data");
  refuses(TWO("0", "4"), 4, "tensor \"b\" overlaps another one at byte 0 of the data");
  refuses(TWO("5", "9"), 9, "tensor \"b\" leaves a hole before it at byte 5 of the data");
}

static void a_file_cut_anywhere_is_refused(void **state) {
  (void)state;
  struct safetensors *file = NULL;
  struct error err;
  make("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, 0);
  for (size_t n = 0; n < blob_bytes; n++) {
    uint8_t *cut = malloc(n + 1);
    memcpy(cut, blob, n);
    if (safetensors_parse(cut, n, "x", &file, &err) == STATUS_OK)
      fail_msg("cut at %zu is taken", n);
    free(cut);
  }
  assert_int_equal(safetensors_parse(blob, blob_bytes, "x", &file, &err), STATUS_OK);
  safetensors_close(file);
}

static void only_regular_files_are_mapped(void **state) {
  (void)state;
  struct safetensors *file = NULL;
  struct error err;
  char path[300];
  const char *folder = temp_folder();
  assert_int_equal(safetensors_open(folder, &file, &err), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "not a regular file");
  snprintf(path, sizeof path, "%s/f", folder);
  assert_int_equal(safetensors_open(path, &file, &err), STATUS_NOT_FOUND);
  assert_string_equal(err.file, path);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(safetensors_open(path, &file, &err), STATUS_INVALID_ARGUMENT);
  unlink(path);
  write_file(path, "", 0);
  assert_int_equal(safetensors_open(path, &file, &err), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "0 bytes: too short for a safetensors file");
  make(A("[4]", "[0,4]"), 4, 0);
  write_file(path, blob, blob_bytes);
  assert_int_equal(safetensors_open(path, &file, &err), STATUS_OK);
  assert_int_equal(((const uint8_t *)safetensors_find(file, "a")->data)[3], 3);
  safetensors_close(file);
  unlink(path);
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_are_found_with_shape_dtype_and_data),
      cmocka_unit_test(lengths_are_checked),
      cmocka_unit_test(headers_that_are_no_flat_object_are_refused),
      cmocka_unit_test(a_deep_or_wide_header_costs_little),
      cmocka_unit_test(dtypes_and_shapes_are_checked),
      cmocka_unit_test(offsets_are_checked),
      cmocka_unit_test(tensors_may_not_overlap_or_leave_holes),
      cmocka_unit_test(a_file_cut_anywhere_is_refused),
      cmocka_unit_test(only_regular_files_are_mapped),
  };
  return cmocka_run_group_tests(tests, NULL, teardown);
}
