// What the server's planner predicts for the two plans that --ab compares: from its explain
// document, for the batches that were measured.
#ifndef CLIENT_PREDICT_H
#define CLIENT_PREDICT_H

#include "client/oip.h"

struct prediction {
  bool present;
  bool measured_rates;            // the device's rates were measured, not defaults
  int64_t tokens, sequences;      // of the batch that it speaks of
  double us[2], bytes[2];         // of the batch: fused, unfused
  char note[OIP_TEXT_BYTES + 64]; // why there is none
};

// From the JSON document. False (and the note) when something of it is missing. Pure.
bool prediction_read(struct slice document, struct prediction *out);
// Asks the server. A server that cannot say leaves a note: that is no failure of a load test.
void prediction_ask(struct net *net, const char *model, const char *version, int64_t tokens,
                    int64_t sequences, struct prediction *out);
// Unfused over fused, as the measured ratios are: above 1 means that fused is better.
double prediction_time_ratio(const struct prediction *prediction);
double prediction_bytes_ratio(const struct prediction *prediction);

#endif
