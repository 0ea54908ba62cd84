// What the files that measure constants share (measure.c, measure_finish.c). Internal to them.
#ifndef BACKEND_METER_H
#define BACKEND_METER_H

#include "backend/measure.h"
#include "backend/probe_plan.h"

#define ROUNDS 2         // of each plan whose difference is looked at
#define HEAD_DIM 64      // of an attention
#define FINISH_ROWS 512  // of a result that a finish is held against
#define FINISH_COLS 1024 // and of an attention's

struct meter {
  const struct backend_ops *backend;
  struct device *device;
  struct lane *lane; // one for all plans, large enough for each
  struct measure_options options;
  struct device_rates *rates; // the defaults, and what was measured in their place so far
  struct error *err;
  double alone; // seconds of a batch of one small kernel: its beginning and end, and a launch
};

// rates->finish and attention_finish, where the device has finishes.
MUST_USE enum status measure_finishes(const struct meter *meter);

#endif
