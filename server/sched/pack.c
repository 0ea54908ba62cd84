#include "sched/pack.h"
#include "base/copy.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum status pack_arrays_init(struct pack_arrays *arrays, int32_t max_tokens, int32_t max_seqs) {
  *arrays = (struct pack_arrays){.max_tokens = max_tokens, .max_seqs = max_seqs};
  arrays->cu_seqlens = calloc((size_t)max_seqs + 1, sizeof *arrays->cu_seqlens);
  arrays->positions = calloc((size_t)max_tokens, sizeof *arrays->positions);
  arrays->scores_offset = calloc((size_t)max_seqs + 1, sizeof *arrays->scores_offset);
  if (arrays->cu_seqlens && arrays->positions && arrays->scores_offset) return STATUS_OK;
  pack_arrays_deinit(arrays);
  return STATUS_RESOURCE_EXHAUSTED;
}

void pack_arrays_deinit(struct pack_arrays *arrays) {
  free(arrays->cu_seqlens);
  free(arrays->positions);
  free(arrays->scores_offset);
  *arrays = (struct pack_arrays){0};
}

// Kept tokens of sequence `s`. A model without sequences has rows, each of them a sequence of one.
static int32_t seqlen_of(const struct request *request, int32_t s) {
  if (request->seqlens) return request->seqlens[s];
  return request->model->has_sequences ? request->padded_seqlen : 1;
}

static void positions_fill(const struct request *request, int32_t *out) {
  if (request->positions) {
    memcpy(out, request->positions, (size_t)request->n_tokens * sizeof *out);
    return;
  }
  for (int32_t s = 0; s < request->n_seqs; s++) {
    int32_t n = seqlen_of(request, s);
    for (int32_t i = 0; i < n; i++)
      *out++ = i;
  }
}

void pack_geometry(const struct request *first, const struct pack_arrays *arrays,
                   struct batch_geometry *out) {
  *out = (struct batch_geometry){.cu_seqlens = arrays->cu_seqlens,
                                 .positions = arrays->positions,
                                 .scores_offset = arrays->scores_offset};
  arrays->cu_seqlens[0] = 0;
  arrays->scores_offset[0] = 0;
  for (const struct request *request = first; request; request = request->next) {
    FW_ASSERT(out->n_tokens + request->n_tokens <= arrays->max_tokens);
    FW_ASSERT(out->n_seqs + request->n_seqs <= arrays->max_seqs);
    positions_fill(request, arrays->positions + out->n_tokens);
    for (int32_t s = 0; s < request->n_seqs; s++) {
      int32_t n = seqlen_of(request, s), at = out->n_seqs + s;
      arrays->cu_seqlens[at + 1] = arrays->cu_seqlens[at] + n;
      arrays->scores_offset[at + 1] = arrays->scores_offset[at] + (int64_t)n * n;
      if (n > out->max_seqlen) out->max_seqlen = n;
    }
    out->n_seqs += request->n_seqs;
    out->n_tokens += request->n_tokens;
  }
  FW_ASSERT(arrays->cu_seqlens[out->n_seqs] == out->n_tokens);
  out->sum_sq = arrays->scores_offset[out->n_seqs];
}

// Walks the runs of neighbouring kept positions of a request that is not dense.
struct run {
  int64_t packed_row, wire_row, n;
};
struct run_cursor {
  const struct request *request;
  int32_t seq, taken; // sequence, and how many of its tokens are behind us
  int64_t row;        // packed rows behind us
};

static bool run_next(struct run_cursor *cursor, struct run *out) {
  const struct request *request = cursor->request;
  while (cursor->seq < request->n_seqs && cursor->taken == request->seqlens[cursor->seq]) {
    cursor->seq++;
    cursor->taken = 0;
  }
  if (cursor->seq == request->n_seqs) return false;
  const int32_t *positions = request->positions + cursor->row;
  int32_t left = request->seqlens[cursor->seq] - cursor->taken, n = 1;
  while (n < left && positions[n] == positions[0] + n)
    n++;
  *out = (struct run){cursor->row, (int64_t)cursor->seq * request->padded_seqlen + positions[0], n};
  cursor->taken += n;
  cursor->row += n;
  return true;
}

static size_t row_bytes(const struct signature_tensor *tensor) {
  return (size_t)tensor->row_elements * dtype_bytes(tensor->dtype);
}

void pack_in(const struct pack_target *target, const struct request *request,
             struct pack_origin origin, uint32_t inputs) {
  const struct model *model = request->model;
  for (int i = 0; i < model->n_inputs; i++) {
    if (!(inputs >> i & 1)) continue;
    const struct signature_tensor *tensor = &model->inputs[i];
    const uint8_t *data = request->inputs[i].data;
    int64_t row = tensor->per_token ? origin.token : origin.seq;
    int64_t n_rows = tensor->per_token ? request->n_tokens : request->n_seqs;
    if (!data) { // an optional input that was left out
      target->backend->zero_in(target->lane, target->bound, i, row, n_rows);
    } else if (!tensor->per_token || request->dense) {
      target->backend->copy_in(target->lane, target->bound, i, row, n_rows, data);
    } else {
      struct run_cursor cursor = {.request = request};
      struct run run;
      while (run_next(&cursor, &run))
        target->backend->copy_in(target->lane, target->bound, i, row + run.packed_row, run.n,
                                 data + (size_t)run.wire_row * row_bytes(tensor));
    }
  }
}

// Calls for each run of kept rows, and writes zeros between them.
static void rows_unpack(const struct request *request, const struct signature_tensor *tensor,
                        uint8_t *out, void (*copy)(void *arg, const struct run *run, uint8_t *to),
                        void *arg) {
  size_t bytes = row_bytes(tensor);
  int64_t total = (int64_t)request->n_seqs * request->padded_seqlen, done = 0;
  struct run_cursor cursor = {.request = request};
  struct run run;
  while (run_next(&cursor, &run)) {
    memset(out + (size_t)done * bytes, 0, (size_t)(run.wire_row - done) * bytes);
    copy(arg, &run, out + (size_t)run.wire_row * bytes);
    done = run.wire_row + run.n;
  }
  memset(out + (size_t)done * bytes, 0, (size_t)(total - done) * bytes);
}

struct device_copy {
  const struct pack_target *target;
  int output;
  int64_t row;
};

static void copy_device(void *arg, const struct run *run, uint8_t *to) {
  const struct device_copy *copy = arg;
  const struct pack_target *target = copy->target;
  target->backend->copy_out(target->lane, target->bound, copy->output, copy->row + run->packed_row,
                            run->n, to);
}

struct host_copy {
  const uint8_t *from;
  size_t row_bytes;
};

static void copy_host(void *arg, const struct run *run, uint8_t *to) {
  const struct host_copy *copy = arg;
  copy_bytes(to, copy->from + (size_t)run->wire_row * copy->row_bytes,
             (size_t)run->n * copy->row_bytes);
}

// Output `k` of the reply is input `input` unchanged.
static void identity_out(const struct request *request, int k, int input) {
  const struct signature_tensor *tensor = &request->model->outputs[request->output_order[k]];
  uint8_t *out = request->outputs_data[k];
  const uint8_t *data = request->inputs[input].data;
  if (out == data) return; // borrowed from the message
  if (!data) {
    memset(out, 0, request->outputs_bytes[k]);
  } else if (!tensor->per_token || request->dense) {
    copy_bytes(out, data, request->outputs_bytes[k]);
  } else {
    struct host_copy copy = {data, row_bytes(tensor)};
    rows_unpack(request, tensor, out, copy_host, &copy);
  }
}

void pack_identity(const struct request *request) {
  const struct plan *plan = request->model->plans[request->fusion];
  for (int k = 0; k < request->n_outputs; k++) {
    int input = plan->output_is_input[request->output_order[k]];
    if (input >= 0) identity_out(request, k, input);
  }
}

void pack_out(const struct pack_target *target, const struct request *request,
              struct pack_origin origin) {
  const struct model *model = request->model;
  const struct plan *plan = model->plans[request->fusion];
  for (int k = 0; k < request->n_outputs; k++) {
    int o = request->output_order[k];
    if (plan->output_is_input[o] >= 0) continue;
    const struct signature_tensor *tensor = &model->outputs[o];
    int64_t row = tensor->per_token ? origin.token : origin.seq;
    if (tensor->per_token && !request->dense) {
      struct device_copy copy = {target, o, row};
      rows_unpack(request, tensor, request->outputs_data[k], copy_device, &copy);
    } else {
      int64_t n_rows = tensor->per_token ? request->n_tokens : request->n_seqs;
      target->backend->copy_out(target->lane, target->bound, o, row, n_rows,
                                request->outputs_data[k]);
    }
  }
  pack_identity(request);
}
