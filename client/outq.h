// Bytes on their way to one socket: small frames copied into an arena, payloads by reference, in
// order, for one writev. Pure but for outq_write. One thread.
#ifndef CLIENT_OUTQ_H
#define CLIENT_OUTQ_H

#include "base/status.h"
#include <stdint.h>
#include <sys/uio.h>

#define OUTQ_ARENA_BYTES (64 * 1024)
#define OUTQ_SLICES 256

struct outq {
  struct iovec slices[OUTQ_SLICES];
  int first, n; // slices[first..n) are unsent
  size_t arena_used;
  uint8_t arena[OUTQ_ARENA_BYTES];
};

void outq_reset(struct outq *queue);
bool outq_empty(const struct outq *queue);
bool outq_copy(struct outq *queue, const void *data, size_t bytes); // false: full, nothing added
// Room for a frame of `head_bytes` copied and `n_slices` referenced after it.
bool outq_has_room(const struct outq *queue, size_t head_bytes, int n_slices);
void outq_reference(struct outq *queue, const uint8_t *data, size_t bytes); // after outq_has_room
// As much as the socket takes. Returns 0, or a negative errno; EAGAIN is not an error (the queue
// stays non-empty).
int outq_write(struct outq *queue, int fd);
// The same in two steps, for bytes that go through something first: a copy of the next ones, and
// how many of them are gone.
size_t outq_peek(const struct outq *queue, uint8_t *out, size_t out_bytes);
void outq_advance(struct outq *queue, size_t bytes);

#endif
