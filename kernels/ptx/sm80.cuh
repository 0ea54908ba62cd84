// One inline function per instruction that every tensor-core GPU has (sm_80 and newer) and CUDA C++
// has no word for: matrix loads from shared memory, the 16x8x16 product of a warp, asynchronous
// copies into shared memory.
#ifndef PTX_SM80_CUH
#define PTX_SM80_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t smem_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. Lane
// t gets row t / 4, columns 2 (t % 4) and the next, of each.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}
// The same of the transposed matrices.
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}

// d[16x8] += a[16x16] b[16x8]. Lane t: d[0], d[1] at row t / 4, columns 2 (t % 4) and the next;
// d[2], d[3] eight rows below. a as ldmatrix_x4 gives it of matrices (rows 0-7, k 0-7), (8-15,
// 0-7), (0-7, 8-15), (8-15, 8-15); b0, b1: k 0-7 and 8-15 of eight columns.
template <class T>
static __device__ __forceinline__ void mma_16816(float *d, const uint32_t *a, uint32_t b0,
                                                 uint32_t b1) {
  if (__is_same(T, __nv_bfloat16))
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16x8] = a[16x8] b[8x8] + c in tf32, whose 32-bit words the instruction takes the upper 19 bits
// of. Lanes hold d and c as above; a as ldmatrix_x4 gives it of matrices of 8 rows x 4 words (rows
// 0-7, k 0-3), (8-15, 0-3), (0-7, 4-7), (8-15, 4-7); b0, b1: k 0-3 and 4-7 of eight columns.
static __device__ __forceinline__ void mma_1688_tf32(float *d, const uint32_t *a, uint32_t b0,
                                                     uint32_t b1, float c0, float c1, float c2,
                                                     float c3) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2),
        "f"(c3));
}

// Two floats as 16-bit elements, the first in the low half.
template <class T> static __device__ __forceinline__ uint32_t pack_pair(float lo, float hi) {
  uint32_t w;
  if (__is_same(T, __nv_bfloat16))
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  else
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}

// 16 bytes of global memory into shared memory; zeros, and nothing read, where `valid` is false.
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The same without a condition: fewer instructions.
static __device__ __forceinline__ void copy_16_all(uint32_t to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same of `bytes`, 0 to 16; zeros after them.
static __device__ __forceinline__ void copy_16_part(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
static __device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but LEFT of this thread's committed groups have landed.
template <int LEFT> static __device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
