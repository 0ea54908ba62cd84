// Records of traces: who is sampled, whose child a call is, and what happens when none is left.
#include "harness/cmocka_all.h"

#include "base/clock.h"
#include "obs/metrics.h"
#include "obs/trace.h"

#include <stdio.h>
#include <string.h>

#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"

static struct trace *open_trace(struct wake *wake, int n_loops, int32_t queue, double sampling) {
  struct trace_options options = {n_loops, queue, sampling, wake};
  struct trace *trace = NULL;
  struct error err;
  wake_init(wake, NULL, NULL);
  assert_int_equal(trace_open(&options, &trace, &err), STATUS_OK);
  return trace;
}

static void parents_decide_and_are_kept(void **state) {
  (void)state;
  static const uint8_t trace_id[16] = {0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd,
                                       0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c};
  static const uint8_t parent[8] = {0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31};
  struct wake wake;
  struct trace *trace = open_trace(&wake, 1, 8, 0.0);
  struct trace_source *source = trace_source_of(trace, 0);
  assert_null(trace_begin(source, "", 1));
  assert_null(trace_begin(source, PARENT "00", 1));
  assert_null(trace_begin(source, PARENT "fe", 1)); // bits that we do not know
  struct trace_span *span = trace_begin(source, PARENT "ff", 7);
  assert_non_null(span);
  assert_memory_equal(span->trace_id, trace_id, sizeof trace_id);
  assert_memory_equal(span->parent, parent, sizeof parent);
  assert_true(span->has_parent && span->is_call && span->began_ns == 7);
  assert_string_equal(span->state, "");
  snprintf(span->state, sizeof span->state, "a=1");
  struct trace_span *child = trace_child(source, span);
  assert_string_equal(child->state, "a=1");
  assert_memory_equal(child->trace_id, trace_id, sizeof trace_id);
  assert_memory_equal(child->parent, span->id, sizeof span->id);
  assert_memory_not_equal(child->id, span->id, sizeof span->id);
  assert_true(child->has_parent && !child->is_call);
  trace_end(source, child, 8);
  trace_end(source, span, 9);
  assert_ptr_equal(trace_next(trace), child);
  assert_ptr_equal(trace_next(trace), span);
  assert_null(trace_next(trace));
  trace_close(trace);
}

static void a_share_is_a_share(void **state) {
  (void)state;
  struct wake wake;
  struct trace *trace = open_trace(&wake, 1, 1, 0.25);
  struct trace_source *source = trace_source_of(trace, 0);
  int n = 0;
  for (int i = 0; i < 40000; i++) {
    struct trace_span *span = trace_begin(source, "", i);
    if (!span) continue;
    assert_false(span->has_parent);
    trace_end(source, span, i);
    trace_give_back(trace, trace_next(trace));
    n++;
  }
  assert_in_range(n, 9400, 10600); // 10,000 +- 7 standard deviations
  trace_close(trace);
}

static void a_full_queue_drops_and_counts_and_wakes(void **state) {
  (void)state;
  struct wake wake;
  struct trace *trace = open_trace(&wake, 2, 4, 1.0);
  struct trace_span *spans[4];
  uint64_t before = atomic_load(&trace_metrics.dropped);
  struct trace_source *source = trace_source_of(trace, 1);
  for (int i = 0; i < 4; i++)
    assert_non_null(spans[i] = trace_begin(source, "", i));
  assert_null(trace_begin(source, "", 4));
  assert_null(trace_child(source, spans[0]));
  assert_int_equal(atomic_load(&trace_metrics.dropped), before + 2);
  assert_non_null(trace_begin(trace_source_of(trace, 0), "", 4)); // each loop has its own
  trace_end(source, spans[0], 1);
  assert_int_equal(atomic_load(&wake.state), 0);
  trace_end(source, spans[1], 1);
  assert_int_equal(atomic_load(&wake.state), 1); // half of them wait
  assert_ptr_equal(trace_next(trace), spans[0]);
  assert_null(trace_begin(source, "", 5)); // not given back yet
  memset(spans[0]->text, 'x', sizeof spans[0]->text);
  memset(spans[0]->state, 'x', sizeof spans[0]->state);
  trace_give_back(trace, spans[0]);
  struct trace_span *again = trace_begin(source, "", 6);
  assert_ptr_equal(again, spans[0]);
  assert_string_equal(again->text, "");
  assert_string_equal(again->state, "");
  trace_close(trace);
}

static void texts_are_cut(void **state) {
  (void)state;
  char out[4];
  trace_put_text(out, sizeof out, "abcdef", 6);
  assert_string_equal(out, "abc");
  trace_put_text(out, sizeof out, "ab", 1);
  assert_string_equal(out, "a");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parents_decide_and_are_kept),
      cmocka_unit_test(a_share_is_a_share),
      cmocka_unit_test(a_full_queue_drops_and_counts_and_wakes),
      cmocka_unit_test(texts_are_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
