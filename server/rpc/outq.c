#include "rpc/outq.h"
#include "base/log.h"
#include <string.h>

#define BLOCK_SLICES 64
struct out_slice {
  const uint8_t *data;
  size_t bytes;
  struct out_ref *ref; // NULL: the bytes are in the block's own room
};

#define BLOCK_ROOM (MEM_MAX_POOLED_BYTES - BLOCK_SLICES * sizeof(struct out_slice) - 32)
struct out_block {
  struct out_block *next;
  uint32_t head, tail; // slices [head, tail) are waiting
  uint32_t used;       // bytes of room taken
  struct out_slice slices[BLOCK_SLICES];
  uint8_t room[BLOCK_ROOM];
};
_Static_assert(sizeof(struct out_block) <= MEM_MAX_POOLED_BYTES, "a block must come from the pool");

void out_ref_put(struct out_ref *ref) {
  FW_ASSERT(ref->refs > 0);
  if (--ref->refs == 0) ref->release(ref);
}

void outq_init(struct outq *queue, struct mem_pool *mem) {
  *queue = (struct outq){.mem = mem};
}

bool outq_full(const struct outq *queue) {
  if (queue->bytes >= OUTQ_MAX_BYTES || queue->n_blocks > OUTQ_MAX_BLOCKS) return true;
  return queue->n_blocks == OUTQ_MAX_BLOCKS && queue->last->tail >= BLOCK_SLICES - 4;
}

static bool block_append(struct outq *queue) {
  struct out_block *block = mem_take(queue->mem, sizeof *block);
  if (!block) return false;
  block->next = NULL;
  block->head = block->tail = block->used = 0;
  if (queue->last)
    queue->last->next = block;
  else
    queue->first = block;
  queue->last = block;
  queue->n_blocks++;
  return true;
}

static void block_drop_first(struct outq *queue) {
  struct out_block *block = queue->first;
  queue->first = block->next;
  if (!queue->first) queue->last = NULL;
  queue->n_blocks--;
  mem_give(queue->mem, block);
}

// Room for `bytes` more copied bytes (and a slice for them) in the last block.
static bool copy_room(struct outq *queue, size_t bytes) {
  struct out_block *block = queue->last;
  if (block && block->used + bytes <= BLOCK_ROOM && block->tail < BLOCK_SLICES) return true;
  return block_append(queue);
}

static void copy_into_last(struct outq *queue, const void *data, size_t bytes) {
  struct out_block *block = queue->last;
  uint8_t *at = block->room + block->used;
  memcpy(at, data, bytes);
  block->used += (uint32_t)bytes;
  queue->bytes += bytes;
  struct out_slice *last = block->tail > block->head ? &block->slices[block->tail - 1] : NULL;
  if (last && !last->ref && last->data + last->bytes == at)
    last->bytes += bytes;
  else
    block->slices[block->tail++] = (struct out_slice){at, bytes, NULL};
}

bool outq_copy(struct outq *queue, const void *data, size_t bytes) {
  if (bytes == 0) return true;
  if (bytes > BLOCK_ROOM) { // larger than a block: only ever a maximal HEADERS frame
    if (!outq_copy(queue, data, BLOCK_ROOM)) return false;
    return outq_copy(queue, (const uint8_t *)data + BLOCK_ROOM, bytes - BLOCK_ROOM);
  }
  if (!copy_room(queue, bytes)) return false;
  copy_into_last(queue, data, bytes);
  return true;
}

bool outq_refer(struct outq *queue, const void *data, size_t bytes, struct out_ref *ref) {
  if (bytes == 0) return true;
  if ((!queue->last || queue->last->tail == BLOCK_SLICES) && !block_append(queue)) return false;
  struct out_block *block = queue->last;
  block->slices[block->tail++] = (struct out_slice){data, bytes, ref};
  ref->refs++;
  queue->bytes += bytes;
  return true;
}

int outq_gather(const struct outq *queue, struct iovec *iov, int max) {
  int n = 0;
  for (const struct out_block *block = queue->first; block; block = block->next) {
    for (uint32_t i = block->head; i < block->tail; i++) {
      if (n == max) return n;
      iov[n].iov_base = (void *)(uintptr_t)block->slices[i].data;
      iov[n].iov_len = block->slices[i].bytes;
      n++;
    }
  }
  return n;
}

void outq_pop(struct outq *queue, size_t bytes) {
  FW_ASSERT(bytes <= queue->bytes);
  queue->bytes -= bytes;
  while (bytes > 0) {
    struct out_block *block = queue->first;
    struct out_slice *slice = &block->slices[block->head];
    if (bytes < slice->bytes) {
      slice->data += bytes;
      slice->bytes -= bytes;
      return;
    }
    bytes -= slice->bytes;
    block->head++;
    struct out_ref *ref = slice->ref;
    if (block->head == block->tail) block_drop_first(queue);
    if (ref) out_ref_put(ref);
  }
}

void outq_clear(struct outq *queue) {
  outq_pop(queue, queue->bytes);
  FW_ASSERT(queue->n_blocks == 0);
}
