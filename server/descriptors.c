#include "descriptors.h"
#include "base/log.h"
#include "obs/process.h"

#include <sys/resource.h>

// Beside what is open already (a GPU's driver opens dozens a card): the admin port's 64
// connections, 16 loops with 5 each, files that are read. Without them clients could make health
// checks fail, and a supervisor would end a healthy daemon.
#define OWN_DESCRIPTORS 256

int64_t descriptors_reserve(int64_t connections) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return connections;
  int64_t taken = process_open_fds();
  rlim_t wanted = (rlim_t)(connections + taken) + OWN_DESCRIPTORS;
  if (files.rlim_cur < wanted) {
    files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files); // what we have got is looked at again
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return connections;
  }
  if (files.rlim_cur >= wanted) return connections;
  int64_t most = (int64_t)files.rlim_cur, others = most > taken ? most - taken : 0,
          left = others > 2 * OWN_DESCRIPTORS ? others - OWN_DESCRIPTORS : (others + 1) / 2;
  log_warn(
      "descriptors",
      "at most %lld connections instead of limits.connections (%lld): the process may have %lld "
      "open files (ulimit -n), of which %lld are taken",
      (long long)left, (long long)connections, (long long)most, (long long)taken);
  return left;
}
