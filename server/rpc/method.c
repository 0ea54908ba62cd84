#include "rpc/method.h"
#include <stdlib.h>
#include <string.h>

struct entry {
  const struct method *method; // NULL: empty
  uint32_t path_bytes;
};

struct method_table {
  uint64_t seed;
  uint32_t mask;
  struct entry entries[];
};

#define MAX_ROWS 4096

// Length, last 8 and middle 8 bytes tell our paths apart; where they do not, probing settles it.
static uint32_t path_hash(uint64_t seed, const uint8_t *path, size_t bytes) {
  uint64_t tail = 0, middle = 0;
  if (bytes >= 8) {
    memcpy(&tail, path + bytes - 8, 8);
    memcpy(&middle, path + (bytes - 8) / 2, 8);
  } else {
    memcpy(&tail, path, bytes);
  }
  uint64_t mixed = (tail ^ (middle << 23 | middle >> 41) ^ bytes * 0x9E3779B97F4A7C15u) * seed;
  return (uint32_t)(mixed >> 32);
}

static bool same_path(const struct entry *entry, const uint8_t *path, size_t bytes) {
  return entry->path_bytes == bytes && memcmp(entry->method->path, path, bytes) == 0;
}

static int insert(struct method_table *table, const struct method *row) {
  size_t bytes = strlen(row->path);
  uint32_t at = path_hash(table->seed, (const uint8_t *)row->path, bytes) & table->mask;
  int probes = 0;
  for (; table->entries[at].method; at = (at + 1) & table->mask, probes++)
    if (same_path(&table->entries[at], (const uint8_t *)row->path, bytes)) return -1;
  table->entries[at] = (struct entry){row, (uint32_t)bytes};
  return probes;
}

// Number of probes beyond the first over all rows; -1: a path twice.
static int fill(struct method_table *table, const struct method *rows, int n_rows) {
  memset(table->entries, 0, (table->mask + (size_t)1) * sizeof table->entries[0]);
  int probes = 0;
  for (int i = 0; i < n_rows; i++) {
    int more = insert(table, &rows[i]);
    if (more < 0) return -1;
    probes += more;
  }
  return probes;
}

static enum status check_rows(const struct method *rows, int n_rows, struct error *err) {
  if (n_rows < 0 || n_rows > MAX_ROWS)
    return error_set(err, STATUS_INVALID_ARGUMENT, "%d methods; expected 0 to %d", n_rows,
                     MAX_ROWS);
  for (int i = 0; i < n_rows; i++)
    if (rows[i].path[0] != '/' || rows[i].path[1] == 0)
      return error_set(err, STATUS_INVALID_ARGUMENT, "method %d: path '%s' must begin with '/'", i,
                       rows[i].path);
  return STATUS_OK;
}

enum status method_table_open(const struct method *rows, int n_rows, struct method_table **out,
                              struct error *err) {
  *out = NULL;
  enum status status = check_rows(rows, n_rows, err);
  if (status != STATUS_OK) return status;
  uint32_t size = 16;
  while (size < (uint32_t)n_rows * 8)
    size *= 2;
  struct method_table *table = malloc(sizeof *table + size * sizeof table->entries[0]);
  if (!table) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the method table");
  table->mask = size - 1;
  table->seed = 0x9E3779B97F4A7C15u;
  int probes = 0;
  for (int attempt = 0; attempt < 256; attempt++) { // nearly always the first few seeds are perfect
    table->seed = (table->seed * 6364136223846793005u + 1442695040888963407u) | 1;
    probes = fill(table, rows, n_rows);
    if (probes <= 0) break;
  }
  if (probes < 0) {
    method_table_close(table);
    return error_set(err, STATUS_INVALID_ARGUMENT, "a method path comes twice in the table");
  }
  *out = table;
  return STATUS_OK;
}

void method_table_close(struct method_table *table) {
  free(table);
}

const struct method *method_find(const struct method_table *table, const uint8_t *path,
                                 size_t path_bytes) {
  uint32_t at = path_hash(table->seed, path, path_bytes) & table->mask;
  for (; table->entries[at].method; at = (at + 1) & table->mask)
    if (same_path(&table->entries[at], path, path_bytes)) return table->entries[at].method;
  return NULL;
}
