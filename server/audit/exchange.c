#include "audit/exchange.h"
#include "base/log.h"

#include <stdlib.h>

const char *audit_state_name(enum audit_state state) {
  static const char *const names[] = {"uncalibrated", "calibrated", "refused"};
  return (unsigned)state < sizeof names / sizeof *names ? names[state] : "invalid";
}

const char *audit_outcome_name(enum audit_outcome outcome) {
  static const char *const names[AUDIT_OUTCOMES] = {"none",         "measured", "late",   "lost",
                                                    "uncalibrated", "skipped",  "refused"};
  return (unsigned)outcome < AUDIT_OUTCOMES ? names[outcome] : "invalid";
}

enum status exchange_open(struct audit_exchange *exchange) {
  exchange->pool = calloc(AUDIT_BATCHES, sizeof *exchange->pool);
  enum status status = exchange->pool ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
  // With room for the copy too; neither ring can be full.
  if (status == STATUS_OK) status = ring_init(&exchange->pushed, AUDIT_BATCHES + 1);
  if (status == STATUS_OK) status = ring_init(&exchange->returned, AUDIT_BATCHES + 1);
  wake_init(&exchange->wake, NULL, NULL);
  for (int i = 0; status == STATUS_OK && i < AUDIT_BATCHES; i++)
    exchange->free_list[exchange->n_free++] = &exchange->pool[AUDIT_BATCHES - 1 - i];
  return status;
}

void exchange_close(struct audit_exchange *exchange) {
  ring_deinit(&exchange->pushed);
  ring_deinit(&exchange->returned);
  free(exchange->pool);
}

// ---- the executor's side ----
struct audit_batch *exchange_begin(struct audit_exchange *exchange, int lane, bool wanted) {
  FW_ASSERT(lane >= 0 && lane < LIMIT_LANES);
  if (exchange->n_free == 0) {
    atomic_fetch_add(&exchange->blind, 1);
    return NULL;
  }
  struct audit_batch *batch = exchange->free_list[--exchange->n_free];
  *batch = (struct audit_batch){.lane = lane, .wanted = wanted};
  if (wanted) atomic_fetch_add(&exchange->wanted_begun, 1);
  // Before the device hears of it: whoever has a sample of its time sees it here.
  atomic_fetch_add(&exchange->begun[lane], 1);
  return batch;
}

void exchange_end(struct audit_exchange *exchange, struct audit_batch *batch) {
  bool wanted = batch->wanted; // from the push on it is the decoder's
  bool pushed = ring_push(&exchange->pushed, batch);
  FW_ASSERT(pushed); // as large as the pool
  if (wanted || atomic_load(&exchange->state) == AUDIT_GONE) wake_signal(&exchange->wake);
}

struct audit_batch *exchange_reap(struct audit_exchange *exchange) {
  return ring_pop(&exchange->returned);
}

void exchange_free(struct audit_exchange *exchange, struct audit_batch *batch) {
  exchange->free_list[exchange->n_free++] = batch;
}

// All samples from so long before the copy until so long after it are its own: wherever in them its
// bytes are, by clocks that are off by offset_most_ns.
static int64_t around_ns(const struct audit_exchange *exchange) {
  return exchange->interval_ns +
         atomic_load_explicit(&exchange->offset_most_ns, memory_order_relaxed);
}

// A further sample may hold the end of what ran before, or the beginning of what comes after.
int64_t exchange_quiet_ns(const struct audit_exchange *exchange) {
  return 2 * around_ns(exchange);
}

void exchange_copy_begin(struct audit_exchange *exchange) {
  atomic_store(&exchange->copy_state, COPY_RUNS);
  atomic_fetch_add(&exchange->begun[AUDIT_COPY_LANE], 1);
}

void exchange_copy_end(struct audit_exchange *exchange, const struct counter_copy *copy,
                       int64_t now_ns) {
  struct audit_batch *batch = &exchange->copy;
  int64_t around = around_ns(exchange);
  *batch = (struct audit_batch){
      .kind = AUDIT_COPY, .lane = AUDIT_COPY_LANE, .failed = !copy, .copied_ns = now_ns};
  if (copy) {
    batch->span = (struct device_span){copy->began_ns - around, copy->began_ns, copy->ended_ns,
                                       copy->ended_ns + around};
    batch->bytes.expected = (struct audit_bytes){copy->read_bytes, copy->write_bytes};
  }
  atomic_store(&exchange->copy_state, COPY_NONE);
  bool pushed = ring_push(&exchange->pushed, batch);
  FW_ASSERT(pushed);
  wake_signal(&exchange->wake);
}

// ---- the decoder's side ----
struct audit_batch *exchange_pop(struct audit_exchange *exchange) {
  return ring_pop(&exchange->pushed);
}

static void wake_executor(struct audit_exchange *exchange) {
  struct wake *wake = atomic_load_explicit(&exchange->executor, memory_order_acquire);
  if (wake) wake_signal(wake);
}

void exchange_return(struct audit_exchange *exchange, struct audit_batch *batch) {
  bool wanted = batch->wanted; // from the push on it is the executor's
  bool pushed = ring_push(&exchange->returned, batch);
  FW_ASSERT(pushed);
  if (wanted) wake_executor(exchange);
}

void exchange_want_copy(struct audit_exchange *exchange) {
  int none = COPY_NONE;
  if (atomic_compare_exchange_strong(&exchange->copy_state, &none, COPY_WANTED))
    wake_executor(exchange);
}
