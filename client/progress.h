// One line on a terminal's stderr that is drawn over itself; nothing at all when stderr is no
// terminal.
#ifndef CLIENT_PROGRESS_H
#define CLIENT_PROGRESS_H

#include "client/load.h"

struct progress {
  bool on;
  char label[64]; // "callers 16"
  int64_t last_done;
  double last_seconds;
};

void progress_init(struct progress *progress, bool wanted);
void progress_label(struct progress *progress, const char *label);
void progress_draw(const struct load_progress *now,
                   void *progress); // fits load_options.on_progress
void progress_clear(struct progress *progress);

#endif
