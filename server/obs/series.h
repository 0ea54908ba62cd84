// A family of series: what is counted of one model (or one model on one device, in one mode), found
// by its labels. It only grows: an entry is never freed, so that a pointer to it stays good, and a
// model that is loaded again goes on with the counts it had.
#ifndef OBS_SERIES_H
#define OBS_SERIES_H

#include "bounds.h"

#include <stdatomic.h>
#include <stddef.h>

// The first member of every entry. Labels that a family lacks are "".
struct series_labels {
  char model[LIMIT_NAME_BYTES], version[32], fusion[8], device[24];
};

struct series_family {
  void **entries; // [most]
  int most;
  _Atomic int n; // published after what it counts
};

// A family of at most `most_` entries, static in the file that holds it.
#define SERIES(most_)                                                                              \
  { .entries = (void *[most_]){0}, .most = (most_) }

// The entry with these labels, or a new one: `bytes` of zeros behind its labels. NULL: no room or
// no memory. The control thread only, the one that loads models.
void *series_add(struct series_family *series, size_t bytes, const struct series_labels *labels);
// Any thread.
int series_count(const struct series_family *series);
// 0 <= index < series_count(). Any thread.
void *series_at(const struct series_family *series, int index);
// Labels out of texts, each cut at its room. NULL: "".
struct series_labels series_labels(const char *model, const char *version, const char *fusion,
                                   const char *device);

#endif
