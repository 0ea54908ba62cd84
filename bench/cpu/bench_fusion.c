// The experiments of bench/fusion.h on the CPU.
#include "base/clock.h"
#include "fusion.h"

#include <pthread.h>

#define COPY_THREADS 64

struct part {
  char *to, *from;
  size_t bytes;
};

static void *copy_part(void *arg) {
  struct part *part = arg;
  memcpy(part->to, part->from, part->bytes);
  return NULL;
}

static int n_threads = 1;

static double copy_once(char *to, char *from, size_t bytes) {
  struct part parts[COPY_THREADS];
  pthread_t threads[COPY_THREADS];
  int64_t start = clock_now_ns();
  size_t each = bytes / (size_t)n_threads;
  for (int i = 0; i < n_threads; i++) {
    parts[i] = (struct part){to + (size_t)i * each, from + (size_t)i * each, each};
    if (i > 0 && pthread_create(&threads[i], NULL, copy_part, &parts[i]) != 0) exit(1);
  }
  copy_part(&parts[0]);
  for (int i = 1; i < n_threads; i++)
    pthread_join(threads[i], NULL);
  return (double)(clock_now_ns() - start) / 1e9;
}

// memcpy by as many threads as the back end has.
static double copy_seconds(int64_t bytes, double seconds) {
  char *to = aligned_alloc(4096, (size_t)bytes), *from = aligned_alloc(4096, (size_t)bytes);
  double best = 1e9;
  if (!to || !from) exit(1);
  memset(from, 1, (size_t)bytes), memset(to, 2, (size_t)bytes);
  int64_t end = clock_now_ns() + (int64_t)(seconds * 1e9);
  for (int n = 0; n < 3 || clock_now_ns() < end; n++) {
    double now = copy_once(to, from, (size_t)bytes);
    if (now < best) best = now;
  }
  free(to), free(from);
  return best;
}

int main(int argc, char **argv) {
  struct fusion_bench b = {.backend = &backend_cpu, .copy_seconds = copy_seconds, .small = true};
  struct backend_options options = {0};
  struct error err = {0};
  struct device *device;
  if (backend_cpu.open(&options, &device, &err) == STATUS_OK) {
    n_threads = backend_cpu.caps(device)->n_threads;
    if (n_threads > COPY_THREADS) n_threads = COPY_THREADS;
    backend_cpu.close(device);
  }
  return fusion_main(&b, argc, argv);
}
