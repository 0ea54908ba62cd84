// The CPU as a back end: device, lanes, copies. Loading is in load.c, execution in run.c.
#include "backend/cpu/cpu_device.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TILE_BYTES_MIN (256 << 10)
#define ALLOC_ALIGN 64
#define ARENA_HUGE_BYTES (4 << 20) // from here on an arena is worth huge pages

static int cpu_probe(void) {
  return 1;
}

static int usable_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  int n = CPU_COUNT(&set);
  return n < 1 ? 1 : n > TEAM_MAX ? TEAM_MAX : n;
}

// The third-level cache that our cores share: as the kernel has it, since the C library may count
// those of a whole AMD processor as one (2.36 says 256 MiB where there are 32). 0: unknown.
static int64_t last_cache_bytes(void) {
  FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
  long long kib = 0;
  bool found = file && fscanf(file, "%lldK", &kib) == 1 && kib > 0 && kib < 1 << 24;
  if (file) fclose(file);
  return found ? kib << 10 : sysconf(_SC_LEVEL3_CACHE_SIZE);
}

static void fill_caps(struct device *device, int n_threads) {
  struct device_caps *caps = &device->caps;
  const struct cpu_features *f = &device->features;
  caps->name = "cpu";
  caps->n_threads = n_threads;
  snprintf(caps->description, sizeof caps->description, "%s (%s%s, %d threads)", f->brand,
           cpu_isa_name(f->isa), f->amx_bf16 ? " amx" : "", n_threads);
  // Half of the second-level cache for the tile; the other half is for the weights that stream
  // through.
  int64_t tile = f->l2_bytes / 4 * 3;
  caps->plan = (struct plan_caps){
      .row_chains = true,
      .tile_rows = PRODUCT_ROWS,
      .tile_bytes = tile > TILE_BYTES_MIN ? tile : TILE_BYTES_MIN,
      .epilogue_kinds =
          1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL,
      .epilogue_max = EPILOGUE_MAX,
      .product_finish = true,
      .attention_finish = true,
      .pool_before = true,
  };
  snprintf(caps->id, sizeof caps->id, "cpu-%s-%s%s-%dt", f->brand, cpu_isa_name(f->isa),
           f->amx_bf16 ? "-amx" : "", n_threads);
  caps->plan.rates = device_rates_cpu(n_threads);
  if (!f->avx512_bf16 && !f->amx_bf16) // operands are widened, so that it is fp32's rate
    caps->plan.rates.product[DTYPE_BF16] = caps->plan.rates.product[DTYPE_F32];
  int64_t cache = last_cache_bytes();
  if (cache > 0) caps->plan.rates.cache_bytes = cache;
  caps->plan.rates.row_bytes = f->l2_bytes / 2;
  for (int kind = 0; kind < CLASS_COUNT; kind++)
    caps->plan.rates.walks[kind].rows = PRODUCT_ROWS * n_threads;
  caps->plan.dtype_ok[DTYPE_F32] = true;
  caps->plan.dtype_ok[DTYPE_BF16] = true; // widened where there are no bf16 instructions
  caps->plan.dtype_ok[DTYPE_I32] = caps->plan.dtype_ok[DTYPE_I64] = true;
}

static void cpu_close(struct device *device) {
  if (!device) return;
  team_close(device->team);
  desks_close(device->desks);
  free(device);
}

static enum status cpu_open(const struct backend_options *options, struct device **out,
                            struct error *err) {
  if (options->index != 0)
    return error_set(err, STATUS_NOT_FOUND, "device cpu:%d: there is only cpu:0", options->index);
  int n = options->threads > 0 ? options->threads : usable_cores();
  if (n > TEAM_MAX)
    return error_set(err, STATUS_INVALID_ARGUMENT, "%d compute threads: expected at most %d", n,
                     TEAM_MAX);
  struct device *device = calloc(1, sizeof *device);
  if (!device) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the cpu device");
  cpu_detect(&device->features);
  device->ops = cpu_ops_for(device->features.isa);
  fill_caps(device, n);
  enum status status = team_open(n, product_thread_init, &device->team, err);
  if (status == STATUS_OK && !(device->desks = desks_open(n)))
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the cpu device");
  if (status != STATUS_OK) {
    cpu_close(device);
    return status;
  }
  *out = device;
  return STATUS_OK;
}

static const struct device_caps *cpu_caps(const struct device *device) {
  return &device->caps;
}

static void *cpu_host_alloc(struct device *device, size_t bytes) {
  (void)device;
  return aligned_alloc(ALLOC_ALIGN, (bytes + ALLOC_ALIGN - 1) & ~(size_t)(ALLOC_ALIGN - 1));
}

static void cpu_host_free(struct device *device, void *memory, size_t bytes) {
  (void)device, (void)bytes;
  free(memory);
}

void cpu_device_set_timing(struct device *device, bool on) {
  device->timing = on;
}

void cpu_device_set_products(struct device *device, enum product_kind kind) {
  device->product_kind = kind;
}

// ---- lanes ----
static enum status cpu_lane_open(struct device *device, const struct lane_sizes *sizes,
                                 struct lane **out, struct error *err) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a lane");
  lane->device = device;
  lane->arena_bytes = sizes->arena_bytes;
  size_t bytes = sizes->arena_bytes > 0 ? (size_t)sizes->arena_bytes : 1;
  lane->arena =
      bytes >= ARENA_HUGE_BYTES ? pool_take(&lane->pool, bytes) : cpu_host_alloc(device, bytes);
  if (!lane->arena) {
    free(lane);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for an arena of %lld bytes",
                     (long long)sizes->arena_bytes);
  }
  atomic_fetch_add(&device->held_bytes[CPU_HELD_ARENAS], lane->arena_bytes);
  *out = lane;
  return STATUS_OK;
}

static void cpu_lane_close(struct device *device, struct lane *lane) {
  if (!lane) return;
  if (!lane->pool.blocks) cpu_host_free(device, lane->arena, (size_t)lane->arena_bytes);
  pool_deinit(&lane->pool);
  atomic_fetch_sub(&device->held_bytes[CPU_HELD_ARENAS], lane->arena_bytes);
  free(lane);
}

// ---- who holds memory ----
static int cpu_memory(const struct device *device, struct device_memory *out) {
  static const char *const kinds[CPU_HELD] = {"weights", "arenas", "scratch"};
  for (int i = 0; i < CPU_HELD; i++)
    out[i] = (struct device_memory){kinds[i], atomic_load(&device->held_bytes[i])};
  return CPU_HELD;
}

static int64_t cpu_weight_bytes(const struct device *device, const struct weight_table *table) {
  return packs_list_bytes(device->packs, table);
}

static char *arena_row(const struct lane *lane, const struct operand *operand, int64_t row) {
  return lane->arena + operand->offset_bytes +
         row * operand->stride * (int64_t)dtype_bytes(operand->dtype);
}

// Rows of `cols` elements between contiguous memory and a place with a stride.
static void copy_rows(char *to, size_t to_stride, const char *from, size_t from_stride,
                      size_t bytes, int64_t n_rows) {
  if (to_stride == bytes && from_stride == bytes) {
    copy_bytes(to, from, bytes * (size_t)n_rows);
    return;
  }
  for (int64_t r = 0; r < n_rows; r++)
    memcpy(to + (size_t)r * to_stride, from + (size_t)r * from_stride, bytes);
}

static void cpu_copy_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                        int64_t n_rows, const void *rows) {
  const struct operand *operand = &bound->plan->inputs[input];
  if (operand->place != PLACE_ARENA || n_rows == 0) return;
  int64_t start = clock_now_ns();
  size_t element = dtype_bytes(operand->dtype), bytes = (size_t)operand->cols * element;
  copy_rows(arena_row(lane, operand, row), (size_t)operand->stride * element, rows, bytes, bytes,
            n_rows);
  lane->times.copy_in_ns += clock_now_ns() - start;
}

static void cpu_zero_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                        int64_t n_rows) {
  const struct operand *operand = &bound->plan->inputs[input];
  if (operand->place != PLACE_ARENA) return;
  size_t element = dtype_bytes(operand->dtype);
  for (int64_t r = 0; r < n_rows; r++)
    memset(arena_row(lane, operand, row + r), 0, (size_t)operand->cols * element);
}

static void cpu_copy_out(struct lane *lane, const struct bound_plan *bound, int output, int64_t row,
                         int64_t n_rows, void *rows) {
  const struct operand *operand = &bound->plan->outputs[output];
  FW_ASSERT(operand->place == PLACE_ARENA);
  if (n_rows == 0) return;
  int64_t start = clock_now_ns();
  size_t element = dtype_bytes(operand->dtype), bytes = (size_t)operand->cols * element;
  copy_rows(rows, bytes, arena_row(lane, operand, row), (size_t)operand->stride * element, bytes,
            n_rows);
  lane->times.copy_out_ns += clock_now_ns() - start;
}

static void cpu_submit(struct lane *lane) {
  lane->done_times = lane->times;
  lane->times = (struct lane_times){0};
}

static int cpu_poll(struct lane *lane, struct lane_times *times) {
  *times = lane->done_times;
  return 1;
}

static int cpu_step_times(struct lane *lane, const struct bound_plan *bound, int64_t *ns,
                          int32_t n_steps) {
  if (!lane->device->timing) return 0;
  int32_t n = n_steps < bound->plan->n_steps ? n_steps : bound->plan->n_steps;
  int n_threads = team_size(lane->device->team);
  for (int32_t i = 0; i < n; i++) {
    ns[i] = 0;
    for (int t = 0; t < n_threads; t++)
      ns[i] += bound->threads[t].step_ns[i];
    ns[i] /= n_threads;
  }
  return n;
}

int64_t cpu_wait_ns(const struct bound_plan *bound) {
  int n_threads = team_size(bound->device->team);
  int64_t ns = 0;
  for (int t = 0; t < n_threads; t++)
    ns += bound->threads[t].wait_ns;
  return ns / n_threads;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .caps = cpu_caps,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .load = cpu_load,
    .unload = cpu_unload,
    .lane_open = cpu_lane_open,
    .lane_close = cpu_lane_close,
    .copy_in = cpu_copy_in,
    .zero_in = cpu_zero_in,
    .copy_out = cpu_copy_out,
    .run = cpu_run,
    .submit = cpu_submit,
    .poll = cpu_poll,
    .step_times = cpu_step_times,
    .memory = cpu_memory,
    .weight_bytes = cpu_weight_bytes,
};
