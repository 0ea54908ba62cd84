// Matrix products y = epilogue(x W^T) on the CPU: weights packed once, code for every row count
// made once.
//
// The columns of y are cut into units, so that a few rows can be worked on by all threads at once
// and many rows by each thread alone (all units in one call). Two implementations stand behind one
// interface: our own kernels (simd/product_ops.c, amx.c; units of 32 or 64 columns) and the
// library (onednn.c; as many units as threads), chosen by what was measured for the dtype and the
// processor.
#ifndef KERNELS_CPU_PRODUCT_H
#define KERNELS_CPU_PRODUCT_H

#include "kernels/cpu/features.h"

#define PRODUCT_ROWS 64         // most rows of one call
#define PRODUCT_UNITS_MAX 65535 // of one product: a unit has more columns where it is wider

enum product_kind {
  PRODUCT_AUTO,    // what measured best
  PRODUCT_LIBRARY, // oneDNN
  PRODUCT_OWN,     // our own kernel; AUTO and LIBRARY never fail for want of one
  PRODUCT_KINDS
};
const char *product_kind_name(enum product_kind kind);

struct product_spec {
  struct linear_problem problem;
  bool finish;                // every run has one
  int64_t x_stride, y_stride; // elements; of every call
  int n_threads;              // most threads that call product_run at the same time
  enum product_kind kind;
  const struct cpu_features *features;
  const struct cpu_ops *ops;
  // Where packed weights go: 64-byte aligned, must outlive the product. NULL: memory of its own.
  void *(*take)(void *arg, size_t bytes);
  void *take_arg;
  // Weights that another product packed the same way (product_packing): nothing is read or packed.
  // Must outlive the product. NULL: there are none.
  const void *packed;
};

struct finish;
struct product; // opaque; read-only after creation but for memory of its own per thread

// Rows [first, first + rows) of W as problem.w_dtype, [rows, k] contiguous, into `out`. False:
// stop, memory is out.
typedef bool (*product_read_rows)(void *arg, int32_t first, int32_t rows, void *out);

// NULL when memory is out or the library refuses; `why` (static text) says which. Load time.
struct product *product_create(const struct product_spec *spec, product_read_rows read, void *arg,
                               const char **why);
void product_destroy(struct product *product);
int32_t product_units(const struct product *product);
enum product_kind product_kind_of(const struct product *product);
int64_t product_bytes(const struct product *product); // of packed weights
// How weights would be packed for `spec` (its problem, kind, features, ops): equal numbers are the
// same layout, in which the rows of W from a multiple of `*align` on are a matrix of their own.
// 0: not packed by us, nothing to share.
int32_t product_packing(const struct product_spec *spec, int32_t *align);
const void *product_packed(const struct product *product); // NULL: the library's
// Packed weights of a unit, to be fetched ahead of need; NULL: the library's, or beyond the last.
const void *product_unit_weights(const struct product *product, int32_t unit);
size_t product_workspace_bytes(const struct product *product); // per thread, for one call

struct product_run {
  int thread;            // of the team, < n_threads
  int32_t unit, n_units; // columns to compute: so many units from this one on
  const void *next;      // weights that this thread will need after these, or NULL: what follows
  int32_t rows;          // 1 .. PRODUCT_ROWS
  const void *x;         // row 0
  void *y;               // row 0, column 0 of the whole y; not used with a finish
  // By position in problem.epilogue: EPI_BIAS [n]; EPI_ADD, EPI_MUL row 0, column 0.
  const struct view *operands;
  void *workspace;             // product_workspace_bytes, 64-byte aligned
  const struct finish *finish; // writes the results in place of y (epilogue.h); NULL: there is none
};
// False: the library failed, which is our bug or a lack of memory inside it. Never allocates by
// itself.
bool product_run(const struct product *product, const struct product_run *run);

// Once in every thread that runs or creates products: the library's own threads are switched off
// for it.
void product_thread_init(void);

#endif
