// What a test wishes to fail in the daemon: a file that both map. test_failing_system.py knows this
// layout and the order of the calls.
#ifndef FAULT_PRELOAD_H
#define FAULT_PRELOAD_H

#include <stdint.h>

#define FAULT_PUBLIC __attribute__((visibility("default")))

enum fault_call {
  FAULT_WRITE_SHORT,
  FAULT_WRITE_AGAIN,
  FAULT_WRITE_NO_BUFFERS,
  FAULT_READ_SHORT,
  FAULT_READ_AGAIN,
  FAULT_READ_INTERRUPTED,
  FAULT_ACCEPT_NO_FILES,
  FAULT_ACCEPT_ABORTED,
  FAULT_ACCEPT_NO_MEMORY,
  FAULT_MAP_NO_MEMORY,
  FAULT_CALLS
};

struct fault_wishes {
  _Atomic int64_t allocations_left;      // counts down; the one that makes it 0 fails
  _Atomic uint64_t n_failed;             // allocations that did
  _Atomic uint32_t chance[FAULT_CALLS];  // of each call, in a thousand
  _Atomic uint32_t n_calls[FAULT_CALLS]; // how many failed
};

#endif
