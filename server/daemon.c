#include "daemon.h"
#include "api/api.h"
#include "base/log.h"
#include "descriptors.h"
#include "drain.h"
#include "explainer.h"
#include "net/net.h"
#include "notify.h"
#include "obs/metrics.h"
#include "parts.h"
#include "reload.h"
#include "sched/executor.h"
#include "secrets.h"
#include "traces.h"
#include "watch.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum load_state { LOAD_RUNNING, LOAD_DONE, LOAD_FAILED };

struct daemon {
  const struct server_conf *conf;
  struct parts parts;
  struct api api;
  struct net *net;
  struct secrets secrets;
  struct exporter *exporter; // of traces; NULL: none
  struct executor *executors[LIMIT_DEVICES];
  int n_executors;
  struct reloader reloader;
  struct explainer explainer;
  struct watch watch;
  pthread_t loader;
  bool loader_started;
  _Atomic int load; // enum load_state
  int64_t started_ns;
};

static void wake_main(void *arg) {
  (void)arg;
  kill(getpid(), SIGNAL_WAKE);
}

// ---- loading ----
static void largest_batch(const struct daemon *daemon, struct executor_options *out) {
  out->max_tokens = out->max_seqs = (int32_t)daemon->conf->batch_max_tokens;
  for (int i = 0; i < registry_count(daemon->parts.registry); i++) {
    const struct model *model = registry_at(daemon->parts.registry, i);
    for (int mode = 0; mode < FUSION_MODES; mode++) {
      const struct plan *plan = model->plans[mode];
      if (!plan) continue;
      if (plan->limits.max_tokens > out->max_tokens) out->max_tokens = plan->limits.max_tokens;
      if (plan->limits.max_seqs > out->max_seqs) out->max_seqs = plan->limits.max_seqs;
      if (model->fusion_available[mode] && plan->arena_bytes > out->arena_bytes)
        out->arena_bytes = plan->arena_bytes;
    }
  }
}

static enum status open_executors(struct daemon *daemon, struct error *err) {
  struct model *models[LIMIT_MODELS];
  int n_models = registry_count(daemon->parts.registry);
  for (int i = 0; i < n_models; i++)
    models[i] = registry_at(daemon->parts.registry, i);
  for (int d = 0; d < daemon->parts.devices.n; d++) {
    struct executor_options options = {.backend = daemon->parts.devices.backend,
                                       .device = daemon->parts.devices.list[d],
                                       .device_index = d,
                                       .n_loops = (int)daemon->conf->loops,
                                       .queue_requests = (int32_t)daemon->conf->queue_requests,
                                       .lanes = (int)daemon->conf->lanes,
                                       .models = models,
                                       .n_models = n_models,
                                       .audit = daemon->parts.audits.list[d],
                                       .on_lost = wake_main};
    for (int i = 0; i < options.n_loops; i++)
      options.loop_wakes[i] = net_loop_wake(daemon->net, i);
    largest_batch(daemon, &options);
    enum status status = executor_open(&options, &daemon->executors[d], err);
    if (status != STATUS_OK) return status;
    daemon->n_executors++;
  }
  return STATUS_OK;
}

static enum status load(struct daemon *daemon, struct error *err) {
  enum status status = parts_bind(&daemon->parts, err);
  if (status == STATUS_OK) status = open_executors(daemon, err);
  return status == STATUS_OK ? audits_start(&daemon->parts.audits, err) : status;
}

// The host of an address that is listened on, for "%.*s".
static int host_bytes(const char *address) {
  const char *colon = strrchr(address, ':');
  return colon != NULL ? (int)(colon - address) : 0;
}

// The one line that scripts wait for. On stdout, whatever the log level.
static void print_ready(const struct daemon *daemon) {
  const char *listen = daemon->conf->listen, *at = daemon->conf->admin;
  char admin[sizeof daemon->conf->admin + 32] = "";
  if (net_admin_port(daemon->net) > 0)
    snprintf(admin, sizeof admin, " admin=%.*s:%d", host_bytes(at), at,
             net_admin_port(daemon->net));
  printf("fusewired ready: grpc=%.*s:%d%s models=%d device=%s start_ms=%lld\n", host_bytes(listen),
         listen, net_port(daemon->net), admin, registry_count(daemon->parts.registry),
         daemon->parts.devices.backend->name,
         (long long)((clock_now_ns() - daemon->started_ns) / NS_PER_MS));
  fflush(stdout);
}

static void *loader_main(void *arg) {
  struct daemon *daemon = arg;
  struct error err;
  if (load(daemon, &err) != STATUS_OK) {
    char text[ERROR_MESSAGE_BYTES + 320];
    log_error("load_failed", "%s", error_text(&err, text, sizeof text));
    atomic_store(&daemon->load, LOAD_FAILED);
    wake_main(NULL);
    return NULL;
  }
  api_serve(&daemon->api, daemon->executors, daemon->n_executors,
            daemon->parts.devices.backend->name);
  atomic_store(&daemon->load, LOAD_DONE);
  print_ready(daemon);
  notify_ready(registry_count(daemon->parts.registry));
  daemon->reloader.executors = daemon->executors;
  daemon->reloader.n_executors = daemon->n_executors;
  reloader_run(&daemon->reloader);
  return NULL;
}

// ---- network ----
static size_t expose(char *out, size_t out_bytes, void *app) {
  const struct daemon *daemon = (const struct daemon *)((char *)app - offsetof(struct daemon, api));
  return metrics_expose(out, out_bytes, daemon->conf->triton_names);
}

// Requests and replies lie where the devices copy from and to without a detour. Every device of a
// kind can use the memory of the first.
static void *slab_alloc(void *arg, size_t bytes) {
  const struct devices *devices = arg;
  return devices->backend->host_alloc(devices->list[0], bytes);
}
static void slab_free(void *arg, void *memory, size_t bytes) {
  const struct devices *devices = arg;
  devices->backend->host_free(devices->list[0], memory, bytes);
}

static const struct device_caps *first_caps(const struct devices *devices) {
  return devices->backend->caps(devices->list[0]);
}

static void given_back(void *app) {
  struct daemon *daemon = (struct daemon *)((char *)app - offsetof(struct daemon, api));
  reloader_trim(&daemon->reloader);
}

static bool ready(void *app) {
  return api_ready(app);
}

static enum status open_network(struct daemon *daemon, struct error *err) {
  const struct server_conf *conf = daemon->conf;
  enum status status = secrets_open(conf, &daemon->secrets, err);
  if (status != STATUS_OK) return status;
  struct net_options options = {.listen = conf->listen,
                                .unix_path = conf->unix_path,
                                .tls = secrets_tls(&daemon->secrets),
                                .kernel_accepts = conf->accept == 1,
                                .admin = conf->admin,
                                .n_loops = (int)conf->loops,
                                .methods = api_methods,
                                .n_methods = api_n_methods,
                                .trace = exporter_trace(daemon->exporter),
                                .app = &daemon->api,
                                .reap = api_reap,
                                .busy = api_busy,
                                .spin_us = conf->spin_us,
                                .app_computes = !first_caps(&daemon->parts.devices)->async,
                                .given_back = given_back,
                                .metrics = expose,
                                .ready = ready,
                                .host_alloc = slab_alloc,
                                .host_free = slab_free,
                                .host_arg = &daemon->parts.devices};
  options.limits =
      (struct rpc_limits){.max_message_bytes = conf->max_message_bytes,
                          .max_connections = descriptors_reserve(conf->max_connections),
                          .max_calls = conf->max_calls,
                          .connection_bytes = conf->connection_bytes,
                          .total_bytes = conf->total_bytes,
                          .header_bytes = conf->header_bytes,
                          .handshake_timeout_ms = conf->handshake_timeout_ms,
                          .request_timeout_ms = conf->request_timeout_ms,
                          .idle_timeout_ms = conf->idle_timeout_ms,
                          .stream_window_bytes = conf->stream_window_bytes,
                          .connection_window_bytes = conf->connection_window_bytes,
                          .keepalive_time_ms = conf->keepalive_time_ms,
                          .keepalive_timeout_ms = conf->keepalive_timeout_ms,
                          .ping_interval_ms = conf->ping_interval_ms,
                          .connection_age_ms = conf->connection_age_ms,
                          .connection_age_grace_ms = conf->connection_age_grace_ms,
                          .auth = daemon->secrets.auth};
  status = net_open(&options, &daemon->net, err);
  if (status == STATUS_OK) status = exporter_start(daemon->exporter, net_port(daemon->net), err);
  if (status != STATUS_OK) return status;
  struct wake *wakes[LIMIT_LOOPS];
  for (int i = 0; i < options.n_loops; i++)
    wakes[i] = net_loop_wake(daemon->net, i);
  api_connect(&daemon->api, wakes);
  return net_start(daemon->net, err);
}

static double gauge_queued(void *arg) {
  const struct daemon *daemon = arg;
  if (atomic_load(&daemon->load) != LOAD_DONE) return 0;
  int64_t n = 0;
  for (int i = 0; i < daemon->n_executors; i++)
    n += executor_queued(daemon->executors[i]);
  return (double)n;
}
static double gauge_connections(void *arg) {
  return (double)net_connections(((struct daemon *)arg)->net);
}
static double gauge_bytes(void *arg) {
  return (double)net_used_bytes(((struct daemon *)arg)->net);
}
static double gauge_ready(void *arg) {
  return api_ready(&((struct daemon *)arg)->api) ? 1 : 0;
}

// Of one device; they live as long as the process.
static struct device_series {
  const struct daemon *daemon;
  int device;
  char labels[64];
} device_series[LIMIT_DEVICES];

static const struct executor *executor_of(const struct device_series *series) {
  if (atomic_load(&series->daemon->load) != LOAD_DONE) return NULL;
  return series->daemon->executors[series->device];
}
static double gauge_device_queued(void *arg) {
  const struct executor *executor = executor_of(arg);
  return executor ? executor_queued(executor) : 0;
}
static double gauge_device_wait(void *arg) {
  const struct executor *executor = executor_of(arg);
  return executor ? (double)executor_wait_ns(executor) * 1e-9 : 0;
}
static double gauge_device_lost(void *arg) {
  const struct executor *executor = executor_of(arg);
  return executor && executor_lost(executor) ? 1 : 0;
}

static void device_gauges(struct daemon *daemon) {
  const struct devices *devices = &daemon->parts.devices;
  for (int d = 0; d < devices->n; d++) {
    struct device_series *series = &device_series[d];
    *series = (struct device_series){.daemon = daemon, .device = d};
    snprintf(series->labels, sizeof series->labels, "device=\"%s\"", devices->names[d]);
    metrics_gauge_add("fusewire_device_queue_requests", "Requests that wait or run, by device.",
                      series->labels, gauge_device_queued, series);
  }
  for (int d = 0; d < devices->n; d++)
    metrics_gauge_add("fusewire_device_wait_seconds",
                      "What a request that came now is expected to wait, behind all others.",
                      device_series[d].labels, gauge_device_wait, &device_series[d]);
  for (int d = 0; d < devices->n; d++)
    metrics_gauge_add("fusewire_device_lost", "1 after an error that only a new process cures.",
                      device_series[d].labels, gauge_device_lost, &device_series[d]);
}

static void add_gauges(struct daemon *daemon) {
  metrics_gauge_add("fusewire_ready", "1 while health says SERVING.", "", gauge_ready, daemon);
  metrics_gauge_add("fusewire_queue_requests", "Requests that wait or run.", "", gauge_queued,
                    daemon);
  metrics_gauge_add("fusewire_connections", "Open gRPC connections.", "", gauge_connections,
                    daemon);
  metrics_gauge_add("fusewire_message_bytes", "Bytes held for requests and replies.", "",
                    gauge_bytes, daemon);
  devices_gauges(&daemon->parts.devices);
  device_gauges(daemon);
}

// ---- up ----
static enum status bring_up(struct daemon *daemon, struct error *err) {
  struct api_options options = {.registry = daemon->parts.registry,
                                .n_loops = (int)daemon->conf->loops,
                                .requests_per_loop = (int32_t)(daemon->conf->queue_requests * 2),
                                .stream_requests = (int32_t)daemon->conf->stream_requests,
                                .model_control = daemon->conf->model_control,
                                .log_requests = daemon->conf->log_requests,
                                .loader = &daemon->reloader.wake,
                                .explainer = &daemon->explainer.wake,
                                .device_name = first_caps(&daemon->parts.devices)->description,
                                .fallback = daemon->parts.devices.fallback,
                                .audits = &daemon->parts.audits,
                                .rates_measured = daemon->parts.devices.facts.measured};
  daemon->reloader.parts = &daemon->parts;
  daemon->reloader.api = &daemon->api;
  reloader_init(&daemon->reloader);
  explainer_init(&daemon->explainer, &daemon->api);
  enum status status = api_open(&daemon->api, &options, err);
  if (status == STATUS_OK) status = explainer_start(&daemon->explainer, err);
  if (status == STATUS_OK) status = traces_open(daemon->conf, &daemon->exporter, err);
  if (status == STATUS_OK) status = open_network(daemon, err);
  if (status != STATUS_OK) return status;
  add_gauges(daemon);
  if (pthread_create(&daemon->loader, NULL, loader_main, daemon) != 0)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the thread that loads models");
  daemon->loader_started = true;
  return STATUS_OK;
}

static bool device_lost(const struct daemon *daemon) {
  if (atomic_load(&daemon->load) != LOAD_DONE) return false;
  for (int i = 0; i < daemon->n_executors; i++)
    if (executor_lost(daemon->executors[i])) return true;
  return false;
}

// The next signal; 0: it is time to see whether all goes on, and to say so.
static int next_signal(const struct watch *watch, const sigset_t *signals) {
  int64_t every_ns = notify_alive_every_ns(), watch_ns = watch_every_ns(watch);
  if (every_ns == 0 || (watch_ns > 0 && watch_ns < every_ns)) every_ns = watch_ns;
  struct timespec every = {every_ns / NS_PER_S, every_ns % NS_PER_S};
  if (every_ns == 0) return sigwaitinfo(signals, NULL);
  int number = sigtimedwait(signals, NULL, &every);
  return number < 0 && errno == EAGAIN ? 0 : number;
}

static bool goes_on(struct daemon *daemon) {
  if (atomic_load(&daemon->load) == LOAD_DONE &&
      !watch_look(&daemon->watch, daemon->executors, daemon->n_executors, clock_now_ns()))
    return false;
  return notify_alive_every_ns() > 0 && api_pulse(&daemon->api);
}

// Until a signal asks for the end (true), or something made going on pointless (false).
static bool serve(struct daemon *daemon, const sigset_t *signals) {
  for (;;) {
    int number = next_signal(&daemon->watch, signals);
    if (drain_asked(number)) return true;
    if (number == SIGHUP) reloader_ask(&daemon->reloader); // also while the first models load
    // Whoever waits for answers waits for the loops and the devices: a process where one of them
    // hangs is not alive.
    if (number == 0 && goes_on(daemon)) notify_alive();
    if (atomic_load(&daemon->load) == LOAD_FAILED || device_lost(daemon)) return false;
  }
}

// ---- down ----
#define LOADER_END_S 5   // for the step that it is in
#define EXECUTOR_END_S 2 // for the batch that it runs

// A model may take long to bind and cannot be stopped. Everybody has been answered by now, so
// nothing is lost.
static void end_loading(struct daemon *daemon, enum exit_code code) {
  if (!daemon->loader_started) return;
  struct timespec until = {0};
  clock_gettime(CLOCK_REALTIME, &until);
  if (atomic_load(&daemon->load) != LOAD_RUNNING) until.tv_sec += LOADER_END_S;
  reloader_stop(&daemon->reloader);
  if (pthread_timedjoin_np(daemon->loader, NULL, &until) == 0) return;
  fflush(NULL);
  _exit(code);
}

// A batch cannot be stopped either. Everybody has been answered by now, or cut off.
static void stop_executors(struct daemon *daemon, enum exit_code code) {
  for (int i = 0; i < daemon->n_executors; i++) {
    if (executor_try_stop(daemon->executors[i], EXECUTOR_END_S)) continue;
    log_error("executor_stuck", "device %d does not end: the process ends without it", i);
    fflush(NULL);
    _exit(code);
  }
}

static void tear_down(struct daemon *daemon, enum exit_code code) {
  stop_executors(daemon, code);
  audits_stop(&daemon->parts.audits);
  if (daemon->net) net_close(daemon->net);
  exporter_close(daemon->exporter);
  secrets_close(&daemon->secrets);
  for (int i = 0; i < daemon->n_executors; i++)
    executor_close(daemon->executors[i]);
  audits_close(&daemon->parts.audits);
  explainer_stop(&daemon->explainer);
  api_close(&daemon->api);
  parts_close(&daemon->parts);
}

static enum exit_code run(struct daemon *daemon, const sigset_t *signals) {
  bool asked = serve(daemon, signals);
  enum exit_code code = asked ? EXIT_GOOD : EXIT_FAILED;
  notify_stopping();
  api_drain(&daemon->api);
  bool lost = device_lost(daemon);
  if (asked && daemon->conf->drain_delay_ms > 0)
    log_info("stopping", "health says NOT_SERVING; calls are served on for %lld ms",
             (long long)daemon->conf->drain_delay_ms);
  bool patient = asked && drain_delay(daemon->conf->drain_delay_ms, signals);
  log_info("draining", "%d connections open", (int)net_connections(daemon->net));
  struct drain drain = {.net = daemon->net,
                        .exporter = daemon->exporter,
                        .signals = signals,
                        .timeout_ms = patient || lost ? daemon->conf->drain_timeout_ms : 0,
                        .flush_ms = daemon->conf->trace_timeout_ms};
  int cut_off = drain_network(&drain);
  if (cut_off > 0) {
    log_warn("cut_off", "%d calls were cut off", cut_off);
    code = EXIT_FAILED;
  }
  end_loading(daemon, code);
  return code;
}

// ---- the two ways to run ----
static enum exit_code fail(const struct server_conf *conf, struct error *err, enum exit_code code) {
  int n = 0;
  daemon_report_setting(conf, err, &n);
  return code;
}

// Matrices are read from mapped files while models load: one that is cut short meanwhile ends the
// process with a reason instead of a core. Once loaded, nothing reads a file any more.
static void on_bus_error(int number) {
  static const char text[] = "error: a weights file was cut short while it was read; replace such "
                             "files by rename\n";
  (void)number;
  ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
  (void)ignored;
  _exit(EXIT_FAILED);
}

// glibc moves these two by itself: to the size of the largest block that was ever unmapped, up to
// 32 MiB, and twice that. Blocks of models and of messages that were mappings then become pieces of
// a heap, and what its end may keep grows with them. Fixed, a block of a MiB or more is a mapping
// and goes when it is freed, and smaller ones, which come and go with connections, cost no system
// call. Messages of a MiB are no reason for more: their slabs are kept while they are used
// (base/slab.h).
#define MAPPED_BYTES (1 << 20)
#define HEAP_END_BYTES (2 << 20)
static void set_malloc(void) {
  mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
  mallopt(M_TRIM_THRESHOLD, HEAP_END_BYTES);
}

// Before any thread: all inherit it.
static void take_signals(sigset_t *signals) {
  struct sigaction hangup;
  sigemptyset(signals);
  sigaddset(signals, SIGTERM);
  sigaddset(signals, SIGINT);
  sigaddset(signals, SIGNAL_WAKE);
  if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) // nohup wants it so
    sigaddset(signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, signals, NULL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGBUS, on_bus_error);
}

enum exit_code daemon_run(const struct server_conf *conf, const struct args *args) {
  static struct daemon
      daemon; // large, and outlives threads that may still load when the process ends
  daemon = (struct daemon){.conf = conf, .parts = {.conf = conf}, .started_ns = clock_now_ns()};
  daemon.reloader.args = args;
  daemon.watch = (struct watch){.api = &daemon.api, .limit_ns = conf->stuck_after_ms * NS_PER_MS};
  sigset_t signals;
  set_malloc();
  take_signals(&signals);
  notify_open();
  if (conf->n_models == 0)
    log_warn("no_models", "no model file is given (command line, models): nothing is served");
  struct error err;
  enum exit_code code = EXIT_GOOD;
  enum status status = parts_open_devices(&daemon.parts, &err);
  if (status != STATUS_OK)
    code = fail(conf, &err, EXIT_FAILED);
  else if (devices_measure_first(conf, &daemon.parts.devices),
           parts_parse_models(&daemon.parts) > 0)
    code = EXIT_BAD_INPUT;
  else if ((status = bring_up(&daemon, &err)) != STATUS_OK)
    code = fail(conf, &err, status == STATUS_INVALID_ARGUMENT ? EXIT_BAD_INPUT : EXIT_FAILED);
  else
    code = run(&daemon, &signals);
  tear_down(&daemon, code);
  if (code == EXIT_GOOD) log_info("ended", "in good order");
  return code;
}
