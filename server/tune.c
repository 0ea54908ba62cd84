// fusewired tune: the constants of the device, then the products of the models at a few sizes of
// batches, fused and not. Kept by the device's id; a daemon that starts later plans by them.
#include "backend/measure.h"
#include "base/log.h"
#include "daemon.h"
#include "parts.h"

#include <stdio.h>

static const struct measure_options quick_options = {
    .buffer_bytes = 4 << 20, .seconds = 0.002, .scale = 8};

#define LEAST_ROWS 32
#define ROWS_STEP 4 // a measurement speaks for batches of half to twice its size

// Only of dtypes that the device computes in: other rates are defaults, which nothing reads.
static void print_products(const struct device_rates *rates, const struct plan_caps *caps) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
  const char *gap = "";
  printf("GFLOP/s: products ");
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    if (!caps->dtype_ok[dtypes[i]]) continue;
    printf("%s%s %.1f", gap, dtype_name(dtypes[i]), rates->product[dtypes[i]] / 1e9);
    gap = ", ";
  }
  printf("\n");
}

// What was measured as something else than it can be, or not steadily, is not kept (measure.h).
static void print_standing(const struct device_rates *found, const struct device_rates *usual) {
  const struct {
    const char *name;
    double found, usual;
  } of[] = {{"launch", found->launch_us, usual->launch_us},
            {"cache", found->cache, usual->cache},
            {"epilogue", found->epilogue, usual->epilogue},
            {"epilogue_fp32", found->epilogue_f32, usual->epilogue_f32},
            {"finish", found->finish, usual->finish},
            {"attention_finish", found->attention_finish, usual->attention_finish}};
  int n = 0;
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    if (of[i].usual > 0 && of[i].found == of[i].usual)
      printf("%s%s",
             n++ ? ", " : "not credible as measured, so that the default stands: ", of[i].name);
  if (n > 0) printf("\n");
}

static void print_rates(const struct device_rates *rates, const struct plan_caps *caps) {
  printf("GB/s: read %.1f, two reads a write %.1f, copy %.1f, write %.1f, cache %.1f\n",
         rates->read / 1e9, rates->triad / 1e9, rates->copy / 1e9, rates->write / 1e9,
         rates->cache / 1e9);
  print_products(rates, caps);
  printf("GFLOP/s beside products: row programs %.1f, reductions there %.1f, activations %.1f, of "
         "16 bits %.1f; "
         "epilogues "
         "%.1f, softmax in attention %.1f\n",
         rates->vector / 1e9, rates->reduced / 1e9, rates->special / 1e9, rates->special_16 / 1e9,
         rates->epilogue / 1e9, rates->softmax / 1e9);
  if (rates->attention_f32 <= 0 && rates->epilogue_f32 > 0)
    printf("GFLOP/s in fp32: activations in epilogues %.1f\n", rates->epilogue_f32 / 1e9);
  if (rates->attention_f32 > 0 && rates->epilogue_f32 > 0)
    printf("GFLOP/s in fp32: attention's products %.1f, activations in epilogues %.1f\n",
           rates->attention_f32 / 1e9, rates->epilogue_f32 / 1e9);
  if (caps->product_finish)
    printf(
        "million values/s that a finish takes in pieces: of a product %.0f, of an attention %.0f\n",
        rates->finish / 1e6, rates->attention_finish / 1e6);
  printf("%.2f us a step; products that a library does not do run at %.2f of a plain one's rate\n",
         rates->launch_us, rates->fused_product);
  print_standing(rates, &caps->rates);
}

static void print_shapes(const struct shape_table *table) {
  if (table->n == 0) return;
  printf("%7s %7s %7s  %-5s %-28s %10s %10s\n", "rows", "k", "n", "dtype", "epilogue", "fused us",
         "apart us");
  for (int32_t i = 0; i < table->n; i++) {
    const struct measured_shape *s = &table->shapes[i];
    printf("%7d %7d %7d  %-5s %-28s %10.1f %10.1f%s\n", s->m, s->k, s->n, dtype_name(s->x_dtype),
           s->epilogue, s->fused_us, s->apart_us,
           s->fused_us <= s->apart_us * 1.03 ? "" : "  apart is faster");
  }
}

static enum status tune_model(struct devices *devices, const struct model *model,
                              const struct measure_options *options, struct error *err) {
  for (int64_t m = LEAST_ROWS; m <= model->batch.max_tokens; m *= ROWS_STEP)
    if (measure_shapes(devices->backend, devices->list[0], options, &model->graph,
                       model->plans[FUSION_ON], (int32_t)m, &devices->facts.shapes, err) < 0)
      return err->code;
  return STATUS_OK;
}

static enum status tune(struct parts *parts, bool quick, struct error *err) {
  struct devices *devices = &parts->devices;
  struct measure_options options = quick ? quick_options : (struct measure_options){0};
  if (parts_parse_models(parts) > 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "nothing was measured");
  enum status status = devices_measure(devices, &options, err);
  if (status != STATUS_OK) return status;
  print_rates(&devices->facts.rates, &devices->backend->caps(devices->list[0])->plan);
  // What cannot be measured, as a batch that no memory holds, takes nothing from the rest.
  enum status first = STATUS_OK;
  for (int i = 0; i < registry_count(parts->registry); i++) {
    struct error why = {0};
    const struct model *model = registry_at(parts->registry, i);
    status = model ? tune_model(devices, model, &options, &why) : STATUS_OK;
    if (status == STATUS_OK) continue;
    if (first == STATUS_OK)
      first = error_set(err, status, "model %s: %s", model->name, why.message);
    else // the first ends the command
      log_warn("not_tuned", "model %s: %s", model->name, why.message);
  }
  print_shapes(&devices->facts.shapes);
  if (!devices->facts_path[0]) {
    puts("kept nowhere: device.cache is none, or there is no cache folder");
    return first;
  }
  status = device_facts_write(devices->facts_path, &devices->facts, err);
  if (status == STATUS_OK) printf("kept in %s\n", devices->facts_path);
  return status == STATUS_OK ? first : status;
}

enum exit_code daemon_tune(const struct server_conf *conf, bool quick) {
  struct parts parts = {.conf = conf};
  struct error err = {0};
  int n_errors = 0;
  enum status status = parts_open_devices(&parts, &err);
  if (status == STATUS_OK) status = tune(&parts, quick, &err);
  if (status != STATUS_OK) daemon_report(&err, &n_errors);
  parts_close(&parts);
  if (status == STATUS_OK) return EXIT_GOOD;
  return status == STATUS_INVALID_ARGUMENT ? EXIT_BAD_INPUT : EXIT_FAILED;
}
