#include "harness/cmocka_all.h"
#include "rpc/method.h"

static void handle(struct call *call, void *app) {
  (void)call, (void)app;
}

static const struct method *find(const struct method_table *table, const char *path) {
  return method_find(table, (const uint8_t *)path, strlen(path));
}

static void every_path_finds_its_row_and_no_other(void **state) {
  (void)state;
  static const struct method rows[] = {
      {"/inference.GRPCInferenceService/ServerLive", handle, NULL},
      {"/inference.GRPCInferenceService/ServerReady", handle, NULL},
      {"/inference.GRPCInferenceService/ModelReady", handle, NULL},
      {"/inference.GRPCInferenceService/ModelInfer", handle, NULL},
      {"/inference.GRPCInferenceService/ModelConfi", handle, NULL},
      {"/grpc.health.v1.Health/Check", handle, NULL},
      {"/grpc.health.v1.Health/Watch", handle, NULL},
      {"/a", handle, NULL},
      {"/ab", handle, NULL},
      {"/aaaaaaaa/bbbbbbbb/cccccccc", handle, NULL},
      {"/aaaaaaab/bbbbbbbb/cccccccc", handle, NULL}, // differs only where the hash does not look
  };
  int n = sizeof rows / sizeof rows[0];
  struct method_table *table;
  struct error err = {0};
  assert_int_equal(method_table_open(rows, n, &table, &err), STATUS_OK);
  for (int i = 0; i < n; i++)
    assert_ptr_equal(find(table, rows[i].path), &rows[i]);
  assert_null(find(table, "/inference.GRPCInferenceService/ModelInfeR"));
  assert_null(find(table, "/inference.GRPCInferenceService/ModelInfer/"));
  assert_null(find(table, "/"));
  assert_null(find(table, ""));
  assert_null(find(table, "/aaaaaaac/bbbbbbbb/cccccccc"));
  method_table_close(table);
}

static void hundreds_of_methods_are_all_found(void **state) {
  (void)state;
  enum { N = 700 };
  static char paths[N][40];
  static struct method rows[N];
  for (int i = 0; i < N; i++) {
    snprintf(paths[i], sizeof paths[i], "/service%d.Long.Name/Method%d", i / 10, i);
    rows[i] = (struct method){paths[i], handle, NULL};
  }
  struct method_table *table;
  assert_int_equal(method_table_open(rows, N, &table, NULL), STATUS_OK);
  for (int i = 0; i < N; i++)
    assert_ptr_equal(find(table, paths[i]), &rows[i]);
  method_table_close(table);
}

static void bad_tables_are_refused_by_name(void **state) {
  (void)state;
  struct method_table *table;
  struct error err = {0};
  static const struct method twice[] = {
      {"/a/b", handle, NULL}, {"/c/d", handle, NULL}, {"/a/b", handle, NULL}};
  assert_int_equal(method_table_open(twice, 3, &table, &err), STATUS_INVALID_ARGUMENT);
  assert_null(table);
  static const struct method bare[] = {{"a/b", handle, NULL}};
  assert_int_equal(method_table_open(bare, 1, &table, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "a/b"));
  assert_int_equal(method_table_open(NULL, 0, &table, &err), STATUS_OK);
  assert_null(find(table, "/a"));
  method_table_close(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_path_finds_its_row_and_no_other),
      cmocka_unit_test(hundreds_of_methods_are_all_found),
      cmocka_unit_test(bad_tables_are_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
