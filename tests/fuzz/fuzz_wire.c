// The protobuf scanner: any bytes at all, and every typed reading of what it found.
// links: fw_rpc fw_base
#include "rpc/wire.h"

#include <stdlib.h>

static void check_slice(struct slice slice, const uint8_t *data, size_t size) {
  if (slice.bytes > 0 && (slice.data < data || slice.data + slice.bytes > data + size))
    abort(); // outside the message
}

static void read_typed(const struct wire_input *input, enum wire_typed kind) {
  int64_t out[16], found;
  if (wire_typed_read(input, kind, out, 16, &found) == STATUS_OK && found < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct wire_infer infer;
  struct wire_names names;
  struct error err;
  struct slice message = {data, size};
  if (wire_split_names(message, &names, &err) == STATUS_OK) check_slice(names.first, data, size);
  (void)!wire_check_strings(message, 1u << 1 | 1u << 3, &err);
  if (wire_split(message, &infer, &err) != STATUS_OK) return 0;
  check_slice(infer.model_name, data, size);
  check_slice(infer.id, data, size);
  if (!wire_utf8(infer.model_name)) abort();
  for (int i = 0; i < infer.n_parameters; i++)
    check_slice(infer.parameters[i].key, data, size);
  for (int i = 0; i < infer.n_raw; i++)
    check_slice(infer.raw[i], data, size);
  for (int i = 0; i < infer.n_outputs; i++)
    check_slice(infer.outputs[i].name, data, size);
  for (int i = 0; i < infer.n_inputs; i++) {
    check_slice(infer.inputs[i].name, data, size);
    if (infer.inputs[i].rank < 0 || infer.inputs[i].rank > LIMIT_TENSOR_RANK) abort();
    read_typed(&infer.inputs[i], TYPED_INT32);
    read_typed(&infer.inputs[i], TYPED_INT64);
    read_typed(&infer.inputs[i], TYPED_FP32);
  }
  return 0;
}
