// Who holds how much of one card's memory. Pure bookkeeping: nothing is allocated here.
//
// What is booked was promised, so that a model that does not fit is refused while it loads, with
// every entry in the message, and no allocation can fail later. Booked and given back by the thread
// that loads; read by any thread (metrics).
#ifndef BACKEND_CUDA_LEDGER_H
#define BACKEND_CUDA_LEDGER_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

enum ledger_kind {
  LEDGER_CONTEXT,   // held before our first allocation: the driver's context, other processes
  LEDGER_WEIGHTS,   // packed weights of all bound plans
  LEDGER_ARENAS,    // intermediates and batch geometry of the lanes
  LEDGER_WORKSPACE, // scratch of cuBLASLt
  LEDGER_GRAPHS,    // captured graphs, as measured
  LEDGER_HEADROOM,  // kept free for what the driver takes late (device.headroom)
  LEDGER_KINDS
};
const char *ledger_kind_name(enum ledger_kind kind); // "context", "weights" and so on

struct ledger {
  char device[32]; // "cuda:0", for messages
  int64_t total_bytes;
  _Atomic int64_t held_bytes[LEDGER_KINDS];
};

// A card of total_bytes of which free_bytes were free. More headroom than that leaves nothing to
// reserve.
void ledger_init(struct ledger *ledger, const char *device, int64_t total_bytes, int64_t free_bytes,
                 int64_t headroom_bytes);
int64_t ledger_free_bytes(const struct ledger *ledger); // may be negative after ledger_note
// RESOURCE_EXHAUSTED, nothing booked, `name` ("weights of model x") and all entries in the message.
MUST_USE enum status ledger_reserve(struct ledger *ledger, enum ledger_kind kind, int64_t bytes,
                                    const char *name, struct error *err);
// Books what has been taken already and could not be known before (graphs).
void ledger_note(struct ledger *ledger, enum ledger_kind kind, int64_t bytes);
void ledger_release(struct ledger *ledger, enum ledger_kind kind, int64_t bytes);
// "143155.0 MiB = context 520.0 + weights 1201.5 + ... + free 130100.2"; returns `out`.
const char *ledger_text(const struct ledger *ledger, char *out, size_t out_bytes);

#endif
