// The one file that calls oneDNN: single-threaded matrix products for every bucket of rows, made at
// load time. Compiles with 2.x (memory descriptors by value, operation descriptors) and 3.x (opaque
// descriptors).
#include "kernels/cpu/onednn.h"

#include "kernels/cpu/product.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

// Row counts with code of their own: 1..EXACT and PRODUCT_ROWS. Other counts are run as EXACT rows
// and the rest, which costs less than 2 %: at 32 rows a product is as fast as it gets.
#define EXACT 32
#define N_BUCKETS (EXACT + 1)

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t md_handle; // an owned pointer
#define MD_REF(md) (md)
#define MD_BYTES(md) dnnl_memory_desc_get_size(md)
#else
typedef dnnl_memory_desc_t md_handle; // a value
#define MD_REF(md) (&(md))
#define MD_BYTES(md) dnnl_memory_desc_get_size(&(md))
#endif

struct args { // memory objects of one thread for one bucket: their handles are set before each call
  dnnl_memory_t x, y, scratch;
};

struct bucket {
  dnnl_primitive_t primitive;
  struct args *args; // [n_threads]
};

struct per_thread {
  dnnl_stream_t stream;
  dnnl_memory_t bias;
  void *scratch;
};

struct onednn_slice {
  struct onednn_slice_spec spec;
  dnnl_engine_t engine;
  dnnl_memory_t weights; // packed, shared by all buckets
  int64_t weight_bytes;
  struct per_thread *threads;
  size_t scratch_bytes;
  struct bucket buckets[N_BUCKETS];
};

static int32_t bucket_rows(int index) {
  return index < EXACT ? index + 1 : PRODUCT_ROWS;
}

static dnnl_data_type_t type_of(enum dtype dtype) {
  return dtype == DTYPE_BF16 ? dnnl_bf16 : dtype == DTYPE_F16 ? dnnl_f16 : dnnl_f32;
}

// ---- descriptors, where the versions differ ----
static bool md_strided(md_handle *md, int64_t rows, int64_t cols, int64_t row_stride,
                       int64_t col_stride, enum dtype dtype) {
  dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(md, 2, dims, type_of(dtype), strides) == dnnl_success;
#else
  return dnnl_memory_desc_init_by_strides(md, 2, dims, type_of(dtype), strides) == dnnl_success;
#endif
}

static bool md_any(md_handle *md, int64_t rows, int64_t cols, enum dtype dtype) {
  dnnl_dims_t dims = {rows, cols};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_tag(md, 2, dims, type_of(dtype), dnnl_format_tag_any) ==
         dnnl_success;
#else
  return dnnl_memory_desc_init_by_tag(md, 2, dims, type_of(dtype), dnnl_format_tag_any) ==
         dnnl_success;
#endif
}

static void md_free(md_handle *md) {
#if DNNL_VERSION_MAJOR >= 3
  if (*md) dnnl_memory_desc_destroy(*md);
#else
  (void)md;
#endif
}

// A matmul of x, w, (bias,) y. Weights in `w` as the first bucket chose them, or "any".
static dnnl_primitive_desc_t matmul_desc(dnnl_engine_t engine, md_handle x, md_handle w,
                                         const md_handle *bias, md_handle y) {
  dnnl_primitive_attr_t attr = NULL;
  dnnl_primitive_desc_t desc = NULL;
  if (dnnl_primitive_attr_create(&attr) != dnnl_success) return NULL;
  if (dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) != dnnl_success)
    goto out;
#if DNNL_VERSION_MAJOR >= 3
  if (dnnl_matmul_primitive_desc_create(&desc, engine, x, w, bias ? *bias : NULL, y, attr) !=
      dnnl_success)
    desc = NULL;
#else
  dnnl_matmul_desc_t op;
  if (dnnl_matmul_desc_init(&op, &x, &w, bias, &y) != dnnl_success) goto out;
  if (dnnl_primitive_desc_create(&desc, &op, attr, engine, NULL) != dnnl_success) desc = NULL;
#endif
out:
  dnnl_primitive_attr_destroy(attr);
  return desc;
}

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_query;
#else
typedef const dnnl_memory_desc_t *md_query;
#endif
static md_query query_md(const_dnnl_primitive_desc_t desc, dnnl_query_t what) {
  return dnnl_primitive_desc_query_md(desc, what, 0);
}

static dnnl_primitive_desc_t bucket_desc(const struct onednn_slice *s, int32_t rows,
                                         const md_handle *packed) {
  const struct onednn_slice_spec *p = &s->spec;
  md_handle x = {0}, w = {0}, y = {0}, bias = {0};
  dnnl_primitive_desc_t desc = NULL;
  bool made = md_strided(&x, rows, p->k, p->x_stride, 1, p->x_dtype) &&
              md_strided(&y, rows, p->n, p->y_stride, 1, p->y_dtype) &&
              md_strided(&bias, 1, p->n, p->n, 1, DTYPE_F32) &&
              (packed || md_any(&w, p->k, p->n, p->w_dtype));
  if (made) desc = matmul_desc(s->engine, x, packed ? *packed : w, p->bias ? &bias : NULL, y);
  md_free(&x), md_free(&w), md_free(&y), md_free(&bias);
  return desc;
}

// ---- creation ----
static bool pack_weights(struct onednn_slice *s, const_dnnl_primitive_desc_t desc,
                         const void *weights) {
  const struct onednn_slice_spec *p = &s->spec;
  md_query packed = query_md(desc, dnnl_query_weights_md);
  s->weight_bytes = (int64_t)dnnl_memory_desc_get_size(packed);
  if (dnnl_memory_create(&s->weights, packed, s->engine, DNNL_MEMORY_ALLOCATE) != dnnl_success)
    return false;
  md_handle plain = {0};
  dnnl_memory_t from = NULL;
  dnnl_primitive_desc_t reorder_desc = NULL;
  dnnl_primitive_t reorder = NULL;
  bool ok = md_strided(&plain, p->k, p->n, 1, p->k, p->w_dtype) &&
            dnnl_memory_create(&from, MD_REF(plain), s->engine, (void *)(uintptr_t)weights) ==
                dnnl_success &&
            dnnl_reorder_primitive_desc_create(&reorder_desc, MD_REF(plain), s->engine, packed,
                                               s->engine, NULL) == dnnl_success &&
            dnnl_primitive_create(&reorder, reorder_desc) == dnnl_success;
  if (ok) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, s->weights}};
    ok = dnnl_primitive_execute(reorder, s->threads[0].stream, 2, args) == dnnl_success &&
         dnnl_stream_wait(s->threads[0].stream) == dnnl_success;
  }
  if (reorder) dnnl_primitive_destroy(reorder);
  if (reorder_desc) dnnl_primitive_desc_destroy(reorder_desc);
  if (from) dnnl_memory_destroy(from);
  md_free(&plain);
  return ok;
}

static bool make_args(struct onednn_slice *s, struct bucket *b, const_dnnl_primitive_desc_t desc) {
  b->args = calloc((size_t)s->spec.n_threads, sizeof *b->args);
  if (!b->args) return false;
  md_query x = query_md(desc, dnnl_query_src_md), y = query_md(desc, dnnl_query_dst_md),
           scratch = query_md(desc, dnnl_query_scratchpad_md);
  size_t bytes = dnnl_memory_desc_get_size(scratch);
  if (bytes > s->scratch_bytes) s->scratch_bytes = bytes;
  for (int t = 0; t < s->spec.n_threads; t++) {
    struct args *a = &b->args[t];
    if (dnnl_memory_create(&a->x, x, s->engine, DNNL_MEMORY_NONE) != dnnl_success ||
        dnnl_memory_create(&a->y, y, s->engine, DNNL_MEMORY_NONE) != dnnl_success ||
        dnnl_memory_create(&a->scratch, scratch, s->engine, DNNL_MEMORY_NONE) != dnnl_success)
      return false;
  }
  return true;
}

// All buckets share the weight layout that the largest one chose.
static bool make_buckets(struct onednn_slice *s, const void *weights, const char **why) {
  for (int i = N_BUCKETS - 1; i >= 0; i--) {
    dnnl_primitive_desc_t desc = NULL;
    if (s->weights) {
#if DNNL_VERSION_MAJOR >= 3
      const_dnnl_memory_desc_t packed = NULL;
      if (dnnl_memory_get_memory_desc(s->weights, &packed) != dnnl_success) return false;
      md_handle handle = (md_handle)(uintptr_t)packed;
      desc = bucket_desc(s, bucket_rows(i), &handle);
#else
      const dnnl_memory_desc_t *packed = NULL;
      if (dnnl_memory_get_memory_desc(s->weights, &packed) != dnnl_success) return false;
      desc = bucket_desc(s, bucket_rows(i), packed);
#endif
    } else {
      desc = bucket_desc(s, bucket_rows(i), NULL);
    }
    *why = "oneDNN has no product for this shape and dtype";
    if (!desc) return false;
    *why = "out of memory in oneDNN";
    bool ok = (s->weights || pack_weights(s, desc, weights)) &&
              dnnl_primitive_create(&s->buckets[i].primitive, desc) == dnnl_success &&
              make_args(s, &s->buckets[i], desc);
    dnnl_primitive_desc_destroy(desc);
    if (!ok) return false;
  }
  return true;
}

static bool make_threads(struct onednn_slice *s) {
  md_handle bias = {0};
  s->threads = calloc((size_t)s->spec.n_threads, sizeof *s->threads);
  bool ok = s->threads && md_strided(&bias, 1, s->spec.n, s->spec.n, 1, DTYPE_F32);
  for (int t = 0; ok && t < s->spec.n_threads; t++) {
    ok = dnnl_stream_create(&s->threads[t].stream, s->engine, dnnl_stream_default_flags) ==
             dnnl_success &&
         dnnl_memory_create(&s->threads[t].bias, MD_REF(bias), s->engine, DNNL_MEMORY_NONE) ==
             dnnl_success;
  }
  md_free(&bias);
  return ok;
}

static bool make_scratch(struct onednn_slice *s) {
  size_t bytes = (s->scratch_bytes + 63) & ~(size_t)63;
  for (int t = 0; bytes && t < s->spec.n_threads; t++) {
    s->threads[t].scratch = aligned_alloc(64, bytes);
    if (!s->threads[t].scratch) return false;
    for (int i = 0; i < N_BUCKETS; i++) {
      if (dnnl_memory_set_data_handle(s->buckets[i].args[t].scratch, s->threads[t].scratch) !=
          dnnl_success)
        return false;
    }
  }
  return true;
}

struct onednn_slice *onednn_slice_create(const struct onednn_slice_spec *spec, const void *weights,
                                         const char **why) {
  *why = "out of memory";
  struct onednn_slice *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->spec = *spec;
  if (dnnl_engine_create(&s->engine, dnnl_cpu, 0) != dnnl_success || !make_threads(s) ||
      !make_buckets(s, weights, why) || !make_scratch(s)) {
    onednn_slice_destroy(s);
    return NULL;
  }
  return s;
}

void onednn_slice_destroy(struct onednn_slice *s) {
  if (!s) return;
  for (int i = 0; i < N_BUCKETS; i++) {
    struct bucket *b = &s->buckets[i];
    if (b->primitive) dnnl_primitive_destroy(b->primitive);
    for (int t = 0; b->args && t < s->spec.n_threads; t++) {
      if (b->args[t].x) dnnl_memory_destroy(b->args[t].x);
      if (b->args[t].y) dnnl_memory_destroy(b->args[t].y);
      if (b->args[t].scratch) dnnl_memory_destroy(b->args[t].scratch);
    }
    free(b->args);
  }
  for (int t = 0; s->threads && t < s->spec.n_threads; t++) {
    if (s->threads[t].bias) dnnl_memory_destroy(s->threads[t].bias);
    if (s->threads[t].stream) dnnl_stream_destroy(s->threads[t].stream);
    free(s->threads[t].scratch);
  }
  free(s->threads);
  if (s->weights) dnnl_memory_destroy(s->weights);
  if (s->engine) dnnl_engine_destroy(s->engine);
  free(s);
}

// ---- execution ----
static bool run_bucket(const struct onednn_slice *s, int thread, int bucket, const void *x,
                       const float *bias, void *y) {
  const struct bucket *b = &s->buckets[bucket];
  struct args *a = &b->args[thread];
  struct per_thread *t = &s->threads[thread];
  if (dnnl_memory_set_data_handle(a->x, (void *)(uintptr_t)x) != dnnl_success ||
      dnnl_memory_set_data_handle(a->y, y) != dnnl_success)
    return false;
  dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, a->x},
                             {DNNL_ARG_WEIGHTS, s->weights},
                             {DNNL_ARG_DST, a->y},
                             {DNNL_ARG_SCRATCHPAD, a->scratch},
                             {DNNL_ARG_BIAS, t->bias}};
  if (s->spec.bias && dnnl_memory_set_data_handle(t->bias, (void *)(uintptr_t)bias) != dnnl_success)
    return false;
  return dnnl_primitive_execute(b->primitive, t->stream, s->spec.bias ? 5 : 4, args) ==
         dnnl_success;
}

bool onednn_slice_run(const struct onednn_slice *s, int thread, int32_t rows, const void *x,
                      const float *bias, void *y) {
  if (rows == PRODUCT_ROWS) return run_bucket(s, thread, EXACT, x, bias, y);
  for (int32_t done = 0; done < rows;) {
    int32_t n = rows - done < EXACT ? rows - done : EXACT;
    const char *px =
        (const char *)x + (int64_t)done * s->spec.x_stride * (int64_t)dtype_bytes(s->spec.x_dtype);
    char *py = (char *)y + (int64_t)done * s->spec.y_stride * (int64_t)dtype_bytes(s->spec.y_dtype);
    if (!run_bucket(s, thread, n - 1, px, bias, py)) return false;
    done += n;
  }
  return true;
}

int64_t onednn_slice_bytes(const struct onednn_slice *s) {
  return s->weight_bytes;
}

// The library's OpenMP run-time would start (and keep spinning) threads of its own: one thread for
// each of ours.
void onednn_thread_init(void) {
  void (*set_num_threads)(int) = NULL;
  *(void **)&set_num_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  if (set_num_threads) set_num_threads(1);
}

const char *onednn_version(void) {
  static char text[32];
  const dnnl_version_t *v = dnnl_version();
  snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
  return text;
}
