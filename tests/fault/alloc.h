// Allocations that fail on demand. Any thread; one failure at a time.
#ifndef FAULT_ALLOC_H
#define FAULT_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

void fault_arm(int64_t nth); // the nth allocation from now on (from 0) fails, once
bool fault_disarm(void);     // whether it did

#endif
