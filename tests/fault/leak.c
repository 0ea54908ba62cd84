// Loaded into the real daemon by LD_PRELOAD (tests/harness/soak.py --leak): every connection that
// is accepted loses FUSEWIRE_LEAK_BYTES, so that the soak can show that it would notice.
#include "fault/preload.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

FAULT_PUBLIC int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
  int (*next)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
  const char *wanted = getenv("FUSEWIRE_LEAK_BYTES");
  int accepted = next(fd, address, bytes, flags);
  size_t lost_bytes = wanted ? strtoul(wanted, NULL, 10) : 0;
  void *volatile lost = accepted >= 0 && lost_bytes > 0 ? malloc(lost_bytes) : NULL;
  if (lost) memset(lost, 1, lost_bytes);
  return accepted;
}
