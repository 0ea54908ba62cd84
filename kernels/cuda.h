// The CUDA kernels' C ABI: plain data in, stream last, nothing allocated, nothing waited for (load
// functions aside).
//
// Every launcher returns 0, or a cudaError_t value: CUDA_UNSUPPORTED (cudaErrorNotSupported) when
// this kernel does not take the problem (nothing was launched: ask the next one), anything else as
// the runtime reported it. Pointers are device addresses. A launch is safe to capture into a graph;
// its arguments are copied at the call. Threads: any thread with the device current; the kernels
// keep no state.
#ifndef KERNELS_CUDA_H
#define KERNELS_CUDA_H

#include "kernels/codegen/codegen.h"
#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; // what cudaStream_t points to
#define CUDA_UNSUPPORTED 801

// ---- copies ------------------------------------------------------------------------------------
// Many small pieces between pinned host memory and the device, either way, by one launch.
struct copy_unit {
  const void *from; // any alignment; NULL: zeros
  void *to;         // at its fastest with 4-byte alignment, and 16 on both sides
  int64_t bytes;    // best at most COPY_UNIT_BYTES: a block copies it
};
#define COPY_UNITS 160 // in one launch: they are its parameters
#define COPY_UNIT_BYTES 16384
struct copy_list {
  int32_t n;
  struct copy_unit units[COPY_UNITS];
};
// Times of the card's clock (ns), written to pinned host memory as the launch begins and ends;
// NULL: not wanted. `arrived`: a word of device memory that is 0, with `ended`. `wait_ns`: so long
// the launch waits before `began`, on the card (one thread spins); 0 on a serving path.
struct copy_stamps {
  int64_t *began, *ended;
  uint32_t *arrived;
  int64_t wait_ns;
};
// n = 0 launches too, for the stamps.
int copy_run(const struct copy_list *list, const struct copy_stamps *stamps,
             struct CUstream_st *stream);

// ---- row programs: generated source, compiled at load time -------------------------------------
// ---------------------------------------------------------- The compiler (NVRTC) is opened late,
// by name, so that one binary runs where there is none.
struct jit;
struct jit_options {
  const char *cache_dir; // finished cubins, one file each; NULL: no cache. Created if missing.
};
#define JIT_MESSAGE_BYTES 512
// 0, or -1 with a sentence in `message` (no NVRTC found, ...).
int jit_open(const struct jit_options *options, struct jit **out, char message[JIT_MESSAGE_BYTES]);
void jit_close(struct jit *jit);
struct cubin {
  void *data; // owned; cubin_free
  size_t bytes;
  bool cached; // came from the cache
};
// Compile `source` for `arch` ("sm_90a"), or take it from the cache: SHA-256 of source, options,
// NVRTC version and architecture is the key. A cache entry that is damaged is rebuilt; a cache that
// cannot be written is not an error.
int jit_compile(struct jit *jit, const char *source, const char *arch, struct cubin *out,
                char message[JIT_MESSAGE_BYTES]);
void cubin_free(struct cubin *cubin);
// The text that stands before generated kernels (common/act.cuh and codegen/prelude.cuh),
// NUL-terminated.
extern const char row_prelude[];

// Arguments of a generated kernel; the same layout as fw_row_args in codegen/prelude.cuh. Strides
// are in elements.
struct row_args {
  const void *in[ROW_MAX_INPUTS];
  int64_t in_stride[ROW_MAX_INPUTS];
  int64_t in_rows[ROW_MAX_INPUTS]; // gather tables: rows of the table
  void *out[ROW_MAX_OUTPUTS];
  int64_t out_stride[ROW_MAX_OUTPUTS];
  int64_t rows;
  const int32_t *positions;            // IN_GATHER with index_operand 255
  const int32_t *cu_seqlens;           // pools: rows are sequences
  int32_t index_bytes[ROW_MAX_INPUTS]; // 4 or 8 where in[i] holds indices
};
struct row_kernel {
  const struct row_program *prog; // borrowed
  // Set after the load where what the program pools is made by another one (row_ir_build_before),
  // whose inputs are the kernel's from `before_in` on; borrowed. What is pooled has no address.
  const struct row_program *before;
  uint8_t before_in;
  void *library;
  void *kernels[ROW_VARIANTS]; // NULL: this program has no such variant
  struct row_tile tiles[ROW_VARIANTS];
};
// Load a cubin of row_source_all's text on the current device. Load time only.
int row_kernel_load(const struct row_program *prog, const struct row_tile tiles[ROW_VARIANTS],
                    const struct cubin *cubin, struct row_kernel *out);
void row_kernel_unload(struct row_kernel *kernel);
// Takes 16-byte accesses where every pointer and stride allows them, else the scalar variant. rows
// = 0 is no launch.
int row_kernel_run(const struct row_kernel *kernel, const struct row_args *args,
                   struct CUstream_st *stream);

// ---- products ----------------------------------------------------------------------------------
// y [m, n] = epilogue(x [m, k] W^T): in[0] is x, in[1] is W [n, k], and epilogue operands are
// in[op.operand] (a step's inputs as they stand). Any m, n, k >= 1 and any alignment: the
// tensor-core kernel where the operands allow it (16-bit x and W of one dtype, 16-byte rows), else
// the simple one. y must not overlap an input, except that EPI_ADD's operand may be y. A row's bits
// do not depend on m: whichever kernel m selects, every sum runs over k in the same order.
int linear_run(const struct linear_problem *problem, const struct view *in, const struct view *y,
               int64_t m, struct CUstream_st *stream);

// The same, giving that promise up: with few rows k may be split between blocks, in an order that
// depends on m.
int linear_run_fastest(const struct linear_problem *problem, const struct view *in,
                       const struct view *y, int64_t m, struct CUstream_st *stream);

// ---- attention ---------------------------------------------------------------------------------
// in: q [T, heads * d], k and v [T, kv_heads * d]; out [T, heads * d]: views, so that they may be
// columns of one wider buffer. The geometry's arrays are device addresses. out may be q.
//
// The geometry's counts may be those of a bucket: upper bounds of n_tokens, n_seqs, max_seqlen and
// sum_sq that a captured graph is replayed with. The truth is in the device arrays: [n_seqs + 1]
// entries of cu_seqlens (and scores_offset), where sequences past the batch's last repeat the end.
// What lies behind the last real token may hold anything, is never used, and is not written.
int attention_run(const struct attention_problem *problem, const struct view *in,
                  const struct view *out, const struct batch_geometry *geometry,
                  struct CUstream_st *stream);

// Unfused attention, one matrix in memory after each. `scores` has heads * sum_sq floats, whatever
// the problem's dtype, laid out as batch_geometry.scores_offset says. Counts as above.
int attention_scores(const struct attention_problem *problem, const struct view *q,
                     const struct view *k, float *scores, const struct batch_geometry *geometry,
                     struct CUstream_st *stream); // q k^T
int attention_scores_scale(const struct attention_problem *problem, float *scores,
                           const struct batch_geometry *geometry,
                           struct CUstream_st *stream); // * scale; causal: -inf where j > i
int attention_scores_softmax(const struct attention_problem *problem, float *scores,
                             const struct batch_geometry *geometry,
                             struct CUstream_st *stream); // rows; a row of -inf gives zeros
int attention_context(const struct attention_problem *problem, const float *scores,
                      const struct view *v, const struct view *out,
                      const struct batch_geometry *geometry, struct CUstream_st *stream); // p v

#ifdef __cplusplus
}
#endif
#endif
