#include "client/progress.h"
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BAR_WIDTH 30

void progress_init(struct progress *progress, bool wanted) {
  *progress = (struct progress){.on = wanted && isatty(STDERR_FILENO)};
}

void progress_label(struct progress *progress, const char *label) {
  snprintf(progress->label, sizeof progress->label, "%s", label);
  progress->last_done = 0;
  progress->last_seconds = 0;
}

void progress_draw(const struct load_progress *now, void *arg) {
  struct progress *progress = arg;
  char bar[BAR_WIDTH + 1];
  if (!progress->on) return;
  const int filled = (int)(now->fraction * BAR_WIDTH);
  for (int i = 0; i < BAR_WIDTH; i++)
    bar[i] = i < filled ? '#' : '.';
  bar[BAR_WIDTH] = 0;
  const double seconds = now->seconds - progress->last_seconds;
  const double rate = seconds > 0 ? (double)(now->n_done - progress->last_done) / seconds : 0;
  progress->last_done = now->n_done;
  progress->last_seconds = now->seconds;
  fprintf(stderr, "\r\x1b[K%-14s [%s] %3.0f %%  %.1f s  %" PRId64 " calls  %.0f/s", progress->label,
          bar, 100 * now->fraction, now->seconds, now->n_done, rate);
  if (now->n_failed) fprintf(stderr, "  %" PRId64 " failed", now->n_failed);
  if (now->warmup) fputs("  warming up", stderr);
  fflush(stderr);
}

void progress_clear(struct progress *progress) {
  if (progress->on) fputs("\r\x1b[K", stderr);
}
