// A name for a call that may cross threads: never a pointer. A stale generation finds nothing, so a
// reply to a call that is gone is dropped.
#ifndef RPC_CALL_REF_H
#define RPC_CALL_REF_H
#include <stdint.h>
struct call_ref {
  uint16_t loop;
  uint32_t slot, generation;
};
#endif
