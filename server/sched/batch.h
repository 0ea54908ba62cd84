// The batcher: which waiting requests run together, and when. A pure function of a snapshot of one
// queue and a clock.
//
// Requests of unlike length share a batch, because rows are packed: what counts is the sum of their
// tokens. Order is by urgency (batch_urgency), and a batch is always a prefix of that order:
// nothing overtakes because it is small, so nothing starves because it is large.
#ifndef SCHED_BATCH_H
#define SCHED_BATCH_H

#include "sched/pace.h"
#include "sched/request.h"

// A request without a deadline is ordered as if it had to be done this long after it was admitted,
// so that a stream of requests with deadlines cannot keep it waiting for ever.
#define BATCH_PATIENCE_NS NS_PER_S

struct batch_item {
  int32_t n_tokens, n_seqs;
  int64_t admitted_ns, deadline_ns; // CLOCK_NEVER: no deadline
};

struct batch_rule {
  int32_t max_tokens, max_requests, max_seqs;
  int64_t max_delay_ns; // longest that the oldest request waits for company; 0: never wait
};

struct batch_choice {
  int32_t n;              // how many of the first items run now; 0: wait
  enum batch_close close; // n > 0
  int64_t wait_until_ns;  // n == 0: ask again then, or when something arrives
  int64_t n_tokens;       // n > 0: of those items
  int64_t latest_ns; // n > 0: started later it would miss a deadline; CLOCK_NEVER: there is none
};

int64_t batch_urgency(int64_t admitted_ns, int64_t deadline_ns);

// `items` [n_items >= 1] in order of urgency, nothing cancelled or expired among them. The device
// is free now. `pace` (NULL: nothing known) estimates a run, so that a waiting batch starts in time
// for the nearest deadline; `hurry` (draining) forbids waiting. An item that alone passes the
// limits still runs, alone: admission is where it is refused.
struct batch_choice batch_choose(const struct batch_item *items, int32_t n_items,
                                 const struct batch_rule *rule, const struct pace *pace, bool hurry,
                                 int64_t now_ns);

#endif
