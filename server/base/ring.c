#include "base/ring.h"

#include "base/log.h"
#include <stdlib.h>
#include <string.h>

#define RING_MAX_CAPACITY (1u << 30)

enum status ring_init(struct ring *ring, uint32_t capacity) {
  if (capacity == 0 || capacity > RING_MAX_CAPACITY) return STATUS_INVALID_ARGUMENT;
  uint32_t rounded = 1;
  while (rounded < capacity)
    rounded *= 2;
  memset(ring, 0, sizeof *ring);
  ring->slots = calloc(rounded, sizeof *ring->slots);
  if (!ring->slots) return STATUS_RESOURCE_EXHAUSTED;
  ring->mask = rounded - 1;
  return STATUS_OK;
}

void ring_deinit(struct ring *ring) {
  free(ring->slots);
  ring->slots = NULL;
}

bool ring_push(struct ring *ring, void *item) {
  FW_ASSERT(item != NULL);
  // Only this thread writes tail, so its own value needs no order. The acquire on head pairs with
  // the consumer's release: the slot we are about to overwrite has been read.
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  if (tail - head > ring->mask) return false;
  ring->slots[tail & ring->mask] = item;
  // Release: the slot and all that the item points to are visible before the new tail is.
  atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
  return true;
}

void *ring_pop(struct ring *ring) {
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire); // pairs with ring_push
  if (head == tail) return NULL;
  void *item = ring->slots[head & ring->mask];
  atomic_store_explicit(&ring->head, head + 1,
                        memory_order_release); // the slot may be reused from here on
  return item;
}

uint32_t ring_size(const struct ring *ring) {
  // head first: it never passes tail, so the difference cannot wrap below zero.
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
  return tail - head;
}
