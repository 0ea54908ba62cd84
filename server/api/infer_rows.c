// Memory and rows of a request: one slab for everything that the request needs beside its message,
// then mask and lengths become seqlens and positions, and ids are checked before a kernel may
// follow them.
//
//   response slab:  [ typed contents, converted ][ seqlens, positions ][ outputs in reply order ]
//   each part 64-byte aligned
#include "api/handlers.h"
#include "api/infer.h"
#include "sched/pack.h"

#include <stdio.h>
#include <string.h>

#define ALIGNED(bytes) (((bytes) + 63) & ~(uint64_t)63)

// batch and seq are int32 by now (infer_check), so their product cannot overflow.
static int64_t rows_of(const struct signature_tensor *tensor, const struct infer_shape *shape) {
  return shape->batch * (tensor->per_token ? shape->seq : 1);
}

static uint64_t bytes_of(const struct signature_tensor *tensor, const struct infer_shape *shape) {
  // Only asked for tensors that layout_fill found to fit.
  return (uint64_t)rows_of(tensor, shape) * (uint64_t)tensor->row_elements *
         dtype_bytes(tensor->dtype);
}

static int input_with_role(const struct model *model, enum input_role role) {
  for (int32_t i = 0; i < model->n_inputs; i++)
    if (model->inputs[i].role == role) return i;
  return -1;
}

// ---- layout ----
struct layout {
  uint64_t typed[LIMIT_MODEL_INPUTS],
      outputs[LIMIT_MODEL_OUTPUTS]; // offsets into the slab; outputs by reply order
  uint64_t seqlens, positions, bytes;
  bool sparse; // a mask or lengths came: positions may be dropped
};

static bool part_add(struct layout *layout, uint64_t *offset, uint64_t n, uint64_t each) {
  uint64_t bytes;
  *offset = layout->bytes;
  if (__builtin_mul_overflow(n, each, &bytes) || bytes > INT64_MAX / 4) return false;
  layout->bytes = ALIGNED(layout->bytes + bytes);
  return layout->bytes <= INT64_MAX / 2;
}

// An output that is an input unchanged, when every position is kept, is answered from the message
// itself.
static bool borrowed(const struct model *model, const struct request *request,
                     const struct layout *layout, int o) {
  int input = model->plans[request->fusion]->output_is_input[o];
  return input >= 0 && !layout->sparse && request->inputs[input].data;
}

static bool layout_fill(const struct model *model, const struct infer_shape *shape,
                        const struct request *request, struct layout *layout) {
  int mask = input_with_role(model, ROLE_MASK), lengths = input_with_role(model, ROLE_LENGTHS);
  bool ok = true;
  *layout = (struct layout){0};
  layout->sparse = (mask >= 0 && shape->wire_index[mask] >= 0) ||
                   (lengths >= 0 && shape->wire_index[lengths] >= 0);
  for (int32_t i = 0; !shape->raw && i < model->n_inputs; i++) {
    const struct signature_tensor *tensor = &model->inputs[i];
    if (shape->wire_index[i] >= 0)
      ok &= part_add(layout, &layout->typed[i], (uint64_t)rows_of(tensor, shape),
                     (uint64_t)tensor->row_elements * dtype_bytes(tensor->dtype));
  }
  if (layout->sparse) {
    ok &= part_add(layout, &layout->seqlens, (uint64_t)shape->batch, sizeof(int32_t));
    ok &= part_add(layout, &layout->positions, (uint64_t)shape->batch * (uint64_t)shape->seq,
                   sizeof(int32_t));
  }
  for (int32_t k = 0; ok && k < request->n_outputs; k++) {
    const struct signature_tensor *tensor = &model->outputs[request->output_order[k]];
    if (!borrowed(model, request, layout, request->output_order[k]))
      ok &= part_add(layout, &layout->outputs[k], (uint64_t)rows_of(tensor, shape),
                     (uint64_t)tensor->row_elements * dtype_bytes(tensor->dtype));
  }
  return ok;
}

static enum status slab_take(struct slab_pool *pool, const struct layout *layout,
                             struct request *request, struct error *err) {
  request->response = slab_get(pool, (size_t)layout->bytes);
  if (request->response) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                   "no memory for a reply of %llu bytes (limits.total_bytes, limits.message_bytes)",
                   (unsigned long long)layout->bytes);
}

// ---- typed contents ----
static enum status typed_convert(const struct model *model, const struct wire_infer *wire,
                                 const struct infer_shape *shape, const struct layout *layout,
                                 struct request *request, struct error *err) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    const struct signature_tensor *tensor = &model->inputs[i];
    if (shape->wire_index[i] < 0) continue;
    enum wire_typed kind = tensor->dtype == DTYPE_F32   ? TYPED_FP32
                           : tensor->dtype == DTYPE_I64 ? TYPED_INT64
                                                        : TYPED_INT32;
    int64_t expected = rows_of(tensor, shape) * tensor->row_elements, found;
    uint8_t *out = request->response->data + layout->typed[i];
    enum status status =
        wire_typed_read(&wire->inputs[shape->wire_index[i]], kind, out, expected, &found);
    if (status != STATUS_OK)
      return error_set(err, status, "input \"%s\": its contents are malformed", tensor->name);
    if (found != expected)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "input \"%s\": contents has %lld elements, expected %lld", tensor->name,
                       (long long)found, (long long)expected);
    request->inputs[i] = (struct slice){out, bytes_of(tensor, shape)};
  }
  return STATUS_OK;
}

// ---- mask and lengths ----
static int64_t integer_at(const struct slice *slice, enum dtype dtype, int64_t index) {
  if (dtype == DTYPE_I64) {
    int64_t value;
    memcpy(&value, slice->data + index * 8, sizeof value);
    return value;
  }
  int32_t value;
  memcpy(&value, slice->data + index * 4, sizeof value);
  return value;
}

// "[1, 2]" of flat index 5 in a tensor of sequences of three.
static const char *place_text(const struct signature_tensor *tensor, int64_t seq, int64_t index,
                              char *out, size_t out_bytes) {
  int64_t at[LIMIT_TENSOR_RANK];
  for (int32_t d = tensor->rank - 1; d > 0; d--) {
    int64_t size = tensor->dims[d] == DIM_SEQ ? seq : tensor->dims[d];
    at[d] = index % size;
    index /= size;
  }
  at[0] = index;
  size_t used = 0;
  for (int32_t d = 0; d < tensor->rank && used < out_bytes; d++)
    used +=
        (size_t)snprintf(out + used, out_bytes - used, "%s%lld", d ? ", " : "[", (long long)at[d]);
  if (used < out_bytes) snprintf(out + used, out_bytes - used, "]");
  return out;
}

// A value of a mask, of lengths or of ids that is none; `expected` in words.
static enum status element_bad(const struct signature_tensor *tensor, int64_t seq, int64_t index,
                               int64_t value, const char *expected, struct error *err) {
  char place[24 * LIMIT_TENSOR_RANK], where[96] = "";
  if (tensor->per_token)
    snprintf(where, sizeof where, " (position %lld of sequence %lld, flat index %lld)",
             (long long)(index / tensor->row_elements % seq),
             (long long)(index / tensor->row_elements / seq), (long long)index);
  return error_set(err, STATUS_INVALID_ARGUMENT, "input \"%s\": element %s is %lld, expected %s%s",
                   tensor->name, place_text(tensor, seq, index, place, sizeof place),
                   (long long)value, expected, where);
}

static enum status length_read(const struct model *model, const struct request *request,
                               int lengths, int64_t b, int64_t seq, int64_t *out,
                               struct error *err) {
  *out = seq;
  if (lengths < 0 || !request->inputs[lengths].data) return STATUS_OK;
  const struct signature_tensor *tensor = &model->inputs[lengths];
  *out = integer_at(&request->inputs[lengths], tensor->dtype, b);
  if (*out >= 0 && *out <= seq) return STATUS_OK;
  char expected[48];
  snprintf(expected, sizeof expected, "0 to %lld", (long long)seq);
  return element_bad(tensor, seq, b, *out, expected, err);
}

// Kept positions of sequence b, appended to `positions`; how many, or -1 with an error.
static int32_t sequence_keep(const struct model *model, const struct request *request, int mask,
                             int64_t b, int64_t length, int64_t seq, int32_t *positions,
                             struct error *err) {
  bool masked = mask >= 0 && request->inputs[mask].data;
  enum dtype dtype = masked ? model->inputs[mask].dtype : DTYPE_I64;
  int32_t n = 0;
  for (int64_t s = 0; s < seq; s++) {
    int64_t keep = masked ? integer_at(&request->inputs[mask], dtype, b * seq + s) : 1;
    if (keep != 0 && keep != 1) {
      (void)element_bad(&model->inputs[mask], seq, b * seq + s, keep, "0 or 1", err);
      return -1;
    }
    if (keep == 1 && s < length) positions[n++] = (int32_t)s;
  }
  return n;
}

static enum status rows_keep(const struct model *model, const struct infer_shape *shape,
                             const struct layout *layout, struct request *request,
                             struct error *err) {
  int mask = input_with_role(model, ROLE_MASK), lengths = input_with_role(model, ROLE_LENGTHS);
  int32_t *seqlens = (int32_t *)(void *)(request->response->data + layout->seqlens);
  int32_t *positions = (int32_t *)(void *)(request->response->data + layout->positions);
  int64_t kept = 0;
  for (int64_t b = 0; b < shape->batch; b++) {
    int64_t length;
    enum status status = length_read(model, request, lengths, b, shape->seq, &length, err);
    if (status != STATUS_OK) return status;
    int32_t n = sequence_keep(model, request, mask, b, length, shape->seq, positions + kept, err);
    if (n < 0) return STATUS_INVALID_ARGUMENT;
    seqlens[b] = n;
    kept += n;
    request->sum_sq += (int64_t)n * n;
  }
  if (kept == 0)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the mask or lengths keep no position of any sequence, expected at least 1");
  request->dense = kept == shape->batch * shape->seq;
  request->seqlens = request->dense ? NULL : seqlens;
  request->positions = request->dense ? NULL : positions;
  request->n_tokens = kept <= INT32_MAX ? (int32_t)kept : INT32_MAX;
  return STATUS_OK;
}

static void rows_dense(const struct model *model, const struct infer_shape *shape,
                       struct request *request) {
  int64_t rows = shape->batch * (model->has_sequences ? shape->seq : 1);
  request->dense = true;
  request->n_tokens = rows <= INT32_MAX ? (int32_t)rows : INT32_MAX;
  request->sum_sq = model->has_sequences ? shape->batch * shape->seq * shape->seq : shape->batch;
}

// ---- ids ----
static enum status id_bad(const struct signature_tensor *tensor, const struct request *request,
                          int64_t index, int64_t id, struct error *err) {
  char expected[48];
  snprintf(expected, sizeof expected, "0 to %lld", (long long)tensor->index_limit - 1);
  return element_bad(tensor, request->padded_seqlen, index, id, expected, err);
}

// Only kept positions are looked at: what stands where the mask is 0 is never read by a kernel.
static enum status ids_check(const struct signature_tensor *tensor, const struct slice *data,
                             const struct request *request, int64_t rows, struct error *err) {
  if (!tensor->per_token || request->dense) {
    for (int64_t i = 0; i < rows * tensor->row_elements; i++) {
      int64_t id = integer_at(data, tensor->dtype, i);
      if (id < 0 || id >= tensor->index_limit) return id_bad(tensor, request, i, id, err);
    }
    return STATUS_OK;
  }
  const int32_t *position = request->positions;
  for (int64_t b = 0; b < request->n_seqs; b++)
    for (int32_t n = 0; n < request->seqlens[b]; n++) {
      int64_t row = b * request->padded_seqlen + *position++;
      for (int64_t e = row * tensor->row_elements; e < (row + 1) * tensor->row_elements; e++) {
        int64_t id = integer_at(data, tensor->dtype, e);
        if (id < 0 || id >= tensor->index_limit) return id_bad(tensor, request, e, id, err);
      }
    }
  return STATUS_OK;
}

static enum status ids_check_all(const struct model *model, const struct infer_shape *shape,
                                 const struct request *request, struct error *err) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    const struct signature_tensor *tensor = &model->inputs[i];
    if (tensor->index_limit <= 0 || !request->inputs[i].data) continue;
    enum status status =
        ids_check(tensor, &request->inputs[i], request, rows_of(tensor, shape), err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

// ---- all of it ----
static void outputs_place(const struct model *model, const struct infer_shape *shape,
                          const struct layout *layout, struct request *request) {
  for (int32_t k = 0; k < request->n_outputs; k++) {
    int o = request->output_order[k];
    request->outputs_bytes[k] = bytes_of(&model->outputs[o], shape);
    if (borrowed(model, request, layout, o))
      request->outputs_data[k] =
          (uint8_t *)(uintptr_t)request->inputs[model->plans[request->fusion]->output_is_input[o]]
              .data;
    else
      request->outputs_data[k] = request->response->data + layout->outputs[k];
  }
}

static enum status size_check(const struct model *model, const struct request *request,
                              struct error *err) {
  if (request->n_tokens <= model->max_request_rows) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                   "the request has %d tokens, expected at most %d (batch.max_tokens)",
                   request->n_tokens, model->max_request_rows);
}

// Zeros of an input that is left out come from a block of fixed size.
static enum status optional_check(const struct model *model, const struct infer_shape *shape,
                                  struct error *err) {
  for (int32_t i = 0; i < model->n_inputs; i++) {
    const struct signature_tensor *tensor = &model->inputs[i];
    if (shape->wire_index[i] >= 0 || tensor->role != ROLE_DATA) continue;
    if ((uint64_t)tensor->row_elements * dtype_bytes(tensor->dtype) > LIMIT_OPTIONAL_ROW_BYTES)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "inputs: \"%s\" is missing; its rows are too wide to be left out",
                       tensor->name);
  }
  return STATUS_OK;
}

enum status infer_rows(const struct model *model, const struct wire_infer *wire,
                       const struct infer_shape *shape, struct slab_pool *pool,
                       struct request *request, struct error *err) {
  struct layout layout;
  request->n_seqs = (int32_t)shape->batch;
  request->padded_seqlen = (int32_t)shape->seq;
  if (!layout_fill(model, shape, request, &layout))
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "the reply would not fit into any memory");
  enum status status = optional_check(model, shape, err);
  if (status == STATUS_OK && layout.bytes > 0) status = slab_take(pool, &layout, request, err);
  if (status == STATUS_OK && !shape->raw)
    status = typed_convert(model, wire, shape, &layout, request, err);
  if (status == STATUS_OK && layout.sparse) status = rows_keep(model, shape, &layout, request, err);
  if (status == STATUS_OK && !layout.sparse) rows_dense(model, shape, request);
  if (status == STATUS_OK) status = size_check(model, request, err);
  if (status == STATUS_OK) status = ids_check_all(model, shape, request, err);
  if (status == STATUS_OK) outputs_place(model, shape, &layout, request);
  return status;
}
