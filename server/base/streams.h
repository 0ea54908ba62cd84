// Standard input, output and error as whoever started the program left them.
#ifndef BASE_STREAMS_H
#define BASE_STREAMS_H

#include <errno.h>
#include <fcntl.h>

// One that is closed (`>&-`) would be the number of the next file or socket, and what is printed or
// logged would go into that: a client's connection. It is taken, so that reading and writing fail
// as before (EBADF). Call it before anything is opened.
static inline void streams_hold(void) {
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    (void)open("/", O_PATH | O_DIRECTORY | O_CLOEXEC); // becomes fd, the lowest free number
  }
}

#endif
