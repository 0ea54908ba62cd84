#include "rpc/rpc.h"
#include "base/log.h"
#include "rpc/internal.h"
#include <stdlib.h>
#include <string.h>

// ---- nghttp2's memory comes from the loop's pool ----

static void *h2_malloc(size_t bytes, void *arg) {
  return mem_take(arg, bytes);
}

static void h2_free(void *block, void *arg) {
  mem_give(arg, block);
}

static void *h2_calloc(size_t n, size_t bytes, void *arg) {
  size_t total;
  if (__builtin_mul_overflow(n, bytes, &total)) return NULL;
  void *block = mem_take(arg, total);
  if (block) memset(block, 0, total);
  return block;
}

// nghttp2 1.52 keeps a dangling item when the queue of its DATA frames cannot grow, so that running
// on would read freed memory. The pool's spare chunk makes this the end of a long shortage, and
// there we stop. A first block that is large is a buffer of a new session, whose failure is told.
static void *h2_realloc(void *block, size_t bytes, void *arg) {
  void *moved = mem_resize(arg, block, bytes);
  FW_ASSERT(moved || (!block && bytes > MEM_MAX_POOLED_BYTES));
  return moved;
}

// ---- set-up ----

static bool make_callbacks(struct rpc *rpc) {
  if (nghttp2_session_callbacks_new(&rpc->callbacks) != 0) return false;
  nghttp2_session_callbacks *callbacks = rpc->callbacks;
  nghttp2_session_callbacks_set_send_callback(callbacks, h2_on_send);
  nghttp2_session_callbacks_set_send_data_callback(callbacks, h2_on_send_data);
  nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, h2_data_length);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, h2_on_frame_send);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, h2_on_begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, h2_on_header);
  nghttp2_session_callbacks_set_on_invalid_header_callback(callbacks, h2_on_invalid_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, h2_on_data);
  nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, h2_on_begin_frame);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, h2_on_frame_recv);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, h2_on_stream_close);
  return true;
}

// The reset limiter is ours (rpc/guard), which knows the right error code; nghttp2's own is above
// it.
static bool make_option(struct rpc *rpc) {
  if (nghttp2_option_new(&rpc->option) != 0) return false;
  nghttp2_option_set_no_auto_window_update(rpc->option, 1);
  nghttp2_option_set_no_closed_streams(rpc->option, 1);
  nghttp2_option_set_stream_reset_rate_limit(rpc->option, 100000, 100000);
  nghttp2_option_set_max_continuations(rpc->option, 8);
  return true;
}

static enum status make_pools(struct rpc *rpc, const struct rpc_options *options) {
  size_t total = (size_t)options->limits->total_bytes;
  struct slab_pool_options pool = {
      .max_slab_bytes = total,
      .keep_bytes = total / 4 < ((size_t)256 << 20) ? total / 4 : (size_t)256 << 20,
      .budget = options->total,
      .host_alloc = options->host_alloc,
      .host_free = options->host_free,
      .arg = options->host_arg,
  };
  enum status status = slab_pool_open(&pool, &rpc->pool);
  if (status == STATUS_OK) status = mem_pool_open(&rpc->mem);
  return status;
}

enum status rpc_open(const struct rpc_options *options, struct rpc **out, struct error *err) {
  FW_ASSERT(options->dirty && options->limits && options->methods);
  *out = NULL;
  struct rpc *rpc = calloc(1, sizeof *rpc);
  if (!rpc) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a loop");
  rpc->loop = options->loop;
  rpc->limits = *options->limits;
  rpc->methods = options->methods;
  rpc->app = options->app;
  rpc->trace = options->trace;
  rpc->dirty = options->dirty;
  call_table_init(&rpc->calls);
  deadline_heap_init(&rpc->deadlines);
  if (make_pools(rpc, options) != STATUS_OK || !make_callbacks(rpc) || !make_option(rpc)) {
    rpc_close(rpc);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a loop");
  }
  rpc->h2_mem = (nghttp2_mem){rpc->mem, h2_malloc, h2_free, h2_calloc, h2_realloc};
  *out = rpc;
  return STATUS_OK;
}

void rpc_close(struct rpc *rpc) {
  if (!rpc) return;
  call_table_deinit(&rpc->calls);
  deadline_heap_deinit(&rpc->deadlines);
  nghttp2_option_del(rpc->option);
  nghttp2_session_callbacks_del(rpc->callbacks);
  mem_pool_close(rpc->mem);
  slab_pool_close(rpc->pool);
  free(rpc);
}

// ---- calls across threads, deadlines ----

struct call *call_find(struct rpc *rpc, struct call_ref ref) {
  FW_ASSERT(ref.loop == rpc->loop);
  return call_table_find(&rpc->calls, ref.slot, ref.generation);
}

static struct call *call_of(struct deadline *node) {
  return (struct call *)((char *)node - offsetof(struct call, deadline));
}

void rpc_expire(struct rpc *rpc, int64_t now_ns) {
  for (struct deadline *first;
       (first = deadline_first(&rpc->deadlines)) && first->at_ns <= now_ns;) {
    struct call *call = call_of(first);
    const char *text = call->state == CALL_HANDLING
                           ? "deadline passed before the answer was ready"
                           : "deadline passed before the message was complete";
    if (call->state == CALL_HANDLING) call_cancel(call, STATUS_DEADLINE_EXCEEDED);
    h2_call_fail(call, STATUS_DEADLINE_EXCEEDED, text);
  }
}

int64_t rpc_next_deadline_ns(const struct rpc *rpc) {
  const struct deadline *first = deadline_first(&rpc->deadlines);
  return first ? first->at_ns : CLOCK_NEVER;
}

struct slab_pool *rpc_pool(struct rpc *rpc) {
  return rpc->pool;
}

int rpc_loop_index(const struct rpc *rpc) {
  return rpc->loop;
}

void *rpc_app(const struct rpc *rpc) {
  return rpc->app;
}

struct trace_source *rpc_trace(const struct rpc *rpc) {
  return rpc->trace;
}

size_t rpc_used_bytes(const struct rpc *rpc) {
  return slab_pool_used_bytes(rpc->pool);
}

size_t rpc_tick(struct rpc *rpc) {
  return slab_pool_tick(rpc->pool) + mem_pool_tick(rpc->mem);
}

size_t rpc_idle_bytes(const struct rpc *rpc) {
  return slab_pool_idle_bytes(rpc->pool) + mem_pool_bytes(rpc->mem);
}
