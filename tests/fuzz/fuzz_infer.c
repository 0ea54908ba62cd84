// ModelInfer's checks over any bytes: whatever passes them must be safe to pack, run and unpack.
// links: fw_api fw_rpc fw_sched fw_model fw_obs fw_base
#include "api/infer.h"
#include "sched/pack.h"
#include "sim/fake.h"

static struct model *model;
static struct slab_pool *pool;
static struct lane *lane;
static struct pack_arrays arrays;

static void set_up(void) {
  static struct budget budget = {.limit_bytes = 1 << 22};
  struct slab_pool_options options = {
      .max_slab_bytes = 1 << 20, .keep_bytes = 1 << 20, .budget = &budget};
  fake_device_reset(false);
  model = fake_model("m", 256, 8, 0);
  if (slab_pool_open(&options, &pool) != STATUS_OK) abort();
  if (fake_lane_open(&fake_device, NULL, &lane, NULL) != STATUS_OK) abort();
  if (pack_arrays_init(&arrays, 256, 256) != STATUS_OK) abort();
}

// What the executor would do with it, alone in its batch.
static void run(const struct request *request) {
  struct pack_target target = {&fake_backend, lane, NULL};
  struct pack_origin origin = {0, 0};
  struct batch_geometry geometry;
  pack_in(&target, request, origin, needs_inputs(model, request->fusion, request->outputs));
  pack_geometry(request, &arrays, &geometry);
  if (geometry.n_tokens != request->n_tokens || geometry.sum_sq != request->sum_sq) abort();
  if (fake_run(lane, NULL, &geometry, request->outputs) != STATUS_OK) abort();
  pack_out(&target, request, origin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct wire_infer wire;
  static struct request request;
  struct infer_shape shape;
  struct error err;
  if (!model) set_up();
  memset(&request, 0, sizeof request);
  request.model = model;
  if (wire_split((struct slice){data, size}, &wire, &err) != STATUS_OK) return 0;
  enum status status = infer_check(model, &wire, &request, &shape, &err);
  if (status == STATUS_OK) status = infer_rows(model, &wire, &shape, pool, &request, &err);
  if (status == STATUS_OK) run(&request);
  if (request.response) slab_put(pool, request.response);
  if (slab_pool_used_bytes(pool) != 0) abort();
  return 0;
}
