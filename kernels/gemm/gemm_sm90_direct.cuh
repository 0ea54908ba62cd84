// Results of the Hopper product (gemm_sm90.cuh) straight from registers to memory, 16 bytes a
// thread: no shared memory, which the products need, and no waiting for it.
//
// A fragment gives a thread two neighbouring columns of each 8. So within each 32 the rows of W
// come to shared memory in another order (tensor_map_interleaved), in which the thread's columns of
// four fragments are 8 neighbours; a warp then stores 64 bytes of each of 8 rows at a time.
#ifndef GEMM_GEMM_SM90_DIRECT_CUH
#define GEMM_GEMM_SM90_DIRECT_CUH

#include "kernels/gemm/gemm_sm90_tile.cuh"

static __device__ __forceinline__ void store_global_16(void *to, const uint32_t (&w)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]),
               "r"(w[2]), "r"(w[3])
               : "memory");
}

static __device__ __forceinline__ void load_shared_8(float (&v)[8], uint32_t from) {
#pragma unroll
  for (int i = 0; i < 8; i += 4)
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[i]), "=f"(v[i + 1]), "=f"(v[i + 2]), "=f"(v[i + 3])
                 : "r"(from + i * 4)
                 : "memory");
}

// A thread's part of a tile: two rows, 8 apart, of each 64.
struct gemm_part {
  char *y;     // of its first row, at its first column
  int left[2]; // columns of each row from there on that exist; none where the row does not
};

static __device__ __forceinline__ gemm_part gemm_part_at(const gemm_args &args, int warp_row,
                                                         int tile_col) {
  const int row = warp_row + threadIdx.x % 32 / 4, col = tile_col + threadIdx.x % 4 * 8;
  return gemm_part{(char *)args.y + (row * args.y_stride + col) * 2,
                   {row < args.m ? args.n - col : 0, row + 8 < args.m ? args.n - col : 0}};
}

// 8 neighbouring columns of one of the two rows: `d`: of the 32 columns that hold them.
template <class T, int ACT, int HALF>
static __device__ __forceinline__ void gemm_finish_8(const float *d, const float (&bias)[8],
                                                     uint32_t (&w)[4]) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; i++)
    v[i] = d[i / 2 * 4 + HALF * 2 + i % 2] + bias[i];
  activate_all<ACT, GELU_DEGREE<T>>(v);
#pragma unroll
  for (int i = 0; i < 4; i++)
    w[i] = pack_pair<T>(v[2 * i], v[2 * i + 1]);
}

#endif
