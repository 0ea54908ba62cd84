// The numbers are cudaError_t's, which the runtime keeps stable; written out, so that this file and
// its test need no CUDA. cuda_backend.c asserts that they are the header's.
#include "backend/cuda/errors.h"

#include <stdint.h>

// From the runtime's documentation: those that "leave the process in an inconsistent state", and
// those after which the driver or the card is gone.
static const int16_t lost_errors[] = {
    4,   // cudaErrorCudartUnloading
    46,  // cudaErrorDevicesUnavailable
    100, // cudaErrorNoDevice
    101, // cudaErrorInvalidDevice
    201, // cudaErrorDeviceUninitialized
    214, // cudaErrorECCUncorrectable
    220, // cudaErrorNvlinkUncorrectable
    226, // cudaErrorContained
    700, // cudaErrorIllegalAddress
    702, // cudaErrorLaunchTimeout
    709, // cudaErrorContextIsDestroyed
    710, // cudaErrorAssert
    714, // cudaErrorHardwareStackError
    715, // cudaErrorIllegalInstruction
    716, // cudaErrorMisalignedAddress
    717, // cudaErrorInvalidAddressSpace
    718, // cudaErrorInvalidPc
    719, // cudaErrorLaunchFailure
    721, // cudaErrorTensorMemoryLeak
    802, // cudaErrorSystemNotReady
    805, // cudaErrorMpsConnectionFailed
    806, // cudaErrorMpsRpcFailure
    807, // cudaErrorMpsServerNotReady
    810, // cudaErrorMpsClientTerminated
    911, // cudaErrorExternalDevice
    999, // cudaErrorUnknown
};

enum cuda_fate cuda_fate_of(int cuda_error) {
  if (cuda_error == 0 || cuda_error == 600) return CUDA_FINE; // 600: cudaErrorNotReady
  if (cuda_error == 2) return CUDA_NO_MEMORY;                 // cudaErrorMemoryAllocation
  for (unsigned i = 0; i < sizeof lost_errors / sizeof *lost_errors; i++)
    if (lost_errors[i] == cuda_error) return CUDA_LOST;
  return CUDA_REFUSED;
}

enum status cuda_status_of(int cuda_error) {
  static const enum status statuses[] = {STATUS_OK, STATUS_RESOURCE_EXHAUSTED, STATUS_INTERNAL,
                                         STATUS_UNAVAILABLE};
  return statuses[cuda_fate_of(cuda_error)];
}
