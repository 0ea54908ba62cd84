// ModelConfig: signature and batching in the words of Triton's model files, for clients that ask
// there what a model can do (perf_analyzer).
#include "api/handlers.h"

#include "open_inference.pb-c.h"
#include <stdio.h>

struct input_room {
  Inference__ModelInput message;
  int64_t dims[LIMIT_TENSOR_RANK];
};
struct output_room {
  Inference__ModelOutput message;
  int64_t dims[LIMIT_TENSOR_RANK];
};

#define N_PARAMETERS 5
struct config_room {
  struct input_room inputs[LIMIT_MODEL_INPUTS];
  struct output_room outputs[LIMIT_MODEL_OUTPUTS];
  Inference__ModelInput *input_list[LIMIT_MODEL_INPUTS];
  Inference__ModelOutput *output_list[LIMIT_MODEL_OUTPUTS];
  Inference__ModelInstanceGroup group, *groups[1];
  Inference__ModelDynamicBatching batching;
  Inference__ModelTransactionPolicy policy;
  Inference__ModelParameter values[N_PARAMETERS];
  Inference__ModelConfig__ParametersEntry entries[N_PARAMETERS], *entry_list[N_PARAMETERS];
  char texts[N_PARAMETERS][32];
  size_t n_parameters;
};

static char *unconst(const char *text) {
  return (char *)(uintptr_t)text; // packing only reads
}

static Inference__DataType data_type(enum dtype dtype) {
  static const Inference__DataType types[DTYPE_COUNT] = {
      INFERENCE__DATA_TYPE__TYPE_INVALID, INFERENCE__DATA_TYPE__TYPE_FP32,
      INFERENCE__DATA_TYPE__TYPE_FP16,    INFERENCE__DATA_TYPE__TYPE_BF16,
      INFERENCE__DATA_TYPE__TYPE_INT64,   INFERENCE__DATA_TYPE__TYPE_INT32};
  return dtype < DTYPE_COUNT ? types[dtype] : INFERENCE__DATA_TYPE__TYPE_INVALID;
}

// Without the batch dimension, which is the first of every tensor.
static size_t dims_fill(const struct signature_tensor *tensor, int64_t *dims) {
  for (int32_t d = 1; d < tensor->rank; d++)
    dims[d - 1] = tensor->dims[d] < 0 ? -1 : tensor->dims[d];
  return (size_t)(tensor->rank - 1);
}

static void tensors_fill(const struct model *model, struct config_room *room) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    Inference__ModelInput *input = &room->inputs[i].message;
    inference__model_input__init(input);
    input->name = unconst(model->inputs[i].name);
    input->data_type = data_type(model->inputs[i].dtype);
    input->n_dims = dims_fill(&model->inputs[i], room->inputs[i].dims);
    input->dims = room->inputs[i].dims;
    input->allow_ragged_batch = model->has_sequences;
    input->optional = model->inputs[i].optional;
    room->input_list[i] = input;
  }
  for (int32_t i = 0; i < model->n_outputs; i++) {
    Inference__ModelOutput *output = &room->outputs[i].message;
    inference__model_output__init(output);
    output->name = unconst(model->outputs[i].name);
    output->data_type = data_type(model->outputs[i].dtype);
    output->n_dims = dims_fill(&model->outputs[i], room->outputs[i].dims);
    output->dims = room->outputs[i].dims;
    room->output_list[i] = output;
  }
}

static void parameter_add(struct config_room *room, const char *key, const char *value) {
  size_t n = room->n_parameters++;
  inference__model_parameter__init(&room->values[n]);
  inference__model_config__parameters_entry__init(&room->entries[n]);
  snprintf(room->texts[n], sizeof room->texts[n], "%s", value);
  room->values[n].string_value = room->texts[n];
  room->entries[n].key = unconst(key);
  room->entries[n].value = &room->values[n];
  room->entry_list[n] = &room->entries[n];
}

static void parameters_fill(const struct model *model, struct config_room *room) {
  char number[32];
  parameter_add(room, "compute", dtype_name(model->compute));
  parameter_add(room, "fusion", model->fusion_word);
  parameter_add(room, "fusion_default", fusion_name(model->fusion_default));
  snprintf(number, sizeof number, "%d", model->max_seqlen);
  parameter_add(room, "max_sequence_length", number);
  snprintf(number, sizeof number, "%d", model->max_request_rows);
  parameter_add(room, "max_request_tokens", number);
}

static void scheduling_fill(const struct api *api, const struct model *model,
                            struct config_room *room) {
  inference__model_dynamic_batching__init(&room->batching);
  room->batching.max_queue_delay_microseconds = (uint64_t)(model->batch.max_delay_ns / NS_PER_US);
  inference__model_transaction_policy__init(&room->policy);
  inference__model_instance_group__init(&room->group);
  room->group.name = unconst(model->name);
  room->group.count = 1;
  room->group.kind = api->device[0] == 'c' && api->device[1] == 'p'
                         ? INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU
                         : INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU;
  room->groups[0] = &room->group;
}

void model_config(struct call *call, void *app) {
  struct api *api = app;
  struct wire_names names;
  struct error err;
  enum status status = wire_split_names(call_message(call), &names, &err);
  const struct model *model =
      status == STATUS_OK ? model_find(api, names.first, names.second, &status, &err) : NULL;
  if (!model) {
    call_fail(call, status, err.message);
    return;
  }
  struct config_room room = {0};
  tensors_fill(model, &room);
  parameters_fill(model, &room);
  scheduling_fill(api, model, &room);
  Inference__ModelConfig config = INFERENCE__MODEL_CONFIG__INIT;
  config.name = unconst(model->name);
  config.platform = config.backend = unconst("fusewire");
  config.max_batch_size = model->max_request_rows;
  config.input = room.input_list;
  config.n_input = (size_t)model->n_inputs;
  config.output = room.output_list;
  config.n_output = (size_t)model->n_outputs;
  config.instance_group = room.groups;
  config.n_instance_group = 1;
  config.scheduling_choice_case = INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING;
  config.dynamic_batching = &room.batching;
  config.model_transaction_policy = &room.policy;
  config.parameters = room.entry_list;
  config.n_parameters = room.n_parameters;
  Inference__ModelConfigResponse reply = INFERENCE__MODEL_CONFIG_RESPONSE__INIT;
  reply.config = &config;
  reply_message(call, &reply.base);
}
