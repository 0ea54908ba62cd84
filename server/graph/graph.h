// A model's computation as plain data: tensors, nodes, weights by id. No pointers inside, no memory of tensors.
// Built once by model/model_conf, read-only afterwards, so any thread may read it.
//
// Every tensor is a matrix [rows, cols]. Rows are symbolic (tokens or sequences of a packed batch) for activations and a
// number for weights; a weight vector has rows 1. The shapes a client sees ([batch, seq, hidden]) belong to the signature.
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "base/status.h"
#include "kernels/types.h"
#include "limits.h"

enum op { // order is that of kernels/ops.def, from which the op table is made
  OP_INVALID,
  OP_LINEAR, OP_LAYER_NORM, OP_RMS_NORM, OP_GELU, OP_RELU, OP_SILU, OP_TANH, OP_SIGMOID, OP_ADD, OP_MUL, OP_SCALE,
  OP_BIAS, OP_CAST, OP_SOFTMAX, OP_REDUCE, OP_ATTENTION, OP_EMBEDDING, OP_POOL, OP_NORMALIZE, OP_IDENTITY,
  OP_COUNT
};

enum tensor_kind { TENSOR_ACTIVATION, TENSOR_INPUT, TENSOR_WEIGHT, TENSOR_POSITIONS };

struct tensor {
  char name[LIMIT_NAME_BYTES]; // as in the model file; unique
  enum tensor_kind kind;
  enum dtype dtype;            // of memory; for weights: the compute dtype they are converted to at load
  enum row_kind rows;
  int32_t n_rows;              // ROWS_FIXED only
  int32_t cols;
  int32_t index;               // TENSOR_INPUT: signature input; TENSOR_WEIGHT: weight id; else -1
};

enum reduce_kind { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX };
enum pool_kind { POOL_MEAN, POOL_CLS, POOL_MAX };

struct node_attrs {
  float eps;               // layer_norm, rms_norm, normalize
  float factor;            // scale (op); attention: 0 means 1/sqrt(head_dim)
  bool approximate_tanh;   // gelu
  bool causal;             // attention
  int32_t heads, kv_heads; // attention
  enum reduce_kind reduce;
  enum pool_kind pool;
  enum dtype to;           // cast
};

#define NODE_MAX_INPUTS 4
// Inputs by op: linear {x, weight, bias?}; layer_norm {x, gamma, beta}; rms_norm {x, gamma}; add, mul {a, b} (b may be
// [rows,1] or [1,cols]); bias {x, b}; attention {q, k, v}; embedding {ids, table}; pool, unary ops {x}.
struct node {
  enum op op;
  int32_t in[NODE_MAX_INPUTS]; // tensor ids; -1 where absent
  uint8_t n_in;
  int32_t out;                 // tensor id; every op has one output
  struct node_attrs attrs;
  int32_t line;                // of the model file, for messages and explain
};

struct graph {
  struct tensor *tensors; // [n_tensors]
  struct node *nodes;     // [n_nodes], in an order in which inputs come first
  int32_t n_tensors, n_nodes;
  int32_t outputs[LIMIT_MODEL_OUTPUTS]; // tensor ids, in signature order
  int32_t n_outputs;
  bool has_sequences;     // some input has a `seq` dimension
};

MUST_USE enum status graph_init(struct graph *graph);
void graph_deinit(struct graph *graph);
// Append; the tensor id or node index, or -1 when a limit is reached or memory is out.
int32_t graph_add_tensor(struct graph *graph, const struct tensor *tensor);
int32_t graph_find_tensor(const struct graph *graph, const char *name); // -1: none. Load time only.
// Checks shapes and dtypes of the node's inputs, adds its output tensor called `out_name` with the shape that the op
// implies, and appends the node. INVALID_ARGUMENT with a message that names the op, the operand, found and expected.
MUST_USE enum status graph_add_node(struct graph *graph, const struct node *node, const char *out_name,
                                    enum dtype out_dtype, int32_t *out_tensor, struct error *err);

const char *op_name(enum op op);          // the word in model files
enum op op_find(const char *name);        // OP_INVALID when unknown

#endif
