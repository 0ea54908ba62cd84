// ModelStatistics: the counters of /metrics in Triton's words (obs/totals is where both come from).
#include "api/handlers.h"

#include "obs/totals.h"
#include "open_inference.pb-c.h"
#include <stdlib.h>
#include <string.h>

typedef Inference__StatisticDuration duration;
typedef Inference__InferBatchStatistics batch_statistics;

struct batch_room {
  batch_statistics message;
  duration durations[3];
};

// One model's part of the reply; freed by room_free.
struct model_room {
  Inference__ModelStatistics message;
  Inference__InferStatistics stats;
  Inference__InferResponseStatistics response;
  Inference__ModelStatistics__ResponseStatsEntry entry, *entries[1];
  Inference__MemoryUsage memory[LIMIT_DEVICES + 1], *memories[LIMIT_DEVICES + 1];
  duration durations[16];
  int n_durations;
  struct batch_room *batches;
  batch_statistics **batch_list;
};

static char *unconst(const char *text) {
  return (char *)(uintptr_t)text; // packing only reads
}

static void duration_set(duration *out, uint64_t count, uint64_t ns) {
  inference__statistic_duration__init(out);
  out->count = count;
  out->ns = ns;
}

static duration *duration_new(struct model_room *room, uint64_t count, uint64_t ns) {
  duration *out = &room->durations[room->n_durations++];
  duration_set(out, count, ns);
  return out;
}

static void stats_fill(struct model_room *room, const struct model_totals *totals) {
  uint64_t ok = totals->finished[STATUS_OK], cancelled = totals->finished[STATUS_CANCELLED],
           failed = totals_failed(totals);
  Inference__InferStatistics *stats = &room->stats;
  inference__infer_statistics__init(stats);
  stats->success = duration_new(room, ok, totals->total_ns);
  stats->fail = duration_new(room, failed + cancelled, totals->failed_ns + totals->cancelled_ns);
  stats->queue = duration_new(room, ok, totals->queue_ns);
  stats->compute_input = duration_new(room, ok, totals->copy_in_ns);
  stats->compute_infer = duration_new(room, ok, totals->compute_ns);
  stats->compute_output = duration_new(room, ok, totals->copy_out_ns);
  stats->cache_hit = duration_new(room, 0, 0);
  stats->cache_miss = duration_new(room, 0, 0);
  Inference__InferResponseStatistics *response = &room->response;
  inference__infer_response_statistics__init(response);
  response->compute_infer = duration_new(room, ok, totals->compute_ns);
  response->compute_output = duration_new(room, ok, totals->copy_out_ns);
  response->success = duration_new(room, ok, totals->total_ns);
  response->fail = duration_new(room, failed, totals->failed_ns);
  response->empty_response = duration_new(room, 0, 0);
  response->cancel = duration_new(room, cancelled, totals->cancelled_ns);
  inference__model_statistics__response_stats_entry__init(&room->entry);
  room->entry.key = unconst("0");
  room->entry.value = response;
  room->entries[0] = &room->entry;
}

static bool batches_fill(struct model_room *room, const struct model *model) {
  struct batch_totals *totals = malloc(METRICS_BATCH_ROWS * sizeof *totals);
  if (!totals) return false;
  int n = totals_batches(model->name, model->version, totals);
  room->batches = calloc((size_t)n + 1, sizeof *room->batches);
  // NOLINTNEXTLINE(bugprone-sizeof-expression): protobuf-c wants an array of pointers
  room->batch_list = calloc((size_t)n + 1, sizeof *room->batch_list);
  bool ok = room->batches && room->batch_list;
  for (int i = 0; i < n && ok; i++) {
    struct batch_room *batch = &room->batches[i];
    inference__infer_batch_statistics__init(&batch->message);
    duration_set(&batch->durations[0], totals[i].runs, totals[i].copy_in_ns);
    duration_set(&batch->durations[1], totals[i].runs, totals[i].compute_ns);
    duration_set(&batch->durations[2], totals[i].runs, totals[i].copy_out_ns);
    batch->message.batch_size = totals[i].rows;
    batch->message.compute_input = &batch->durations[0];
    batch->message.compute_infer = &batch->durations[1];
    batch->message.compute_output = &batch->durations[2];
    room->batch_list[i] = &batch->message;
  }
  free(totals);
  room->message.batch_stats = room->batch_list;
  room->message.n_batch_stats = (size_t)n;
  return ok;
}

// The weights, as each device keeps them; what is kept on the host and read in place is the CPU's.
static void memory_add(struct model_room *room, bool is_cpu, int index, int64_t bytes) {
  size_t n = room->message.n_memory_usage++;
  inference__memory_usage__init(&room->memory[n]);
  room->memory[n].type = unconst(is_cpu ? "CPU" : "GPU");
  room->memory[n].id = index;
  room->memory[n].byte_size = (uint64_t)bytes;
  room->memories[n] = &room->memory[n];
}

static void memory_fill(struct model_room *room, const struct model *model) {
  int64_t host = model->host_memory.weights;
  room->message.memory_usage = room->memories;
  for (int d = 0; d < model->n_devices; d++) {
    const struct device_caps *caps = model->backend->caps(model->devices[d]);
    bool is_cpu = strcmp(caps->name, "cpu") == 0;
    memory_add(room, is_cpu, caps->index, model->memory[d].weights + (is_cpu ? host : 0));
    if (is_cpu) host = 0;
  }
  if (host > 0) memory_add(room, true, 0, host);
}

// Clocks of the process do not know the date; when it was is worked out from how long ago it was.
static uint64_t wall_ms(int64_t at_ns) {
  if (at_ns == 0) return 0;
  return (uint64_t)((clock_wall_ns() - (clock_now_ns() - at_ns)) / NS_PER_MS);
}

static bool room_fill(struct model_room *room, const struct model *model) {
  struct model_totals totals;
  totals_of(model->name, model->version, &totals);
  inference__model_statistics__init(&room->message);
  stats_fill(room, &totals);
  Inference__ModelStatistics *message = &room->message;
  message->name = unconst(model->name);
  message->version = unconst(model->version);
  message->last_inference = wall_ms(totals.last_ns);
  message->inference_count = totals.rows;
  message->execution_count = totals.batches;
  message->inference_stats = &room->stats;
  message->response_stats = room->entries;
  message->n_response_stats = 1;
  memory_fill(room, model);
  return batches_fill(room, model);
}

static void room_free(struct model_room *room) {
  free(room->batches);
  free(room->batch_list);
}

static void reply(struct call *call, struct model *const *models, int n) {
  struct model_room *rooms = calloc((size_t)n + 1, sizeof *rooms);
  // NOLINTNEXTLINE(bugprone-sizeof-expression): likewise
  Inference__ModelStatistics **list = calloc((size_t)n + 1, sizeof *list);
  bool ok = rooms && list;
  for (int i = 0; i < n && ok; i++) {
    ok = room_fill(&rooms[i], models[i]);
    list[i] = &rooms[i].message;
  }
  Inference__ModelStatisticsResponse message = INFERENCE__MODEL_STATISTICS_RESPONSE__INIT;
  message.model_stats = list;
  message.n_model_stats = (size_t)n;
  if (ok)
    reply_message(call, &message.base);
  else
    call_fail(call, STATUS_RESOURCE_EXHAUSTED, "out of memory for the reply");
  for (int i = 0; i < n && rooms; i++)
    room_free(&rooms[i]);
  free(rooms);
  free(list);
}

void model_statistics(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names;
  struct error err;
  struct model *models[LIMIT_MODELS];
  int n = 0;
  enum status status = wire_split_names(call_message(call), &names, &err);
  if (status == STATUS_OK && names.first.bytes == 0 && atomic_load(&api->state) != API_LOADING) {
    const struct registry_table *table = registry_table(api->registry);
    for (int i = 0; i < table->n; i++)
      if (table->entries[i].model) models[n++] = table->entries[i].model;
  } else if (status == STATUS_OK) {
    models[0] = model_find(api, names.first, names.second, &status, &err);
    n = 1;
  }
  if (status == STATUS_OK)
    reply(call, models, n);
  else
    call_fail(call, status, err.message);
}
