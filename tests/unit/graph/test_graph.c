// Graphs are built node by node from what a model file says: every wrong operand is refused by
// name, and a refusal changes nothing.
#include "graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
  struct graph graph;
  struct error err;
  int32_t x, ids, seqs, w, bias, gamma, table, one;
};

static int32_t add(struct graph *graph, const char *name, enum tensor_kind kind, enum dtype dtype,
                   enum row_kind rows, int32_t n_rows, int32_t cols) {
  struct tensor tensor = {.kind = kind,
                          .dtype = dtype,
                          .rows = rows,
                          .n_rows = n_rows,
                          .cols = cols,
                          .index = graph->n_tensors};
  snprintf(tensor.name, sizeof tensor.name, "%s", name);
  return graph_add_tensor(graph, &tensor);
}

static void fixture_open(struct fixture *f) {
  memset(f, 0, sizeof *f);
  assert_int_equal(graph_init(&f->graph), STATUS_OK);
  f->x = add(&f->graph, "x", TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, 8);
  f->ids = add(&f->graph, "ids", TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  f->seqs = add(&f->graph, "seqs", TENSOR_INPUT, DTYPE_F32, ROWS_SEQS, 0, 8);
  f->w = add(&f->graph, "w", TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 12, 8);
  f->bias = add(&f->graph, "bias", TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 1, 12);
  f->gamma = add(&f->graph, "gamma", TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 1, 8);
  f->table = add(&f->graph, "table", TENSOR_WEIGHT, DTYPE_BF16, ROWS_FIXED, 100, 8);
  f->one = add(&f->graph, "one", TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 1, 1);
}

static enum status try_node(struct fixture *f, enum op op, int n_in, int32_t a, int32_t b,
                            int32_t c, struct node_attrs attrs, int32_t *out) {
  struct node node = {
      .op = op, .in = {a, b, c, -1}, .n_in = (uint8_t)n_in, .attrs = attrs, .line = 42};
  char name[32];
  snprintf(name, sizeof name, "out%d", f->graph.n_tensors);
  return graph_add_node(&f->graph, &node, name, DTYPE_INVALID, out, &f->err);
}

static const struct tensor *made(struct fixture *f, enum op op, int n_in, int32_t a, int32_t b,
                                 int32_t c, struct node_attrs attrs) {
  int32_t out = -1;
  if (try_node(f, op, n_in, a, b, c, attrs, &out) != STATUS_OK)
    fail_msg("%s: %s", op_name(op), f->err.message);
  return &f->graph.tensors[out];
}

static void expect_shape(const struct tensor *t, enum row_kind rows, int32_t cols,
                         enum dtype dtype) {
  if (t->rows != rows || t->cols != cols || t->dtype != dtype || t->kind != TENSOR_ACTIVATION)
    fail_msg("%s is [%d, %d] %s", t->name, t->rows, t->cols, dtype_name(t->dtype));
}

static void refused(struct fixture *f, enum op op, int n_in, int32_t a, int32_t b, int32_t c,
                    struct node_attrs attrs, const char *part_of_message) {
  int32_t nodes = f->graph.n_nodes, tensors = f->graph.n_tensors, out = -7;
  enum status status = try_node(f, op, n_in, a, b, c, attrs, &out);
  if (status != STATUS_INVALID_ARGUMENT || !strstr(f->err.message, part_of_message) ||
      !strstr(f->err.message, op_name(op)))
    fail_msg("status %d, message \"%s\", expected \"%s\"", status, f->err.message, part_of_message);
  assert_int_equal(f->err.line, 42);
  assert_int_equal(f->graph.n_nodes, nodes);
  assert_int_equal(f->graph.n_tensors, tensors);
  assert_int_equal(out, -7);
}

#define NONE ((struct node_attrs){0})

static void ops_infer_the_shape_of_their_output(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f);
  expect_shape(made(&f, OP_LINEAR, 3, f.x, f.w, f.bias, NONE), ROWS_TOKENS, 12, DTYPE_F32);
  expect_shape(made(&f, OP_LINEAR, 2, f.seqs, f.w, -1, NONE), ROWS_SEQS, 12, DTYPE_F32);
  expect_shape(made(&f, OP_LAYER_NORM, 2, f.x, f.gamma, -1, NONE), ROWS_TOKENS, 8, DTYPE_F32);
  expect_shape(made(&f, OP_ADD, 2, f.x, f.gamma, -1, NONE), ROWS_TOKENS, 8, DTYPE_F32);
  expect_shape(made(&f, OP_MUL, 2, f.x, f.one, -1, NONE), ROWS_TOKENS, 8, DTYPE_F32);
  expect_shape(made(&f, OP_REDUCE, 1, f.x, -1, -1, NONE), ROWS_TOKENS, 1, DTYPE_F32);
  expect_shape(made(&f, OP_CAST, 1, f.x, -1, -1, (struct node_attrs){.to = DTYPE_BF16}),
               ROWS_TOKENS, 8, DTYPE_BF16);
  expect_shape(made(&f, OP_EMBEDDING, 2, f.ids, f.table, -1, NONE), ROWS_TOKENS, 8, DTYPE_BF16);
  expect_shape(made(&f, OP_POOL, 1, f.x, -1, -1, NONE), ROWS_SEQS, 8, DTYPE_F32);
  expect_shape(made(&f, OP_IDENTITY, 1, f.ids, -1, -1, NONE), ROWS_TOKENS, 1, DTYPE_I64);
  expect_shape(made(&f, OP_ATTENTION, 3, f.x, f.x, f.x, (struct node_attrs){.heads = 2}),
               ROWS_TOKENS, 8, DTYPE_F32);
  graph_deinit(&f.graph);
}

static void wrong_operands_are_refused_by_name(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f);
  refused(&f, OP_LINEAR, 1, f.x, -1, -1, NONE, "1 inputs found, expected 2 to 3");
  refused(&f, OP_GELU, 2, f.x, f.x, -1, NONE, "2 inputs found, expected 1");
  refused(&f, OP_GELU, 1, 999, -1, -1, NONE, "input 0 is no tensor");
  refused(&f, OP_GELU, 1, -1, -1, -1, NONE, "input 0 is no tensor");
  refused(&f, OP_GELU, 1, f.w, -1, -1, NONE, "\"w\" is a weight");
  refused(&f, OP_GELU, 1, f.ids, -1, -1, NONE, "\"ids\" is int64");
  refused(&f, OP_LINEAR, 2, f.x, f.bias, -1, NONE, "\"bias\" is [1, 12], expected [1, 8]");
  refused(&f, OP_LINEAR, 3, f.x, f.w, f.gamma, NONE, "\"gamma\" is [1, 8], expected [1, 12]");
  refused(&f, OP_LINEAR, 2, f.x, f.x, -1, NONE, "\"x\" is no weight");
  refused(&f, OP_LINEAR, 2, f.x, f.table, -1, NONE, "expected one dtype");
  refused(&f, OP_LAYER_NORM, 3, f.x, f.gamma, f.bias, NONE,
          "beta \"bias\" is [1, 12], expected [1, 8]");
  refused(&f, OP_LAYER_NORM, 2, f.x, f.gamma, -1, (struct node_attrs){.eps = -1}, "eps is -1");
  refused(&f, OP_ADD, 2, f.x, f.seqs, -1, NONE, "\"seqs\" is [sequences, 8], expected [tokens, 8]");
  refused(&f, OP_ADD, 2, f.x, f.bias, -1, NONE, "\"bias\" is [1, 12], expected [1, 8]");
  refused(&f, OP_BIAS, 2, f.x, f.one, -1, NONE, "\"one\" is [1, 1], expected [1, 8]");
  refused(&f, OP_CAST, 1, f.x, -1, -1, (struct node_attrs){.to = DTYPE_I64}, "`to` is int64");
  refused(&f, OP_POOL, 1, f.seqs, -1, -1, NONE, "\"seqs\" has no token rows");
  refused(&f, OP_EMBEDDING, 2, f.x, f.table, -1, NONE, "ids \"x\" is fp32");
  refused(&f, OP_REDUCE, 1, f.x, -1, -1, (struct node_attrs){.reduce = (enum reduce_kind)9},
          "unknown kind");
  refused(&f, OP_INVALID, 1, f.x, -1, -1, NONE, "unknown op");
  refused(&f, (enum op)999, 1, f.x, -1, -1, NONE, "unknown op");
  graph_deinit(&f.graph);
}

static void attention_heads_must_divide(void **state) {
  (void)state;
  static const int bad[][2] = {{9, 3}, {3, 2}, {0, 0}, {-2, 1}, {2, -1}, {16, 16}, {4, 3}, {2, 4}};
  struct fixture f;
  fixture_open(&f);
  int32_t narrow = add(&f.graph, "narrow", TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, 4);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    refused(&f, OP_ATTENTION, 3, f.x, f.x, f.x,
            (struct node_attrs){.heads = bad[i][0], .kv_heads = bad[i][1]}, "heads");
  refused(&f, OP_ATTENTION, 3, f.x, narrow, f.x, (struct node_attrs){.heads = 2},
          "k \"narrow\" has 4 columns, expected 8");
  refused(&f, OP_ATTENTION, 3, f.seqs, f.x, f.x, (struct node_attrs){.heads = 2},
          "q \"seqs\" has no token rows");
  made(&f, OP_ATTENTION, 3, f.x, narrow, narrow, (struct node_attrs){.heads = 2, .kv_heads = 1});
  graph_deinit(&f.graph);
}

static void names_are_unique_and_found(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f);
  assert_int_equal(graph_find_tensor(&f.graph, "gamma"), f.gamma);
  assert_int_equal(graph_find_tensor(&f.graph, "gamm"), -1);
  assert_int_equal(add(&f.graph, "x", TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, 8), -1);
  assert_int_equal(add(&f.graph, "", TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, 8), -1);
  struct node node = {.op = OP_GELU, .in = {f.x}, .n_in = 1, .line = 7};
  assert_int_equal(graph_add_node(&f.graph, &node, "x", DTYPE_F32, NULL, &f.err),
                   STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(f.err.message, "\"x\" is taken"));
  assert_int_equal(graph_add_node(&f.graph, &node, "", DTYPE_F32, NULL, &f.err),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(graph_add_node(&f.graph, &node, "y", DTYPE_I32, NULL, &f.err),
                   STATUS_INVALID_ARGUMENT);
  char huge[400];
  memset(huge, 'a', sizeof huge - 1);
  huge[sizeof huge - 1] = '\0';
  assert_int_equal(graph_add_node(&f.graph, &node, huge, DTYPE_F32, NULL, NULL),
                   STATUS_INVALID_ARGUMENT);
  graph_deinit(&f.graph);
}

static void limits_are_refused_and_not_overrun(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f);
  int32_t last = f.x;
  enum status status = STATUS_OK;
  while (status == STATUS_OK && f.graph.n_nodes <= LIMIT_GRAPH_NODES)
    status = try_node(&f, OP_RELU, 1, last, -1, -1, NONE, &last);
  assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(f.graph.n_nodes, LIMIT_GRAPH_NODES);
  char name[32];
  do
    snprintf(name, sizeof name, "extra%d", f.graph.n_tensors);
  while (add(&f.graph, name, TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 1, 1) >= 0);
  assert_int_equal(f.graph.n_tensors, LIMIT_GRAPH_TENSORS);
  assert_int_equal(graph_find_tensor(&f.graph, "extra8000"), 8000);
  graph_deinit(&f.graph);
}

static void op_words_are_those_of_model_files(void **state) {
  (void)state;
  for (int op = OP_INVALID + 1; op < OP_COUNT; op++)
    assert_int_equal(op_find(op_name((enum op)op)), op);
  assert_int_equal(op_find("layer_norm"), OP_LAYER_NORM);
  assert_int_equal(op_find("conv"), OP_INVALID);
  assert_string_equal(op_name((enum op) - 1), "invalid");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_infer_the_shape_of_their_output),
      cmocka_unit_test(wrong_operands_are_refused_by_name),
      cmocka_unit_test(attention_heads_must_divide),
      cmocka_unit_test(names_are_unique_and_found),
      cmocka_unit_test(limits_are_refused_and_not_overrun),
      cmocka_unit_test(op_words_are_those_of_model_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
