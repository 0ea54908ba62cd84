// obs: the text of /metrics is what Prometheus reads, complete from the start, and adds up.
#include "harness/cmocka_all.h"

#include "obs/metrics.h"
#include "obs/shadow.h"

#include <math.h>

static char text[1 << 20];

static size_t expose(bool triton) {
  size_t n = metrics_expose(text, sizeof text, triton);
  assert_true(n < sizeof text);
  return n;
}

// The value of the line that begins with `series`, or -1.
static double value_of(const char *series) {
  size_t n = strlen(series);
  for (const char *line = text; *line; line = strchr(line, '\n') + 1)
    if (strncmp(line, series, n) == 0 && line[n] == ' ') return atof(line + n + 1);
  return -1;
}

static struct model_metrics *on, *off;
#define ON "{model=\"m\\\"1\",version=\"1\",fusion=\"on\",device=\"cpu\""

static double read_seven(void *arg) {
  (void)arg;
  return 7;
}

static int set_up(void **state) {
  (void)state;
  on = metrics_model_add("m\"1", "1", "on", "cpu"); // a name that needs escaping
  off = metrics_model_add("m\"1", "1", "off", "cpu");
  metrics_gauge_add("fusewire_seven", "Seven.", "device=\"cpu\"", read_seven, NULL);
  return on && off ? 0 : 1;
}

static void every_series_is_there_from_the_start(void **state) {
  (void)state;
  expose(false);
  assert_true(value_of("fusewire_infer_accepted_total" ON "}") == 0);
  assert_true(value_of("fusewire_infer_finished_total" ON ",code=\"OK\"}") == 0);
  assert_true(value_of("fusewire_infer_finished_total" ON ",code=\"UNAUTHENTICATED\"}") == 0);
  assert_true(value_of("fusewire_batch_close_total" ON ",reason=\"deadline\"}") == 0);
  static const char *const reasons[] = {"queue",   "busy", "slow",  "late",
                                        "expired", "size", "memory"};
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
    char series[256];
    snprintf(series, sizeof series, "fusewire_infer_refused_total" ON ",reason=\"%s\"}",
             reasons[i]);
    assert_true(value_of(series) == 0);
  }
  static const char *const call_reasons[] = {"header_bytes", "message_bytes",   "connection_bytes",
                                             "total_bytes",  "request_timeout", "calls"};
  for (size_t i = 0; i < sizeof call_reasons / sizeof *call_reasons; i++) {
    char series[256];
    snprintf(series, sizeof series, "fusewire_calls_refused_total{reason=\"%s\"}", call_reasons[i]);
    assert_true(value_of(series) == 0);
  }
  assert_true(value_of("fusewire_compute_seconds_bucket" ON ",le=\"+Inf\"}") == 0);
  assert_true(value_of("fusewire_compute_seconds_count" ON "}") == 0);
  assert_true(value_of("fusewire_calls_finished_total{code=\"OK\"}") == 0);
  assert_true(value_of("fusewire_seven{device=\"cpu\"}") == 7);
  assert_true(value_of("process_resident_memory_bytes") > 100000);
  assert_true(value_of("process_resident_memory_max_bytes") >=
              value_of("process_resident_memory_bytes"));
  assert_true(value_of("process_open_fds") >= 3);
  assert_true(value_of("process_threads") >= 1);
  assert_true(value_of("process_start_time_seconds") > 1.6e9);
}

static void triton_names_come_only_when_asked_for(void **state) {
  (void)state;
  expose(false);
  assert_null(strstr(text, "nv_inference"));
  atomic_store(&on->finished[STATUS_OK], 3);
  atomic_store(&off->finished[STATUS_OK], 4);
  atomic_store(&off->finished[STATUS_CANCELLED], 2);
  atomic_store(&on->queue_ns.sum, 5000);
  expose(true);
  assert_true(value_of("nv_inference_request_success{model=\"m\\\"1\",version=\"1\"}") == 7);
  assert_true(
      value_of(
          "nv_inference_request_failure{model=\"m\\\"1\",version=\"1\",reason=\"CANCELED\"}") == 2);
  assert_true(value_of("nv_inference_queue_duration_us{model=\"m\\\"1\",version=\"1\"}") == 5);
}

static void histograms_are_cumulative_and_end_at_their_count(void **state) {
  (void)state;
  const uint64_t values[] = {1, 20000, 20000, 1000000, 70000000, 60ull * 1000 * 1000 * 1000};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    hist_record(&on->compute_ns, values[i]);
  expose(false);
  double last = 0;
  int buckets = 0;
  static const char head[] = "fusewire_compute_seconds_bucket" ON;
  for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
    if (strncmp(line, head, sizeof head - 1) != 0) continue;
    double value = atof(strchr(line, ' ') + 1);
    assert_true(value >= last);
    last = value;
    buckets++;
  }
  assert_true(buckets > 15);
  assert_true(last == 6);
  assert_true(value_of("fusewire_compute_seconds_count" ON "}") == 6);
  assert_true(value_of("fusewire_compute_seconds_bucket" ON ",le=\"1.6384e-05\"}") == 1);
  assert_true(value_of("fusewire_compute_seconds_bucket" ON ",le=\"3.2768e-05\"}") == 3);
  assert_true(value_of("fusewire_compute_seconds_bucket" ON ",le=\"17.1798692\"}") == 5);
  assert_true(value_of("fusewire_compute_seconds_sum" ON "}") > 60.07);
}

static void sizes_count_their_edge(void **state) {
  (void)state;
  hist_record(&on->batch_size_tokens, 1);
  hist_record(&on->batch_size_tokens, 2);
  hist_record(&on->batch_size_tokens, 4);
  expose(false);
  assert_true(value_of("fusewire_batch_size_tokens_bucket" ON ",le=\"1\"}") == 1);
  assert_true(value_of("fusewire_batch_size_tokens_bucket" ON ",le=\"2\"}") == 2);
  assert_true(value_of("fusewire_batch_size_tokens_bucket" ON ",le=\"4\"}") == 3);
}

// 100 GB/s and 2 operations a byte, then batches of 300 GB/s and 6: the mean of the recent ones
// goes from the one to the other; the counters have all of them.
static void batches_have_a_mean_and_a_sum(void **state) {
  (void)state;
  expose(false);
  assert_true(value_of("fusewire_achieved_gbps" ON "}") == 0);
  assert_true(value_of("fusewire_arithmetic_intensity" ON "}") == 0);
  metrics_batch_work(on, 1e6, 2e6, 10000);
  expose(false);
  assert_true(value_of("fusewire_achieved_gbps" ON "}") == 100);
  assert_true(value_of("fusewire_arithmetic_intensity" ON "}") == 2);
  for (int i = 1; i <= 200; i++) {
    metrics_batch_work(on, 3e6, 18e6, 10000);
    expose(false);
    double gbps = value_of("fusewire_achieved_gbps" ON "}");
    assert_true(gbps > 100 && gbps < 300);
    assert_true(gbps > 200); // (63/64 * 100 + 300) / (63/64 + 1) after the first
    assert_true((gbps > 290) == (i > 16));
  }
  assert_true(value_of("fusewire_achieved_gbps" ON "}") > 299);
  assert_true(value_of("fusewire_batch_bytes_total" ON "}") == 601e6);
  assert_true(value_of("fusewire_batch_flops_total" ON "}") == 3602e6);
  assert_true(value_of("fusewire_batch_compute_seconds_total" ON "}") == 201e-5);
}

#define SHADOW "{model=\"m\\\"1\",version=\"1\",device=\"cpu\""
#define OUTPUT SHADOW ",output=\"y\""

static void shadows_are_there_when_a_model_has_them(void **state) {
  (void)state;
  expose(false);
  assert_null(strstr(text, "fusewire_shadow"));
  struct shadow_metrics *metrics = metrics_shadow_add("m\"1", "1", "cpu");
  assert_non_null(metrics);
  assert_ptr_equal(metrics_shadow_add("m\"1", "1", "cpu"), metrics);
  struct shadow_output_metrics *y = metrics_shadow_output(metrics, "y");
  assert_ptr_equal(metrics_shadow_output(metrics, "y"), y);
  expose(false);
  assert_true(value_of("fusewire_shadow_sampled_total" SHADOW "}") == 0);
  assert_true(value_of("fusewire_shadow_dropped_total" SHADOW ",reason=\"late\"}") == 0);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"+Inf\"}") == 0);
  metrics_shadow_record(y, 0, 0, false);
  metrics_shadow_record(y, 1e-8, 0.25, false);
  metrics_shadow_record(y, 2e-3, 0.5, true);
  expose(false);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"1e-08\"}") == 2);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"0.001\"}") == 2);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"0.003\"}") == 3);
  assert_true(value_of("fusewire_shadow_relative_l2_count" OUTPUT "}") == 3);
  assert_true(value_of("fusewire_shadow_max_relative_l2" OUTPUT "}") == 2e-3);
  assert_true(value_of("fusewire_shadow_max_abs" OUTPUT "}") == 0.5);
  assert_true(value_of("fusewire_shadow_exceeded_total" OUTPUT "}") == 1);
  metrics_shadow_record(y, INFINITY, INFINITY, true);
  expose(false);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"1\"}") == 3);
  assert_true(value_of("fusewire_shadow_relative_l2_bucket" OUTPUT ",le=\"+Inf\"}") == 4);
  assert_non_null(strstr(text, "fusewire_shadow_max_abs" OUTPUT "} +Inf\n"));
  char name[16];
  for (int i = 1; i < SHADOW_OUTPUTS; i++) {
    snprintf(name, sizeof name, "y%d", i);
    assert_non_null(metrics_shadow_output(metrics, name));
  }
  assert_null(metrics_shadow_output(metrics, "one too many"));
}

// HELP and TYPE once, before the family's series; series of a family together; names and values
// well formed.
static void the_text_is_well_formed(void **state) {
  (void)state;
  size_t n = expose(true);
  assert_int_equal(text[n - 1], '\n');
  char family[128] = "", seen[256][128];
  int n_seen = 0;
  char *copy = strdup(text), *rest = copy, *line;
  while ((line = strsep(&rest, "\n")) && *line) {
    char name[128], type[16];
    if (sscanf(line, "# HELP %127s", name) == 1) {
      for (int i = 0; i < n_seen; i++)
        assert_string_not_equal(seen[i], name);
      strcpy(seen[n_seen++], name);
      strcpy(family, name);
    } else if (sscanf(line, "# TYPE %127s %15s", name, type) == 2) {
      assert_string_equal(name, family);
      assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") || !strcmp(type, "histogram"));
    } else {
      assert_memory_equal(line, family, strlen(family));
      const char *value = strrchr(line, ' ');
      char *end;
      assert_non_null(value);
      strtod(value + 1, &end);
      assert_true(*end == 0 && end > value + 1);
    }
  }
  free(copy);
  assert_true(n_seen > 25);
}

static void a_small_buffer_is_told_what_is_needed(void **state) {
  (void)state;
  char small[64];
  memset(small, 'x', sizeof small);
  size_t needed = metrics_expose(small, 32, false);
  assert_true(needed > 10000);
  assert_int_equal(small[32], 'x');
  assert_true(metrics_expose(NULL, 0, false) > 10000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_series_is_there_from_the_start),
      cmocka_unit_test(triton_names_come_only_when_asked_for),
      cmocka_unit_test(histograms_are_cumulative_and_end_at_their_count),
      cmocka_unit_test(sizes_count_their_edge),
      cmocka_unit_test(batches_have_a_mean_and_a_sum),
      cmocka_unit_test(shadows_are_there_when_a_model_has_them),
      cmocka_unit_test(the_text_is_well_formed),
      cmocka_unit_test(a_small_buffer_is_told_what_is_needed),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
