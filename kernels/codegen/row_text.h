// Inside the generator: the pieces that kernels of every shape are written from. Not for others.
#ifndef CODEGEN_ROW_TEXT_H
#define CODEGEN_ROW_TEXT_H

#include "kernels/codegen/codegen.h"

struct text {
  char *out;
  size_t size, used;
  const struct row_ir *ir;
  struct row_tile tile;
  bool tail;        // writing the scalar tail of a flat kernel
  const char *fold; // writing rows that are pooled: how (FW_POOL_...), in place of stores
};

__attribute__((format(printf, 2, 3))) void text_put(struct text *t, const char *format, ...);
// Rows held by groups of threads (and not tiles of vectors).
bool text_by_row(const struct text *t);
const char *text_type(enum dtype dtype);
const char *text_slot(const struct text *t); // subscript of a row scalar
const char *text_exp(const struct text *t);  // the exponential of this precision
const struct row_input *text_input(const struct text *t, int value);
bool text_hoisted(const struct text *t, int value); // loaded before anything is computed
bool text_array(const struct text *t, int value);   // kept for a later segment
bool text_pooled(const struct text *t, int value);  // a load that folds a sequence
bool text_made(const struct text *t, int value);    // ... of rows that the kernel makes
const char *text_pool_kind(enum row_input_class cls);
// What reads element j of `value` in the vector at hand.
const char *text_ref(const struct text *t, int value, char buffer[48]);
void text_expression(struct text *t, int value); // right-hand side of an operation
// One vector of load `value` into pN (with subscripts `at`); `pad` is the statement's indentation.
void text_load(struct text *t, int value, const char *at, const char *pad);
// A sequence's tokens folded by the block into shared memory; by one thread into `name`.
void text_pool_block(struct text *t, int value);
void text_pool(struct text *t, int value, const char *name, const char *pad);
void text_scalar_load(struct text *t, int value, const char *pad);

// row_source.c: the loops over a group's rows and vectors, `pad` of whose body is six blanks; the
// program's segments on the rows at hand.
void text_group_loops(struct text *t);
void text_program(struct text *t);
// row_before.c: what input `made` of the program pools, made and folded, into its values.
void text_before(struct text *t);
// row_listing.c: what kernel `name` computes and how it is spread, as comments.
void text_listing(struct text *t, const char *name);

#endif
