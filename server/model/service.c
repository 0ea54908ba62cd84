#include "model/service.h"

static int64_t load(const _Atomic int64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static void store(_Atomic int64_t *value, int64_t to) {
  atomic_store_explicit(value, to, memory_order_relaxed);
}

static int class_of(int64_t tokens) {
  int class_index = tokens > 1 ? 63 - __builtin_clzll((unsigned long long)tokens) : 0;
  return class_index < SERVICE_CLASSES ? class_index : SERVICE_CLASSES - 1;
}

// ---- writing: one thread ----
#define LEARN_PART 5 // a new value counts for a fifth,
#define LEARN_MOST                                                                                 \
  2 // and for no more than twice the mean, so that a hiccup does not refuse anybody

static int64_t moved(int64_t mean, int64_t value) {
  return mean + (value - mean) / LEARN_PART;
}

static void measure_learn(struct service_measure *measure, int64_t tokens, int64_t ns,
                          int64_t now_ns) {
  int64_t mean = load(&measure->ns);
  bool believed = mean > 0 && load(&measure->believed_ns) >= now_ns; // else it is made anew
  int64_t value = mean > 0 && ns / LEARN_MOST > mean ? mean * LEARN_MOST : ns;
  store(&measure->tokens, believed ? moved(load(&measure->tokens), tokens) : tokens);
  store(&measure->ns, believed ? moved(mean, value) : value);
  int64_t for_ns =
      value < INT64_MAX / SERVICE_BELIEF_FACTOR / 2 ? value * SERVICE_BELIEF_FACTOR : value;
  store(&measure->believed_ns, now_ns + (for_ns > SERVICE_BELIEF_NS ? for_ns : SERVICE_BELIEF_NS));
}

// Less work does not take longer: what was once measured of smaller batches, perhaps while
// something disturbed, is corrected by larger ones.
static void cap_smaller(struct service *service, int class_index) {
  int64_t ns = load(&service->sizes[class_index].ns);
  for (int i = 0; i < class_index; i++)
    if (load(&service->sizes[i].ns) > ns) store(&service->sizes[i].ns, ns);
}

// No other batch does better by token than a full one; if one does, the measure is out of date.
static bool beats_full(const struct service *service, int64_t tokens, int64_t ns) {
  const struct service_measure *full = &service->full;
  return (double)ns * (double)load(&full->tokens) < (double)load(&full->ns) * (double)tokens;
}

void service_learn(struct service *service, int64_t tokens, int64_t ns, bool full, int64_t now_ns) {
  if (ns < 1) ns = 1;
  if (tokens < 1) tokens = 1;
  int class_index = class_of(tokens);
  measure_learn(&service->sizes[class_index], tokens, ns, now_ns);
  cap_smaller(service, class_index);
  if (full || beats_full(service, tokens, ns)) measure_learn(&service->full, tokens, ns, now_ns);
}

// ---- reading: any thread ----
struct point {
  int64_t tokens, ns; // ns 0: none
};

static struct point point_of(const struct service_measure *measure, int64_t now_ns) {
  struct point point = {load(&measure->tokens), load(&measure->ns)};
  // The two are read one after the other: tokens may still be missing.
  bool whole = point.tokens > 0 && load(&measure->believed_ns) >= now_ns;
  return whole ? point : (struct point){0, 0};
}

// The nearest points at or below `tokens` and above. now_ns 0: whatever their age.
static void around(const struct service *service, int64_t tokens, int64_t now_ns,
                   struct point *below, struct point *above) {
  *below = *above = (struct point){0, 0};
  for (int i = 0, own = class_of(tokens); i < SERVICE_CLASSES; i++) {
    struct point point = point_of(&service->sizes[i], now_ns);
    if (point.ns == 0) continue;
    if (i < own || (i == own && point.tokens <= tokens)) {
      *below = point;
    } else {
      *above = point;
      return;
    }
  }
}

static int64_t between(struct point below, struct point above, int64_t tokens) {
  if (above.tokens <= below.tokens) return below.ns;
  return below.ns + (int64_t)((double)(above.ns - below.ns) * (double)(tokens - below.tokens) /
                              (double)(above.tokens - below.tokens));
}

static int64_t scaled(struct point point, int64_t tokens) {
  return (int64_t)((double)point.ns * (double)tokens / (double)point.tokens);
}

int64_t service_estimate_ns(const struct service *service, int64_t tokens, int64_t now_ns) {
  struct point below, above;
  around(service, tokens, now_ns, &below, &above);
  if (below.ns == 0 && above.ns == 0) around(service, tokens, 0, &below, &above);
  if (below.ns == 0) return above.ns;
  return above.ns == 0 ? scaled(below, tokens) : between(below, above, tokens);
}

int64_t service_least_ns(const struct service *service, int64_t tokens, int64_t now_ns) {
  struct point below, above;
  around(service, tokens, now_ns, &below, &above);
  if (below.ns > 0) return above.ns == 0 ? below.ns : between(below, above, tokens);
  // Nothing smaller is known. Of its own class it is at least a part.
  bool own = above.ns > 0 && class_of(above.tokens) == class_of(tokens);
  return own ? scaled(above, tokens) : 0;
}

int64_t service_share_ns(const struct service *service, int64_t tokens, int64_t now_ns) {
  struct point full = point_of(&service->full, now_ns);
  return tokens < full.tokens ? scaled(full, tokens) : full.ns; // no more than was seen
}

int64_t service_full_ns(const struct service *service, int64_t now_ns) {
  return point_of(&service->full, now_ns).ns;
}
