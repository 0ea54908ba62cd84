#include "rpc/call_table.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>

void call_table_init(struct call_table *table) {
  memset(table, 0, sizeof *table);
}

void call_table_deinit(struct call_table *table) {
  FW_ASSERT(table->n_used == 0);
  for (uint32_t i = 0; i < table->n_chunks; i++)
    free(table->chunks[i]);
  memset(table, 0, sizeof *table);
}

static bool add_chunk(struct call_table *table) {
  if (table->n_chunks == CALL_TABLE_MAX / CALL_TABLE_CHUNK) return false;
  struct call *chunk = calloc(CALL_TABLE_CHUNK, sizeof *chunk);
  if (!chunk) return false;
  for (uint32_t i = CALL_TABLE_CHUNK; i-- > 0;) { // lowest slot first
    chunk[i].slot = table->n_chunks * CALL_TABLE_CHUNK + i;
    chunk[i].next = table->free;
    table->free = &chunk[i];
  }
  table->chunks[table->n_chunks++] = chunk;
  return true;
}

struct call *call_table_take(struct call_table *table) {
  if (!table->free && !add_chunk(table)) return NULL;
  struct call *call = table->free;
  table->free = call->next;
  table->n_used++;
  uint32_t slot = call->slot, generation = call->generation;
  memset(call, 0, sizeof *call);
  call->slot = slot;
  call->generation = generation;
  call->state = CALL_RECEIVING;
  return call;
}

void call_table_put(struct call_table *table, struct call *call) {
  FW_ASSERT(call->state != CALL_FREE && table->n_used > 0);
  call->state = CALL_FREE;
  call->generation++; // wraps after 4e9 uses of this slot: far longer than any reply is under way
  call->next = table->free;
  table->free = call;
  table->n_used--;
}

struct call *call_table_find(struct call_table *table, uint32_t slot, uint32_t generation) {
  if (slot >= table->n_chunks * CALL_TABLE_CHUNK) return NULL;
  struct call *call = &table->chunks[slot / CALL_TABLE_CHUNK][slot % CALL_TABLE_CHUNK];
  return call->generation == generation && call->state == CALL_HANDLING ? call : NULL;
}
