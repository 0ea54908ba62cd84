// File descriptors: as many as limits.connections asks for, and some that connections cannot take.
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <stdint.h>

// Raises the process's soft limit so that `connections` fit beside what the daemon needs itself
// (admin port, loops, files). Returns how many connections may be open at once: fewer than asked
// for, with a warning, when the hard limit is too low. Main thread, after the devices
// were opened and before connections are accepted.
int64_t descriptors_reserve(int64_t connections);

#endif
