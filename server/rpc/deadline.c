#include "rpc/deadline.h"
#include "base/log.h"
#include <stdlib.h>

void deadline_heap_init(struct deadline_heap *heap) {
  *heap = (struct deadline_heap){0};
}

void deadline_heap_deinit(struct deadline_heap *heap) {
  free(heap->nodes);
  *heap = (struct deadline_heap){0};
}

static void place(struct deadline_heap *heap, struct deadline *node, uint32_t index) {
  heap->nodes[index] = node;
  node->index = index;
}

static void sift_up(struct deadline_heap *heap, struct deadline *node, uint32_t index) {
  while (index > 1 && heap->nodes[index / 2]->at_ns > node->at_ns) {
    place(heap, heap->nodes[index / 2], index);
    index /= 2;
  }
  place(heap, node, index);
}

static void sift_down(struct deadline_heap *heap, struct deadline *node, uint32_t index) {
  for (;;) {
    uint32_t child = index * 2;
    if (child > heap->n) break;
    if (child < heap->n && heap->nodes[child + 1]->at_ns < heap->nodes[child]->at_ns) child++;
    if (heap->nodes[child]->at_ns >= node->at_ns) break;
    place(heap, heap->nodes[child], index);
    index = child;
  }
  place(heap, node, index);
}

enum status deadline_add(struct deadline_heap *heap, struct deadline *node) {
  FW_ASSERT(node->index == 0);
  if (heap->n + 1 >= heap->capacity) {
    uint32_t capacity = heap->capacity ? heap->capacity * 2 : 256;
    struct deadline **nodes = realloc(heap->nodes, capacity * sizeof(void *));
    if (!nodes) return STATUS_RESOURCE_EXHAUSTED;
    heap->nodes = nodes;
    heap->capacity = capacity;
  }
  sift_up(heap, node, ++heap->n);
  return STATUS_OK;
}

void deadline_remove(struct deadline_heap *heap, struct deadline *node) {
  uint32_t index = node->index;
  if (index == 0) return;
  FW_ASSERT(index <= heap->n && heap->nodes[index] == node);
  node->index = 0;
  struct deadline *last = heap->nodes[heap->n--];
  if (last == node) return;
  if (index > 1 && heap->nodes[index / 2]->at_ns > last->at_ns)
    sift_up(heap, last, index);
  else
    sift_down(heap, last, index);
}

struct deadline *deadline_first(const struct deadline_heap *heap) {
  return heap->n ? heap->nodes[1] : NULL;
}
