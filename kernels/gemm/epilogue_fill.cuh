// Host side of the epilogue: a call's operations with their operands, as the kernels read them.
#ifndef GEMM_EPILOGUE_FILL_CUH
#define GEMM_EPILOGUE_FILL_CUH

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/gemm.h"

// May two neighbouring results, the first in an even column, be stored as one word?
static inline bool gemm_pairs(const struct view *y, const struct linear_problem *p) {
  return p->n % 2 == 0 && y->stride % 2 == 0 &&
         (uintptr_t)y->data % (p->y_dtype == DTYPE_F32 ? 8 : 4) == 0;
}

static inline gemm_op gemm_op_of(const struct kernel_call *call, const struct epilogue_op *from) {
  const struct view *v = call_operand(call, from);
  gemm_op op = {from->kind, from->act, from->imm, DTYPE_F32, nullptr, 0};
  if (from->kind == EPI_BIAS || from->kind == EPI_ADD) op.imm = 1;
  if (v) op.dtype = v->dtype, op.operand = v->data, op.stride = v->stride;
  return op;
}

// take_apart: find a bias that comes first, and the common form with its activation. A bias before
// a residual is added after it: cuBLASLt's order, so that either may compute a row.
static inline void gemm_fill_epilogue(const struct kernel_call *call, struct gemm_epilogue *e,
                                      int *act, bool take_apart) {
  const struct linear_problem *p = call->linear;
  e->n = p->n_epilogue;
  for (int i = 0; i < e->n; i++)
    e->op[i] = gemm_op_of(call, &p->epilogue[i]);
  *act = ACT_NONE;
  if (e->n == 2 && e->op[0].kind == EPI_BIAS && e->op[1].kind == EPI_ADD && !take_apart) {
    const gemm_op bias = e->op[0];
    e->op[0] = e->op[1], e->op[1] = bias;
  }
  if (!take_apart) return;
  // is it [bias] [activation] [residual or gate] ?
  int at = 0;
  if (at < e->n && e->op[at].kind == EPI_BIAS) at++;
  if (at < e->n && e->op[at].kind == EPI_ACT) *act = e->op[at++].act;
  if (*act == ACT_RELU || *act == ACT_TANH || *act == ACT_SIGMOID)
    *act = GEMM_ACT_ANY; // no kernel of their own
  bool residual = at < e->n && (e->op[at].kind == EPI_ADD || e->op[at].kind == EPI_MUL);
  if (*act == ACT_NONE && residual && e->op[at].kind == EPI_MUL) *act = GEMM_ACT_ANY;
  if (at + residual != e->n) *act = GEMM_ACT_ANY;
  const bool bias = e->n && e->op[0].kind == EPI_BIAS;
  if (bias) e->bias = e->op[0].operand, e->bias_wide = e->op[0].dtype == DTYPE_F32;
  if (*act == GEMM_ACT_ANY) {
    for (int i = bias; bias && i < e->n; i++)
      e->op[i - 1] = e->op[i];
    e->n -= bias;
    return;
  }
  if (residual) e->residual = true, e->op[0] = e->op[at];
}

#endif
