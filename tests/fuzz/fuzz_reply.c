// ModelInferResponse messages as a hostile server would send them: client/reply.c and client/pb.c.
// links: fw_client fw_base
#include "base/log.h"
#include "client/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static struct reply reply;
  struct reply_cost cost;
  struct error err = {0};
  const struct slice message = {data, bytes};
  const bool scanned = reply_scan_cost(message, &cost);
  if (reply_parse(message, &reply, &err) != STATUS_OK) return 0;
  FW_ASSERT(scanned); // what the whole parser takes, the scanner takes too
  FW_ASSERT(cost.present == reply.cost.present);
  for (int i = 0; i < reply.n_outputs; i++) {
    const struct slice raw = reply.outputs[i].raw;
    FW_ASSERT(raw.data >= data && raw.data + raw.bytes <= data + bytes);
  }
  return 0;
}
