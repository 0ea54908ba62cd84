// Many small copies by one kernel: between pinned host memory and the device, either way.
//
// A copy by the copy engine costs the host 2 us and the card a hand-over between engines;
// sixty-four of them in and out took 300 us where one kernel of this kind takes 50. A block copies
// one unit: its loads are all in flight at once, so that the unit takes one trip over the bus.
// Requests lie at any address, so words are put together from aligned loads; only the card's side
// is written (or, on the way out, a host side that is aligned anyway).
#include "kernels/cuda.h"

#include <cuda_runtime.h>

#define THREADS 256
#define IN_FLIGHT 4

static __device__ __forceinline__ long long now_ns() {
  long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

static __device__ void copy_bytes(const char *from, char *to, long long bytes) {
  for (long long i = threadIdx.x; i < bytes; i += THREADS)
    to[i] = from[i];
}

// Both 16-byte aligned.
static __device__ void copy_vectors(const uint4 *from, uint4 *to, long long n) {
  for (long long base = threadIdx.x; base < n; base += THREADS * IN_FLIGHT) {
    uint4 held[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (base + i * THREADS < n) held[i] = from[base + i * THREADS];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (base + i * THREADS < n) to[base + i * THREADS] = held[i];
  }
}

// `to` 4-byte aligned, `from` anywhere: n words. Reads the aligned words that hold the n, none
// else.
static __device__ void copy_words(const char *from, unsigned *to, long long n) {
  const unsigned shift = (unsigned)((size_t)from & 3) * 8, lane = threadIdx.x & 31;
  const unsigned *source = (const unsigned *)(from - ((size_t)from & 3));
  const long long n_source = n + (shift != 0);
  // whole warps go round together, as they hand words to their neighbours
  for (long long base = threadIdx.x - lane; base < n; base += THREADS * IN_FLIGHT) {
    unsigned low[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      const long long at = base + i * THREADS + lane;
      low[i] = at < n_source ? source[at] : 0;
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      const long long at = base + i * THREADS + lane;
      unsigned high = __shfl_down_sync(0xffffffffu, low[i], 1);
      if (lane == 31 && at + 1 < n_source) high = source[at + 1];
      if (at < n) to[at] = __funnelshift_r(low[i], high, shift);
    }
  }
}

static __device__ void zero(char *to, long long bytes) {
  const long long n = (size_t)to % 4 == 0 ? bytes / 4 : 0;
  for (long long i = threadIdx.x; i < n; i += THREADS)
    ((unsigned *)to)[i] = 0;
  for (long long i = 4 * n + threadIdx.x; i < bytes; i += THREADS)
    to[i] = 0;
}

static __device__ void copy_unit(const char *from, char *to, long long bytes) {
  long long done = 0;
  if (((size_t)from | (size_t)to) % 16 == 0) {
    copy_vectors((const uint4 *)from, (uint4 *)to, bytes / 16);
    done = bytes & ~15LL;
  } else if ((size_t)to % 4 == 0) {
    copy_words(from, (unsigned *)to, bytes / 4);
    done = bytes & ~3LL;
  }
  copy_bytes(from + done, to + done, bytes - done);
}

static __global__ void __launch_bounds__(THREADS)
    copy_kernel(const __grid_constant__ copy_list list, const copy_stamps stamps) {
  if (stamps.began && blockIdx.x == 0 && threadIdx.x == 0) {
    const long long from_ns = now_ns();
    while (now_ns() - from_ns < stamps.wait_ns) {
    }
    *stamps.began = now_ns();
  }
  if (blockIdx.x < list.n) {
    const struct copy_unit *unit = &list.units[blockIdx.x];
    if (unit->from)
      copy_unit((const char *)unit->from, (char *)unit->to, unit->bytes);
    else
      zero((char *)unit->to, unit->bytes);
  }
  if (!stamps.ended) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(stamps.arrived, 1u) != gridDim.x - 1) return;
  *stamps.arrived = 0; // for the next launch
  *stamps.ended = now_ns();
}

extern "C" int copy_run(const struct copy_list *list, const struct copy_stamps *stamps,
                        struct CUstream_st *stream) {
  const unsigned blocks = list->n > 0 ? (unsigned)list->n : 1;
  if (list->n < 0 || list->n > COPY_UNITS) return cudaErrorInvalidValue;
  copy_kernel<<<blocks, THREADS, 0, stream>>>(*list, *stamps);
  return cudaGetLastError();
}
