// Models of config/models planned for two made-up devices whose rates never change, so that what is
// predicted is the same everywhere.
#ifndef UNIT_EXPLAIN_WORLDS_H
#define UNIT_EXPLAIN_WORLDS_H

#include "harness/cmocka_all.h"
#include "unit/conf/collect.h"

#include "explain/facts.h"

#define N_SHIPPED 5
static const char *const shipped[N_SHIPPED] = {"bert-base", "attention", "mlp", "chain",
                                               "identity"};

static struct device_rates fixed_rates(double scale) {
  struct device_rates rates = device_rates_cpu(1); // what is not named here is a matter of shape
  rates.read = 11e9 * scale, rates.triad = 10.5e9 * scale;
  rates.copy = 10e9 * scale, rates.write = 8e9 * scale;
  rates.cache = 40e9 * scale, rates.cache_bytes = 32 << 20;
  rates.vector = rates.epilogue = rates.softmax = 20e9 * scale;
  rates.reduced = rates.special = rates.special_16 = 20e9 * scale;
  rates.product[DTYPE_F32] = 100e9 * scale;
  rates.product[DTYPE_BF16] = rates.product[DTYPE_F16] = 400e9 * scale;
  rates.launch_us = 2;
  return rates;
}

static struct device_caps fixed_caps(bool gpu) {
  struct device_caps caps = {.name = gpu ? "cuda" : "cpu", .graph_tokens = gpu ? 1024 : 0};
  snprintf(caps.description, sizeof caps.description, "made up for <tests> & \"quotes\"");
  caps.plan = (struct plan_caps){.row_chains = !gpu,
                                 .tile_rows = gpu ? 0 : 64,
                                 .tile_bytes = gpu ? 0 : 1 << 19,
                                 .epilogue_kinds = 31,
                                 .epilogue_max = EPILOGUE_MAX,
                                 .rates = fixed_rates(gpu ? 100 : 1)};
  memset(caps.plan.dtype_ok, 1, sizeof caps.plan.dtype_ok);
  return caps;
}

static struct model *load_file(const char *path, const struct device_caps *caps) {
  static struct server_conf conf;
  struct collect collected = {.n = 0};
  struct model *model = NULL;
  server_conf_defaults(&conf);
  if (model_parse(path, &conf, &caps->plan, collect_error, &collected, &model) != STATUS_OK)
    fail_msg("%s: %s", path, collected.text);
  return model;
}

static inline struct model *load_shipped(int index, const struct device_caps *caps) {
  char path[128];
  snprintf(path, sizeof path, "config/models/%s.yaml", shipped[index]);
  return load_file(path, caps);
}

static inline char *explained(const struct model *model, const struct device_caps *caps,
                              enum explain_format format, int64_t tokens, int64_t seqs) {
  struct explain_options options = {
      .model = model, .caps = caps, .tokens = tokens, .seqs = seqs, .format = format};
  struct error err = {0};
  char *text = NULL;
  size_t bytes;
  if (explain_write(&options, &text, &bytes, &err) != STATUS_OK) fail_msg("%s", err.message);
  assert_int_equal(strlen(text), bytes);
  return text;
}

#endif
