#include "net/spin.h"

#define LEAST_NS 1000 // shorter than one poll

void spin_init(struct spin *spin, int64_t max_ns) {
  *spin = (struct spin){.max_ns = max_ns};
}

static void judge(struct spin *spin, int64_t waited_ns) {
  if (waited_ns <= spin->max_ns)
    spin->span_ns = spin->max_ns;
  else
    spin->span_ns = spin->span_ns / 2 > LEAST_NS ? spin->span_ns / 2 : 0;
}

void spin_came(struct spin *spin, size_t bytes, int64_t now_ns) {
  if (!spin->came && spin->quiet_since_ns != 0) judge(spin, now_ns - spin->quiet_since_ns);
  spin->came = true;
  spin->turn_bytes += bytes;
}

void spin_rest(struct spin *spin, int64_t now_ns) {
  spin->rest_until_ns = now_ns + SPIN_REST_NS;
}

bool spin_stay_awake(struct spin *spin, bool busy, int64_t now_ns) {
  if (spin->came) {
    if (spin->turn_bytes >= SPIN_MUCH_BYTES) spin_rest(spin, now_ns);
    spin->quiet_since_ns = now_ns;
    spin->turn_bytes = 0;
    spin->came = false;
  }
  if (busy || now_ns < spin->rest_until_ns) spin->quiet_since_ns = 0;
  return spin->quiet_since_ns != 0 && now_ns - spin->quiet_since_ns < spin->span_ns;
}
