// Does the request fit the model's signature? Nothing is allocated and nothing of a payload is read
// here.
#include "api/handlers.h"
#include "api/infer.h"

#include <stdio.h>
#include <string.h>

// ---- text for messages ----
static const char *shape_text(const int64_t *dims, int32_t rank, char *out, size_t out_bytes) {
  size_t used = (size_t)snprintf(out, out_bytes, "[");
  for (int32_t i = 0; i < rank && used < out_bytes; i++) {
    const char *comma = i > 0 ? ", " : "";
    if (dims[i] == DIM_BATCH)
      used += (size_t)snprintf(out + used, out_bytes - used, "%sbatch", comma);
    else if (dims[i] == DIM_SEQ)
      used += (size_t)snprintf(out + used, out_bytes - used, "%sseq", comma);
    else
      used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", comma, (long long)dims[i]);
  }
  if (used < out_bytes) snprintf(out + used, out_bytes - used, "]");
  return out;
}

// A shape as it came: negative numbers are numbers here.
static const char *found_text(const struct wire_input *input, char *out, size_t out_bytes) {
  size_t used = (size_t)snprintf(out, out_bytes, "[");
  for (int32_t i = 0; i < input->rank && used < out_bytes; i++)
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", i > 0 ? ", " : "",
                             (long long)input->shape[i]);
  if (used < out_bytes) snprintf(out + used, out_bytes - used, "]");
  return out;
}

static const char *names_text(const struct signature_tensor *tensors, int32_t n, char *out,
                              size_t out_bytes) {
  size_t used = 0;
  out[0] = 0;
  for (int32_t i = 0; i < n && used < out_bytes; i++)
    used +=
        (size_t)snprintf(out + used, out_bytes - used, "%s%s", i > 0 ? ", " : "", tensors[i].name);
  return out;
}

static int find_tensor(const struct signature_tensor *tensors, int32_t n, struct slice name) {
  for (int32_t i = 0; i < n; i++)
    if (slice_is(name, tensors[i].name, tensors[i].name_bytes)) return i;
  return -1;
}

// ---- parameters ----
// Parameters that are not ours are ignored, as the protocol wants it.
static enum status check_fusion(const struct model *model, const struct wire_infer *wire,
                                struct request *request, struct infer_shape *shape,
                                struct error *err) {
  request->fusion = model->fusion_default;
  for (int32_t i = 0; i < wire->n_parameters; i++) {
    const struct wire_parameter *parameter = &wire->parameters[i];
    if (!slice_is(parameter->key, "fusion", 6)) continue;
    shape->fusion_named = true;
    if (parameter->choice != WIRE_STRING)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "parameter \"fusion\": found a value of another type, expected the string "
                       "\"on\", \"off\" or \"auto\"");
    int found = 0;
    while (found < FUSION_MODES && !slice_is(parameter->text, fusion_name((enum fusion_mode)found),
                                             strlen(fusion_name((enum fusion_mode)found))))
      found++;
    if (found == FUSION_MODES)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "parameter \"fusion\": found \"%.*s\", expected \"on\", \"off\" or \"auto\"",
                       TEXT_ARGS(parameter->text));
    request->fusion = found == FUSION_AUTO ? model->auto_is : (enum fusion_mode)found;
    if (model->fusion_available[request->fusion]) continue;
    request->fusion = model->fusion_default;
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "parameter \"fusion\": found \"%s\", but model \"%s\" is loaded with fusion \"%s\" only; "
        "for all of them its file needs fusion: ab",
        fusion_name((enum fusion_mode)found), model->name, fusion_name(model->fusion_default));
  }
  return STATUS_OK;
}

// audit: true wants what the batch moved through device memory as the device counts it.
static enum status check_audit(const struct model *model, const struct wire_infer *wire,
                               struct request *request, struct error *err) {
  for (int32_t i = 0; i < wire->n_parameters; i++) {
    const struct wire_parameter *parameter = &wire->parameters[i];
    if (!slice_is(parameter->key, "audit", 5)) continue;
    if (parameter->choice != WIRE_BOOL)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "parameter \"audit\": found a value of another type, expected a bool");
    request->audit = parameter->number != 0;
  }
  if (request->audit && !model->audit[0][model->fusion_default])
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "parameter \"audit\": this server counts no traffic (audit.mode: off)");
  return STATUS_OK;
}

// ---- outputs ----
static enum status check_output(const struct model *model, const struct wire_output *output,
                                struct request *request, struct error *err) {
  int o = find_tensor(model->outputs, model->n_outputs, output->name);
  char names[512];
  if (o < 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "outputs: found \"%.*s\", model \"%s\" has %s",
                     TEXT_ARGS(output->name), model->name,
                     names_text(model->outputs, model->n_outputs, names, sizeof names));
  if (request->outputs >> o & 1)
    return error_set(err, STATUS_INVALID_ARGUMENT, "outputs: \"%s\" is asked for twice",
                     model->outputs[o].name);
  if (output->shared_memory || output->classification)
    return error_set(err, STATUS_INVALID_ARGUMENT, "output \"%s\": %s is not supported",
                     model->outputs[o].name,
                     output->shared_memory ? "shared memory" : "classification");
  request->outputs |= (uint8_t)(1u << o);
  request->output_order[request->n_outputs++] = (uint8_t)o;
  return STATUS_OK;
}

static enum status check_outputs(const struct model *model, const struct wire_infer *wire,
                                 struct request *request, struct error *err) {
  for (int32_t i = 0; i < wire->n_outputs; i++) {
    enum status status = check_output(model, &wire->outputs[i], request, err);
    if (status != STATUS_OK) return status;
  }
  for (int32_t o = 0; wire->n_outputs == 0 && o < model->n_outputs;
       o++) { // none named: all of them
    request->outputs |= (uint8_t)(1u << o);
    request->output_order[request->n_outputs++] = (uint8_t)o;
  }
  return STATUS_OK;
}

// ---- inputs ----
static enum status bad_shape(const struct signature_tensor *tensor, const struct wire_input *input,
                             struct error *err) {
  char found[192], expected[192];
  return error_set(err, STATUS_INVALID_ARGUMENT, "input \"%s\": shape is %s, expected %s",
                   tensor->name, found_text(input, found, sizeof found),
                   shape_text(tensor->dims, tensor->rank, expected, sizeof expected));
}

// One dimension that the client chooses: the same number in every input, at least 1.
static enum status bind_dim(const struct signature_tensor *tensor, const char *name, int64_t found,
                            int64_t *bound, struct error *err) {
  if (found <= 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "input \"%s\": %s is %lld, expected at least 1",
                     tensor->name, name, (long long)found);
  if (*bound == 0) *bound = found;
  if (*bound != found)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": %s is %lld, but another input has %lld", tensor->name, name,
                     (long long)found, (long long)*bound);
  return STATUS_OK;
}

static enum status check_shape(const struct signature_tensor *tensor,
                               const struct wire_input *input, struct infer_shape *shape,
                               struct error *err) {
  if (input->rank != tensor->rank) return bad_shape(tensor, input, err);
  for (int32_t d = 0; d < tensor->rank; d++) {
    enum status status = STATUS_OK;
    if (tensor->dims[d] == DIM_BATCH)
      status = bind_dim(tensor, "batch", input->shape[d], &shape->batch, err);
    else if (tensor->dims[d] == DIM_SEQ)
      status = bind_dim(tensor, "seq", input->shape[d], &shape->seq, err);
    else if (tensor->dims[d] != input->shape[d])
      status = bad_shape(tensor, input, err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

static enum status check_typed(const struct signature_tensor *tensor,
                               const struct wire_input *input, struct error *err) {
  if (tensor->dtype == DTYPE_F16 || tensor->dtype == DTYPE_BF16)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": %s has no typed contents; send raw_input_contents",
                     tensor->name, datatype_name(tensor->dtype));
  enum wire_typed kind = tensor->dtype == DTYPE_F32   ? TYPED_FP32
                         : tensor->dtype == DTYPE_I64 ? TYPED_INT64
                                                      : TYPED_INT32;
  static const char *const fields[] = {[TYPED_FP32] = "fp32_contents",
                                       [TYPED_INT64] = "int64_contents",
                                       [TYPED_INT32] = "int_contents"};
  if (input->typed == 0)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": no data: neither raw_input_contents nor contents.%s is there",
                     tensor->name, fields[kind]);
  if (input->typed != 1u << kind)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": contents of another type, expected %s for %s", tensor->name,
                     fields[kind], datatype_name(tensor->dtype));
  return STATUS_OK;
}

static enum status check_input(const struct model *model, const struct wire_input *input,
                               int16_t position, struct infer_shape *shape, struct error *err) {
  int i = find_tensor(model->inputs, model->n_inputs, input->name);
  char names[512];
  if (i < 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "inputs: found \"%.*s\", model \"%s\" has %s",
                     TEXT_ARGS(input->name), model->name,
                     names_text(model->inputs, model->n_inputs, names, sizeof names));
  const struct signature_tensor *tensor = &model->inputs[i];
  if (shape->wire_index[i] >= 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "inputs: \"%s\" is given twice", tensor->name);
  shape->wire_index[i] = position;
  if (input->shared_memory)
    return error_set(err, STATUS_INVALID_ARGUMENT, "input \"%s\": shared memory is not supported",
                     tensor->name);
  const char *datatype = datatype_name(tensor->dtype);
  if (!slice_is(input->datatype, datatype, strlen(datatype)))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": datatype is \"%.*s\", expected %s", tensor->name,
                     TEXT_ARGS(input->datatype), datatype);
  enum status status = check_shape(tensor, input, shape, err);
  if (status != STATUS_OK) return status;
  if (!shape->raw) return check_typed(tensor, input, err);
  if (input->typed != 0)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\": both raw_input_contents and contents, expected one of them",
                     tensor->name);
  return STATUS_OK;
}

static enum status check_missing(const struct model *model, const struct infer_shape *shape,
                                 struct error *err) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    const struct signature_tensor *tensor = &model->inputs[i];
    if (shape->wire_index[i] < 0 && !tensor->optional)
      return error_set(err, STATUS_INVALID_ARGUMENT, "inputs: \"%s\" is missing", tensor->name);
  }
  return STATUS_OK;
}

static enum status check_inputs(const struct model *model, const struct wire_infer *wire,
                                struct infer_shape *shape, struct error *err) {
  shape->raw = wire->n_raw > 0;
  memset(shape->wire_index, -1, sizeof shape->wire_index);
  for (int32_t i = 0; i < wire->n_inputs; i++) {
    enum status status = check_input(model, &wire->inputs[i], (int16_t)i, shape, err);
    if (status != STATUS_OK) return status;
  }
  enum status status = check_missing(model, shape, err);
  if (status == STATUS_OK && shape->raw && wire->n_raw != wire->n_inputs)
    status = error_set(err, STATUS_INVALID_ARGUMENT,
                       "raw_input_contents: found %d, expected %d, one for each input", wire->n_raw,
                       wire->n_inputs);
  return status;
}

// ---- sizes ----
// Elements that the shape promises; false when the product is more than a number can hold. batch
// and seq are still whatever the client wrote.
static bool elements_of(const struct signature_tensor *tensor, const struct infer_shape *shape,
                        int64_t *out) {
  int64_t rows = shape->batch;
  if (tensor->per_token && __builtin_mul_overflow(rows, shape->seq, &rows)) return false;
  return !__builtin_mul_overflow(rows, tensor->row_elements, out);
}

static enum status check_raw(const struct signature_tensor *tensor, const struct wire_input *input,
                             struct slice raw, const struct infer_shape *shape, struct error *err) {
  int64_t elements, expected;
  bool fits = elements_of(tensor, shape, &elements) &&
              !__builtin_mul_overflow(elements, (int64_t)dtype_bytes(tensor->dtype), &expected);
  if (fits && raw.bytes == (size_t)expected) return STATUS_OK;
  char text[192], number[32] = "more than there can be";
  if (fits) snprintf(number, sizeof number, "%lld", (long long)expected);
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "input \"%s\": raw_input_contents has %zu bytes, expected %s for shape %s of %s",
                   tensor->name, raw.bytes, number, found_text(input, text, sizeof text),
                   datatype_name(tensor->dtype));
}

// Typed contents are counted when they are converted; here it is enough that the shape does not
// promise more elements than the contents have bytes.
static enum status check_contents(const struct signature_tensor *tensor,
                                  const struct wire_input *input, const struct infer_shape *shape,
                                  struct error *err) {
  size_t most = 0;
  for (int32_t i = 0; i < input->n_contents; i++)
    most += input->contents[i].bytes;
  int64_t elements;
  if (elements_of(tensor, shape, &elements) && (size_t)elements <= most) return STATUS_OK;
  char text[192];
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "input \"%s\": contents has fewer elements than its shape %s", tensor->name,
                   found_text(input, text, sizeof text));
}

static enum status check_bytes(const struct model *model, const struct wire_infer *wire,
                               const struct infer_shape *shape, struct request *request,
                               struct error *err) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    int at = shape->wire_index[i];
    if (at < 0) continue;
    enum status status =
        shape->raw ? check_raw(&model->inputs[i], &wire->inputs[at], wire->raw[at], shape, err)
                   : check_contents(&model->inputs[i], &wire->inputs[at], shape, err);
    if (status != STATUS_OK) return status;
    if (shape->raw) request->inputs[i] = wire->raw[at];
  }
  return STATUS_OK;
}

// After the bytes: by now a large shape is one that was really sent.
static enum status check_size(const struct model *model, const struct request *request,
                              const struct infer_shape *shape, struct error *err) {
  int32_t max_seqs = model->plans[request->fusion]->limits.max_seqs;
  if (shape->batch == 0) // every input is optional and none was given
    return error_set(err, STATUS_INVALID_ARGUMENT, "inputs: none was given, so there is no batch");
  if (model->has_sequences && shape->seq == 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "inputs: none with a seq dimension was given");
  if (shape->seq > model->max_seqlen)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "seq is %lld, expected at most %d for model \"%s\"", (long long)shape->seq,
                     model->max_seqlen, model->name);
  if (shape->batch > max_seqs)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "batch is %lld, expected at most %d (batch.max_tokens)",
                     (long long)shape->batch, max_seqs);
  return STATUS_OK;
}

enum status infer_check(const struct model *model, const struct wire_infer *wire,
                        struct request *request, struct infer_shape *shape, struct error *err) {
  *shape = (struct infer_shape){0};
  if (wire->id.bytes > sizeof request->id)
    return error_set(err, STATUS_INVALID_ARGUMENT, "id: found %zu bytes, expected at most %zu",
                     wire->id.bytes, sizeof request->id);
  if (wire->id.bytes > 0) memcpy(request->id, wire->id.data, wire->id.bytes);
  request->id_bytes = (uint16_t)wire->id.bytes;
  enum status status = check_fusion(model, wire, request, shape, err);
  if (status == STATUS_OK) status = check_audit(model, wire, request, err);
  if (status == STATUS_OK) status = check_outputs(model, wire, request, err);
  if (status == STATUS_OK) status = check_inputs(model, wire, shape, err);
  if (status == STATUS_OK) status = check_bytes(model, wire, shape, request, err);
  if (status == STATUS_OK) status = check_size(model, request, shape, err);
  return status;
}
