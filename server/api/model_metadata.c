// ModelMetadata: the signature, with -1 where a client chooses the dimension, and what it costs to
// know: limits, fusion.
#include "api/handlers.h"

#include "open_inference.pb-c.h"
#include <stdarg.h>
#include <stdio.h>

typedef Inference__ModelMetadataResponse__TensorMetadata tensor_metadata;
typedef Inference__ModelMetadataResponse__PropertiesEntry property_entry;

struct tensor_room {
  tensor_metadata metadata;
  int64_t shape[LIMIT_TENSOR_RANK];
};

// protobuf-c's fields are not const although packing only reads them.
static char *unconst(const char *text) {
  return (char *)(uintptr_t)text;
}

static void tensors_fill(const struct signature_tensor *from, int32_t n, struct tensor_room *rooms,
                         tensor_metadata **out) {
  for (int32_t i = 0; i < n; i++) {
    struct tensor_room *room = &rooms[i];
    inference__model_metadata_response__tensor_metadata__init(&room->metadata);
    room->metadata.name = unconst(from[i].name);
    room->metadata.datatype = unconst(datatype_name(from[i].dtype));
    for (int32_t d = 0; d < from[i].rank; d++)
      room->shape[d] = from[i].dims[d] < 0 ? -1 : from[i].dims[d];
    room->metadata.shape = room->shape;
    room->metadata.n_shape = (size_t)from[i].rank;
    out[i] = &room->metadata;
  }
}

#define N_PROPERTIES (13 + LIMIT_MODEL_OUTPUTS)
struct property_room {
  property_entry entries[N_PROPERTIES], *list[N_PROPERTIES];
  char text[N_PROPERTIES][256];
  char keys[LIMIT_MODEL_OUTPUTS][LIMIT_NAME_BYTES + 16];
  size_t n;
};

static void property_add(struct property_room *room, const char *key, const char *value) {
  property_entry *entry = &room->entries[room->n];
  inference__model_metadata_response__properties_entry__init(entry);
  snprintf(room->text[room->n], sizeof room->text[0], "%s", value);
  entry->key = unconst(key);
  entry->value = room->text[room->n];
  room->list[room->n++] = entry;
}

static void PRINTF_LIKE(3, 4)
    property_print(struct property_room *room, const char *key, const char *format, ...) {
  char text[sizeof room->text[0]];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  property_add(room, key, text);
}

// What shadows found since the process started (docs/OPERATIONS.md).
static void shadow_fill(const struct model *model, struct property_room *room) {
  const struct shadow_metrics *metrics = model->shadow.metrics;
  unsigned long long dropped = 0;
  for (int d = 0; d < SHADOW_DROPS; d++)
    dropped += metrics->dropped[d];
  property_print(room, "ab.shadow", "%g", model->shadow.share);
  property_print(room, "ab.alarm", "%g", model->shadow.alarm);
  property_print(room, "shadows", "%llu sampled, %llu compared, %llu failed, %llu dropped",
                 (unsigned long long)metrics->sampled, (unsigned long long)metrics->compared,
                 (unsigned long long)metrics->failed, dropped);
  for (int o = 0; o < model->n_outputs; o++) {
    const struct shadow_output_metrics *output = model->shadow.outputs[o];
    if (!output) continue; // an input unchanged
    snprintf(room->keys[o], sizeof room->keys[o], "shadow %s", output->name);
    property_print(room, room->keys[o],
                   "differs by at most %.3g (relative L2), an element by %.3g; %llu of %llu over "
                   "the alarm",
                   output->max_relative, output->max_abs, (unsigned long long)output->exceeded,
                   (unsigned long long)output->compared);
  }
}

static void ab_fill(const struct model *model, struct property_room *room) {
  if (!model->fusion_available[FUSION_ON] || !model->fusion_available[FUSION_OFF]) return;
  property_print(room, "fusion_loaded", "on off%s",
                 model->fusion_available[FUSION_AUTO] ? " auto" : "");
  property_print(room, "ab.unfused_share", "%.9g", share_part(&model->unfused));
  if (model->shadow.metrics) shadow_fill(model, room);
}

static void properties_fill(const struct api *api, const struct model *model,
                            struct property_room *room) {
  char number[32];
  room->n = 0;
  property_add(room, "device", api->device);
  if (api->device_name[0]) property_add(room, "device_name", api->device_name);
  if (api->fallback[0]) property_add(room, "device_fallback", api->fallback);
  property_add(room, "compute", dtype_name(model->compute));
  property_add(room, "fusion", model->fusion_word);
  property_add(room, "fusion_default", fusion_name(model->fusion_default));
  snprintf(number, sizeof number, "%d", model->max_seqlen);
  property_add(room, "max_sequence_length", number);
  snprintf(number, sizeof number, "%d", model->max_request_rows);
  property_add(room, "max_request_tokens", number);
  ab_fill(model, room);
}

void model_metadata(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  struct model *model =
      status == STATUS_OK ? model_find(api, names.first, names.second, &status, &err) : NULL;
  if (!model) {
    call_fail(call, status, err.message);
    return;
  }
  struct tensor_room rooms[LIMIT_MODEL_INPUTS + LIMIT_MODEL_OUTPUTS];
  tensor_metadata *inputs[LIMIT_MODEL_INPUTS], *outputs[LIMIT_MODEL_OUTPUTS];
  struct property_room properties;
  tensors_fill(model->inputs, model->n_inputs, rooms, inputs);
  tensors_fill(model->outputs, model->n_outputs, rooms + LIMIT_MODEL_INPUTS, outputs);
  properties_fill(api, model, &properties);
  static char platform[] = "fusewire";
  char *versions[] = {model->version};
  Inference__ModelMetadataResponse reply = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
  reply.name = model->name;
  reply.versions = versions;
  reply.n_versions = 1;
  reply.platform = platform;
  reply.inputs = inputs;
  reply.n_inputs = (size_t)model->n_inputs;
  reply.outputs = outputs;
  reply.n_outputs = (size_t)model->n_outputs;
  reply.properties = properties.list;
  reply.n_properties = properties.n;
  reply_message(call, &reply.base);
}
