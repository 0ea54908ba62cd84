// Fibres, warps, blocks and clusters of emulation.h. emulated_run is what the test calls.
#include "emulation.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <pthread.h>
#include <ucontext.h>
#include <vector>

#define WARP 32
#define STACK_BYTES 32768

thread_local emulated_index threadIdx, blockIdx;

namespace {
struct meeting { // of all fibres of a warp, of a block
  int arrived = 0;
  unsigned times = 0;
};
struct warp {
  meeting all;
  float given[2][WARP];
};
struct cluster {
  pthread_barrier_t barrier;
  char *anchor[8];
};
struct jmp_buf_of_fibre {
  jmp_buf at;
};
struct block {
  int kernel;
  const void *args;
  int index, rank, n_threads, order;
  cluster *together;
  std::vector<warp> warps;
  meeting all;
  jmp_buf scheduler; // a fibre begins as a context; from then on jumps, which ask no kernel
  std::vector<ucontext_t> fibres;
  std::vector<jmp_buf_of_fibre> waits;
  std::vector<char> started;
  size_t n_ended = 0;
  std::vector<char> ended;
  std::vector<unsigned> shuffles;
  long moved = 0; // meetings that came about, and fibres that ended
};
thread_local block *here;
thread_local char anchor; // shared memory of two blocks lies at the same distance from it

void wait_for_others() {
  block *b = here;
  const emulated_index me = threadIdx;
  if (_setjmp(b->waits[(size_t)me.x].at) == 0) _longjmp(b->scheduler, 1);
  threadIdx = me;
}

// Returns once `n` fibres have come; the last one does `then`.
template <class THEN> void meet(meeting &m, int n, THEN then) {
  const unsigned times = m.times;
  if (++m.arrived == n) {
    then();
    m.arrived = 0, m.times++, here->moved++;
    return;
  }
  while (m.times == times)
    wait_for_others();
}

void fibre_main() {
  block *b = here;
  emulated_kernel(b->kernel, b->args);
  b->ended[(size_t)threadIdx.x] = 1, b->moved++, b->n_ended++;
  _longjmp(b->scheduler, 1);
}

void resume(block *b, size_t i) {
  if (b->ended[i]) return;
  threadIdx.x = (int)i;
  if (_setjmp(b->scheduler) != 0) return;
  if (b->started[i]) _longjmp(b->waits[i].at, 1);
  b->started[i] = 1;
  setcontext(&b->fibres[i]);
}

void *block_main(void *arg) {
  block *b = (block *)arg;
  const size_t n = (size_t)b->n_threads;
  std::unique_ptr<char[]> stacks(new char[n * STACK_BYTES]); // touched as far as used
  here = b, blockIdx.x = b->index, b->together->anchor[b->rank] = &anchor;
  pthread_barrier_wait(&b->together->barrier);
  b->fibres.resize(n), b->waits.resize(n), b->started.assign(n, 0), b->ended.assign(n, 0),
      b->shuffles.assign(n, 0), b->warps.resize(n / WARP);
  for (size_t i = 0; i < n; i++) {
    getcontext(&b->fibres[i]);
    b->fibres[i].uc_stack.ss_sp = &stacks[i * STACK_BYTES];
    b->fibres[i].uc_stack.ss_size = STACK_BYTES;
    b->fibres[i].uc_link = nullptr;
    makecontext(&b->fibres[i], fibre_main, 0);
  }
  // A warp runs as far as it comes by itself before another does (order 1: the first first, 2: the
  // last), so that one which does not wait where it must overtakes the others; or all take turns.
  const size_t n_warps = n / WARP;
  while (b->n_ended < n) {
    const long moved = b->moved;
    for (size_t k = 0; k < n_warps; k++) {
      const size_t first = (b->order == 2 ? n_warps - 1 - k : k) * WARP;
      for (long before = -1; before != b->moved;) {
        before = b->moved;
        for (size_t i = first; i < first + WARP; i++)
          resume(b, i);
        if (b->order == 0) break;
      }
    }
    if (b->moved == moved) {
      fprintf(stderr, "block %d: threads wait for each other in different places\n", b->index);
      abort();
    }
  }
  pthread_barrier_wait(&b->together->barrier);
  return nullptr;
}
} // namespace

void __syncthreads() {
  meet(here->all, here->n_threads, [] {});
}

float __shfl_xor_sync(unsigned, float x, int step) {
  const int lane = threadIdx.x % WARP;
  warp &w = here->warps[(size_t)(threadIdx.x / WARP)];
  const unsigned turn = here->shuffles[(size_t)threadIdx.x]++ % 2;
  w.given[turn][lane] = x;
  meet(w.all, WARP, [] {});
  return w.given[turn][lane ^ step];
}

float *fw_cluster_at(const float *at, int rank) {
  return (float *)(here->together->anchor[rank] + ((const char *)at - &anchor));
}

void fw_cluster_wait() {
  meet(here->all, here->n_threads, [] { pthread_barrier_wait(&here->together->barrier); });
}

extern "C" void emulated_run(int kernel, const void *args, int blocks, int threads, int together,
                             int order) {
  for (int first = 0; first < blocks; first += together) {
    cluster c;
    std::vector<block> all((size_t)together);
    std::vector<pthread_t> running((size_t)together);
    pthread_barrier_init(&c.barrier, nullptr, (unsigned)together);
    for (int i = 0; i < together; i++) {
      block &b = all[(size_t)i];
      b.kernel = kernel, b.args = args;
      b.index = first + i, b.rank = i, b.n_threads = threads, b.order = order, b.together = &c;
      if (together == 1) // no other block to wait for
        block_main(&b);
      else if (pthread_create(&running[(size_t)i], nullptr, block_main, &b) != 0)
        abort();
    }
    for (int i = 0; together > 1 && i < together; i++)
      pthread_join(running[(size_t)i], nullptr);
    pthread_barrier_destroy(&c.barrier);
  }
}
