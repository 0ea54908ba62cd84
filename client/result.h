// What one run of load measured: per variant latencies and the server's cost figures, errors by
// status, A/B pairs. Filled by load.c, read by the reports. Pure but for memory.
#ifndef CLIENT_RESULT_H
#define CLIENT_RESULT_H

#include "client/ab.h"
#include "client/reply.h"
#include "client/samples.h"

#define RESULT_VARIANTS 2
#define RESULT_STAGES                                                                              \
  5 // COST_QUEUE_US .. COST_TOTAL_US have percentiles; the other costs have means
#define RESULT_MESSAGE_BYTES 256

struct variant_result {
  struct samples latency_us; // of measured calls that ended OK
  struct samples stage_us[RESULT_STAGES];
  struct {
    double sum;
    int64_t n;
  } cost[COST_COUNT];                 // n: replies that had the key
  int64_t n_ok, tokens;               // of measured calls
  double seconds;                     // they took: the window, or with A/B the variant's slices
  int64_t n_ok_window, tokens_window; // ended within `seconds`
  char fusion[REPLY_TEXT_BYTES], device[REPLY_TEXT_BYTES]; // as the last reply said
};

enum ab_metric { AB_LATENCY, AB_COMPUTE, AB_BYTES, AB_RATE, AB_METRICS };

struct ab_pairs { // slice means, a variant each
  double *value[AB_METRICS][RESULT_VARIANTS];
  int64_t n, capacity;
};

struct result {
  int n_variants;
  struct variant_result variant[RESULT_VARIANTS];
  struct ab_pairs pairs;
  struct ab_estimate
      estimate[AB_METRICS]; // b over a; AB_RATE inverted, so that > 1 means: a is better
  struct ab_mean mean[AB_METRICS][RESULT_VARIANTS];        // over slices of each kind
  int64_t status_count[STATUS_COUNT];                      // of measured calls
  char status_message[STATUS_COUNT][RESULT_MESSAGE_BYTES]; // the first of each
  int64_t n_warmup, n_warmup_failed;
  int64_t warmup_status_count[STATUS_COUNT];
  int64_t
      n_resent; // calls that a draining connection gave back unprocessed and that were sent again
  int64_t n_bad_cost;                  // OK, but the reply's parameters could not be read
  struct samples lag_us;               // open loop: actual send after its scheduled time
  int64_t n_late;                      // of them over 1 ms late
  int64_t n_unsent;                    // scheduled, but given up when the time to drain was over
  uint64_t request_bytes, reply_bytes; // messages of measured calls that ended OK
  double seconds;                      // length of the measuring window
  bool interrupted;
};

struct outcome { // one call that ended
  int variant;
  bool measured, in_window;
  enum status status;
  const char *message;
  double latency_us;
  int64_t tokens;
  uint64_t request_bytes, reply_bytes;
  struct slice reply; // its captured start
};

void result_init(struct result *result, int n_variants, uint64_t seed);
void result_free(struct result *result);
// Count a call. The cost it read is left in `cost` (present = 0 when there was none).
void result_add(struct result *result, const struct outcome *outcome, struct reply_cost *cost);
MUST_USE enum status result_add_pair(struct result *result,
                                     const double value[AB_METRICS][RESULT_VARIANTS]);
MUST_USE enum status result_estimate(struct result *result, uint64_t seed);
int64_t
result_failed(const struct result *result); // measured calls that did not end OK, and unsent ones
double result_cost_mean(const struct variant_result *variant,
                        enum cost cost); // NAN when no reply had it
double
result_bytes_moved(const struct variant_result *variant); // mean read + written per call; NAN

#endif
