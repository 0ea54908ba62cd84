// One connection's output in order: a list of slices, written with one writev and popped by what
// the socket took.
//
//   block:  [ slices: (copied bytes) (borrowed body) (copied bytes) ... | room for copied bytes ]
//
// Small frames are copied, so that neighbours become one slice; bodies are borrowed and counted.
// The queue is bounded: the producer asks outq_full first and then may overshoot by one frame. Loop
// thread only.
#ifndef RPC_OUTQ_H
#define RPC_OUTQ_H

#include "rpc/mem.h"
#include <stdbool.h>
#include <sys/uio.h>

// A borrowed body: `release` is called when the last reference goes.
struct out_ref {
  uint32_t refs;
  void (*release)(struct out_ref *ref);
};
void out_ref_put(struct out_ref *ref);

#define OUTQ_MAX_BYTES                                                                             \
  (1 << 20) // enough to fill a socket buffer; more would only hold memory for a slow reader
#define OUTQ_MAX_BLOCKS 4   // of 16 KiB each: bounds the copied bytes of a connection
#define OUTQ_COPY_BYTES 512 // a body piece up to this is cheaper to copy than to reference

struct out_block;
struct outq {
  struct mem_pool *mem;
  struct out_block *first, *last;
  size_t bytes;
  uint32_t n_blocks;
};

void outq_init(struct outq *queue, struct mem_pool *mem);
void outq_clear(struct outq *queue); // drops everything and releases what was borrowed
bool outq_full(const struct outq *queue);
// Both return false when there is no memory; the queue is then beyond use, but can be cleared.
bool outq_copy(struct outq *queue, const void *data, size_t bytes);
bool outq_refer(struct outq *queue, const void *data, size_t bytes, struct out_ref *ref);
int outq_gather(const struct outq *queue, struct iovec *iov,
                int max);                        // from the front; does not pop
void outq_pop(struct outq *queue, size_t bytes); // these were written

#endif
