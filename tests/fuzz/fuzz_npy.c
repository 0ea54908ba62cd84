// .npy files as they come from anywhere: client/npy.c.
// links: fw_client fw_base
#include "base/log.h"
#include "client/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct infer_tensor tensor = {0};
  struct slice elements = {0};
  struct error err = {0};
  size_t expected = 0;
  if (npy_parse((struct slice){data, bytes}, &tensor, &elements, &err) != STATUS_OK) {
    FW_ASSERT(err.message[0]);
    return 0;
  }
  FW_ASSERT(tensor.rank >= 0 && tensor.rank <= TENSOR_RANK);
  FW_ASSERT(tensor_bytes(tensor.type, tensor.dims, tensor.rank, &expected) == STATUS_OK);
  FW_ASSERT(expected == elements.bytes && elements.data + elements.bytes == data + bytes);
  return 0;
}
