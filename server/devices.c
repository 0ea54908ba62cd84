#include "devices.h"
#include "base/clock.h"
#include "base/log.h"
#include "obs/expo.h"
#include "obs/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- which cards ----
// `device.gpus`: "0,2"; empty: all of n. How many, or -1 with a message.
static int cards_of(const char *text, int n, int out[LIMIT_DEVICES], struct error *err) {
  int count = 0;
  if (n > LIMIT_DEVICES) n = LIMIT_DEVICES;
  for (; text[0] == '\0' && count < n; count++)
    out[count] = count;
  for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
    int card = (int)strtoll(at, NULL, 10); // digits, checked with the server file
    if (card >= n) {
      (void)error_set(err, STATUS_UNAVAILABLE,
                      "device.gpus: found %d, but this machine has %d (counted from 0)", card, n);
      return -1;
    }
    out[count++] = card;
  }
  return count;
}

// ---- where compiled kernels are kept ----
// `device.cache`: a folder, or nothing: the user's cache folder, if there is one. NULL: nowhere.
static const char *cache_dir(const char *setting, char *out, size_t out_bytes) {
  const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = 0;
  if (strcmp(setting, "none") == 0) return NULL;
  if (setting[0])
    n = snprintf(out, out_bytes, "%s", setting);
  else if (base && base[0] == '/')
    n = snprintf(out, out_bytes, "%s/fusewire", base);
  else if (home && home[0] == '/')
    n = snprintf(out, out_bytes, "%s/.cache/fusewire", home);
  return n > 0 && (size_t)n < out_bytes ? out : NULL;
}

// ---- opening ----
static bool same_plans(const struct device_caps *one, const struct device_caps *other) {
  const struct plan_caps *a = &one->plan, *b = &other->plan;
  return a->row_chains == b->row_chains && a->tile_rows == b->tile_rows &&
         a->tile_bytes == b->tile_bytes && a->epilogue_kinds == b->epilogue_kinds &&
         a->epilogue_max == b->epilogue_max && a->product_finish == b->product_finish &&
         a->attention_finish == b->attention_finish && a->finish_lists == b->finish_lists &&
         a->pool_before == b->pool_before && a->product_norm_dtypes == b->product_norm_dtypes &&
         memcmp(a->product_norm, b->product_norm, sizeof a->product_norm) == 0 &&
         memcmp(a->dtype_ok, b->dtype_ok, sizeof a->dtype_ok) == 0;
}

static enum status open_one(const struct server_conf *conf, struct devices *devices, int index,
                            struct error *err) {
  char cache[1200];
  struct device **slot = &devices->list[devices->n];
  struct backend_options options = {.index = index,
                                    .threads = (int)conf->threads,
                                    .headroom_bytes = conf->headroom_bytes,
                                    .fast_rows = conf->fast_rows,
                                    .cache_dir = cache_dir(conf->cache, cache, sizeof cache)};
  enum status status = devices->backend->open(&options, slot, err);
  if (status != STATUS_OK) return status;
  char *name = devices->names[devices->n++];
  snprintf(name, sizeof devices->names[0], "%s:%d", devices->backend->name, index);
  const struct device_caps *caps = devices->backend->caps(*slot);
  // Plans are made once, for all.
  if (!same_plans(caps, devices->backend->caps(devices->list[0])))
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "device.gpus: %s (%s) is not like %s; name cards of one kind", name,
                     caps->description, devices->names[0]);
  log_info("device_open", "device %s: %s", name, caps->description);
  return STATUS_OK;
}

static enum status open_kind(const struct server_conf *conf, const struct backend_ops *backend,
                             struct devices *devices, struct error *err) {
  int cards[LIMIT_DEVICES], n_found = backend->probe();
  if (n_found <= 0)
    return error_set(err, STATUS_UNAVAILABLE, "this machine has no device of kind %s: %s",
                     backend->name, backend->absent ? backend->absent() : "none found");
  bool picks = backend != &backend_cpu;
  int n = cards_of(picks ? conf->gpus : "", n_found, cards, err);
  enum status status = n < 0 ? STATUS_UNAVAILABLE : STATUS_OK;
  devices->backend = backend;
  for (int i = 0; i < n && status == STATUS_OK; i++)
    status = open_one(conf, devices, cards[i], err);
  if (status != STATUS_OK) devices_close(devices);
  return status;
}

// A name is a demand.
static enum status open_named(const struct server_conf *conf, const char *name,
                              struct devices *devices, struct error *err) {
  const struct backend_ops *backend = backend_find(name);
  struct error why;
  if (!backend)
    return error_set(err, STATUS_UNAVAILABLE,
                     "device.kind: found \"%s\", but this build has no such back end", name);
  enum status status = open_kind(conf, backend, devices, &why);
  if (status == STATUS_OK) return status;
  return error_set(err, status, "device.kind: found \"%s\", but %s", name, why.message);
}

static enum status open_best(const struct server_conf *conf, struct devices *devices,
                             struct error *err) {
  char why[sizeof devices->fallback] = "";
  if (!backend_find("cuda")) snprintf(why, sizeof why, "this build has no CUDA back end");
  enum status status = STATUS_UNAVAILABLE;
  for (int i = 0; backend_table[i]; i++) {
    status = open_kind(conf, backend_table[i], devices, err);
    if (status == STATUS_OK) break;
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, err->message);
  }
  if (status != STATUS_OK || !why[0]) return status;
  memcpy(devices->fallback, why, sizeof why);
  const struct backend_ops *cuda = backend_find("cuda");
  enum log_level level = cuda && cuda->probe() > 0 ? LOG_WARN : LOG_INFO; // a GPU lies idle
  log_write(level, "device_fallback", "device.kind: auto: the CPU is used, no GPU: %s", why);
  return status;
}

// ---- how fast they are ----
static enum status read_facts(const struct server_conf *conf, struct devices *devices,
                              struct error *err) {
  const struct device_caps *caps = devices->backend->caps(devices->list[0]);
  char folder[1200];
  const char *dir = cache_dir(conf->cache, folder, sizeof folder);
  if (device_facts_init(&devices->facts, &caps->plan.rates) != STATUS_OK)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a device's constants");
  if (!dir || !caps->id[0] ||
      !device_facts_path(dir, caps->id, devices->facts_path, sizeof devices->facts_path)) {
    devices->facts_path[0] = '\0';
    return STATUS_OK;
  }
  struct error why;
  enum status status = device_facts_read(devices->facts_path, &devices->facts, &why);
  if (status != STATUS_OK && status != STATUS_NOT_FOUND)
    log_warn("rates_ignored", "what was measured of %s is left aside: %s", devices->names[0],
             why.message);
  return STATUS_OK;
}

struct plan_caps devices_plan_caps(const struct devices *devices) {
  struct plan_caps caps = devices->backend->caps(devices->list[0])->plan;
  caps.rates = devices->facts.rates;
  caps.shapes = &devices->facts.shapes;
  return caps;
}

enum status devices_measure(struct devices *devices, const struct measure_options *options,
                            struct error *err) {
  int64_t start = clock_now_ns();
  enum status status =
      measure_rates(devices->backend, devices->list[0], options, &devices->facts.rates, err);
  if (status != STATUS_OK) return status;
  devices->facts.measured = true;
  const struct device_rates *r = &devices->facts.rates;
  log_info("rates",
           "%s measured in %.1f s: copy %.1f GB/s, read %.1f, products %.1f GFLOP/s fp32, "
           "%.2f us a step",
           devices->names[0], (double)(clock_now_ns() - start) / 1e9, r->copy / 1e9, r->read / 1e9,
           r->product[DTYPE_F32] / 1e9, r->launch_us);
  if (!devices->facts_path[0]) return STATUS_OK;
  return device_facts_write(devices->facts_path, &devices->facts, err);
}

void devices_measure_first(const struct server_conf *conf, struct devices *devices) {
  struct error why;
  struct measure_options options = {0};
  if (devices->facts.measured || !conf->measure) return; // later starts find the file
  if (devices_measure(devices, &options, &why) != STATUS_OK)
    log_warn("rates_not_kept", "measuring %s: %s", devices->names[0], why.message);
}

enum status devices_open(const struct server_conf *conf, struct devices *devices,
                         struct error *err) {
  static const char *const names[] = {NULL, "cpu", "cuda"}; // device.kind, as in keys.def
  FW_ASSERT(conf->device_kind >= 0 && conf->device_kind < (int)(sizeof names / sizeof *names));
  struct error ignored;
  const char *name = names[conf->device_kind];
  *devices = (struct devices){0};
  enum status status =
      name ? open_named(conf, name, devices, err) : open_best(conf, devices, err ? err : &ignored);
  if (status == STATUS_OK) status = read_facts(conf, devices, err);
  return status;
}

void devices_close(struct devices *devices) {
  device_facts_deinit(&devices->facts);
  for (int i = 0; i < devices->n; i++)
    devices->backend->close(devices->list[i]);
  *devices = (struct devices){0};
}

// ---- gauges ----
#define LABELS_BYTES 400

// One series; they live as long as the process, as the registry wants.
struct series {
  const struct backend_ops *backend;
  const struct device *device;
  const char *kind; // of memory
  char labels[LABELS_BYTES];
};
static struct series info[LIMIT_DEVICES], memory[LIMIT_DEVICES * DEVICE_MEMORY_MAX];

static double one(void *arg) {
  (void)arg;
  return 1;
}

static double memory_bytes(void *arg) {
  const struct series *series = arg;
  struct device_memory entries[DEVICE_MEMORY_MAX];
  int n = series->backend->memory(series->device, entries);
  for (int i = 0; i < n; i++)
    if (entries[i].kind == series->kind) return (double)entries[i].bytes;
  return 0;
}

static double fallback(void *arg) {
  return ((const struct devices *)arg)->fallback[0] ? 1 : 0;
}

static void info_add(const struct devices *devices, int d) {
  char text[2 * sizeof((struct device_caps *)0)->description];
  const char *name = devices->backend->caps(devices->list[d])->description;
  snprintf(info[d].labels, LABELS_BYTES, "device=\"%s\",kind=\"%s\",name=\"%s\"", devices->names[d],
           devices->backend->name, expo_escaped(name, text, sizeof text));
  metrics_gauge_add("fusewire_device_info", "Always 1; what the device is, is in the labels.",
                    info[d].labels, one, NULL);
}

static void memory_add(const struct devices *devices, int d) {
  struct device_memory entries[DEVICE_MEMORY_MAX];
  int n = devices->backend->memory(devices->list[d], entries);
  FW_ASSERT(n <= DEVICE_MEMORY_MAX);
  for (int i = 0; i < n; i++) {
    struct series *series = &memory[d * DEVICE_MEMORY_MAX + i];
    *series = (struct series){devices->backend, devices->list[d], entries[i].kind, ""};
    snprintf(series->labels, LABELS_BYTES, "device=\"%s\",kind=\"%s\"", devices->names[d],
             entries[i].kind);
    metrics_gauge_add("fusewire_device_memory_bytes", "Device memory, by who holds it.",
                      series->labels, memory_bytes, series);
  }
}

void devices_gauges(const struct devices *devices) {
  for (int d = 0; d < devices->n; d++)
    info_add(devices, d);
  for (int d = 0; d < devices->n && devices->backend->memory; d++)
    memory_add(devices, d);
  metrics_gauge_add("fusewire_device_fallback",
                    "1 where device.kind is auto and the CPU serves for want of a GPU.", "",
                    fallback, (void *)(uintptr_t)devices);
}
