// What the GPU benches share: N(0,1) data, time of one launch by graph replay, a line of JSON per
// figure.
//
// A figure is the median over replays of a graph that holds `n` launches, divided by n: no launch
// cost of the host is in it. The same rule measures our kernels, the copy that is their floor, and
// the libraries beside them.
#ifndef GPU_GPU_BENCH_H
#define GPU_GPU_BENCH_H

#include "kernels/cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_CUDA(call)                                                                           \
  do {                                                                                             \
    cudaError_t rc_ = (cudaError_t)(call);                                                         \
    if (rc_ != cudaSuccess) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(rc_));      \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static cudaStream_t bench_stream;

static int compare_float(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static inline cudaGraphExec_t bench_capture(void (*launch)(void *arg), void *arg, int n) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  launch(arg); // outside the capture: whatever loads late does so here
  CHECK_CUDA(cudaStreamSynchronize(bench_stream));
  CHECK_CUDA(cudaStreamBeginCapture(bench_stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; i++)
    launch(arg);
  CHECK_CUDA(cudaStreamEndCapture(bench_stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaGraphDestroy(graph);
  return exec;
}

// Of works that take turns.
struct bench_work {
  void (*launch)(void *arg);
  void *arg;
  double us;
};

// Microseconds of one launch of each: n launches a graph, a graph of each in turn, for about 0.5 s.
// Near its power limit the card gives a work that stands alone the clock that this work allows, and
// the clock lags behind by a tenth of a second; in turns all see the same one.
static inline void bench_turns(struct bench_work *work, int n_work, int n) {
  enum { WORKS = 16, ROUNDS = 200, COLD = 5 };
  cudaGraphExec_t exec[WORKS];
  cudaEvent_t start, stop;
  static float times[WORKS][ROUNDS];
  float total = 0;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  for (int i = 0; i < n_work; i++)
    exec[i] = bench_capture(work[i].launch, work[i].arg, n);
  int rounds = 0;
  for (int round = -COLD; round < ROUNDS && (round < 15 || total < 500); round++) {
    rounds = round + 1;
    for (int i = 0; i < n_work; i++) {
      float ms;
      CHECK_CUDA(cudaEventRecord(start, bench_stream));
      CHECK_CUDA(cudaGraphLaunch(exec[i], bench_stream));
      CHECK_CUDA(cudaEventRecord(stop, bench_stream));
      CHECK_CUDA(cudaEventSynchronize(stop));
      CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
      if (round >= 0) times[i][round] = ms, total += ms;
    }
  }
  for (int i = 0; i < n_work; i++) {
    qsort(times[i], (size_t)rounds, sizeof *times[i], compare_float);
    work[i].us = times[i][rounds / 2] * 1e3 / n;
    cudaGraphExecDestroy(exec[i]);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
}

// Microseconds of one `launch(arg)`; `n` launches a graph, at least 15 replays or about 0.15 s.
static inline double bench_us(void (*launch)(void *arg), void *arg, int n) {
  cudaEvent_t start, stop;
  float times[400], ms = 0;
  cudaGraphExec_t exec = bench_capture(launch, arg, n);
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  int replays = 3;
  for (int i = 0; i < replays; i++) {
    CHECK_CUDA(cudaEventRecord(start, bench_stream));
    CHECK_CUDA(cudaGraphLaunch(exec, bench_stream));
    CHECK_CUDA(cudaEventRecord(stop, bench_stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, stop));
    times[i] = ms;
    if (i == 2) { // warm: now choose how many
      replays = (int)(150 / fmaxf(ms, 0.01f));
      replays = replays < 15 ? 15 : replays > 400 ? 400 : replays;
    }
  }
  qsort(times, (size_t)replays, sizeof *times, compare_float);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec);
  return times[replays / 2] * 1e3 / n;
}

// N(0,1) times `scale`: 2^20 host samples, tiled with a prime period so that rows differ.
static inline void *bench_normal(enum dtype dtype, int64_t n, double scale) {
  enum { PERIOD = 1048573 };
  static float samples[PERIOD];
  size_t es = dtype_bytes(dtype);
  uint8_t *device, *host = malloc(PERIOD * es);
  uint64_t s = 88172645463325252u;
  for (int i = 0; i < PERIOD && samples[PERIOD - 1] == 0; i++) {
    double u[2];
    for (int k = 0; k < 2; k++) {
      s ^= s << 13, s ^= s >> 7, s ^= s << 17;
      u[k] = (double)(s >> 11) * 0x1p-53;
    }
    samples[i] = (float)(sqrt(-2 * log(u[0] + 1e-300)) * cos(6.283185307179586 * u[1]));
  }
  for (int i = 0; i < PERIOD; i++) {
    float x = samples[i] * (float)scale;
    if (dtype == DTYPE_F32)
      ((float *)host)[i] = x;
    else
      ((uint16_t *)host)[i] = dtype == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
  }
  CHECK_CUDA(cudaMalloc((void **)&device, (size_t)n * es));
  for (int64_t at = 0; at < n; at += PERIOD) {
    int64_t part = n - at < PERIOD ? n - at : PERIOD;
    CHECK_CUDA(
        cudaMemcpy(device + (size_t)at * es, host, (size_t)part * es, cudaMemcpyHostToDevice));
  }
  free(host);
  return device;
}

struct bench_copy {
  void *to, *from;
  size_t bytes;
};

static inline void bench_copy_launch(void *arg) {
  struct bench_copy *c = arg;
  CHECK_CUDA(cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, bench_stream));
}

// Time of copying `bytes` (read once, written once): the floor of a kernel that reads and writes as
// much.
static inline double bench_copy_us(void *to, void *from, size_t bytes) {
  struct bench_copy copy = {to, from, bytes};
  return bench_us(bench_copy_launch, &copy, 10);
}

static void bench_start(const char *name) {
  struct cudaDeviceProp prop;
  CHECK_CUDA(cudaGetDeviceProperties(&prop, 0));
  CHECK_CUDA(cudaStreamCreateWithFlags(&bench_stream, cudaStreamNonBlocking));
  int driver = 0;
  cudaDriverGetVersion(&driver);
  printf("{\"bench\": \"%s\", \"device\": \"%s\", \"sm\": %d, \"driver\": %d}\n", name, prop.name,
         prop.multiProcessorCount, driver);
}

#endif
