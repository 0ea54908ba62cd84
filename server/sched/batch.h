// The batcher: which waiting requests run together, and when. A pure function of a snapshot of one
// queue and a clock.
//
// Requests of unlike length share a batch, because rows are packed: what counts is the sum of their
// tokens. Order is by urgency (batch_urgency), and a batch is always a prefix of that order:
// nothing overtakes because it is small, so nothing starves because it is large.
#ifndef SCHED_BATCH_H
#define SCHED_BATCH_H

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
// is free now. `service` (NULL: nothing known) estimates a run, so that a waiting batch starts in
// time for the nearest deadline; `hurry` (draining) forbids waiting. An item that alone passes the
// limits still runs, alone: admission is where it is refused.
struct batch_choice batch_choose(const struct batch_item *items, int32_t n_items,
                                 const struct batch_rule *rule, const struct service *service,
                                 bool hurry, int64_t now_ns);

// A batch that is to run, whose work begins at from_ns: would an item of it be late only because of
// those that run with it, the batch is cut before them, if that costs the device no more than
// BATCH_CUT_COST times the time for each token. Else returned is when the batch would be done: what
// is due before is late in it, and would be in any later one. 0: nothing is late, as far as is
// known.
#define BATCH_CUT_COST 2
int64_t batch_on_time(const struct batch_item *items, struct batch_choice *choice,
                      const struct service *service, int64_t from_ns, int64_t now_ns);

#endif
