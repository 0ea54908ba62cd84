// The process's own gauges under Prometheus' usual names.
#ifndef OBS_PROCESS_H
#define OBS_PROCESS_H

#include "obs/expo.h"

void process_families(struct expo *expo); // any thread; reads /proc/self
int process_open_fds(void);               // how many, now; any thread

#endif
