// A row program in double, written apart from the generator: what a generated kernel must give.
#ifndef CUDA_ROW_MODEL_H
#define CUDA_ROW_MODEL_H

#include "gpu_test.h"

struct model_inputs {
  const struct matrix *in[ROW_MAX_INPUTS];
  const int32_t *positions, *cu_seqlens;
};

static inline double model_act(int act, double x) {
  double u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
  switch (act) {
  case ACT_GELU_ERF:
    return x == -INFINITY ? 0 : 0.5 * x * erfc(-x * 0.7071067811865476);
  case ACT_GELU_TANH:
    return x < -1e10 ? 0 : x / (1 + exp(-2 * u));
  case ACT_RELU:
    return x > 0 || isnan(x) ? x : 0;
  case ACT_SILU:
    return x < -1e10 ? 0 : x / (1 + exp(-x));
  case ACT_TANH:
    return tanh(x);
  case ACT_SIGMOID:
    return 1 / (1 + exp(-x));
  default:
    return x;
  }
}

static inline double model_round(int dtype, double x) {
  if (dtype == DTYPE_BF16) return bf16_to_f32(f32_to_bf16((float)x));
  if (dtype == DTYPE_F16) return f16_to_f32(f32_to_f16((float)x));
  return (float)x;
}

static inline double model_load(const struct row_program *p, const struct model_inputs *in,
                                int index, int64_t row, int col) {
  const struct row_input *input = &p->inputs[index];
  const struct matrix *m = in->in[index];
  int64_t n = row;
  double x = 0;
  switch (input->cls) {
  case IN_FULL:
    return matrix_get(m, row, col);
  case IN_PER_COL:
    return matrix_get(m, 0, col);
  case IN_PER_ROW:
    return matrix_get(m, row, 0);
  case IN_SCALAR:
    return matrix_get(m, 0, 0);
  case IN_GATHER:
    n = input->index_operand == 255 ? in->positions[row]
                                    : (int64_t)matrix_get(in->in[input->index_operand], row, 0);
    return n >= 0 && n < m->rows ? matrix_get(m, n, col) : 0;
  default:
    break;
  }
  int64_t s = in->cu_seqlens[row], e = in->cu_seqlens[row + 1];
  if (s == e) return 0;
  if (input->cls == IN_POOL_CLS) return matrix_get(m, s, col);
  for (int64_t t = s; t < e; t++) {
    double v = matrix_get(m, t, col);
    x = input->cls == IN_POOL_MEAN ? x + v : t == s || v > x || isnan(v) ? v : x;
  }
  return input->cls == IN_POOL_MEAN ? x / (double)(e - s) : x;
}

static inline double model_sum(const double *x, int n, int power, double about) {
  double s = 0;
  for (int i = 0; i < n; i++)
    s += power == 2 ? (x[i] - about) * (x[i] - about) : x[i];
  return s;
}

static inline double model_max(const double *x, int n) {
  double top = x[0];
  for (int i = 1; i < n; i++)
    top = x[i] > top || isnan(x[i]) ? x[i] : top;
  return top;
}

static inline void model_row_op(const struct row_inst *i, double *const *reg, int n) {
  double *y = reg[i->dst], *a = reg[i->a], *t = malloc(sizeof(double) * (size_t)n);
  double mean = model_sum(a, n, 1, 0) / n, top = model_max(a, n), sum = 0;
  double square = model_sum(a, n, 2, 0),
         r = 1 / sqrt(model_sum(a, n, 2, mean) / n + (double)i->imm);
  if (i->op == RI_RMS_NORM) r = 1 / sqrt(square / n + (double)i->imm);
  double most = top, total = model_sum(a, n, 1, 0);
  if (top == -INFINITY) top = 0;
  for (int c = 0; c < n; c++)
    sum += exp(a[c] - top);
  for (int c = 0; c < n; c++) {
    double x = a[c], g = i->b != ROW_NONE ? reg[i->b][c] : 1,
           b = i->c != ROW_NONE ? reg[i->c][c] : 0;
    switch (i->op) {
    case RI_SUM:
      t[c] = total;
      break;
    case RI_MEAN:
      t[c] = mean;
      break;
    case RI_MAX_ROW:
      t[c] = most;
      break;
    case RI_LAYER_NORM:
      t[c] = (x - mean) * r * g + b;
      break;
    case RI_RMS_NORM:
      t[c] = x * r * g;
      break;
    case RI_SOFTMAX:
      t[c] = sum == 0 ? 0 : exp(x - top) / sum;
      break;
    default:
      t[c] = isnan(square) ? square : x / fmax(sqrt(square), (double)i->imm);
    }
  }
  memcpy(y, t, sizeof(double) * (size_t)n);
  free(t);
}

// One row; reg[r] has cols doubles, out[o] too.
static inline void model_row(const struct row_program *p, const struct model_inputs *in,
                             int64_t row, double *const *reg, double *const *out) {
  int n = p->cols;
  for (int k = 0; k < p->n_insts; k++) {
    const struct row_inst *i = &p->insts[k];
    if (i->op >= RI_SUM) {
      model_row_op(i, reg, n);
      continue;
    }
    for (int c = 0; c < n; c++) {
      double a = i->op == RI_LOAD ? 0 : reg[i->a][c],
             b = i->op >= RI_ADD && i->op <= RI_MAX ? reg[i->b][c] : 0;
      switch (i->op) {
      case RI_LOAD:
        reg[i->dst][c] = model_load(p, in, i->a, row, c);
        break;
      case RI_STORE:
        out[i->dst][c] = a;
        break;
      case RI_ADD:
        reg[i->dst][c] = a + b;
        break;
      case RI_SUB:
        reg[i->dst][c] = a - b;
        break;
      case RI_MUL:
        reg[i->dst][c] = a * b;
        break;
      case RI_DIV:
        reg[i->dst][c] = a / b;
        break;
      case RI_MAX:
        reg[i->dst][c] = isnan(a) || a > b ? a : b;
        break;
      case RI_SCALE:
        reg[i->dst][c] = a * (double)i->imm;
        break;
      case RI_ADD_IMM:
        reg[i->dst][c] = a + (double)i->imm;
        break;
      case RI_ACT:
        reg[i->dst][c] = model_act(i->aux, a);
        break;
      default:
        reg[i->dst][c] = model_round(i->aux, a);
      }
    }
  }
}

#endif
