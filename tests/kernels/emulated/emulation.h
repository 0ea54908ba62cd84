// CUDA's execution model on a CPU, as far as generated row kernels use it: a block's threads are
// fibres of one thread of the machine, the blocks of a cluster such threads beside each other.
// Shared memory is the thread's own, so every block has its own. A fibre runs until it has to wait;
// in which order is the caller's choice, since no result may depend on it. Fibres that wait for
// each other in different places end the program.
#ifndef EMULATED_EMULATION_H
#define EMULATED_EMULATION_H

#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {
uint16_t f32_to_bf16(float value);
uint16_t f32_to_f16(float value);
float f16_to_f32(uint16_t bits);
}

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local

struct emulated_index {
  int x;
};
extern thread_local emulated_index threadIdx, blockIdx;
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
static inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

void __syncthreads();
float __shfl_xor_sync(unsigned mask, float x, int step);

// What kernels have as PTX; activations' is replaced by print.c.
#define FW_EMULATED
struct fw_f16;
struct fw_bf16;
static inline float fw_widen(fw_f16 x);
static inline void fw_narrow(float x, fw_bf16 *y);
static inline void fw_narrow(float x, fw_f16 *y);
static inline unsigned fw_narrow2(float lo, float hi, fw_bf16 *) {
  return f32_to_bf16(lo) | (unsigned)f32_to_bf16(hi) << 16;
}
static inline unsigned fw_narrow2(float lo, float hi, fw_f16 *) {
  return f32_to_f16(lo) | (unsigned)f32_to_f16(hi) << 16;
}
float *fw_cluster_at(const float *at, int rank);
static inline void fw_cluster_write(float *at, int rank, float x) {
  *fw_cluster_at(at, rank) = x;
}
static inline float fw_cluster_read(const float *at, int rank) {
  return *fw_cluster_at(at, rank);
}
static inline void fw_cluster_arrive() {} // waiting is both
void fw_cluster_wait();

// Kernel n of the table that print.c writes; `args` is its fw_row_args.
void emulated_kernel(int n, const void *args);

#endif
