// Wake a thread that sleeps, without losing a wake-up: the one file that knows why this is subtle.
//
// Publish work first (ring_push), then wake_signal. wake_signal does a full fence between the two,
// because the sleeper's "anything there?" check and our "is it asleep?" check are a Dekker pair,
// and uv_async_send begins with a relaxed read that orders nothing for its caller.
//
// Two kinds of sleeper: a thread that blocks in wake_wait (executor: futex), and a libuv loop (net/
// passes a hook that calls uv_async_send; base/ itself knows nothing of libuv).
#ifndef BASE_WAKE_H
#define BASE_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct wake {
  _Atomic uint32_t state; // 0 idle, 1 signalled, 2 sleeping
  void (*hook)(
      void *arg); // when set, called instead of the futex; must be async-safe (uv_async_send)
  void *arg;
};

void wake_init(struct wake *wake, void (*hook)(void *arg), void *arg);
void wake_signal(struct wake *wake); // any thread
// Sleep until signalled or until `until_ns` (CLOCK_MONOTONIC; CLOCK_NEVER for no limit). Owner
// thread only. Returns at once when a signal came since the last return. Spurious returns are
// allowed: re-check the ring.
void wake_wait(struct wake *wake, int64_t until_ns);

#endif
