// What every generated row kernel begins with: arguments, 16-byte packs of elements, reductions of
// a row. Embedded as text after kernels/common/act.cuh; needs no header, so NVRTC compiles it
// without CUDA's folders.

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// The same layout as struct row_args of kernels/cuda.h. Strides are in elements.
struct fw_row_args {
  const void *in[16];
  long long in_stride[16];
  long long in_rows[16]; // rows of a gather table
  void *out[8];
  long long out_stride[8];
  long long rows;
  const int *positions;
  const int *cu_seqlens;
  int index_bytes[16]; // 4 or 8: width of the indices at in[i]
};

struct fw_f16 {
  unsigned short bits;
};
struct fw_bf16 {
  unsigned short bits;
};

// ---- what has no name in C++, as PTX (a test that runs kernels on a CPU brings its own) ----
#ifndef FW_EMULATED
static __device__ __forceinline__ float fw_widen(fw_f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
static __device__ __forceinline__ void fw_narrow(float x, fw_bf16 *y) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
}
static __device__ __forceinline__ void fw_narrow(float x, fw_f16 *y) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
}
static __device__ __forceinline__ unsigned fw_narrow2(float lo, float hi, fw_bf16 *) {
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}
static __device__ __forceinline__ unsigned fw_narrow2(float lo, float hi, fw_f16 *) {
  unsigned w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}
// Shared memory of the cluster's block `rank`: where `at` is in this one.
static __device__ __forceinline__ unsigned fw_cluster_at(const float *at, int rank) {
  unsigned here, there;
  asm("{\n.reg .u64 a;\ncvta.to.shared.u64 a, %1;\ncvt.u32.u64 %0, a;\n}" : "=r"(here) : "l"(at));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  return there;
}
static __device__ __forceinline__ void fw_cluster_write(float *at, int rank, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(fw_cluster_at(at, rank)), "f"(x)
               : "memory");
}
static __device__ __forceinline__ float fw_cluster_read(const float *at, int rank) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(x)
               : "r"(fw_cluster_at(at, rank))
               : "memory");
  return x;
}
static __device__ __forceinline__ void fw_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ __forceinline__ void fw_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

static __device__ __forceinline__ float fw_widen(fw_bf16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
static __device__ __forceinline__ float fw_widen(float x) {
  return x;
}
static __device__ __forceinline__ void fw_narrow(float x, float *y) {
  *y = x;
}
template <class T> static __device__ __forceinline__ float fw_round(float x) {
  T y;
  fw_narrow(x, &y);
  return fw_widen(y);
}

// V elements as they lie in memory; widened where they are used, so that a resident row of 16-bit
// elements takes half the registers that floats would.
static __device__ __forceinline__ float fw_pick(const unsigned *w, int j, float *) {
  return __uint_as_float(w[j]);
}
static __device__ __forceinline__ float fw_pick(const unsigned *w, int j, fw_bf16 *) {
  return __uint_as_float(j % 2 ? w[j / 2] & 0xffff0000u : w[j / 2] << 16);
}
static __device__ __forceinline__ float fw_pick(const unsigned *w, int j, fw_f16 *) {
  fw_f16 x;
  x.bits = (unsigned short)(j % 2 ? w[j / 2] >> 16 : w[j / 2]);
  return fw_widen(x);
}
template <class T, int V> struct fw_pack {
  static constexpr int WORDS = V == 1 ? 1 : V * (int)sizeof(T) / 4;
  unsigned w[WORDS];
  __device__ __forceinline__ float get(int j) const {
    return fw_pick(w, j, (T *)0);
  }
};

template <class T, int V> struct fw_memory {
  static __device__ __forceinline__ void load(fw_pack<T, V> *p, const void *base, long long at) {
    if constexpr (V == 1) {
      p->w[0] = sizeof(T) == 4 ? ((const unsigned *)base)[at] : ((const unsigned short *)base)[at];
    } else {
      const uint4 *from = (const uint4 *)((const T *)base + at);
#pragma unroll
      for (int i = 0; i < fw_pack<T, V>::WORDS / 4; i++) {
        const uint4 q = from[i];
        p->w[4 * i] = q.x, p->w[4 * i + 1] = q.y, p->w[4 * i + 2] = q.z, p->w[4 * i + 3] = q.w;
      }
    }
  }
  static __device__ __forceinline__ void zero(fw_pack<T, V> *p) {
#pragma unroll
    for (int i = 0; i < fw_pack<T, V>::WORDS; i++)
      p->w[i] = 0;
  }
};

template <class T, int V> struct fw_writer {
  static __device__ __forceinline__ void store(void *base, long long at, const float *x) {
    if constexpr (V == 1) {
      fw_narrow(*x, (T *)base + at);
    } else if constexpr (sizeof(T) == 4) {
      float4 *to = (float4 *)((float *)base + at);
#pragma unroll
      for (int i = 0; i < V / 4; i++)
        to[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    } else {
      uint4 *to = (uint4 *)((T *)base + at);
#pragma unroll
      for (int i = 0; i < V / 8; i++) {
        uint4 q;
        q.x = fw_narrow2(x[8 * i], x[8 * i + 1], (T *)0),
        q.y = fw_narrow2(x[8 * i + 2], x[8 * i + 3], (T *)0);
        q.z = fw_narrow2(x[8 * i + 4], x[8 * i + 5], (T *)0),
        q.w = fw_narrow2(x[8 * i + 6], x[8 * i + 7], (T *)0);
        to[i] = q;
      }
    }
  }
};

// Row of the table that `row` asks for; -1 when it is out of range (reads as zeros).
static __device__ __forceinline__ long long fw_index(const fw_row_args &a, int table, int operand,
                                                     long long row) {
  long long n;
  if (operand == 255)
    n = a.positions[row];
  else if (a.index_bytes[operand] == 8)
    n = ((const long long *)a.in[operand])[row * a.in_stride[operand]];
  else
    n = ((const int *)a.in[operand])[row * a.in_stride[operand]];
  return n >= 0 && n < a.in_rows[table] ? n : -1;
}

// Reduction over the THREADS threads that share a row, in an order that depends on nothing but the
// lane: a row's result is the same whoever shares its batch. Every thread gets the result. More
// than a warp means the whole block; the caller alternates between two buffers, so that one barrier
// a reduction is enough.
struct fw_add {
  static __device__ __forceinline__ float apply(float a, float b) {
    return a + b;
  }
};
struct fw_maximum {
  static __device__ __forceinline__ float apply(float a, float b) {
    return fw_max(a, b);
  }
};
template <int THREADS, int ROWS, class OP>
static __device__ __forceinline__ void fw_row_reduce(float (&x)[ROWS], float *buffer) {
  constexpr int WIDTH = THREADS < 32 ? THREADS : 32, WARPS = THREADS / 32;
#pragma unroll
  for (int q = 0; q < ROWS; q++)
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
      x[q] = OP::apply(x[q], __shfl_xor_sync(0xffffffffu, x[q], step));
  if constexpr (WARPS > 1) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int q = 0; q < ROWS; q++)
        buffer[q * 32 + warp] = x[q];
    __syncthreads();
#pragma unroll
    for (int q = 0; q < ROWS; q++) {
      float sum = buffer[q * 32];
#pragma unroll
      for (int i = 1; i < WARPS; i++)
        sum = OP::apply(sum, buffer[q * 32 + i]);
      x[q] = sum;
    }
  }
}

// The same over the blocks of a cluster, in rank order. `slots` is a place of BLOCKS * N floats in
// shared memory, the same in every block: each block leaves its sums in all of them. The caller
// alternates between two. Before the first, all blocks must have begun: arrive at the kernel's
// start, wait here.
template <int BLOCKS, int N, class OP>
static __device__ __forceinline__ void fw_cluster_reduce(float (&x)[N], float *slots) {
  if (threadIdx.x < BLOCKS) {
#pragma unroll
    for (int q = 0; q < N; q++)
      fw_cluster_write(slots + blockIdx.x % BLOCKS * N + q, threadIdx.x, x[q]);
  }
  fw_cluster_arrive();
  fw_cluster_wait();
#pragma unroll
  for (int b = 0; b < BLOCKS; b++)
#pragma unroll
    for (int q = 0; q < N; q++)
      x[q] = b == 0 ? slots[q] : OP::apply(x[q], slots[b * N + q]);
}

// Rows [first, end) of a matrix folded into out[VECTORS * V], by a block of THREADS: slice s of its
// threads takes rows first + s, first + s + SLICES and so on, several in flight; then the slices
// are folded in order. No row: zeros. Ends with a barrier.
enum { FW_POOL_MEAN, FW_POOL_CLS, FW_POOL_MAX };
template <int KIND> static __device__ __forceinline__ float fw_fold(float x, float y) {
  return KIND == FW_POOL_MAX ? fw_max(x, y) : x + y;
}
template <class T, int V, int KIND, int VECTORS, int SLICES, int THREADS>
static __device__ __forceinline__ void fw_pool(float *out, float *parts, const void *base,
                                               long long stride, int first, int end) {
  constexpr int LANES = VECTORS < THREADS ? VECTORS : THREADS;
  const int slice = threadIdx.x / LANES,
            last = KIND == FW_POOL_CLS && first < end ? first + 1 : end;
  const float none = KIND == FW_POOL_MAX && first < end ? -INFINITY : 0.0f;
  __syncthreads(); // what was here before has been picked up
  if (slice < SLICES) {
    for (int vector = threadIdx.x % LANES; vector < VECTORS; vector += LANES) {
      float x[V];
#pragma unroll
      for (int j = 0; j < V; j++)
        x[j] = none;
#pragma unroll 8
      for (int row = first + slice; row < last; row += SLICES) {
        fw_pack<T, V> p;
        fw_memory<T, V>::load(&p, base, row * stride + vector * V);
#pragma unroll
        for (int j = 0; j < V; j++)
          x[j] = fw_fold<KIND>(x[j], p.get(j));
      }
#pragma unroll
      for (int j = 0; j < V; j++)
        (SLICES > 1 ? parts + slice * VECTORS * V : out)[vector * V + j] = x[j];
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < VECTORS * V; c += THREADS) {
    float x = SLICES > 1 ? parts[c] : out[c];
    for (int s = 1; s < SLICES; s++)
      x = fw_fold<KIND>(x, parts[s * VECTORS * V + c]);
    out[c] = KIND == FW_POOL_MEAN && first < end ? x / (float)(end - first) : x;
  }
  __syncthreads();
}

// What groups of a block have folded for themselves (`parts`, GROUPS of them; `made` itself where
// there is one) becomes `made` in the first block of the cluster: by group, then by block, in order.
// `rows` is how many there were. Ends with a barrier; other blocks may leave then.
template <int KIND, int COLS, int GROUPS, int BLOCKS, int THREADS>
static __device__ __forceinline__ void fw_made(float *made, const float *parts, int rows) {
  __syncthreads();
  if constexpr (GROUPS > 1)
    for (int c = threadIdx.x; c < COLS; c += THREADS) {
      float x = parts[c];
      for (int g = 1; g < GROUPS; g++)
        x = fw_fold<KIND>(x, parts[g * COLS + c]);
      made[c] = x;
    }
  if constexpr (BLOCKS > 1) {
    fw_cluster_arrive(); // all blocks' are there
    fw_cluster_wait();
    if (blockIdx.x % BLOCKS == 0)
      for (int c = threadIdx.x; c < COLS; c += THREADS) {
        float x = made[c];
        for (int b = 1; b < BLOCKS; b++)
          x = fw_fold<KIND>(x, fw_cluster_read(made + c, b));
        made[c] = x;
      }
    fw_cluster_arrive(); // and have been read
    fw_cluster_wait();
  }
  if (KIND == FW_POOL_MEAN && rows > 0)
    for (int c = threadIdx.x; c < COLS; c += THREADS)
      made[c] /= (float)rows;
  __syncthreads();
}
