// The driver's encoder is looked up at the first use: the library links no libcuda, so that it
// loads without a driver.
#include "kernels/common/tensor_map.h"
#include "kernels/cuda.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static int find_encoder(encode_fn *out) {
  static _Atomic(void *) known; // the same address whoever writes it
  void *entry = atomic_load_explicit(&known, memory_order_relaxed);
  if (!entry) {
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t rc = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                      cudaEnableDefault, &found);
    if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess)
      return rc != cudaSuccess ? (int)rc : CUDA_UNSUPPORTED;
    atomic_store_explicit(&known, entry, memory_order_relaxed);
  }
  *out = (encode_fn)entry;
  return 0;
}

static int encode(CUtensorMap *out, enum dtype dtype, const void *data, uint32_t rank,
                  const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                  CUtensorMapSwizzle swizzle) {
  encode_fn encoder;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  if ((uintptr_t)data % 16 != 0) return CUDA_UNSUPPORTED;
  for (uint32_t i = 0; i + 1 < rank; i++) {
    if (strides[i] % 16 != 0 || strides[i] == 0 || strides[i] >= 1ull << 40)
      return CUDA_UNSUPPORTED;
  }
  int rc = find_encoder(&encoder);
  if (rc != 0) return rc;
  CUtensorMapDataType type =
      dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUresult result = encoder(out, type, rank, (void *)(uintptr_t)data, dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : CUDA_UNSUPPORTED;
}

int tensor_map_matrix(CUtensorMap *out, enum dtype dtype, const void *data, int64_t rows,
                      int64_t cols, int64_t stride, int box_rows) {
  const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows},
                   strides[1] = {(cuuint64_t)stride * 2};
  const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
  return encode(out, dtype, data, 2, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

int tensor_map_interleaved(CUtensorMap *out, enum dtype dtype, const void *data, int64_t rows,
                           int64_t cols, int64_t stride, int box_rows) {
  const cuuint64_t row = (cuuint64_t)stride * 2;
  const cuuint64_t dims[5] = {(cuuint64_t)cols, 2, 4, 4, (cuuint64_t)rows / 32};
  const cuuint64_t strides[4] = {row, row * 8, row * 2, row * 32};
  const cuuint32_t box[5] = {64, 2, 4, 4, (cuuint32_t)box_rows / 32};
  if (rows % 32 != 0) return CUDA_UNSUPPORTED;
  return encode(out, dtype, data, 5, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

int tensor_map_heads(CUtensorMap *out, enum dtype dtype, const void *data, int64_t tokens,
                     int heads, int dim, int64_t stride, int box_tokens, int box_dim) {
  const cuuint64_t dims[3] = {(cuuint64_t)dim, (cuuint64_t)heads, (cuuint64_t)tokens};
  const cuuint64_t strides[2] = {(cuuint64_t)dim * 2, (cuuint64_t)stride * 2};
  const cuuint32_t box[3] = {(cuuint32_t)box_dim, 1, (cuuint32_t)box_tokens};
  CUtensorMapSwizzle swizzle = box_dim * 2 == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                               : box_dim * 2 == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                   : CU_TENSOR_MAP_SWIZZLE_32B;
  return encode(out, dtype, data, 3, dims, strides, box, swizzle);
}
