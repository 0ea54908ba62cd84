#include "backend/cpu/packs.h"
#include "backend/cpu/pool.h"

#include <stdlib.h>

struct entry { // one weight of the table, packed
  int32_t weight;
  struct pack_form form;
  const char *packed;
};

struct packs {
  struct packs *next;
  const struct weight *weights; // the table: its address names it
  int32_t holders;
  struct pool pool;
  int64_t bytes;
  struct entry *entries;
  int32_t n_entries, capacity;
};

struct packs *packs_hold(struct packs **list, const struct weight_table *table) {
  for (struct packs *p = *list; p; p = p->next)
    if (p->weights == table->weights) {
      p->holders++;
      return p;
    }
  struct packs *packs = calloc(1, sizeof *packs);
  if (!packs) return NULL;
  *packs = (struct packs){.next = *list, .weights = table->weights, .holders = 1};
  *list = packs;
  return packs;
}

void packs_drop(struct packs **list, struct packs *packs) {
  if (!packs || --packs->holders > 0) return;
  while (*list != packs)
    list = &(*list)->next;
  *list = packs->next;
  pool_deinit(&packs->pool);
  free(packs->entries);
  free(packs);
}

void *packs_take(void *arg, size_t bytes) {
  struct packs *packs = arg;
  packs->bytes += (int64_t)bytes;
  return pool_take(&packs->pool, bytes);
}

int64_t packs_bytes(const struct packs *packs) {
  return packs->bytes;
}

int64_t packs_list_bytes(const struct packs *list, const struct weight_table *table) {
  int64_t bytes = 0;
  for (const struct packs *p = list; p; p = p->next)
    if (!table || p->weights == table->weights) bytes += p->bytes;
  return bytes;
}

static size_t row_bytes(const struct packs *packs, int32_t weight, const struct pack_form *form) {
  return (size_t)packs->weights[weight].cols * dtype_bytes(form->dtype);
}

static const char *find_one(const struct packs *packs, int32_t weight, const struct pack_form *form,
                            const char *at) {
  for (int32_t i = 0; i < packs->n_entries; i++) {
    const struct entry *e = &packs->entries[i];
    if (e->weight == weight && e->form.dtype == form->dtype && e->form.packing == form->packing &&
        (!at || e->packed == at))
      return e->packed;
  }
  return NULL;
}

const void *packs_find(const struct packs *packs, const struct operand *operand,
                       const struct pack_form *form) {
  if (form->packing == 0) return NULL;
  const char *first = find_one(packs, operand->weight[0], form, NULL), *at = first;
  for (int part = 1; at && part < operand->n_parts; part++) {
    int32_t before = operand->weight[part - 1], rows = packs->weights[before].rows;
    if (rows % form->align != 0) return NULL;
    at += (size_t)rows * row_bytes(packs, before, form);
    at = find_one(packs, operand->weight[part], form, at);
  }
  return at ? first : NULL;
}

static bool add_one(struct packs *packs, const struct entry *entry) {
  if (packs->n_entries == packs->capacity) {
    int32_t capacity = packs->capacity ? 2 * packs->capacity : 64;
    struct entry *more = realloc(packs->entries, (size_t)capacity * sizeof *more);
    if (!more) return false;
    packs->entries = more, packs->capacity = capacity;
  }
  packs->entries[packs->n_entries++] = *entry;
  return true;
}

void packs_add(struct packs *packs, const struct operand *operand, const struct pack_form *form,
               const void *packed) {
  const char *at = packed;
  for (int part = 0; form->packing != 0 && part < operand->n_parts; part++) {
    int32_t weight = operand->weight[part], rows = packs->weights[weight].rows;
    if (!add_one(packs, &(struct entry){weight, *form, at})) return;
    if (rows % form->align != 0) return; // the next part begins inside a panel
    at += (size_t)rows * row_bytes(packs, weight, form);
  }
}
