// Cards: found, opened, described, lost.
#include "backend/cuda/cuda_device.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROBE_SECONDS 60 // starting the driver on a host of eight cards takes several
#define HOST_CHUNK_BYTES ((size_t)64 << 20)
#define OLDEST_SM 80

// ---- errors ----
// The device that this thread works with: setting it again is a call that each batch would pay for.
static _Thread_local int current = -1;

static int make_current(int index) {
  if (current == index) return 0;
  int rc = cudaSetDevice(index);
  if (rc == 0) current = index;
  return rc;
}

enum status cuda_check(struct device *device, int cuda_error, const char *what, struct error *err) {
  enum cuda_fate fate = cuda_fate_of(cuda_error);
  if (fate == CUDA_FINE) return STATUS_OK;
  (void)cudaGetLastError(); // the runtime would report it again at the next launch
  const char *name = cudaGetErrorName((cudaError_t)cuda_error);
  const char *text = cudaGetErrorString((cudaError_t)cuda_error);
  if (fate == CUDA_LOST && !atomic_exchange(&device->lost, true))
    log_error("device_lost", "device cuda:%d: %s: %s (%s)", device->index, what, text, name);
  else if (!err)
    log_warn("cuda_error", "device cuda:%d: %s: %s (%s)", device->index, what, text, name);
  return error_set(err, cuda_status_of(cuda_error), "device cuda:%d: %s: %s (%s)", device->index,
                   what, text, name);
}

enum status cuda_enter(struct device *device, struct error *err) {
  if (atomic_load_explicit(&device->lost, memory_order_relaxed))
    return error_set(err, STATUS_UNAVAILABLE, "device cuda:%d was lost", device->index);
  return cuda_check(device, make_current(device->index), "cannot be made current", err);
}

// ---- probe ----
// A driver that is stuck would never answer: it is asked on a thread of its own, once.
static struct {
  pthread_once_t once;
  sem_t answered;
  _Atomic int n_devices, error;
} probe = {.once = PTHREAD_ONCE_INIT};

static void *probe_main(void *arg) {
  (void)arg;
  int n = 0, rc = cudaGetDeviceCount(&n);
  atomic_store(&probe.error, rc);
  atomic_store(&probe.n_devices, rc == 0 ? n : 0);
  sem_post(&probe.answered);
  return NULL;
}

static void probe_once(void) {
  pthread_t thread;
  struct timespec limit;
  atomic_store(&probe.error, -1);
  sem_init(&probe.answered, 0, 0);
  if (pthread_create(&thread, NULL, probe_main, NULL) != 0) return;
  pthread_detach(thread);
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += PROBE_SECONDS;
  while (sem_timedwait(&probe.answered, &limit) != 0)
    if (errno != EINTR) return;
}

int cuda_probe(void) {
  pthread_once(&probe.once, probe_once);
  return atomic_load(&probe.n_devices);
}

const char *cuda_absent(void) {
  if (cuda_probe() > 0) return "";
  int rc = atomic_load(&probe.error);
  if (rc < 0) return "the NVIDIA driver does not answer";
  if (rc == cudaErrorInsufficientDriver) return "no NVIDIA driver, or one too old for CUDA 13";
  return cudaGetErrorString((cudaError_t)rc);
}

// ---- open, close ----
static enum status describe(struct device *device, struct error *err) {
  struct cudaDeviceProp prop;
  int driver = 0;
  int rc = cudaGetDeviceProperties(&prop, device->index);
  if (rc == 0) rc = cudaDriverGetVersion(&driver);
  if (rc != 0) return cuda_check(device, rc, "cannot be described", err);
  device->sm = prop.major * 10 + prop.minor;
  if (device->sm < OLDEST_SM)
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "device cuda:%d (%s): compute capability %d.%d; 8.0 is the oldest that works",
                     device->index, prop.name, prop.major, prop.minor);
  snprintf(device->arch, sizeof device->arch, "sm_%d%s", device->sm, device->sm == 90 ? "a" : "");
  snprintf(device->caps.description, sizeof device->caps.description,
           "%.60s, sm_%d, %.1f GiB, driver %d.%d", prop.name, device->sm,
           (double)prop.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10);
  device->caps.name = "cuda";
  device->caps.index = device->index;
  device->caps.async = true;
  device->caps.small_tokens = prop.multiProcessorCount * 2;
  device->caps.graph_tokens = BUCKET_GRAPH_TOKENS;
  cuda_plan_caps(device, &device->caps.plan);
  device->caps.plan.rates.cache_bytes = prop.l2CacheSize;
  device->caps.plan.rates.units = prop.multiProcessorCount;
  int used = snprintf(device->caps.id, sizeof device->caps.id, "gpu-");
  for (size_t i = 0; i < sizeof prop.uuid.bytes; i++)
    used += snprintf(device->caps.id + used, sizeof device->caps.id - (size_t)used, "%02x",
                     (unsigned char)prop.uuid.bytes[i]);
  return STATUS_OK;
}

static enum status open_ledger(struct device *device, int64_t headroom_bytes, struct error *err) {
  size_t free_bytes, total_bytes;
  char name[32];
  enum status status =
      cuda_check(device, cudaMemGetInfo(&free_bytes, &total_bytes), "memory cannot be read", err);
  if (status != STATUS_OK) return status;
  snprintf(name, sizeof name, "cuda:%d", device->index);
  ledger_init(&device->ledger, name, (int64_t)total_bytes, (int64_t)free_bytes, headroom_bytes);
  return STATUS_OK;
}

// ---- pinned host memory ----
// One pool for all cards: it is portable, pinned for every one of them.
static struct {
  pthread_mutex_t mutex;
  struct host_pool *pool;
  int n_users;
  int index; // the card that asks for it: the first one opened
} pinned = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *pinned_take(void *arg, size_t bytes) {
  void *memory = NULL;
  if (make_current(*(const int *)arg) != 0) return NULL;
  return cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == 0 ? memory : NULL;
}

static void pinned_give(void *arg, void *memory, size_t bytes) {
  (void)bytes;
  if (make_current(*(const int *)arg) == 0)
    (void)cudaFreeHost(memory); // fails where the card was lost; the process ends
}

static struct host_pool *pinned_open(int index) {
  struct host_pool_options options = {HOST_CHUNK_BYTES, pinned_take, pinned_give, &pinned.index};
  pthread_mutex_lock(&pinned.mutex);
  if (pinned.n_users == 0) pinned.index = index;
  if (pinned.n_users > 0 || host_pool_open(&options, &pinned.pool) == STATUS_OK) pinned.n_users++;
  struct host_pool *pool = pinned.n_users > 0 ? pinned.pool : NULL;
  pthread_mutex_unlock(&pinned.mutex);
  return pool;
}

static void pinned_close(struct host_pool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pinned.mutex);
  if (--pinned.n_users == 0) {
    host_pool_close(pool);
    pinned.pool = NULL;
  }
  pthread_mutex_unlock(&pinned.mutex);
}

// Products go without cuBLASLt where it is not installed.
static enum status open_kernels(struct device *device, struct error *err) {
  char why[LT_MESSAGE_BYTES];
  enum status status =
      cuda_check(device, kernel_device_query(&device->kernels), "cannot be described", err);
  if (status != STATUS_OK) return status;
  if (lt_open(&device->lt, why) != 0) {
    log_warn("no_cublaslt", "device cuda:%d: products run on our own kernels only: %s",
             device->index, why);
    device->lt = NULL;
  }
  device->kernels.lt = device->lt;
  return STATUS_OK;
}

static enum status open_parts(struct device *device, const struct backend_options *options,
                              struct error *err) {
  char text[JIT_MESSAGE_BYTES];
  struct jit_options jit = {.cache_dir = options->cache_dir};
  enum status status = cuda_enter(device, err);
  if (status == STATUS_OK) status = describe(device, err);
  if (status != STATUS_OK) return status;
  status = open_kernels(device, err);
  if (status != STATUS_OK) return status;
  if (jit_open(&jit, &device->jit, text) != 0)
    return error_set(err, STATUS_UNAVAILABLE, "device cuda:%d: no compiler for its kernels: %s",
                     device->index, text);
  device->host = pinned_open(device->index);
  if (!device->host)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "device cuda:%d: no pinned host memory (%zu MiB wanted; see ulimit -l)",
                     device->index, HOST_CHUNK_BYTES >> 20);
  return open_ledger(device, options->headroom_bytes, err); // after everything that takes memory
}

enum status cuda_open(const struct backend_options *options, struct device **out,
                      struct error *err) {
  int n = cuda_probe();
  if (options->index < 0 || options->index >= n)
    return error_set(err, STATUS_NOT_FOUND, "device cuda:%d: there are %d (%s)", options->index, n,
                     n > 0 ? "counted from 0" : cuda_absent());
  struct device *device = calloc(1, sizeof *device);
  if (!device) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a cuda device");
  device->index = options->index;
  device->turns.last = -1;
  device->fast_rows = options->fast_rows;
  enum status status = open_parts(device, options, err);
  if (status == STATUS_OK)
    *out = device;
  else
    cuda_close(device);
  return status;
}

void cuda_close(struct device *device) {
  if (!device) return;
  cuda_turns_close(device);
  pinned_close(device->host);
  if (device->jit) jit_close(device->jit);
  if (device->lt) lt_close(device->lt);
  free(device);
}

// ---- memory ----
enum status cuda_memory_take(struct device *device, enum ledger_kind kind, int64_t bytes,
                             const char *name, void **out, struct error *err) {
  char text[320];
  void *memory = NULL;
  if (bytes < 1) bytes = 1;
  enum status status = cuda_enter(device, err);
  if (status == STATUS_OK) status = ledger_reserve(&device->ledger, kind, bytes, name, err);
  if (status != STATUS_OK) return status;
  int rc = cudaMalloc(&memory, (size_t)bytes);
  if (rc == 0) {
    *out = memory;
    return STATUS_OK;
  }
  ledger_release(&device->ledger, kind, bytes);
  if (cuda_fate_of(rc) != CUDA_NO_MEMORY) return cuda_check(device, rc, name, err);
  (void)cudaGetLastError();
  return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                   "%s: device cuda:%d has no %lld bytes left, though by our count it has (another "
                   "process?): %s",
                   name, device->index, (long long)bytes,
                   ledger_text(&device->ledger, text, sizeof text));
}

void cuda_memory_give(struct device *device, enum ledger_kind kind, void *memory, int64_t bytes) {
  if (!memory) return;
  if (cuda_enter(device, NULL) == STATUS_OK) (void)cudaFree(memory); // as above
  ledger_release(&device->ledger, kind, bytes < 1 ? 1 : bytes);
}
