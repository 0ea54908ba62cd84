#include "descriptors.h"
#include "base/log.h"

#include <sys/resource.h>

// The admin port's 64 connections, 16 loops with 5 each, devices, files that are read: without them
// clients could make health checks fail, and a supervisor would end a healthy daemon.
#define OWN_DESCRIPTORS 256

int64_t descriptors_reserve(int64_t connections) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return connections;
  rlim_t wanted = (rlim_t)connections + OWN_DESCRIPTORS;
  if (files.rlim_cur < wanted) {
    files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files); // what we have got is looked at again
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return connections;
  }
  if (files.rlim_cur >= wanted) return connections;
  int64_t most = (int64_t)files.rlim_cur,
          left = most > 2 * OWN_DESCRIPTORS ? most - OWN_DESCRIPTORS : (most + 1) / 2;
  log_warn(
      "descriptors",
      "at most %lld connections instead of limits.connections (%lld): the process may have %lld "
      "open files (ulimit -n)",
      (long long)left, (long long)connections, (long long)most);
  return left;
}
