#include "client/load.h"
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define REPLY_HEAD_BYTES 4096 // enough for all parameters; payloads behind them are only counted
#define LATE_NS NS_PER_MS
#define PROGRESS_NS (100 * NS_PER_MS)
#define RESENDS_MAX 3 // of one call, when connections drain

struct load;

struct caller { // a slot that one call at a time uses
  struct call call;
  struct load *load;
  struct caller *next_free;
  const struct payload *payload;
  int variant;
  bool measured;
  int resends;
  int64_t from_ns; // latency counts from here
  uint8_t head[REPLY_HEAD_BYTES];
};

struct slice_sums { // of the A/B slice that runs
  int64_t start_ns, last_done_ns, n_ok, n_cost;
  double latency_us, compute_us, bytes;
};

struct load {
  const struct load_options *options;
  struct result *result;
  struct caller *callers;
  struct caller *free;
  struct caller *resend; // calls that a draining connection gave back, to be sent first
  int n_resend;
  int n_running;
  int next_conn;
  uint64_t n_sent;
  int64_t start_ns;
  int64_t window_start_ns, window_end_ns; // of completions that make the throughput
  int64_t last_done_ns;
  struct phases phases;
  struct open_loop open;
  bool stopped;      // interrupted, out of time to drain, or no connection left: no more sends
  bool sending_over; // all sends of the plan are out
  int64_t n_done, n_failed;
  int timer_fd; // open loop; -1
  int64_t timer_set_ns;
  uv_poll_t timer_poll;
  struct ab_schedule ab;
  bool pair_measured;
  struct slice_sums slice;
  double pair[AB_METRICS][RESULT_VARIANTS];
  bool out_of_memory;
};

static void send_due(struct load *load);

// ---- one call -----------------------------------------------------------------------------------

static struct conn *ready_conn(struct load *load) {
  const int n = net_n_conns(load->options->net);
  for (int i = 0; i < n; i++) {
    struct conn *conn = net_conn(load->options->net, load->next_conn);
    load->next_conn = load->next_conn + 1 == n ? 0 : load->next_conn + 1;
    if (conn_state(conn) == CONN_READY) return conn;
  }
  return NULL;
}

// Start the call that `caller` is set up for. False: no connection would have it; nothing happened.
static bool start_call(struct load *load, struct caller *caller, struct conn *conn, int64_t now) {
  struct call *call = &caller->call;
  call->part[0] = caller->payload->head[caller->variant];
  call->part[1] = caller->payload->body;
  call->expire_ns = now + load->options->timeout_ns;
  if (!conn_start(conn, call)) return false;
  load->n_running++;
  return true;
}

static bool start_new_call(struct load *load, struct caller *caller, struct conn *conn,
                           int64_t now) {
  if (!start_call(load, caller, conn, now)) return false;
  load->free = caller->next_free;
  caller->resends = 0;
  load->n_sent++;
  return true;
}

// What any gRPC client does with a call that the server has not looked at. Its latency clock runs
// on.
static void send_again(struct load *load) {
  while (load->resend) {
    struct caller *caller = load->resend;
    struct conn *conn = ready_conn(load);
    if (!conn) return;
    if (!start_call(load, caller, conn, clock_now_ns())) continue;
    load->resend = caller->next_free;
    load->n_resend--;
  }
}

static const struct payload *next_payload(const struct load *load, uint64_t index) {
  return &load->options->payloads->items[index % (uint64_t)load->options->payloads->n];
}

static void sum_slice(struct load *load, const struct outcome *outcome,
                      const struct reply_cost *cost) {
  struct slice_sums *slice = &load->slice;
  const uint32_t bytes_bits = 1u << COST_READ_BYTES | 1u << COST_WRITE_BYTES;
  if (outcome->status != STATUS_OK || !outcome->measured) return;
  slice->n_ok++;
  slice->latency_us += outcome->latency_us;
  if (cost->present & 1u << COST_COMPUTE_US) slice->compute_us += cost->value[COST_COMPUTE_US];
  if ((cost->present & bytes_bits) == bytes_bits) {
    slice->bytes += cost->value[COST_READ_BYTES] + cost->value[COST_WRITE_BYTES];
  }
}

static void record(struct load *load, const struct caller *caller) {
  const struct call *call = &caller->call;
  struct reply_cost cost;
  const int64_t done = call->done_ns;
  const struct outcome outcome = {
      .variant = caller->variant,
      .measured = caller->measured,
      .in_window = done >= load->window_start_ns && done < load->window_end_ns,
      .status = call->status,
      .message = call->message,
      .latency_us = (double)(done - caller->from_ns) / NS_PER_US,
      .tokens = caller->payload->tokens,
      .request_bytes = call->part[0].bytes + call->part[1].bytes,
      .reply_bytes = call->reply_length,
      .reply = {call->reply, call->reply_bytes},
  };
  result_add(load->result, &outcome, &cost);
  if (load->options->slice_calls) sum_slice(load, &outcome, &cost);
  load->last_done_ns = load->slice.last_done_ns = done;
  load->n_done++;
  load->n_failed += call->status != STATUS_OK;
}

static void on_done(struct call *call) {
  struct caller *caller = call->arg;
  struct load *load = caller->load;
  load->n_running--;
  if (call->unprocessed && !load->stopped && caller->resends < RESENDS_MAX) {
    caller->resends++;
    caller->next_free = load->resend;
    load->resend = caller;
    load->n_resend++;
    load->result->n_resent++;
  } else {
    record(load, caller);
    caller->next_free = load->free;
    load->free = caller;
  }
  send_due(load);
}

// ---- open loop ----------------------------------------------------------------------------------

static void set_timer(struct load *load, int64_t at_ns) {
  if (load->timer_set_ns == at_ns) return;
  load->timer_set_ns = at_ns;
  const struct itimerspec spec = {.it_value = {at_ns / NS_PER_S, at_ns % NS_PER_S}};
  timerfd_settime(load->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void record_lag(struct load *load, int64_t lag_ns) {
  samples_add(&load->result->lag_us, (double)lag_ns / NS_PER_US);
  load->result->n_late += lag_ns > LATE_NS;
}

static void send_open(struct load *load) {
  int64_t scheduled = 0;
  while (load->free && !load->sending_over) {
    const int64_t now = clock_now_ns();
    const int64_t next = open_loop_next_ns(&load->open);
    if (phases_over(&load->phases, next)) { // by the schedule's time: a backlog is still sent
      load->sending_over = true;
      return;
    }
    if (next > now) {
      set_timer(load, next);
      return;
    }
    struct conn *conn = ready_conn(load);
    if (!conn) return; // tried again when one comes up; the schedule does not wait
    struct caller *caller = load->free;
    caller->payload = next_payload(load, load->n_sent);
    if (!start_new_call(load, caller, conn, now)) continue; // that connection has just gone
    const bool due = open_loop_take(&load->open, now, &scheduled);
    FW_ASSERT(due && scheduled == next);
    caller->measured = phases_send(&load->phases, scheduled) == PHASE_MEASURE;
    caller->from_ns = scheduled;
    if (caller->measured) record_lag(load, now - scheduled);
  }
}

static void on_timer_fd(uv_poll_t *poll, int status, int events) {
  struct load *load = poll->data;
  uint64_t ticks = 0;
  (void)status, (void)events;
  if (read(load->timer_fd, &ticks, sizeof ticks) != sizeof ticks) return;
  load->timer_set_ns = 0;
  send_due(load);
}

// ---- closed loop, A/B ---------------------------------------------------------------------------

static void begin_slice(struct load *load, int64_t now) {
  load->slice = (struct slice_sums){.start_ns = now};
}

static void end_slice(struct load *load) {
  const struct slice_sums *slice = &load->slice;
  const int variant = ab_variant(&load->ab);
  const double n = (double)slice->n_ok;
  const double seconds = (double)(slice->last_done_ns - slice->start_ns) / NS_PER_S;
  load->pair[AB_LATENCY][variant] = n > 0 ? slice->latency_us / n : 0;
  load->pair[AB_COMPUTE][variant] = n > 0 ? slice->compute_us / n : 0;
  load->pair[AB_BYTES][variant] = n > 0 ? slice->bytes / n : 0;
  load->pair[AB_RATE][variant] = seconds > 0 ? n / seconds : 0;
  if (load->pair_measured) {
    load->result->variant[variant].seconds += seconds;
    load->result->variant[variant].n_ok_window = load->result->variant[variant].n_ok;
    load->result->variant[variant].tokens_window = load->result->variant[variant].tokens;
  }
  ab_next_slice(&load->ab);
  if (load->ab.slice & 1 || !load->pair_measured) return; // in mid pair, or warming up
  if (result_add_pair(load->result, (const double(*)[RESULT_VARIANTS])load->pair) != STATUS_OK) {
    load->out_of_memory = load->stopped = true;
  }
}

// May one more call be sent now? Moves on to the next slice when the last one has drained.
static bool ab_ready(struct load *load, int64_t now) {
  if (load->ab.sent_in_slice == load->ab.slice_calls) {
    if (load->n_running + load->n_resend > 0) return false;
    end_slice(load);
  }
  if (load->ab.sent_in_slice == 0) {
    const bool first_of_pair = !(load->ab.slice & 1);
    if (first_of_pair && phases_over(&load->phases, now)) { // only whole pairs
      load->sending_over = true;
      return false;
    }
    if (first_of_pair) load->pair_measured = now >= load->phases.warmup_end_ns;
    begin_slice(load, now);
  }
  return true;
}

// Both slices of a pair send the same requests.
static uint64_t ab_index(const struct load *load) {
  return (uint64_t)(ab_pair(&load->ab) * load->ab.slice_calls + load->ab.sent_in_slice);
}

static void send_closed(struct load *load) {
  const bool ab = load->options->slice_calls > 0;
  while (load->free && !load->sending_over) {
    const int64_t now = clock_now_ns();
    struct conn *conn = ready_conn(load);
    if (!conn) return; // callers wait for a connection: they have not sent anything yet
    if (!ab && phases_over(&load->phases, now)) load->sending_over = true;
    if (load->sending_over || (ab && !ab_ready(load, now))) return;
    struct caller *caller = load->free;
    caller->payload = next_payload(load, ab ? ab_index(load) : load->n_sent);
    caller->variant = ab ? ab_variant(&load->ab) : 0;
    if (!start_new_call(load, caller, conn, now)) continue; // that connection has just gone
    caller->from_ns = now;
    if (ab) {
      const bool taken = ab_take(&load->ab);
      FW_ASSERT(taken);
      caller->measured = load->pair_measured;
      load->phases.n_measured += caller->measured;
    } else {
      caller->measured = phases_send(&load->phases, now) == PHASE_MEASURE;
    }
    if (caller->measured && load->window_start_ns == CLOCK_NEVER) load->window_start_ns = now;
  }
}

static void send_due(struct load *load) {
  if (load->stopped) return;
  send_again(load);
  if (load->options->rate_per_s > 0)
    send_open(load);
  else
    send_closed(load);
}

static void on_conn_state(void *arg) {
  struct load *load = arg;
  if (net_dead(load->options->net))
    load->stopped = true;
  else
    send_due(load);
}

// ---- the run ------------------------------------------------------------------------------------

static enum status setup(struct load *load, struct error *err) {
  const struct load_options *options = load->options;
  load->timer_fd = -1;
  load->callers = calloc((size_t)options->callers, sizeof *load->callers);
  if (!load->callers)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %d callers", options->callers);
  for (int i = options->callers - 1; i >= 0; i--) {
    struct caller *caller = &load->callers[i];
    caller->load = load;
    caller->call = (struct call){.method = options->method,
                                 .reply = caller->head,
                                 .reply_capacity = sizeof caller->head,
                                 .done = on_done,
                                 .arg = caller};
    caller->next_free = load->free;
    load->free = caller;
  }
  load->start_ns = clock_now_ns();
  phases_init(&load->phases, load->start_ns, options->warmup_ns, options->duration_ns,
              options->requests);
  load->window_start_ns =
      options->requests > 0 || options->slice_calls ? CLOCK_NEVER : load->phases.warmup_end_ns;
  load->window_end_ns = load->phases.end_ns;
  load->ab.slice_calls = options->slice_calls;
  if (options->rate_per_s <= 0) return STATUS_OK;
  open_loop_init(&load->open, options->rate_per_s, options->poisson, options->seed, load->start_ns);
  load->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (load->timer_fd < 0) return error_set(err, STATUS_INTERNAL, "timerfd: %s", strerror(errno));
  uv_poll_init(net_loop(options->net), &load->timer_poll, load->timer_fd);
  load->timer_poll.data = load;
  uv_poll_start(&load->timer_poll, UV_READABLE, on_timer_fd);
  return STATUS_OK;
}

static void on_poll_closed(uv_handle_t *handle) {
  *(bool *)handle->data = true;
}

static void teardown(struct load *load) {
  bool closed = false;
  net_watch(load->options->net, NULL, NULL);
  if (load->timer_fd >= 0) {
    load->timer_poll.data = &closed;
    uv_close((uv_handle_t *)&load->timer_poll, on_poll_closed);
    while (!closed)
      uv_run(net_loop(load->options->net), UV_RUN_NOWAIT);
    close(load->timer_fd);
  }
  free(load->callers);
}

static void report_progress(const struct load *load, int64_t now) {
  const struct load_options *options = load->options;
  const double total = (double)(options->warmup_ns + options->duration_ns);
  struct load_progress progress = {.warmup = now < load->phases.warmup_end_ns,
                                   .n_done = load->n_done,
                                   .n_failed = load->n_failed,
                                   .seconds = (double)(now - load->start_ns) / NS_PER_S};
  progress.fraction = options->requests > 0
                          ? (double)load->phases.n_measured / (double)options->requests
                          : (double)(now - load->start_ns) / total;
  if (progress.fraction > 1) progress.fraction = 1;
  options->on_progress(&progress, options->arg);
}

// Stop sending on an interrupt, or when a backlog has had a call's time limit to drain and has not.
static void look_around(struct load *load, int64_t now) {
  const struct load_options *options = load->options;
  if (options->interrupt && *options->interrupt && !load->stopped) {
    load->stopped = load->result->interrupted = true;
    if (load->window_end_ns > now) load->window_end_ns = now;
  }
  if (options->requests == 0 && now > load->phases.end_ns + options->timeout_ns)
    load->stopped = true;
}

static void finish(struct load *load, int64_t now) {
  struct result *result = load->result;
  int64_t scheduled = 0;
  for (struct caller *caller = load->resend; caller; caller = caller->next_free)
    record(load, caller);              // with the status that the draining connection left
  if (load->options->rate_per_s > 0) { // the rest of the plan that was due and never left
    while (!phases_over(&load->phases, open_loop_next_ns(&load->open)) &&
           open_loop_take(&load->open, now, &scheduled)) {
      result->n_unsent += phases_send(&load->phases, scheduled) == PHASE_MEASURE;
    }
  }
  if (load->window_end_ns != CLOCK_NEVER && load->window_end_ns > now)
    load->window_end_ns = now; // every connection was lost before
  const bool by_count = load->options->requests > 0;
  const int64_t end = by_count || load->options->slice_calls || load->window_end_ns == CLOCK_NEVER
                          ? load->last_done_ns
                          : load->window_end_ns;
  if (load->window_start_ns < end)
    result->seconds = (double)(end - load->window_start_ns) / NS_PER_S;
  if (!load->options->slice_calls) result->variant[0].seconds = result->seconds;
}

enum status load_run(const struct load_options *options, struct result *result, struct error *err) {
  struct load load = {.options = options, .result = result};
  int64_t progress_ns = 0;
  result_init(result, options->slice_calls ? 2 : 1, options->seed);
  enum status status = setup(&load, err);
  if (status != STATUS_OK) goto out;
  net_watch(options->net, on_conn_state, &load);
  send_due(&load);
  int64_t now = clock_now_ns();
  while (load.n_running > 0 || (load.n_resend > 0 && !load.stopped) ||
         !(load.sending_over || load.stopped)) {
    uv_run(net_loop(options->net), UV_RUN_ONCE);
    now = clock_now_ns();
    look_around(&load, now);
    if (!options->on_progress || now - progress_ns < PROGRESS_NS) continue;
    progress_ns = now;
    report_progress(&load, now);
  }
  finish(&load, now);
  if (load.out_of_memory)
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for A/B pairs");
  else if (net_dead(options->net))
    status = error_set(err, STATUS_UNAVAILABLE, "%s", net_error(options->net));
  if (status == STATUS_OK && options->slice_calls) status = result_estimate(result, options->seed);
out:
  teardown(&load);
  return status;
}
