#include "audit/split.h"
#include "base/log.h"

#include <string.h>

#define TOGETHER 64         // batches that one sample is shared out among; more: by time alone
#define IDLE_WEIGHT 0.03125 // of the newest idle sample in the mean of their rates
#define LEAST_RATE 1e-6     // bytes a nanosecond that any batch counts as expected to move

static int64_t overlap(int64_t a0, int64_t a1, int64_t b0, int64_t b1) {
  int64_t from = a0 > b0 ? a0 : b0, to = a1 < b1 ? a1 : b1;
  return to > from ? to - from : 0;
}

// ---- the list ----
static struct audit_batch **list_of(struct split *split) {
  return split->room + split->first;
}

bool split_add(struct split *split, struct audit_batch *batch) {
  if (split->n == AUDIT_BATCHES) return false;
  if (split->first + split->n == 2 * AUDIT_BATCHES) {
    memmove(split->room, list_of(split), (size_t)split->n * sizeof(struct audit_batch *));
    split->first = 0;
  }
  struct audit_batch **list = list_of(split);
  int at = split->n++;
  for (; at > 0 && list[at - 1]->span.began_ns > batch->span.began_ns; at--)
    list[at] = list[at - 1];
  list[at] = batch;
  batch->read_bytes = batch->write_bytes = batch->read_at = 0;
  batch->shared_ns = 0;
  batch->outcome = batch->span.computes_ns < split->done_ns ? AUDIT_SKIPPED : AUDIT_MEASURED;
  return true;
}

// Mostly it is the first.
static struct audit_batch *remove_at(struct split *split, int at) {
  struct audit_batch **list = list_of(split), *batch = list[at];
  memmove(list + 1, list, (size_t)at * sizeof(struct audit_batch *));
  split->first++;
  split->n--;
  return batch;
}

struct audit_batch *split_take(struct split *split) {
  struct audit_batch **list = list_of(split);
  for (int i = 0; i < split->n && list[i]->span.began_ns < split->done_ns; i++)
    if (list[i]->span.ended_ns <= split->done_ns) return remove_at(split, i);
  return NULL;
}

struct audit_batch *split_drop(struct split *split, int64_t taken_before_ns) {
  for (int i = 0; i < split->n; i++)
    if (list_of(split)[i]->taken_ns < taken_before_ns) return remove_at(split, i);
  return NULL;
}

struct split_look split_look(const struct split *split, int64_t began_ns, int64_t ended_ns) {
  struct split_look look = {0};
  struct audit_batch *const *list = split->room + split->first;
  for (int i = 0; i < split->n && list[i]->span.began_ns < ended_ns; i++) {
    const struct audit_batch *batch = list[i];
    if (batch->span.ended_ns <= began_ns) continue;
    look.any = true;
    look.audited |= batch->audited;
    look.wanted |= batch->wanted;
    look.copy |= batch->kind == AUDIT_COPY;
  }
  return look;
}

// ---- one sample ----
struct part { // of a batch, in the sample
  struct audit_batch *batch;
  int64_t from_ns, to_ns;
  double read, write; // bytes that it was expected to move in that time
};
struct gathered {
  struct part parts[TOGETHER];
  int n;
  bool more; // than fit
  bool any;  // batches, or their copies
  struct audit_batch *copy;
};

static void gather_one(struct gathered *all, struct audit_batch *batch,
                       const struct counter_sample *at) {
  const struct device_span *span = &batch->span;
  int64_t ns = overlap(span->computes_ns, span->computed_ns, at->began_ns, at->ended_ns);
  all->any = true;
  if (batch->kind == AUDIT_COPY) all->copy = batch;
  if (ns == 0 || batch->kind == AUDIT_COPY) return;
  if (all->n == TOGETHER) {
    all->more = true;
    batch->outcome = AUDIT_SKIPPED;
    return;
  }
  double share = (double)ns / (double)(span->computed_ns - span->computes_ns);
  double least = LEAST_RATE * (double)ns;
  struct part *part = &all->parts[all->n++];
  part->batch = batch;
  part->from_ns = span->computes_ns > at->began_ns ? span->computes_ns : at->began_ns;
  part->to_ns = part->from_ns + ns;
  part->read = batch->bytes.expected.read * share + least;
  part->write = batch->bytes.expected.write * share + least;
}

static void gather(struct split *split, const struct counter_sample *at, struct gathered *all) {
  struct audit_batch **list = list_of(split);
  all->n = 0, all->more = all->any = false, all->copy = NULL;
  for (int i = 0; i < split->n && list[i]->span.began_ns < at->ended_ns; i++)
    if (list[i]->span.ended_ns > at->began_ns) gather_one(all, list[i], at);
  // in the order of their beginnings, for the sweep over them
  for (int i = 1; i < all->n; i++) {
    struct part part = all->parts[i];
    int to = i;
    for (; to > 0 && all->parts[to - 1].from_ns > part.from_ns; to--)
      all->parts[to] = all->parts[to - 1];
    all->parts[to] = part;
  }
}

static int64_t busy_ns(const struct gathered *all) {
  int64_t ns = 0, until_ns = 0;
  for (int i = 0; i < all->n; i++) {
    const struct part *part = &all->parts[i];
    int64_t from_ns = part->from_ns > until_ns ? part->from_ns : until_ns;
    if (part->to_ns > from_ns) ns += part->to_ns - from_ns;
    if (part->to_ns > until_ns) until_ns = part->to_ns;
  }
  return ns;
}

static void note_shared(const struct gathered *all) {
  for (int i = 0; i < all->n; i++)
    for (int j = 0; j < all->n; j++) {
      const struct part *a = &all->parts[i], *b = &all->parts[j];
      if (i == j || (a->batch->target && a->batch->target == b->batch->target)) continue;
      a->batch->shared_ns += overlap(a->from_ns, a->to_ns, b->from_ns, b->to_ns);
    }
}

static void spoil(const struct gathered *all, enum audit_outcome outcome) {
  for (int i = 0; i < all->n; i++)
    if (all->parts[i].batch->outcome == AUDIT_MEASURED) all->parts[i].batch->outcome = outcome;
  if (all->copy) all->copy->outcome = outcome;
}

static double least_of(double a, double b) {
  return a < b ? a : b;
}

static void share_out(struct split *split, const struct gathered *all,
                      const struct counter_sample *at) {
  double idle_ns = (double)(at->ended_ns - at->began_ns - busy_ns(all));
  double idle_read = least_of(split->idle_read * idle_ns, at->read_bytes),
         idle_write = least_of(split->idle_write * idle_ns, at->write_bytes);
  double read = 0, write = 0;
  for (int i = 0; i < all->n; i++)
    read += all->parts[i].read, write += all->parts[i].write;
  for (int i = 0; i < all->n; i++) {
    const struct part *part = &all->parts[i];
    part->batch->read_bytes += (at->read_bytes - idle_read) * part->read / read;
    part->batch->write_bytes += (at->write_bytes - idle_write) * part->write / write;
  }
  note_shared(all);
  if (all->more) spoil(all, AUDIT_SKIPPED); // those that did not fit had their part in it
  split->read.batches += at->read_bytes - idle_read;
  split->write.batches += at->write_bytes - idle_write;
  split->read.other += idle_read;
  split->write.other += idle_write;
}

static void learn_idle(struct split *split, const struct counter_sample *at) {
  double ns = (double)(at->ended_ns - at->began_ns);
  double weight = split->idle_known ? IDLE_WEIGHT : 1;
  split->idle_read += (at->read_bytes / ns - split->idle_read) * weight;
  split->idle_write += (at->write_bytes / ns - split->idle_write) * weight;
  split->idle_known = true;
}

// All around it is the copy's, since nothing else was let onto the device; where the middle of its
// bytes lies says by how much the clocks differ.
static void add_to_copy(const struct gathered *all, const struct counter_sample *at) {
  struct audit_batch *copy = all->copy;
  int64_t middle_ns = at->began_ns + (at->ended_ns - at->began_ns) / 2;
  if (all->n > 0) copy->outcome = AUDIT_SKIPPED; // something was
  copy->read_bytes += at->read_bytes;
  copy->write_bytes += at->write_bytes;
  copy->read_at += at->read_bytes * (double)(middle_ns - copy->span.computes_ns);
}

void split_sample(struct split *split, const struct split_sample *sample) {
  const struct counter_sample *at = &sample->at;
  struct gathered all;
  FW_ASSERT(at->ended_ns > at->began_ns);
  gather(split, at, &all);
  if (sample->kind != SPLIT_COUNTED) {
    spoil(&all, sample->kind == SPLIT_HOLE ? AUDIT_LOST : AUDIT_SKIPPED);
  } else if (all.copy) {
    add_to_copy(&all, at);
  } else if (all.n > 0) {
    share_out(split, &all, at);
  } else if (all.any) {
    split->read.copies += at->read_bytes;
    split->write.copies += at->write_bytes;
  } else {
    learn_idle(split, at);
    split->read.other += at->read_bytes * sample->weight;
    split->write.other += at->write_bytes * sample->weight;
  }
  split->done_ns = at->ended_ns;
}
