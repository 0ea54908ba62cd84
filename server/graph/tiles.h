// How long products and attentions compute: on a GPU by tiles, of which each of its units works on
// a few at a time; on a CPU by their operations. Part of the cost model (graph/cost.h); seconds.
#ifndef GRAPH_TILES_H
#define GRAPH_TILES_H

#include "graph/plan.h"

// The product of a product, an attention or a kernel of an unfused one; 0 of all else. Of products
// whose epilogue hides behind nothing (epilogue_in_tiles) with that.
double product_seconds(const struct kernel_work *work, const struct device_rates *rates,
                       const struct batch_size *batch);
bool epilogue_in_tiles(const struct kernel_work *work, const struct device_rates *rates);
// A product with a norm behind it, as one kernel.
double grouped_seconds(const struct kernel_work *work, const struct device_rates *rates, double m);
// Activations and the rest of an epilogue by their operations.
double epilogue_seconds(const struct kernel_work *work, const struct device_rates *rates,
                        const struct batch_size *batch);
// Iterations of a kernel on these rows.
double rows_at(enum row_kind rows, const struct batch_size *batch);

#endif
