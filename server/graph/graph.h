// A model's computation as plain data: tensors, nodes, weights by id. No pointers inside, no memory
// of tensors. Built once by model/model_conf, read-only afterwards, so any thread may read it.
//
// Every tensor is a matrix [rows, cols]. Rows are symbolic (tokens or sequences of a packed batch)
// for activations and a number for weights; a weight vector has rows 1. The shapes a client sees
// ([batch, seq, hidden]) belong to the signature.
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "base/status.h"
#include "bounds.h"
#include "kernels/types.h"

enum op { // OP_LINEAR, OP_LAYER_NORM, ...: one a row of kernels/ops.def, from which the op table is
          // made too
  OP_INVALID,
#define OP_ROW(upper, word) OP_##upper,
#include "kernels/ops.def"
#undef OP_ROW
  OP_COUNT
};

enum tensor_kind { TENSOR_ACTIVATION, TENSOR_INPUT, TENSOR_WEIGHT, TENSOR_POSITIONS };

struct tensor {
  char name[LIMIT_NAME_BYTES]; // as in the model file; unique
  enum tensor_kind kind;
  enum dtype dtype; // of memory; for weights: the compute dtype they are converted to at load
  enum row_kind rows;
  int32_t n_rows; // ROWS_FIXED only
  int32_t cols;
  int32_t index; // TENSOR_INPUT: signature input; TENSOR_WEIGHT: weight id; else -1
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
  enum dtype to; // cast
};

#define NODE_MAX_INPUTS 4
// Inputs by op: linear {x, weight, bias?}; layer_norm {x, gamma, beta}; rms_norm {x, gamma}; add,
// mul {a, b} (b may be [rows,1], or a weight [1,cols] or [1,1]); bias {x, b}; attention {q, k, v};
// embedding {ids, table}; pool, unary ops {x}.
struct node {
  enum op op;
  int32_t in[NODE_MAX_INPUTS]; // tensor ids; -1 where absent
  uint8_t n_in;
  int32_t out; // tensor id; every op has one output
  struct node_attrs attrs;
  int32_t line; // of the model file, for messages and explain
};

struct graph {
  struct tensor *tensors; // [n_tensors]
  struct node *nodes;     // [n_nodes], in an order in which inputs come first
  int32_t n_tensors, n_nodes;
  int32_t outputs[LIMIT_MODEL_OUTPUTS]; // tensor ids, in signature order
  int32_t n_outputs;
  bool has_sequences; // some input has a `seq` dimension
  int32_t tensor_capacity, node_capacity;
  int32_t *name_slots; // hash of names -> tensor id, for graph_find_tensor
};

MUST_USE enum status graph_init(struct graph *graph);
void graph_deinit(struct graph *graph);
// Append; the tensor id, or -1 when a limit is reached, memory is out or the name is empty or
// taken.
int32_t graph_add_tensor(struct graph *graph, const struct tensor *tensor);
int32_t graph_find_tensor(const struct graph *graph, const char *name); // -1: none. Load time only.
// Checks shapes and dtypes of the node's inputs, adds its output tensor called `out_name` with the
// shape that the op implies, and appends the node. `out_dtype` DTYPE_INVALID means that of the
// first floating input; cast uses attrs.to, identity and attention their input's dtype, whatever is
// given. INVALID_ARGUMENT with a message that names the op, the operand, found and expected (and
// err->line = node->line); RESOURCE_EXHAUSTED at a limit. The graph is unchanged after a failure.
// Mark outputs by filling graph->outputs and n_outputs once their tensors exist.
MUST_USE enum status graph_add_node(struct graph *graph, const struct node *node,
                                    const char *out_name, enum dtype out_dtype, int32_t *out_tensor,
                                    struct error *err);

const char *op_name(enum op op);   // the word in model files
enum op op_find(const char *name); // OP_INVALID when unknown

#endif
