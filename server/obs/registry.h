// What /metrics walks: shared by the files of obs/ only.
#ifndef OBS_REGISTRY_H
#define OBS_REGISTRY_H

#include "bounds.h"
#include "obs/metrics.h"

#define METRICS_MODELS                                                                             \
  (LIMIT_MODELS * 4) // two modes, and as many again for models that replace others
#define METRICS_MEMORIES (LIMIT_MODELS * (LIMIT_DEVICES + 1))
#define METRICS_GAUGES 256 // ten or so of each device

#define METRICS_WRITERS 4

struct gauge {
  const char *name, *help, *labels; // labels: `device="cpu"` or ""; static text
  double (*read)(void *arg);
  void *arg;
};

struct metrics_registry {
  struct series_family models, memories; // of struct model_metrics and struct memory_metrics
  struct gauge gauges[METRICS_GAUGES];
  _Atomic int n_gauges;
  void (*writers[METRICS_WRITERS])(struct expo *expo);
  _Atomic int n_writers;
};
extern struct metrics_registry metrics_registry;

#endif
