// Packed weights of products, and other weights that were converted, shared by the plans of one
// model: fused and unfused plans read the same matrices, some of them side by side in one product
// (q, k and v), some alone.
//
// A store belongs to all bound plans of one weight table and ends with the last of them. Load time
// only, one thread.
#ifndef BACKEND_CPU_PACKS_H
#define BACKEND_CPU_PACKS_H

#include "base/status.h"
#include "graph/plan.h"
#include "graph/weights.h"

struct packs;

// The store of `table` on the device's list: made when there is none, held until packs_drop. NULL:
// memory is out.
struct packs *packs_hold(struct packs **list, const struct weight_table *table);
void packs_drop(struct packs **list, struct packs *packs); // NULL: nothing
void *packs_take(void *packs, size_t bytes);               // product_spec.take
int64_t packs_bytes(const struct packs *packs);            // taken so far
// Of the list's store of `table`, NULL: of all its stores together.
int64_t packs_list_bytes(const struct packs *list, const struct weight_table *table);

// How a product's matrix is packed: product_packing's number, and `align` rows of W of one dtype
// are where another matrix may begin.
#define PACKING_ROWS (-1) // not at all: row by row, as vectors and tables are
struct pack_form {
  enum dtype dtype;
  int32_t packing, align; // packing 0: nothing is shared
};

// The operand's parts one after another in packed memory; NULL: some are missing or lie elsewhere.
const void *packs_find(const struct packs *packs, const struct operand *operand,
                       const struct pack_form *form);
// Remembers where the operand's parts lie: `packed` and on. Memory that is out is no error: the
// parts are packed again when they are needed again.
void packs_add(struct packs *packs, const struct operand *operand, const struct pack_form *form,
               const void *packed);

#endif
