// The schedule of the Hopper product (gemm_sm90.cuh) with two sets of accumulators: while one takes
// a tile's products, the tile before goes out of the other in pieces of 8 columns of a row, one
// after each step of k. Its bias comes from shared memory a piece ahead, whether the next stage is
// there is asked a piece ahead, where the next tile lies and what its bias is a tile ahead: under
// products the answers take long. Nothing is rounded in between: rows are the other schedule's.
#ifndef GEMM_GEMM_SM90_DEFERRED_CUH
#define GEMM_GEMM_SM90_DEFERRED_CUH

#include "kernels/gemm/gemm_sm90_direct.cuh"

// Piece PIECE of a tile whose products are done: 8 neighbouring columns of one row. `bias`: theirs;
// `bias_at`: where that of the thread's first column lies.
template <class C, int ACT, int PIECE>
static __device__ __forceinline__ void
gemm_piece(const gemm_args &args, const float (&d)[C::BN / 2], const gemm_part &done,
           float (&bias)[8], uint32_t bias_at) {
  constexpr int BLOCK = PIECE / 2 * 32, HALF = PIECE % 2;
  uint32_t w[4];
  gemm_finish_8<typename C::T, ACT, HALF>(d + BLOCK / 2, bias, w);
  if (HALF == 1 && PIECE + 1 < C::PIECES) load_shared_8(bias, bias_at + (BLOCK + 32) * 4);
  if (BLOCK < done.left[HALF])
    store_global_16(done.y + (HALF ? args.y_stride * 16 : 0) + BLOCK * 2, w);
}

template <class C, int ACT> struct gemm_deferred {
  const gemm_args &args;
  const gemm_tiles &tiles;
  gemm_place<C> at;
  int m, n;       // the tile in work
  gemm_part done; // of the tile before it
  float bias[8];  // of its next piece
  uint32_t bias_at;
  bool there;      // is there a tile before it?
  bool full;       // the next stage is known to be there
  int busy, place; // the stage that the tensor cores read last, not yet given back; the bias's

  // A step of k into `d`. Whether the next stage is there is asked early: the answer takes its
  // time.
  __device__ __forceinline__ int begin(float (&d)[1][C::BN / 2], int k) {
    if (!full) mbar_wait(at.full(), at.parity);
    gemm_multiply<C>(d, at.ring(), at.wg * C::WM * 128, k);
    const int stage = at.stage;
    at.next();
    full = mbar_test(at.full(), at.parity);
    return stage;
  }
  // All but the last step's products are done.
  __device__ __forceinline__ void finish(int stage) {
    wgmma_wait<1>();
    if (busy >= 0) at.release(busy);
    busy = stage;
  }

  // Pieces, and steps of k between them: one each, or, where there are fewer steps than pieces, the
  // steps evenly among them. `begun`: steps so far.
  template <int PIECE>
  __device__ __forceinline__ void
  steps(int t, int k_steps, int &begun, float (&d)[1][C::BN / 2], const float (&last)[1][C::BN / 2],
        float (&ask)[gemm_place<C>::BIAS_VALUES], int &next_m, int &next_n) {
    if constexpr (PIECE < C::PIECES) {
      const bool step = PIECE * k_steps >= begun * C::PIECES && begun < k_steps;
      int stage = 0;
      if (step) stage = begin(d, begun);
      if (PIECE == 0) { // under the products
        at.ask_bias(args.epilogue, ask, n * C::BN, args.n);
        const int next = t + gridDim.x / C::CLUSTER;
        tiles.locate(next < tiles.total ? next : t, C::GROUP, &next_m, &next_n);
      }
      if (there) gemm_piece<C, ACT, PIECE>(args, last[0], done, bias, bias_at);
      if (step) finish(stage), begun++;
      steps<PIECE + 1>(t, k_steps, begun, d, last, ask, next_m, next_n);
    }
  }

  // Tile t's products into `d`, between them the epilogue of the tile in `last`.
  __device__ __forceinline__ void tile(int t, int k_steps, float (&d)[1][C::BN / 2],
                                       float (&last)[1][C::BN / 2]) {
    float ask[gemm_place<C>::BIAS_VALUES];
    int next_m, next_n, begun = 0;
    at.stage = __shfl_sync(0xffffffffu, at.stage, 0);   // all lanes agree: told so, the compiler
    at.parity = __shfl_sync(0xffffffffu, at.parity, 0); // keeps addresses in uniform registers
    wgmma_wait<0>(); // none are left; the compiler wants to see it here
    hold(last[0]);
    steps<0>(t, k_steps, begun, d, last, ask, next_m, next_n);
#pragma unroll 1
    for (; begun < k_steps; begun++)
      finish(begin(d, begun));
    at.put_bias(ask, place);
    bar_sync(4 + at.wg, 128);
    bias_at = at.bias(place) + threadIdx.x % 4 * 32;
    load_shared_8(bias, bias_at);
    done = gemm_part_at(
        args, (m * C::CLUSTER + (int)cluster_rank()) * C::BM + threadIdx.x / 32 * 16, n * C::BN);
    there = true, place ^= 1, m = next_m, n = next_n;
    wgmma_wait<0>();
    hold(d[0]);
    at.release(busy);
    busy = -1;
  }

  template <int PIECE> __device__ __forceinline__ void drain(const float (&last)[1][C::BN / 2]) {
    if constexpr (PIECE < C::PIECES) {
      gemm_piece<C, ACT, PIECE>(args, last[0], done, bias, bias_at);
      drain<PIECE + 1>(last);
    }
  }
};

template <class C, int ACT>
static __device__ __forceinline__ void gemm_consume_deferred(const gemm_args &args,
                                                             const gemm_tiles &tiles, int k_steps,
                                                             gemm_place<C> at) {
  const int stride = gridDim.x / C::CLUSTER;
  float even[1][C::BN / 2], odd[1][C::BN / 2];
  int t = blockIdx.x / C::CLUSTER; // a block has a tile
  gemm_deferred<C, ACT> g = {args, tiles, at};
  g.there = g.full = false, g.busy = -1, g.place = 0;
  tiles.locate(t, C::GROUP, &g.m, &g.n);
  while (true) {
    g.tile(t, k_steps, even, odd);
    if ((t += stride) >= tiles.total) break;
    g.tile(t, k_steps, odd, even);
    if ((t += stride) >= tiles.total) {
#pragma unroll
      for (int i = 0; i < C::BN / 2; i++)
        even[0][i] = odd[0][i];
      break;
    }
  }
  g.template drain<0>(even);
}

#endif
