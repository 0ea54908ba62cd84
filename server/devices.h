// The devices that this process computes on: which kind, which cards, opened; what is said of them
// in the log, in metadata and in metrics. Main thread, but for what the gauges read.
#ifndef DEVICES_H
#define DEVICES_H

#include "backend/backend.h"
#include "backend/measure.h"
#include "backend/rates_file.h"
#include "conf/server_conf.h"

struct devices {
  const struct backend_ops *backend;
  struct device *list[LIMIT_DEVICES];
  char names[LIMIT_DEVICES][24]; // "cuda:1"
  int n;
  char fallback[256]; // why `device.kind: auto` took the CPU; empty: it was no second choice
  // What is known of how fast they are: measured once for a device of this id, or defaults. Plans
  // are made by the first device's.
  struct device_facts facts;
  char facts_path[1400]; // where it is kept; empty: nowhere
};

// Opens what device.kind and device.gpus ask for. `auto` takes the first kind of backend_table that
// is there and opens; a name is a demand: UNAVAILABLE, with the reason, when it cannot be had.
MUST_USE enum status devices_open(const struct server_conf *conf, struct devices *devices,
                                  struct error *err);
void devices_close(struct devices *devices);
// What plans are made by: the abilities of the first device with what was measured of it. Valid
// while the devices are open.
struct plan_caps devices_plan_caps(const struct devices *devices);
// Measures the constants of the first device, and keeps them. Seconds, during which nothing else
// should run on it.
MUST_USE enum status devices_measure(struct devices *devices, const struct measure_options *options,
                                     struct error *err);
// The same where `device.measure` is `first` and it was not done before. Before models are parsed.
void devices_measure_first(const struct server_conf *conf, struct devices *devices);
// fusewire_device_info, fusewire_device_memory_bytes, fusewire_device_fallback. Once; `devices`
// stays where it is until the process ends.
void devices_gauges(const struct devices *devices);

#endif
