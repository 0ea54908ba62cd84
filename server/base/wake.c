#include "base/wake.h"

#include "base/clock.h"
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAKE_IDLE, WAKE_SIGNALLED, WAKE_SLEEPING };

void wake_init(struct wake *wake, void (*hook)(void *arg), void *arg) {
  atomic_init(&wake->state, WAKE_IDLE);
  wake->hook = hook;
  wake->arg = arg;
}

void wake_signal(struct wake *wake) {
  // Full fence: the work published before this call is ordered before the sleeper's state is read
  // (the exchange below is sequentially consistent too, but the hook's own relaxed pre-check is not
  // ours to trust).
  atomic_thread_fence(memory_order_seq_cst);
  if (wake->hook) {
    wake->hook(wake->arg);
    return;
  }
  uint32_t before = atomic_exchange_explicit(&wake->state, WAKE_SIGNALLED, memory_order_seq_cst);
  if (before == WAKE_SLEEPING)
    syscall(SYS_futex, &wake->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void wake_wait(struct wake *wake, int64_t until_ns) {
  // IDLE -> SLEEPING, unless a signal came first; the sequentially consistent exchange is the other
  // half of the Dekker pair: whoever signals after it sees SLEEPING and wakes us.
  uint32_t expected = WAKE_IDLE;
  if (atomic_compare_exchange_strong(&wake->state, &expected, WAKE_SLEEPING)) {
    struct timespec limit, *timeout = NULL;
    if (until_ns != CLOCK_NEVER) {
      int64_t at = until_ns < 0 ? 0 : until_ns;
      limit = (struct timespec){.tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S};
      timeout = &limit;
    }
    // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time. Any return is fine: the caller
    // re-checks.
    syscall(SYS_futex, &wake->state, FUTEX_WAIT_BITSET_PRIVATE, WAKE_SLEEPING, timeout, NULL,
            FUTEX_BITSET_MATCH_ANY);
  }
  // Consume the signal. Acquire side of the pair: what was published before it is visible now.
  atomic_exchange_explicit(&wake->state, WAKE_IDLE, memory_order_seq_cst);
}
