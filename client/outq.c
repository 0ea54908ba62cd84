#include "client/outq.h"
#include "base/log.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

void outq_reset(struct outq *queue) {
  queue->first = queue->n = 0;
  queue->arena_used = 0;
}

bool outq_empty(const struct outq *queue) {
  return queue->first == queue->n;
}

bool outq_has_room(const struct outq *queue, size_t head_bytes, int n_slices) {
  return head_bytes <= OUTQ_ARENA_BYTES - queue->arena_used &&
         queue->n + n_slices + 1 <= OUTQ_SLICES;
}

void outq_reference(struct outq *queue, const uint8_t *data, size_t bytes) {
  FW_ASSERT(queue->n < OUTQ_SLICES);
  if (bytes == 0) return;
  queue->slices[queue->n++] = (struct iovec){(void *)(uintptr_t)data, bytes};
}

bool outq_copy(struct outq *queue, const void *data, size_t bytes) {
  if (!outq_has_room(queue, bytes, 0)) return false;
  uint8_t *to = queue->arena + queue->arena_used;
  memcpy(to, data, bytes);
  queue->arena_used += bytes;
  struct iovec *last = queue->n > queue->first ? &queue->slices[queue->n - 1] : NULL;
  if (last && (uint8_t *)last->iov_base + last->iov_len == to)
    last->iov_len += bytes;
  else
    outq_reference(queue, to, bytes);
  return true;
}

size_t outq_peek(const struct outq *queue, uint8_t *out, size_t out_bytes) {
  size_t filled = 0;
  for (int i = queue->first; i < queue->n && filled < out_bytes; i++) {
    const struct iovec *slice = &queue->slices[i];
    const size_t left = out_bytes - filled;
    const size_t bytes = slice->iov_len < left ? slice->iov_len : left;
    memcpy(out + filled, slice->iov_base, bytes);
    filled += bytes;
  }
  return filled;
}

void outq_advance(struct outq *queue, size_t bytes) {
  while (bytes > 0) {
    struct iovec *slice = &queue->slices[queue->first];
    if (bytes < slice->iov_len) {
      slice->iov_base = (uint8_t *)slice->iov_base + bytes;
      slice->iov_len -= bytes;
      return;
    }
    bytes -= slice->iov_len;
    queue->first++;
  }
  if (outq_empty(queue)) outq_reset(queue);
}

int outq_write(struct outq *queue, int fd) {
  while (!outq_empty(queue)) {
    const struct msghdr message = {.msg_iov = queue->slices + queue->first,
                                   .msg_iovlen = (size_t)(queue->n - queue->first)};
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    outq_advance(queue, (size_t)n);
  }
  outq_reset(queue);
  return 0;
}
