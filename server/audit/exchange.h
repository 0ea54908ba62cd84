// Between the executor of a device, whose batches are counted, and the decoder, which reads the
// counters: batches go to and fro, and the executor is asked for copies of known size.
//
//   executor:  audit_begin -> the batch runs -> audit_end ......... audit_reap -> audit_free
//   decoder:                                   exchange_pop ... exchange_return
//
// The executor announces a batch before the device can begin it, and hands it over when it is done;
// so the decoder knows of every batch whose bytes a sample may hold, or that there is one which it
// does not know yet (exchange_running). Nothing waits for anything.
#ifndef AUDIT_EXCHANGE_H
#define AUDIT_EXCHANGE_H

#include "audit/split.h"
#include "base/ring.h"
#include "base/wake.h"

enum audit_state {
  AUDIT_STARTS,     // not calibrated yet, or not again
  AUDIT_CALIBRATED, // batches are measured
  AUDIT_GONE,       // there is nothing to be had: refused, or the counters went away
};
const char *audit_state_name(enum audit_state state); // "uncalibrated", "calibrated", "refused"

enum audit_copy { COPY_NONE, COPY_WANTED, COPY_RUNS };

#define AUDIT_LANES (LIMIT_LANES + 1) // the last one: copies of known size
#define AUDIT_COPY_LANE LIMIT_LANES

struct audit_exchange {
  struct audit_batch *pool; // [AUDIT_BATCHES]
  struct audit_batch *free_list[AUDIT_BATCHES];
  int n_free;              // the executor's, as the list
  struct audit_batch copy; // the one of kind AUDIT_COPY
  struct ring pushed, returned;
  _Atomic uint32_t begun[AUDIT_LANES]; // batches announced, by lane
  _Atomic uint32_t wanted_begun;       // of these, with somebody waiting
  _Atomic uint32_t blind;              // batches for which there was no room
  _Atomic int state;                   // enum audit_state; the decoder sets it
  _Atomic int copy_state;              // enum audit_copy
  int64_t interval_ns;                 // between samples; see exchange_quiet_ns
  // Where the samples of the next copy may be off its own time by so much: the decoder sets it.
  _Atomic int64_t offset_most_ns;
  struct wake wake;              // the decoder's
  struct wake *_Atomic executor; // NULL: there is none yet
};

MUST_USE enum status exchange_open(struct audit_exchange *exchange);
void exchange_close(struct audit_exchange *exchange);

// ---- the executor's side ----
// NULL: no room; the batch runs all the same, and those beside it are not measured either. Before
// anything of it is given to the device.
struct audit_batch *exchange_begin(struct audit_exchange *exchange, int lane, bool wanted);
void exchange_end(struct audit_exchange *exchange, struct audit_batch *batch); // it is done
struct audit_batch *exchange_reap(struct audit_exchange *exchange);            // a verdict, or NULL
void exchange_free(struct audit_exchange *exchange, struct audit_batch *batch);
// Before and after a copy of known size the device must have nothing to do for so long.
int64_t exchange_quiet_ns(const struct audit_exchange *exchange);
// Such a copy begins, and has ended (NULL: it did not come about).
void exchange_copy_begin(struct audit_exchange *exchange);
void exchange_copy_end(struct audit_exchange *exchange, const struct counter_copy *copy,
                       int64_t now_ns);

// ---- the decoder's side ----
struct audit_batch *exchange_pop(struct audit_exchange *exchange);
// With its verdict; the executor is woken where somebody waits for it.
void exchange_return(struct audit_exchange *exchange, struct audit_batch *batch);
void exchange_want_copy(struct audit_exchange *exchange);

#endif
