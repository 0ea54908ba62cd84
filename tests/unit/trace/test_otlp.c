// The body of an export: whole at its largest, UTF-8 whatever the texts were. That its fields are
// the standard's is tests/e2e/test_trace.py's to say, by the standard's own messages.
#include "harness/cmocka_all.h"

#include "trace/otlp.h"
#include "trace/post.h"

#include "otlp_service.pb-c.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Opentelemetry__Proto__Collector__Trace__V1__ExportTraceServiceRequest Request;
typedef Opentelemetry__Proto__Trace__V1__Span Span;

static struct otlp *open_otlp(void) {
  static char address[1024];
  memset(address, 'a', sizeof address - 1);
  struct otlp_options options = {"service", "1", address, 65535};
  struct otlp *otlp = NULL;
  struct error err;
  assert_int_equal(otlp_open(&options, &otlp, &err), STATUS_OK);
  return otlp;
}

static struct trace_span full_span(void) {
  struct trace_span span = {.has_parent = true,
                            .is_call = true,
                            .method = "/inference.GRPCInferenceService/RepositoryModelUnload",
                            .began_ns = 1,
                            .ended_ns = INT64_MAX / 2,
                            .status = STATUS_INTERNAL,
                            .ran = true,
                            .batch_requests = INT32_MAX,
                            .batch_tokens = INT32_MAX,
                            .kernels = INT32_MAX,
                            .read_bytes = 9e18,
                            .write_bytes = 9e18,
                            .unfused_bytes = 9e18,
                            .fusion = "auto",
                            .close = "deadline"};
  for (int i = 0; i < TRACE_STAGES; i++)
    span.stages[i].from_ns = span.stages[i].ns = INT64_MAX / 4;
  memset(span.text, 0xff, sizeof span.text - 1);
  memset(span.model, 'm', sizeof span.model - 1);
  memset(span.version, 'v', sizeof span.version - 1);
  memset(span.request_id, 'i', sizeof span.request_id - 1);
  memset(span.state, 's', sizeof span.state - 1);
  memset(span.trace_id, 1, sizeof span.trace_id);
  memset(span.id, 2, sizeof span.id);
  memset(span.parent, 3, sizeof span.parent);
  return span;
}

static Request *packed(struct otlp *otlp) {
  size_t bytes;
  const uint8_t *body = otlp_pack(otlp, &bytes);
  Request *request =
      opentelemetry__proto__collector__trace__v1__export_trace_service_request__unpack(NULL, bytes,
                                                                                       body);
  assert_non_null(request);
  return request;
}

static void drop(Request *request) {
  opentelemetry__proto__collector__trace__v1__export_trace_service_request__free_unpacked(request,
                                                                                          NULL);
}

static void the_largest_body_has_room(void **state) {
  (void)state;
  struct otlp *otlp = open_otlp();
  struct trace_span span = full_span();
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < OTLP_BATCH; i++)
      otlp_add(otlp, &span, 0);
    Request *request = packed(otlp);
    const Opentelemetry__Proto__Trace__V1__ScopeSpans *all =
        request->resource_spans[0]->scope_spans[0];
    assert_int_equal(all->n_spans, OTLP_BATCH * 5);
    for (size_t i = 0; i < all->n_spans; i++)
      assert_string_equal(all->spans[i]->trace_state, span.state);
    drop(request);
  }
  Request *empty = packed(otlp);
  assert_int_equal(empty->resource_spans[0]->scope_spans[0]->n_spans, 0);
  drop(empty);
  otlp_close(otlp);
}

static const char *id_of(const Span *span) {
  for (size_t i = 0; i < span->n_attributes; i++)
    if (strcmp(span->attributes[i]->key, "fusewire.request.id") == 0)
      return span->attributes[i]->value->string_value;
  return NULL;
}

static void texts_become_utf8(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"plain", "plain"},
      {"caf\xc3\xa9", "caf\xc3\xa9"},
      {"\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80"},
      {"cut \xe2\x82", "cut ??"},
      {"cut \xf0\x9f\x98", "cut ???"},
      {"\xff\xfe", "??"},
      {"\xc0\xaf", "??"},           // overlong
      {"\xe0\x80\xaf", "???"},      // overlong
      {"\xed\xa0\x80", "???"},      // a surrogate
      {"\xf4\x90\x80\x80", "????"}, // beyond Unicode
      {"\x80x\xc3", "?x?"},         // in the middle, and the beginning of one
      {"\xf8\x88\x80\x80\x80", "?????"},
  };
  struct otlp *otlp = open_otlp();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct trace_span span = {.method = NULL};
    snprintf(span.request_id, sizeof span.request_id, "%s", cases[i][0]);
    otlp_add(otlp, &span, 0);
    Request *request = packed(otlp);
    assert_string_equal(id_of(request->resource_spans[0]->scope_spans[0]->spans[0]), cases[i][1]);
    drop(request);
  }
  otlp_close(otlp);
}

static void answers_are_read_or_not(void **state) {
  (void)state;
  static const uint8_t partial[] = {0x0a, 6, 8, 3, 0x12, 2, 'n', 'o'}, rubbish[] = {0xff, 0xff};
  int64_t rejected = 9;
  char text[3];
  assert_true(otlp_answer(NULL, 0, &rejected, text, sizeof text));
  assert_int_equal(rejected, 0);
  assert_true(otlp_answer(partial, sizeof partial, &rejected, text, sizeof text));
  assert_int_equal(rejected, 3);
  assert_string_equal(text, "no");
  assert_false(otlp_answer(rubbish, sizeof rubbish, &rejected, text, sizeof text));
  assert_int_equal(rejected, 0);
}

static void urls_are_checked(void **state) {
  (void)state;
  struct error err;
  assert_int_equal(post_check("http://[::1]:4318/v1/traces", &err), STATUS_OK);
  assert_int_equal(post_check("https://collector.example/v1/traces", &err), STATUS_OK);
  static const char *const good[] = {"http://a",         "http://a:1/x",
                                     "http://a.b.:4318", "http://otel_collector-1:4318/v1/traces",
                                     "http://127.0.0.1", "http://1a.example/",
                                     "http://me:x@a/"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (post_check(good[i], &err) != STATUS_OK) fail_msg("%s", err.message);
  static const char *const bad[] = {"http://",
                                    "http://a b/",
                                    "http://a:99999/",
                                    "",
                                    "http://[::1/",
                                    "http://-",
                                    "http://-a/",
                                    "http://a-/",
                                    "http://a..b/",
                                    "http://.a/",
                                    "http://.",
                                    "http://..",
                                    "http:///v1",
                                    "http://:4318/",
                                    "http://a:0/",
                                    "http://a:-1/",
                                    "http://a:x/",
                                    "http://a:1:2/",
                                    "http://256.1.1.1/",
                                    "http://1.2.3.4.5/",
                                    "http://a/b c",
                                    "http://?x=1",
                                    "http://#x",
                                    "http://a,b/",
                                    "http://[::g]",
                                    "http://[]:4318/",
                                    "http://me@/v1/traces",
                                    "http:a"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(post_check(bad[i], &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "trace.endpoint"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_largest_body_has_room),
      cmocka_unit_test(texts_become_utf8),
      cmocka_unit_test(answers_are_read_or_not),
      cmocka_unit_test(urls_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
