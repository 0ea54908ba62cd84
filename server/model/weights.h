// The weights of one model: which ones its graph names, their shapes, and their data (mapped file
// or synthetic).
//
// Control thread while a model loads; the table is read-only afterwards. Names and data live until
// weights_close. Synthetic data depend on the seed and the weight's own name only: adding a layer
// does not change the others. After weights_let_go nothing depends on the file: it may be written
// to, cut short or deleted while the model serves.
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "graph/weights.h"
#include "model/safetensors.h"

enum weight_form {
  WEIGHT_MATRIX, // [rows, cols] of a product, which packs it in its own way when it is bound
  WEIGHT_TABLE,  // [rows, cols], rows are picked by index and read where they are
  WEIGHT_VECTOR, // [cols]: bias, beta
  WEIGHT_GAIN,   // [cols]: the gamma of a norm; synthetic ones are around 1 instead of 0
};

struct weights;
MUST_USE enum status weights_open_file(const char *path, struct weights **out, struct error *err);
// Values are 0 (gains: 1) plus noise of standard deviation `scale`: a sum of four uniform variates,
// near a normal one.
MUST_USE enum status weights_open_synthetic(uint64_t seed, double scale, struct weights **out,
                                            struct error *err);
void weights_close(struct weights *weights); // NULL is fine

// Shape of a weight of the file. False: the weights are synthetic, it is not there, or it is no
// matrix or vector.
bool weights_shape(const struct weights *weights, const char *name, int32_t *rows, int32_t *cols);
bool weights_synthetic(const struct weights *weights);
// Add a weight that the graph uses, once per name; `*id` is its place in the table. Checks name,
// form, shape and dtype; the message says what was found, what was expected, and the nearest name.
// NOT_FOUND when the file has none.
MUST_USE enum status weights_add(struct weights *weights, const char *name, enum weight_form form,
                                 int32_t rows, int32_t cols, int32_t *id, struct error *err);
// Bytes of the data that weights_fill made.
int64_t weights_bytes(const struct weights *weights);
// Before binding: make the data of synthetic weights (about 1 s per billion), or copy what plans
// read in place out of the file. Nothing to do the second time.
MUST_USE enum status weights_fill(struct weights *weights, struct error *err);
// After binding to every device: unmap the file. Data of product matrices are then NULL.
void weights_let_go(struct weights *weights);
// NULL (a model without weights) gives an empty table. Before weights_fill the data of synthetic
// weights are NULL.
struct weight_table weights_table(const struct weights *weights);

#endif
