// What a CUDA error means for the device and for whoever asked. Pure: a function of the number.
#ifndef BACKEND_CUDA_ERRORS_H
#define BACKEND_CUDA_ERRORS_H

#include "base/status.h"

enum cuda_fate {
  CUDA_FINE,      // success, or not finished yet
  CUDA_NO_MEMORY, // the card is full; the device stays usable
  CUDA_REFUSED,   // the call was wrong or is not supported here; the device stays usable
  CUDA_LOST,      // sticky: every later call fails too, only a new process helps
};
enum cuda_fate cuda_fate_of(int cuda_error);
// OK, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE: in the order of enum cuda_fate.
enum status cuda_status_of(int cuda_error);

#endif
