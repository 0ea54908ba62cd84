// gRPC's rules as functions of bytes. First byte: options; then what is fed in pieces.
// links: fw_rpc fw_base
#include "base/log.h"
#include "rpc/grpc.h"
#include <stdlib.h>
#include <string.h>

static void try_texts(const uint8_t *data, size_t size) {
  int64_t timeout_ns = -1;
  if (grpc_timeout_parse(data, size, &timeout_ns)) FW_ASSERT(timeout_ns >= 0);
  (void)grpc_content_type_ok(data, size);
  char parent[GRPC_TRACEPARENT_BYTES + 1], again[GRPC_TRACEPARENT_BYTES + 1];
  if (grpc_traceparent_take(data, size, parent)) // what is taken is as it should be
    FW_ASSERT(grpc_traceparent_take((const uint8_t *)parent, strlen(parent), again) &&
              strcmp(parent, again) == 0);
  if (grpc_tracestate_ok(data, size)) FW_ASSERT(size <= GRPC_TRACESTATE_BYTES);
  char text[2048];
  size_t bytes = size < sizeof text - 1 ? size : sizeof text - 1;
  memcpy(text, data, bytes);
  text[bytes] = 0;
  uint8_t out[GRPC_MESSAGE_ENCODED_BYTES];
  size_t n = grpc_message_encode(text, out);
  FW_ASSERT(n <= sizeof out);
  for (size_t i = 0; i < n; i++)
    FW_ASSERT(out[i] >= 0x20 && out[i] <= 0x7E);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  uint8_t options = data[0];
  data++, size--;
  try_texts(data, size);
  struct budget budget = {.limit_bytes = 1 << 20};
  struct slab_pool_options pool = {.max_slab_bytes = 1 << 20, .budget = &budget};
  struct grpc_room room = {.max_message_bytes = 600000, .connection_bytes = 700000};
  FW_ASSERT(slab_pool_open(&pool, &room.pool) == STATUS_OK);
  struct grpc_framer framer = {0};
  static struct error err;
  enum status status = STATUS_OK;
  size_t fed = 0, piece = (size_t)(options >> 1) + 1;
  for (; fed < size && status == STATUS_OK; fed += piece < size - fed ? piece : size - fed)
    status = grpc_framer_feed(&framer, &room, options & 1 ? GRPC_UNSUPPORTED : GRPC_IDENTITY,
                              data + fed, piece < size - fed ? piece : size - fed, &err);
  if (status == STATUS_OK && grpc_framer_end(&framer, &err) == STATUS_OK) {
    FW_ASSERT(framer.filled + GRPC_PREFIX_BYTES == size && framer.declared == framer.filled);
    FW_ASSERT(memcmp(framer.slab->data, data + GRPC_PREFIX_BYTES, framer.filled) == 0);
  }
  grpc_framer_drop(&framer, &room);
  FW_ASSERT(room.held_bytes == 0 && budget.used_bytes == 0);
  slab_pool_close(room.pool);
  return 0;
}
