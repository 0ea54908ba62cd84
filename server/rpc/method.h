// Path -> method row. Built once at start; a look-up is one hash of a few bytes and one compare.
// Immutable after open, so loops may share it.
#ifndef RPC_METHOD_H
#define RPC_METHOD_H

#include "rpc/call.h"

struct method_table;
// Rows are borrowed. INVALID_ARGUMENT: a path that is empty, lacks its '/', or comes twice.
MUST_USE enum status method_table_open(const struct method *rows, int n_rows,
                                       struct method_table **out, struct error *err);
void method_table_close(struct method_table *table);
const struct method *method_find(const struct method_table *table, const uint8_t *path,
                                 size_t path_bytes); // NULL: none

#endif
