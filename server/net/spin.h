// How long a loop goes on looking for more before it sleeps. Waking a sleeping thread costs tens of
// microseconds where its core has gone idle meanwhile (in a virtual machine most of all), so a
// client that answers sooner than that is better waited for awake.
//
// Only while it pays: a wait that was longer than the limit halves the time, a shorter one restores
// it, so a loop whose clients are slow, or that has none, sleeps at once. And only where few bytes
// come at a time: a loop that is handed many calls at once gains little per call, and while it
// sleeps still more come together, which is what makes them cheap. Pure: the clock is handed in.
#ifndef NET_SPIN_H
#define NET_SPIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPIN_MUCH_BYTES (64 * 1024) // in one turn of the loop: rest
#define SPIN_REST_NS (10 * 1000000) // sleep at once for so long

struct spin {
  int64_t max_ns;         // 0: never stay awake
  int64_t span_ns;        // what it pays to stay awake now, 0..max_ns
  int64_t quiet_since_ns; // when the last work was done; 0: the wait since then is not to be judged
  int64_t rest_until_ns;
  size_t turn_bytes;
  bool came; // since quiet_since_ns
};

void spin_init(struct spin *spin, int64_t max_ns);
// Something came in: data, or an answer from another thread (0 bytes).
void spin_came(struct spin *spin, size_t bytes, int64_t now_ns);
// Others compute on our cores and will again: sleep for a while. Instead of spin_came.
void spin_rest(struct spin *spin, int64_t now_ns);
// Before each poll: false when the poll may sleep. `busy`: the loop's work is with other threads,
// who need the core more than we do.
bool spin_stay_awake(struct spin *spin, bool busy, int64_t now_ns);

#endif
