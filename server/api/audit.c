// Audit: the sums of the live audit. They are the counters of /metrics; what is added meanwhile may
// be in one figure and not yet in another.
#include "audit/audit.h"
#include "api/handlers.h"

#include "fusewire.pb-c.h"
#include <stdlib.h>
#include <string.h>

typedef Fusewire__V1__AuditResponse response;
typedef Fusewire__V1__AuditDevice audit_device;
typedef Fusewire__V1__AuditTraffic audit_traffic;
typedef Fusewire__V1__AuditModel audit_model;
typedef Fusewire__V1__AuditSize audit_size;
typedef Fusewire__V1__AuditBytes audit_bytes;

struct device_room {
  audit_device message;
  audit_traffic read, write;
};
struct size_room {
  audit_size message;
  audit_bytes read, write;
};
struct model_room {
  audit_model message;
  struct size_room sizes[AUDIT_SIZES];
  audit_size *list[AUDIT_SIZES];
};
struct room { // of one reply
  response message;
  struct device_room devices[LIMIT_DEVICES];
  audit_device *device_list[LIMIT_DEVICES];
  struct model_room *models;
  audit_model **model_list;
};

static char *unconst(const char *text) {
  return (char *)(uintptr_t)text; // packing only reads
}

static uint64_t load(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static void traffic_fill(audit_traffic *out, const _Atomic uint64_t parts[3]) {
  fusewire__v1__audit_traffic__init(out);
  out->batches = load(&parts[PART_BATCHES]);
  out->copies = load(&parts[PART_COPIES]);
  out->other = load(&parts[PART_OTHER]);
}

static void device_fill(struct device_room *room, const struct audit *of) {
  const struct decoder_stats *stats = &of->decoder.stats;
  audit_device *out = &room->message;
  enum audit_state state = audit_state(of);
  fusewire__v1__audit_device__init(out);
  out->device = unconst(of->options.name);
  out->state = unconst(audit_state_name(state));
  if (state == AUDIT_GONE) out->reason = unconst(of->decoder.why); // not written any more
  out->read_factor = atomic_load(&stats->read_factor);
  out->write_factor = atomic_load(&stats->write_factor);
  out->calibrations = load(&stats->calibrations);
  out->calibrations_failed = load(&stats->calibrations_failed);
  out->losses = load(&stats->losses);
  out->samples_evaluated = load(&stats->samples_evaluated);
  out->samples_passed = load(&stats->samples_passed);
  out->cpu_seconds = (double)load(&stats->cpu_ns) * 1e-9;
  traffic_fill(&room->read, stats->read);
  traffic_fill(&room->write, stats->write);
  out->read = &room->read;
  out->write = &room->write;
  out->unexplained = atomic_load(&stats->unexplained);
}

static void size_fill(struct size_room *room, const struct audit_sums *sums, int size) {
  audit_size *out = &room->message;
  fusewire__v1__audit_size__init(out);
  fusewire__v1__audit_bytes__init(&room->read);
  fusewire__v1__audit_bytes__init(&room->write);
  out->most_tokens = (uint32_t)audit_size_most[size];
  out->batches = load(&sums->batches);
  out->shared = load(&sums->shared);
  out->resident = load(&sums->resident);
  room->read.measured = load(&sums->read_measured);
  room->read.expected = load(&sums->read_expected);
  room->read.low = load(&sums->read_low);
  room->read.high = load(&sums->read_high);
  room->write.measured = load(&sums->write_measured);
  room->write.expected = load(&sums->write_expected);
  room->write.low = load(&sums->write_low);
  room->write.high = load(&sums->write_high);
  out->read = &room->read;
  out->write = &room->write;
}

static void model_fill(struct model_room *room, const struct audit_row *row) {
  audit_model *out = &room->message;
  fusewire__v1__audit_model__init(out);
  out->model_name = unconst(row->labels.model);
  out->model_version = unconst(row->labels.version);
  out->fusion = unconst(row->labels.fusion);
  out->device = unconst(row->labels.device);
  out->read_out_of_band = atomic_load(&row->read_out);
  out->write_out_of_band = atomic_load(&row->write_out);
  out->alarms = load(&row->alarms);
  out->lost = load(&row->unmeasured[AUDIT_LOST]);
  out->uncalibrated = load(&row->unmeasured[AUDIT_UNCALIBRATED]);
  out->skipped = load(&row->unmeasured[AUDIT_SKIPPED]);
  out->sizes = room->list;
  for (int s = 0; s < AUDIT_SIZES; s++) {
    if (load(&row->sizes[s].batches) == 0) continue;
    size_fill(&room->sizes[s], &row->sizes[s], s);
    room->list[out->n_sizes++] = &room->sizes[s].message;
  }
}

static bool is_wanted(const struct audit_row *row, const struct wire_names *names) {
  return (names->first.bytes == 0 ||
          slice_is(names->first, row->labels.model, strlen(row->labels.model))) &&
         (names->second.bytes == 0 ||
          slice_is(names->second, row->labels.version, strlen(row->labels.version)));
}

static bool room_fill(struct room *room, const struct audits *audits,
                      const struct wire_names *names) {
  response *out = &room->message;
  int n = audit_row_count(), wanted = 0;
  for (int i = 0; i < n; i++)
    wanted += is_wanted(audit_row_at(i), names);
  room->models = calloc((size_t)wanted + 1, sizeof *room->models);
  // NOLINTNEXTLINE(bugprone-sizeof-expression): protobuf-c wants an array of pointers
  room->model_list = calloc((size_t)wanted + 1, sizeof *room->model_list);
  if (!room->models || !room->model_list) return false;
  const struct audit_options *options = &audits->list[0]->options;
  out->mode = unconst(audit_mode_name(options->mode));
  out->interval_us = (uint32_t)(options->interval_ns / NS_PER_US);
  out->band = options->band;
  out->devices = room->device_list;
  for (int d = 0; d < audits->n; d++) {
    device_fill(&room->devices[d], audits->list[d]);
    room->device_list[out->n_devices++] = &room->devices[d].message;
  }
  out->models = room->model_list;
  for (int i = 0; i < n; i++) {
    if (!is_wanted(audit_row_at(i), names)) continue;
    struct model_room *model = &room->models[out->n_models];
    model_fill(model, audit_row_at(i));
    room->model_list[out->n_models++] = &model->message;
  }
  return true;
}

static void answer(struct call *call, const struct audits *audits, const struct wire_names *names) {
  struct room *room = calloc(1, sizeof *room);
  if (room) fusewire__v1__audit_response__init(&room->message);
  if (room && audits->n == 0) room->message.mode = unconst(audit_mode_name(AUDIT_OFF));
  if (room && (audits->n == 0 || room_fill(room, audits, names)))
    reply_message(call, &room->message.base);
  else
    call_fail(call, STATUS_RESOURCE_EXHAUSTED, "out of memory for the reply");
  if (room) free(room->models), free(room->model_list);
  free(room);
}

void audit(struct call *call, void *app) {
  static const struct audits none;
  struct api *api = app;
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  if (status == STATUS_OK && atomic_load(&api->state) == API_LOADING)
    status = error_set(&err, STATUS_UNAVAILABLE, "models are still loading");
  if (status == STATUS_OK && names.first.bytes > 0)
    (void)model_find(api, names.first, names.second, &status, &err);
  if (status != STATUS_OK)
    call_fail(call, status, err.message);
  else
    answer(call, api->audits ? api->audits : &none, &names);
}
