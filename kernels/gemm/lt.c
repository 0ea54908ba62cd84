// cuBLASLt by dlopen. Its matrices are columns: y^T [n, m] = W [n, k] x^T, so that W is the
// transposed first operand, and the bias, one value a row there, is one a column here.
#include "kernels/gemm/lt.h"
#include "kernels/cuda.h"
#include "kernels/kernel.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lt {
  void *library;
  cublasLtHandle_t handle;
  cublasStatus_t (*create)(cublasLtHandle_t *);
  cublasStatus_t (*destroy)(cublasLtHandle_t);
  cublasStatus_t (*layout_init)(cublasLtMatrixLayout_t, size_t, cudaDataType, uint64_t, uint64_t,
                                int64_t);
  cublasStatus_t (*desc_init)(cublasLtMatmulDesc_t, size_t, cublasComputeType_t, cudaDataType_t);
  cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                             size_t);
  cublasStatus_t (*preference_init)(cublasLtMatmulPreference_t, size_t);
  cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                   const void *, size_t);
  cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                              cublasLtMatmulHeuristicResult_t *, int *);
  cublasStatus_t (*algo_get)(const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t,
                             void *, size_t, size_t *);
  cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                           cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                           const void *, const void *, cublasLtMatrixLayout_t, void *,
                           cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                           cudaStream_t);
};

// What lies in lt_plan.words.
struct plan {
  cublasLtMatmulAlgo_t algo;
  cublasLtMatmulDescOpaque_t desc;
  cudaDataType_t type, y_type; // of x and W; of result and residual
  int32_t n, k;
  int64_t w_stride, x_stride, residual_stride, y_stride;
  int16_t bias_operand, residual_operand; // -1: none
};
_Static_assert(sizeof(struct plan) <= LT_PLAN_WORDS * 8, "LT_PLAN_WORDS is too small");

struct layouts {
  cublasLtMatrixLayoutOpaque_t w, x, residual, y;
};

static bool resolve(struct lt *lt, const char *name, void *slot) {
  void *symbol = dlsym(lt->library, name);
  memcpy(slot, &symbol, sizeof symbol); // ISO C has no cast from object to function pointer
  return symbol != NULL;
}

static bool resolve_all(struct lt *lt) {
  return resolve(lt, "cublasLtCreate", &lt->create) &&
         resolve(lt, "cublasLtDestroy", &lt->destroy) &&
         resolve(lt, "cublasLtMatrixLayoutInit_internal", &lt->layout_init) &&
         resolve(lt, "cublasLtMatmulDescInit_internal", &lt->desc_init) &&
         resolve(lt, "cublasLtMatmulDescSetAttribute", &lt->desc_set) &&
         resolve(lt, "cublasLtMatmulPreferenceInit_internal", &lt->preference_init) &&
         resolve(lt, "cublasLtMatmulPreferenceSetAttribute", &lt->preference_set) &&
         resolve(lt, "cublasLtMatmulAlgoGetHeuristic", &lt->heuristic) &&
         resolve(lt, "cublasLtMatmulAlgoConfigGetAttribute", &lt->algo_get) &&
         resolve(lt, "cublasLtMatmul", &lt->matmul);
}

int lt_open(struct lt **out, char message[LT_MESSAGE_BYTES]) {
  static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                      "/usr/local/cuda/lib64/libcublasLt.so.13",
                                      "/usr/local/cuda/lib64/libcublasLt.so.12"};
  *out = NULL;
  struct lt *lt = calloc(1, sizeof *lt);
  if (!lt) {
    snprintf(message, LT_MESSAGE_BYTES, "cuBLASLt: out of memory");
    return -1;
  }
  for (size_t i = 0; i < sizeof names / sizeof *names && !lt->library; i++)
    lt->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!lt->library || !resolve_all(lt)) {
    snprintf(message, LT_MESSAGE_BYTES,
             "cuBLASLt (libcublasLt.so.13 or .12) cannot be opened: %.300s",
             lt->library ? "symbols missing" : dlerror());
    lt_close(lt);
    return -1;
  }
  cublasStatus_t rc = lt->create(&lt->handle);
  if (rc != CUBLAS_STATUS_SUCCESS) {
    snprintf(message, LT_MESSAGE_BYTES, "cuBLASLt found no usable device (status %d)", (int)rc);
    lt->handle = NULL;
    lt_close(lt);
    return -1;
  }
  *out = lt;
  return 0;
}

// The library stays loaded: its device code is registered with the driver until the process ends.
void lt_close(struct lt *lt) {
  if (!lt) return;
  if (lt->handle) lt->destroy(lt->handle);
  free(lt);
}

static bool data_type(enum dtype dtype, cudaDataType_t *out) {
  *out = dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
  return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

// Is the epilogue one that the library computes exactly: [bias] [residual] ?
static bool match_epilogue(const struct linear_problem *p, const struct view *in,
                           struct plan *plan) {
  int at = 0;
  plan->bias_operand = plan->residual_operand = -1;
  if (at < p->n_epilogue && p->epilogue[at].kind == EPI_BIAS) {
    const struct view *bias = &in[p->epilogue[at].operand];
    if (bias->dtype != p->y_dtype || (uintptr_t)bias->data % 16 != 0) return false;
    plan->bias_operand = p->epilogue[at++].operand;
  }
  if (at < p->n_epilogue && p->epilogue[at].kind == EPI_ADD) {
    const struct view *residual = &in[p->epilogue[at].operand];
    if (residual->dtype != p->y_dtype || !view_rows_aligned(residual)) return false;
    plan->residual_operand = p->epilogue[at++].operand;
  }
  return at == p->n_epilogue;
}

static bool lay_out(const struct lt *lt, const struct plan *p, int64_t m, struct layouts *out) {
  const uint64_t n = (uint64_t)p->n, k = (uint64_t)p->k, rows = (uint64_t)m;
  int rc = lt->layout_init(&out->w, sizeof out->w, p->type, k, n, p->w_stride);
  rc |= lt->layout_init(&out->x, sizeof out->x, p->type, k, rows, p->x_stride);
  rc |=
      lt->layout_init(&out->residual, sizeof out->residual, p->y_type, n, rows, p->residual_stride);
  rc |= lt->layout_init(&out->y, sizeof out->y, p->y_type, n, rows, p->y_stride);
  return rc == 0;
}

// The words that say which product this is; the bias's address is set again at each run.
static bool describe(const struct lt *lt, const struct linear_problem *p, const struct view *in,
                     const struct view *y, struct plan *plan) {
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
  if (!data_type(p->x_dtype, &plan->type) || !data_type(p->y_dtype, &plan->y_type)) return false;
  int rc = lt->desc_init(&plan->desc, sizeof plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  rc |= lt->desc_set(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
  if (plan->bias_operand >= 0) {
    rc |= lt->desc_set(&plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
    rc |= lt->desc_set(&plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &in[plan->bias_operand].data,
                       sizeof(void *));
  }
  plan->n = p->n, plan->k = p->k;
  plan->x_stride = in[0].stride, plan->w_stride = in[1].stride, plan->y_stride = y->stride;
  plan->residual_stride =
      plan->residual_operand >= 0 ? in[plan->residual_operand].stride : y->stride;
  return rc == 0;
}

// Is it of the family whose sums are the same bits for any tile and cluster? Its id is 66 (nvjet,
// the library's own kernels for sm_90); split or reduced sums are out.
static bool keeps_bits(const struct lt *lt, const cublasLtMatmulAlgo_t *algo) {
  enum { HOPPER_FAMILY = 66 };
  int32_t id = 0, split = 1;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written;
  int rc = lt->algo_get(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
  rc |= lt->algo_get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written);
  rc |= lt->algo_get(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written);
  return rc == 0 && id == HOPPER_FAMILY && split <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static bool find_algorithm(const struct lt *lt, struct plan *plan, int64_t m,
                           size_t workspace_bytes, size_t *needed) {
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t found;
  struct layouts at;
  if (!lay_out(lt, plan, m, &at)) return false;
  const uint32_t align = 16, none = CUBLASLT_REDUCTION_SCHEME_NONE;
  int count = 0, rc = lt->preference_init(&preference, sizeof preference);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                           sizeof workspace_bytes);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                           sizeof none);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align,
                           sizeof align);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align,
                           sizeof align);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align,
                           sizeof align);
  rc |= lt->preference_set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align,
                           sizeof align);
  if (rc != 0 || lt->heuristic(lt->handle, &plan->desc, &at.w, &at.x, &at.residual, &at.y,
                               &preference, 1, &found, &count) != 0)
    return false;
  // Its first choice or none: where that is of another family, one of this family further down the
  // list is slow (k 3072, n 768, up to 128 rows: twice our own kernel's time).
  if (count < 1 || found.state != CUBLAS_STATUS_SUCCESS || !keeps_bits(lt, &found.algo))
    return false;
  plan->algo = found.algo;
  *needed = found.workspaceSize;
  return true;
}

int lt_prepare(const struct lt *lt, const struct linear_problem *p, const struct view *in,
               const struct view *y, int64_t m, size_t workspace_bytes, struct lt_plan *out) {
  struct plan plan;
  memset(&plan, 0, sizeof plan);
  *out = (struct lt_plan){0};
  if (m < 1 || p->x_dtype == DTYPE_F32 || p->x_dtype != p->w_dtype ||
      (p->y_dtype != p->x_dtype && p->y_dtype != DTYPE_F32))
    return CUDA_UNSUPPORTED;
  if (!view_rows_aligned(&in[0]) || !view_rows_aligned(&in[1]) || !view_rows_aligned(y))
    return CUDA_UNSUPPORTED;
  if (!match_epilogue(p, in, &plan) || !describe(lt, p, in, y, &plan) ||
      !find_algorithm(lt, &plan, m, workspace_bytes, &out->workspace_bytes))
    return CUDA_UNSUPPORTED;
  memcpy(out->words, &plan, sizeof plan);
  return 0;
}

int lt_run(const struct lt *lt, const struct lt_plan *prepared, const struct view *in,
           const struct view *y, int64_t m, void *workspace, struct CUstream_st *stream) {
  struct layouts at;
  struct plan plan; // a copy: the bias's address goes into it, and others may be running the plan
  memcpy(&plan, prepared->words, sizeof plan);
  const float one = 1.0f, beta = plan.residual_operand >= 0 ? 1.0f : 0.0f;
  const void *residual = plan.residual_operand >= 0 ? in[plan.residual_operand].data : y->data;
  if (!lay_out(lt, &plan, m, &at)) return cudaErrorInvalidValue;
  if (plan.bias_operand >= 0 && lt->desc_set(&plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                             &in[plan.bias_operand].data, sizeof(void *)) != 0)
    return cudaErrorInvalidValue;
  cublasStatus_t rc = lt->matmul(lt->handle, &plan.desc, &one, in[1].data, &at.w, in[0].data, &at.x,
                                 &beta, residual, &at.residual, y->data, &at.y, &plan.algo,
                                 workspace, prepared->workspace_bytes, stream);
  if (rc == CUBLAS_STATUS_SUCCESS) return 0;
  cudaError_t error = cudaGetLastError(); // what the library met, if it was the runtime's
  if (error != cudaSuccess) return error;
  return rc == CUBLAS_STATUS_NOT_SUPPORTED ? CUDA_UNSUPPORTED : cudaErrorUnknown;
}
