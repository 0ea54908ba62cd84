// Calls to a serving daemon with every single allocation of ours failing in turn: the connection,
// the call, the request, the reply. The call that was hit may fail, with a status or a closed
// connection; the next one must be right, and nothing may be left behind.
#include "api/api.h"
#include "base/log.h"
#include "fault/alloc.h"
#include "fault/h2_client.h"
#include "net/net.h"
#include "rpc/wire.h"
#include "sched/needs.h"

#include <stdio.h>

static struct server_conf conf;
static struct api api;
static struct net *net;
static struct registry *registry;
static struct device *devices[1];
static struct executor *executor;

static void report(const struct error *err, void *arg) {
  (void)arg;
  fprintf(stderr, "%s:%d: %s\n", err->file, err->line, err->message);
}

static int fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

static int start(void) {
  struct error err = {0};
  struct backend_options device_options = {.threads = 1};
  struct model *model;
  server_conf_defaults(&conf);
  if (registry_open(&registry) != STATUS_OK ||
      backend_cpu.open(&device_options, &devices[0], &err) != STATUS_OK ||
      model_parse("tests/fault/tiny.yaml", &conf, &backend_cpu.caps(devices[0])->plan, report, NULL,
                  &model) != STATUS_OK ||
      model_bind(model, &backend_cpu, devices, 1, &err) != STATUS_OK ||
      registry_add(registry, model, &err) != STATUS_OK)
    return fail(err.message);
  needs_fill(model);
  struct api_options api_options = {.registry = registry, .n_loops = 1, .requests_per_loop = 64};
  struct net_options options = {.listen = "127.0.0.1:0",
                                .n_loops = 1,
                                .methods = api_methods,
                                .n_methods = api_n_methods,
                                .app = &api,
                                .reap = api_reap};
  options.limits = (struct rpc_limits){.max_message_bytes = 1 << 20,
                                       .max_connections = 64,
                                       .max_calls = 100,
                                       .connection_bytes = 1 << 22,
                                       .total_bytes = 1 << 24,
                                       .header_bytes = 16384,
                                       .handshake_timeout_ms = 5000,
                                       .stream_window_bytes = 1 << 20,
                                       .connection_window_bytes = 1 << 20};
  if (api_open(&api, &api_options, &err) != STATUS_OK ||
      net_open(&options, &net, &err) != STATUS_OK)
    return fail(err.message);
  struct executor_options executor_options = {.backend = &backend_cpu,
                                              .device = devices[0],
                                              .n_loops = 1,
                                              .loop_wakes = {net_loop_wake(net, 0)},
                                              .queue_requests = 32,
                                              .lanes = 1,
                                              .arena_bytes = model->plans[0]->arena_bytes +
                                                             model->plans[1]->arena_bytes,
                                              .max_tokens = 32,
                                              .max_seqs = 32};
  if (executor_open(&executor_options, &executor, &err) != STATUS_OK) return fail(err.message);
  api_serve(&api, &executor, 1, "cpu");
  return net_start(net, &err) == STATUS_OK ? 0 : fail(err.message);
}

static void stop(void) {
  net_drain(net, 1000);
  net_join(net);
  executor_stop(executor);
  net_close(net);
  executor_close(executor);
  api_close(&api); // asserts that every request is back in its pool
  registry_close(registry);
  backend_cpu.close(devices[0]);
}

// ids [1, 4] for "tiny", behind its 5-byte prefix. `bad`: an id out of range, whose refusal has to
// be written too.
static size_t request_make(uint8_t *out, size_t out_bytes, bool bad) {
  int64_t ids[4] = {1, 2, 3, bad ? 50 : 4};
  uint8_t body[256];
  struct wire_writer input = {body, body + sizeof body, false},
                     writer = {out + 5, out + out_bytes, false};
  wire_put_bytes(&input, 1, "input_ids", 9);
  wire_put_bytes(&input, 2, "INT64", 5);
  wire_put_bytes(&input, 3, "\x01\x04", 2);
  wire_put_bytes(&writer, 1, "tiny", 4);
  wire_put_bytes(&writer, 5, body, (size_t)(input.at - body));
  wire_put_bytes(&writer, 7, ids, sizeof ids);
  uint32_t n = (uint32_t)(writer.at - out) - 5;
  const uint8_t prefix[5] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8),
                             (uint8_t)n};
  memcpy(out, prefix, sizeof prefix);
  return n + 5;
}

struct job {
  const char *name, *path;
  uint8_t request[512];
  size_t request_bytes;
  int expected; // grpc-status
};

static struct h2_call call;

static bool right(const struct job *job, int seconds) {
  return h2_unary(api.n_executors ? net_port(net) : 0, job->path, job->request, job->request_bytes,
                  seconds, &call) &&
         call.grpc_status == job->expected && (job->expected != 0 || call.reply_bytes > 5);
}

// The last connection's memory goes back on the loop thread, a little after its socket is closed.
static bool settles(void) {
  for (int i = 0; i < 20000; i++) {
    if (net_connections(net) == 0 && net_used_bytes(net) == 0) return true;
    usleep(1000);
  }
  return false;
}

static int run(const struct job *job) {
  int64_t n = 0, hit = 0;
  for (bool fired = true; fired; n++) {
    fault_arm(n);
    bool good = right(job, 2);
    bool settled = settles();
    fired = fault_disarm();
    if (!fired && !good)
      return fprintf(stderr, "%s: a call failed though no allocation did (status %d)\n", job->name,
                     call.grpc_status),
             1;
    hit += fired && !good;
    if (!settled)
      return fprintf(stderr,
                     "%s: after allocation %lld failed, %lld connections and %lld bytes stay\n",
                     job->name, (long long)n, (long long)net_connections(net),
                     (long long)net_used_bytes(net)),
             1;
    if (!right(job, 10))
      return fprintf(stderr,
                     "%s: after allocation %lld failed, the next call is wrong (status %d)\n",
                     job->name, (long long)n, call.grpc_status),
             1;
    settles();
  }
  printf("%s: %lld allocations failed in turn, %lld calls of them failed\n", job->name,
         (long long)n - 1, (long long)hit);
  return 0;
}

int main(void) {
  static struct job jobs[] = {
      {.name = "infer", .path = "/inference.GRPCInferenceService/ModelInfer"},
      {.name = "refusal",
       .path = "/inference.GRPCInferenceService/ModelInfer",
       .expected = STATUS_INVALID_ARGUMENT},
      {.name = "metadata",
       .path = "/inference.GRPCInferenceService/ModelMetadata",
       .request = "\0\0\0\0\x06\x0a\x04tiny",
       .request_bytes = 11},
      {.name = "health",
       .path = "/grpc.health.v1.Health/Check",
       .request = "\0\0\0\0\0",
       .request_bytes = 5},
      {.name = "stream", .path = "/inference.GRPCInferenceService/ModelStreamInfer"},
      {.name = "reflection",
       .path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
       .request = "\0\0\0\0\x02\x3a\0",
       .request_bytes = 7},
      {.name = "unknown",
       .path = "/no.Such/Method",
       .request = "\0\0\0\0\0",
       .request_bytes = 5,
       .expected = STATUS_UNIMPLEMENTED},
  };
  jobs[0].request_bytes = request_make(jobs[0].request, sizeof jobs[0].request, false);
  jobs[1].request_bytes = request_make(jobs[1].request, sizeof jobs[1].request, true);
  // Three requests on one stream, the second of them refused.
  for (struct job *part = jobs, *stream = &jobs[4]; part < jobs + 3; part++) {
    const struct job *one = &jobs[part == jobs + 1];
    memcpy(stream->request + stream->request_bytes, one->request, one->request_bytes);
    stream->request_bytes += one->request_bytes;
  }
  log_setup(LOG_ERROR, LOG_TEXT);
  if (start() != 0) return 1;
  int failed = 0;
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs && !failed; i++)
    failed = run(&jobs[i]);
  stop();
  return failed;
}
