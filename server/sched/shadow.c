#include "sched/shadow.h"
#include "base/log.h"
#include "sched/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNED(bytes) (((bytes) + 63) & ~(size_t)63)

static void count(_Atomic uint64_t *counter, uint64_t n) {
  atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

// ---- slots ----
static size_t row_bytes(const struct signature_tensor *tensor) {
  return (size_t)tensor->row_elements * dtype_bytes(tensor->dtype);
}

static bool is_input(const struct model *model, int output) {
  return model->plans[FUSION_OFF]->output_is_input[output] >= 0;
}

static size_t part(struct shadow *shadow, size_t bytes) {
  size_t at = shadow->slot_bytes;
  shadow->slot_bytes = ALIGNED(at + bytes);
  return at;
}

// Dimensions are at most LIMIT_DIM and rows at most batch.max_tokens, so no sum here overflows.
static void lay_out(struct shadow *shadow) {
  const struct model *model = shadow->model;
  size_t rows = (size_t)model->shadow.max_rows;
  for (int i = 0; i < model->n_inputs; i++)
    if (model->inputs[i].role == ROLE_DATA)
      shadow->inputs[i] = part(shadow, rows * row_bytes(&model->inputs[i]));
  for (int o = 0; o < model->n_outputs; o++) {
    if (is_input(model, o)) continue;
    shadow->answers[o] = part(shadow, rows * row_bytes(&model->outputs[o]));
    shadow->outputs[o] = part(shadow, rows * row_bytes(&model->outputs[o]));
  }
  shadow->seqlens = part(shadow, rows * sizeof(int32_t));
  shadow->positions = part(shadow, rows * sizeof(int32_t));
}

static void slot_free(struct shadow_slot *slot) {
  slot->next = slot->shadow->free;
  slot->shadow->free = slot;
}

static void book(const struct shadow *shadow, int64_t bytes) {
  const struct model *model = shadow->model;
  atomic_fetch_add_explicit(&model->shadow.metrics->bytes, bytes, memory_order_relaxed);
  if (model->host_memory.metrics)
    atomic_fetch_add_explicit(&model->host_memory.metrics->shadows, bytes, memory_order_relaxed);
}

enum status shadow_open(const struct backend_ops *backend, struct device *device,
                        struct model *model, struct shadow **out, struct error *err) {
  int n = model->shadow.slots;
  struct shadow *shadow = calloc(1, sizeof *shadow + (size_t)n * sizeof shadow->slots[0]);
  if (!shadow) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for shadows");
  *shadow = (struct shadow){.model = model, .backend = backend, .device = device, .n_slots = n};
  share_init(&shadow->share, model->shadow.share, model->shadow.seed);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    shadow->queues[mode] = (struct queue){.model = model, .fusion = (enum fusion_mode)mode};
  lay_out(shadow);
  shadow->bytes = shadow->slot_bytes * (size_t)n;
  shadow->memory = backend->host_alloc(device, shadow->bytes);
  if (!shadow->memory) {
    enum status status =
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "model \"%s\": no memory for %d shadows of %zu bytes (ab.shadow_slots, "
                  "ab.shadow_tokens)",
                  model->name, n, shadow->slot_bytes);
    free(shadow);
    return status;
  }
  for (int i = 0; i < n; i++) {
    shadow->slots[i].shadow = shadow;
    shadow->slots[i].memory = shadow->memory + (size_t)i * shadow->slot_bytes;
    slot_free(&shadow->slots[i]);
  }
  book(shadow, (int64_t)shadow->bytes);
  *out = shadow;
  return STATUS_OK;
}

void shadow_close(struct shadow *shadow) {
  if (!shadow) return;
  book(shadow, -(int64_t)shadow->bytes);
  shadow->backend->host_free(shadow->device, shadow->memory, shadow->bytes);
  free(shadow);
}

// ---- endings: the model may be gone after them ----
static void slot_end(struct shadow_slot *slot, _Atomic uint64_t *counter) {
  struct model *model = slot->shadow->model;
  count(counter, 1);
  atomic_fetch_sub_explicit(&model->shadow.metrics->pending, 1, memory_order_relaxed);
  slot_free(slot);
  model_put(model);
}

static void slot_drop(struct shadow_slot *slot, enum shadow_drop why) {
  slot_end(slot, &slot->shadow->model->shadow.metrics->dropped[why]);
}

// ---- holding ----
static bool fits(const struct request *request, const struct model *model) {
  int64_t rows = (int64_t)request->n_seqs * (model->has_sequences ? request->padded_seqlen : 1);
  return rows <= model->shadow.max_rows;
}

static void copy_inputs(struct shadow_slot *slot, const struct request *from) {
  const struct shadow *shadow = slot->shadow;
  struct request *to = &slot->request;
  uint32_t needed = needs_inputs(shadow->model, to->fusion, to->outputs);
  for (int i = 0; i < shadow->model->n_inputs; i++) {
    if (!(needed >> i & 1) || !from->inputs[i].data) continue;
    uint8_t *data = slot->memory + shadow->inputs[i];
    memcpy(data, from->inputs[i].data, from->inputs[i].bytes);
    to->inputs[i] = (struct slice){data, from->inputs[i].bytes};
  }
  if (from->dense) return;
  to->seqlens = (int32_t *)(void *)(slot->memory + shadow->seqlens);
  to->positions = (int32_t *)(void *)(slot->memory + shadow->positions);
  memcpy(to->seqlens, from->seqlens, (size_t)from->n_seqs * sizeof *to->seqlens);
  memcpy(to->positions, from->positions, (size_t)from->n_tokens * sizeof *to->positions);
}

// Outputs that are inputs unchanged have nothing to compare.
static void copy_answers(struct shadow_slot *slot, const struct request *from) {
  const struct shadow *shadow = slot->shadow;
  struct request *to = &slot->request;
  for (int k = 0; k < from->n_outputs; k++) {
    int o = from->output_order[k], at = to->n_outputs;
    if (is_input(shadow->model, o)) continue;
    memcpy(slot->memory + shadow->answers[o], from->outputs_data[k], from->outputs_bytes[k]);
    slot->answers[at] = slot->memory + shadow->answers[o];
    to->outputs_data[at] = slot->memory + shadow->outputs[o];
    to->outputs_bytes[at] = from->outputs_bytes[k];
    to->output_order[at] = (uint8_t)o;
    to->n_outputs++;
  }
}

static void copy_request(struct shadow_slot *slot, const struct request *from) {
  struct request *to = &slot->request;
  struct model *model = slot->shadow->model;
  memset(to, 0, offsetof(struct request, id));
  to->model = model;
  to->fusion = from->fusion == FUSION_OFF ? model->fusion_default : FUSION_OFF;
  to->outputs = from->outputs;
  to->n_seqs = from->n_seqs;
  to->n_tokens = from->n_tokens;
  to->padded_seqlen = from->padded_seqlen;
  to->sum_sq = from->sum_sq;
  to->dense = from->dense;
  to->deadline_ns = CLOCK_NEVER;
  to->id_bytes = from->id_bytes;
  memcpy(to->id, from->id, from->id_bytes);
  copy_inputs(slot, from);
  copy_answers(slot, from);
}

void shadow_offer(struct shadows *shadows, struct shadow *shadow, const struct request *request,
                  bool hurry, int64_t now_ns) {
  if (!share_takes(&shadow->share)) return;
  struct model *model = shadow->model;
  struct shadow_metrics *metrics = model->shadow.metrics;
  struct shadow_slot *slot = shadow->free;
  count(&metrics->sampled, 1);
  if (hurry || !slot || !fits(request, model)) {
    enum shadow_drop why = hurry ? SHADOW_DRAIN : fits(request, model) ? SHADOW_BUSY : SHADOW_SIZE;
    count(&metrics->dropped[why], 1);
    return;
  }
  int64_t began_ns = clock_now_ns();
  shadow->free = slot->next;
  slot->next = NULL;
  slot->held_ns = now_ns;
  slot->k = 0;
  slot->compared = 0;
  slot->difference = (struct difference){0};
  copy_request(slot, request);
  model_get(model); // it is not freed before its last shadow has ended
  if (shadows->last)
    shadows->last->next = slot;
  else
    shadows->first = slot;
  shadows->last = slot;
  atomic_fetch_add_explicit(&metrics->pending, 1, memory_order_relaxed);
  count(&metrics->copy_ns, (uint64_t)(clock_now_ns() - began_ns));
}

// ---- at work ----
bool shadow_pending(const struct shadows *shadows) {
  return shadows->first || shadows->running || shadows->comparing;
}

static struct shadow_slot *pop(struct shadows *shadows) {
  struct shadow_slot *slot = shadows->first;
  if (!slot) return NULL;
  shadows->first = slot->next;
  if (!shadows->first) shadows->last = NULL;
  slot->next = NULL;
  return slot;
}

struct shadow_slot *shadow_take(struct shadows *shadows) {
  FW_ASSERT(!shadows->running && !shadows->comparing);
  shadows->running = pop(shadows);
  return shadows->running;
}

void shadow_ran(struct shadows *shadows, int64_t compute_ns) {
  struct shadow_slot *slot = shadows->running;
  count(&slot->shadow->model->shadow.metrics->compute_ns, (uint64_t)compute_ns);
  shadows->running = NULL;
  shadows->comparing = slot;
}

void shadow_failed(struct shadows *shadows) {
  struct shadow_slot *slot = shadows->running;
  shadows->running = NULL;
  slot_end(slot, &slot->shadow->model->shadow.metrics->failed);
}

static void alarm_log(const struct shadow_slot *slot, int o, double relative) {
  const struct model *model = slot->shadow->model;
  const struct request *request = &slot->request;
  char id[LIMIT_REQUEST_ID_BYTES + 1];
  memcpy(id, request->id, request->id_bytes);
  id[request->id_bytes] = 0;
  const struct log_field fields[] = {{"model", model->name, 0},
                                     {"version", model->version, 0},
                                     {"output", model->outputs[o].name, 0},
                                     {"id", id, 0},
                                     {"shadow", fusion_name(request->fusion), 0}};
  log_fields(LOG_WARN, "shadow_alarm", fields, sizeof fields / sizeof *fields,
             "the two plans' answers differ by %.3g (relative L2), more than ab.alarm, %.3g; an "
             "element by %.3g; %lld elements are NaN or infinite in one of them only",
             relative, model->shadow.alarm, slot->difference.max_abs,
             (long long)slot->difference.odd);
}

static void output_compared(struct shadow_slot *slot) {
  struct model *model = slot->shadow->model;
  int o = slot->request.output_order[slot->k];
  double relative = difference_relative(&slot->difference);
  bool exceeded = relative > model->shadow.alarm;
  metrics_shadow_record(model->shadow.outputs[o], relative, slot->difference.max_abs, exceeded);
  if (exceeded) alarm_log(slot, o, relative);
  slot->k++;
  slot->compared = 0;
  slot->difference = (struct difference){0};
}

void shadow_compare(struct shadows *shadows) {
  struct shadow_slot *slot = shadows->comparing;
  const struct request *request = &slot->request;
  const struct signature_tensor *tensor = &request->model->outputs[request->output_order[slot->k]];
  size_t element = dtype_bytes(tensor->dtype);
  int64_t total = (int64_t)(request->outputs_bytes[slot->k] / element);
  int64_t n = total - slot->compared < SHADOW_SLICE ? total - slot->compared : SHADOW_SLICE;
  const uint8_t *answer = slot->answers[slot->k] + (size_t)slot->compared * element,
                *output = request->outputs_data[slot->k] + (size_t)slot->compared * element;
  bool unfused = request->fusion == FUSION_OFF; // it is the reference, whichever ran first
  difference_add(&slot->difference, tensor->dtype, unfused ? answer : output,
                 unfused ? output : answer, n);
  slot->compared += n;
  if (slot->compared == total) output_compared(slot);
  if (slot->k < request->n_outputs) return;
  shadows->comparing = NULL;
  slot_end(slot, &slot->shadow->model->shadow.metrics->compared);
}

// ---- giving up ----
void shadow_drop_all(struct shadows *shadows, enum shadow_drop why) {
  struct shadow_slot *slot = shadows->comparing;
  shadows->comparing = NULL;
  if (slot) slot_drop(slot, why);
  while ((slot = pop(shadows)))
    slot_drop(slot, why);
}

int64_t shadow_expire(struct shadows *shadows, int64_t now_ns) {
  struct shadow_slot *slot = shadows->comparing;
  if (slot && slot->held_ns + SHADOW_PATIENCE_NS <= now_ns) {
    shadows->comparing = NULL;
    slot_drop(slot, SHADOW_LATE);
  }
  while (shadows->first && shadows->first->held_ns + SHADOW_PATIENCE_NS <= now_ns)
    slot_drop(pop(shadows), SHADOW_LATE);
  slot = shadows->comparing ? shadows->comparing : shadows->first;
  return slot ? slot->held_ns + SHADOW_PATIENCE_NS : CLOCK_NEVER;
}
