// One inline function per instruction that CUDA C++ has no word for: barriers, bulk tensor copies,
// clusters, matrix fences. Hopper (sm_90a). The matrix instructions themselves are in
// ptx/wgmma.cuh.
#ifndef PTX_SM90_CUH
#define PTX_SM90_CUH

#include "kernels/ptx/sm80.cuh"

#include <cuda.h>

// ---- mbarriers: `parity` is the phase's lowest bit ---------------------------------------------
static __device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
// Makes initialised barriers visible to the copy engine and to the cluster.
static __device__ __forceinline__ void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
static __device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// The same barrier in block `rank` of the cluster. Plain, not .release.cluster: that form costs a
// fence of the whole GPU (MEMBAR.ALL.GPU in the machine code), and what is handed over here was
// read by the tensor cores, which have finished.
static __device__ __forceinline__ void mbar_arrive_at(uint32_t bar, uint32_t rank) {
  asm volatile("{\n.reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
               "r"(rank)
               : "memory");
}
static __device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra over;\n"
               "bra again;\n"
               "over:\n}" ::"r"(bar),
               "r"(parity)
               : "memory");
}
// Is the phase over? Does not wait.
static __device__ __forceinline__ bool mbar_test(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\n"
               "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(bar), "r"(parity)
               : "memory");
  return done != 0;
}
// ---- bulk tensor copies ------------------------------------------------------------------------
static __device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
static __device__ __forceinline__ void tma_load_2d(uint32_t to, const CUtensorMap *map,
                                                   uint32_t bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4}], [%2];" ::"r"(to),
               "l"(map), "r"(bar), "r"(x), "r"(y)
               : "memory");
}
static __device__ __forceinline__ void tma_load_3d(uint32_t to, const CUtensorMap *map,
                                                   uint32_t bar, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
               "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
               : "memory");
}
static __device__ __forceinline__ void
tma_load_5d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int z, int u, int v) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
               "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
               : "memory");
}
// To the same place, and the same barrier, of every block in `mask`.
static __device__ __forceinline__ void tma_multicast_2d(uint32_t to, const CUtensorMap *map,
                                                        uint32_t bar, int x, int y, uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
               "multicast::cluster "
               "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
               "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
               : "memory");
}
static __device__ __forceinline__ void tma_multicast_5d(uint32_t to, const CUtensorMap *map,
                                                        uint32_t bar, int x, int y, int z, int u,
                                                        int v, uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes."
               "multicast::cluster "
               "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
               "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "h"(mask)
               : "memory");
}
static __device__ __forceinline__ void tma_store_2d(const CUtensorMap *map, uint32_t from, int x,
                                                    int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
static __device__ __forceinline__ void tma_store_3d(const CUtensorMap *map, uint32_t from, int x,
                                                    int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
static __device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but LEFT of this thread's stores have read their shared memory.
template <int LEFT> static __device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// Ordinary stores to shared memory become visible to the copy engine and the tensor cores.
static __device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- blocks, clusters, named barriers ----------------------------------------------------------
static __device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
static __device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
static __device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <int REGISTERS> static __device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> static __device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- matrix groups -----------------------------------------------------------------------------
static __device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from moving an accumulator across a point where the tensor cores may be
// writing it.
template <int N> static __device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++)
    asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of a tile with rows of 128 bytes under the 128-byte swizzle (8 rows, 1024 bytes, to a
// group). K-major: add 2 for each step of 16 columns of 16 bits. `stride_bytes` runs from one group
// of 8 rows to the next.
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t leading_bytes,
                                                           uint32_t stride_bytes) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
         (uint64_t)(stride_bytes >> 4) << 32 | 1ull << 62;
}

static __device__ __forceinline__ void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                                   uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

#endif
