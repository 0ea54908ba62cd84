// ModelInfer from the bytes of a request to the bytes of its reply, over a fake call layer (this
// file defines rpc/call.h's functions) and a fake device behind a real executor.
#include "harness/cmocka_all.h"

#include "api/api.h"
#include "api/handlers.h"
#include "api/infer.h"
#include "fake_call.h"
#include "infer_spec.h"
#include "open_inference.pb-c.h"
#include "sim/fake.h"

#include <sched.h>

static struct api api;
static struct model *model;
static struct slab_pool *pool;
static struct budget budget;
static struct wake loop_wake;
static struct registry *registry;

// ---- requests ----
static void send_bytes(const void *bytes, size_t n) {
  memset(&call, 0, offsetof(struct call, reply));
  call.pool = pool;
  call.deadline_ns = CLOCK_NEVER;
  call.slab = slab_get(pool, n ? n : 1);
  assert_non_null(call.slab);
  memcpy(call.slab->data, bytes, n);
  call.message = (struct slice){call.slab->data, n};
}

static void finish_call(void) {
  if (call.slab) slab_put(pool, call.slab);
  call.slab = NULL;
}

// Sends, and waits for the one answer.
static enum status infer_bytes(const void *bytes, size_t n) {
  send_bytes(bytes, n);
  model_infer(&call, &api);
  while (call.answers == 0) {
    api_reap(NULL, 0, &api);
    sched_yield();
  }
  assert_int_equal(call.answers, 1);
  finish_call();
  assert_int_equal(slab_pool_used_bytes(pool), 0); // whatever happened, nothing is left behind
  assert_int_equal(atomic_load(&model->refs), 2);
  return call.status;
}

static enum status infer(const struct spec *spec) {
  static uint8_t bytes[32768];
  return infer_bytes(bytes, pack(spec, bytes, sizeof bytes));
}

static Inference__ModelInferResponse *reply(void) {
  Inference__ModelInferResponse *response =
      inference__model_infer_response__unpack(NULL, call.reply_bytes, call.reply);
  assert_non_null(response);
  return response;
}

static int set_up(void **state) {
  (void)state;
  fake_device_reset(false);
  fake_device.run_ns = 1000;
  model = fake_model("m", 64, 8, 0);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    model->metrics[mode] = calloc(1, sizeof *model->metrics[mode]);
  budget = (struct budget){.limit_bytes = 1 << 20};
  struct slab_pool_options slabs = {
      .max_slab_bytes = 1 << 18, .keep_bytes = 1 << 16, .budget = &budget};
  assert_int_equal(slab_pool_open(&slabs, &pool), STATUS_OK);
  assert_int_equal(registry_open(&registry), STATUS_OK);
  model_get(model); // so that the registry's end does not free it
  assert_int_equal(registry_add(registry, model, NULL), STATUS_OK);
  struct api_options options = {.registry = registry, .n_loops = 1, .requests_per_loop = 8};
  assert_int_equal(api_open(&api, &options, NULL), STATUS_OK);
  wake_init(&loop_wake, NULL, NULL);
  struct executor *executor;
  struct executor_options executor_options = {.backend = &fake_backend,
                                              .device = &fake_device,
                                              .n_loops = 1,
                                              .lanes = 1,
                                              .loop_wakes = {&loop_wake},
                                              .queue_requests = 4,
                                              .max_tokens = 64,
                                              .max_seqs = 64};
  assert_int_equal(executor_open(&executor_options, &executor, NULL), STATUS_OK);
  api_serve(&api, &executor, 1, "fake");
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  const struct model_metrics *metrics[] = {model->metrics[0], model->metrics[1]};
  for (int m = 0; m < 2; m++) {
    uint64_t finished = 0;
    for (int code = 0; code < STATUS_COUNT; code++)
      finished += metrics[m]->finished[code];
    assert_int_equal(metrics[m]->accepted, finished);
    assert_int_equal(metrics[m]->in_flight, 0);
  }
  executor_close(api.executors[0]);
  api_close(&api);
  registry_close(registry);
  slab_pool_close(pool);
  fake_model_free(model);
  return 0;
}

static const int64_t ids6[] = {1, 2, 3, 4, 5, 6};
static const int64_t mask6[] = {1, 1, 0, 1, 0, 0};
#define IDS                                                                                        \
  { "ids", "INT64", 2, {2, 3}, ids6, sizeof ids6, NULL, 0, NULL, 0 }
#define MASK                                                                                       \
  { "mask", "INT64", 2, {2, 3}, mask6, sizeof mask6, NULL, 0, NULL, 0 }
static const struct spec good = {.model = "m", .inputs = {IDS}};

// ---- answers ----
static void assert_output(const Inference__ModelInferResponse *response, size_t k, const char *name,
                          const int64_t *expected, size_t n) {
  assert_string_equal(response->outputs[k]->name, name);
  assert_string_equal(response->outputs[k]->datatype, "INT64");
  assert_int_equal(response->raw_output_contents[k].len, n * 8);
  assert_memory_equal(response->raw_output_contents[k].data, expected, n * 8);
}

static void all_outputs_come_in_signature_order(void **state) {
  (void)state;
  struct spec spec = good;
  spec.id = "n\xc3\xb8";
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  assert_string_equal(response->model_name, "m");
  assert_string_equal(response->model_version, "1");
  assert_string_equal(response->id, "n\xc3\xb8");
  assert_int_equal(response->n_outputs, 3);
  assert_int_equal(response->n_raw_output_contents, 3);
  const int64_t tokens[] = {2, 1004, 2006, 8, 1010, 2012}, sums[] = {6, 15};
  assert_output(response, 0, "tokens", tokens, 6);
  assert_output(response, 1, "sums", sums, 2);
  assert_output(response, 2, "same", ids6, 6);
  assert_int_equal(response->outputs[0]->n_shape, 2);
  assert_int_equal(response->outputs[0]->shape[0], 2);
  assert_int_equal(response->outputs[0]->shape[1], 3);
  assert_int_equal(response->outputs[1]->n_shape, 1);
  inference__model_infer_response__free_unpacked(response, NULL);
}

static void asked_outputs_come_in_the_order_asked(void **state) {
  (void)state;
  struct spec spec = good;
  spec.outputs[0] = "same";
  spec.outputs[1] = "sums";
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  assert_int_equal(response->n_outputs, 2);
  const int64_t sums[] = {6, 15};
  assert_output(response, 0, "same", ids6, 6);
  assert_output(response, 1, "sums", sums, 2);
  inference__model_infer_response__free_unpacked(response, NULL);
}

static void masked_positions_are_zeros(void **state) {
  (void)state;
  struct spec spec = good;
  spec.inputs[1] = (struct tensor_spec)MASK;
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  const int64_t tokens[] = {2, 1004, 0, 8, 0, 0}, sums[] = {3, 4}, same[] = {1, 2, 0, 4, 0, 0};
  assert_output(response, 0, "tokens", tokens, 6);
  assert_output(response, 1, "sums", sums, 2);
  assert_output(response, 2, "same", same, 6);
  inference__model_infer_response__free_unpacked(response, NULL);
}

static void typed_contents_are_as_good_as_raw(void **state) {
  (void)state;
  struct spec spec = {.model = "m",
                      .inputs = {{"ids", "INT64", 2, {2, 3}, NULL, 0, ids6, 6, NULL, 0},
                                 {"mask", "INT64", 2, {2, 3}, NULL, 0, mask6, 6, NULL, 0}}};
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  const int64_t tokens[] = {2, 1004, 0, 8, 0, 0}, same[] = {1, 2, 0, 4, 0, 0};
  assert_output(response, 0, "tokens", tokens, 6);
  assert_output(response, 2, "same", same, 6);
  inference__model_infer_response__free_unpacked(response, NULL);
}

static const char *text_parameter(const Inference__ModelInferResponse *response, const char *key) {
  for (size_t i = 0; i < response->n_parameters; i++)
    if (strcmp(response->parameters[i]->key, key) == 0)
      return response->parameters[i]->value->string_param;
  return "missing";
}
static int64_t int_parameter(const Inference__ModelInferResponse *response, const char *key) {
  for (size_t i = 0; i < response->n_parameters; i++)
    if (strcmp(response->parameters[i]->key, key) == 0)
      return response->parameters[i]->value->int64_param;
  return -1;
}
static double real_parameter(const Inference__ModelInferResponse *response, const char *key) {
  for (size_t i = 0; i < response->n_parameters; i++)
    if (strcmp(response->parameters[i]->key, key) == 0)
      return response->parameters[i]->value->double_param;
  return -1;
}

static void the_reply_says_what_it_cost(void **state) {
  (void)state;
  for (int off = 0; off < 2; off++) {
    struct spec spec = good;
    spec.fusion = off ? "off" : "on";
    assert_int_equal(infer(&spec), STATUS_OK);
    Inference__ModelInferResponse *response = reply();
    assert_int_equal(response->n_parameters, 15);
    assert_string_equal(text_parameter(response, "fusion"), spec.fusion);
    assert_string_equal(text_parameter(response, "device"), "fake");
    assert_string_equal(text_parameter(response, "batch_close"), "idle");
    assert_int_equal(int_parameter(response, "batch_requests"), 1);
    assert_int_equal(int_parameter(response, "batch_tokens"), 6);
    assert_int_equal(int_parameter(response, "kernels"), 2);
    // Two steps of 1000 + 8 T + 16 B read and 8 T written; unfused twice that.
    int64_t read = 2 * (1000 + 48 + 32), write = 2 * 48;
    assert_int_equal(int_parameter(response, "hbm_read_bytes"), read << off);
    assert_int_equal(int_parameter(response, "hbm_write_bytes"), write << off);
    assert_int_equal(int_parameter(response, "hbm_unfused_bytes"), (read + write) * 2);
    assert_true(real_parameter(response, "copy_in_us") == 0.1 &&
                real_parameter(response, "compute_us") == 1.0);
    assert_true(real_parameter(response, "copy_out_us") == 0.2 &&
                real_parameter(response, "queue_us") >= 0);
    assert_true(real_parameter(response, "total_us") > 0 &&
                real_parameter(response, "achieved_gbps") > 0);
    inference__model_infer_response__free_unpacked(response, NULL);
  }
}

static void an_output_without_steps_needs_no_device(void **state) {
  (void)state;
  struct spec spec = good;
  spec.outputs[0] = "same";
  assert_int_equal(infer(&spec), STATUS_OK);
  assert_int_equal(fake_device.n_runs + fake_device.n_copies_in, 0);
  Inference__ModelInferResponse *response = reply();
  assert_output(response, 0, "same", ids6, 6);
  assert_int_equal(int_parameter(response, "kernels"), 0);
  assert_int_equal(int_parameter(response, "hbm_unfused_bytes"), 0);
  inference__model_infer_response__free_unpacked(response, NULL);
}

static void ids_behind_the_mask_are_not_looked_at(void **state) {
  (void)state;
  const int64_t ids[] = {1, 2, -100, 4, INT64_MAX, INT64_MIN};
  struct spec spec = {
      .model = "m",
      .inputs = {{"ids", "INT64", 2, {2, 3}, ids, sizeof ids, NULL, 0, NULL, 0}, MASK}};
  assert_int_equal(infer(&spec), STATUS_OK);
}

// ---- refusals ----
static void refused(const struct spec *spec, enum status status, const char *word) {
  enum status found = infer(spec);
  if (found != status || !strstr(call.text, word))
    fail_msg("found %s \"%s\", expected %s with \"%s\"", status_name(found), call.text,
             status_name(status), word);
  assert_int_equal(infer(&good), STATUS_OK); // and the next one is served
}

static void bad_names_are_refused(void **state) {
  (void)state;
  struct spec spec = good;
  spec.model = "nobody";
  refused(&spec, STATUS_NOT_FOUND, "no model \"nobody\"");
  spec = good;
  spec.version = "2";
  refused(&spec, STATUS_NOT_FOUND, "no version \"2\"");
  spec = good;
  spec.version = "99999999999999999999";
  refused(&spec, STATUS_NOT_FOUND, "version");
  spec = good;
  spec.inputs[0].name = "idz";
  refused(&spec, STATUS_INVALID_ARGUMENT, "found \"idz\", model \"m\" has ids, mask, bias");
  spec = good;
  spec.inputs[1] = good.inputs[0];
  refused(&spec, STATUS_INVALID_ARGUMENT, "\"ids\" is given twice");
  spec = (struct spec){.model = "m", .inputs = {MASK}};
  refused(&spec, STATUS_INVALID_ARGUMENT, "\"ids\" is missing");
  spec = (struct spec){.model = "m"};
  refused(&spec, STATUS_INVALID_ARGUMENT, "\"ids\" is missing");
  spec = good;
  spec.outputs[0] = "nothing";
  refused(&spec, STATUS_INVALID_ARGUMENT, "found \"nothing\", model \"m\" has tokens, sums, same");
  spec.outputs[0] = spec.outputs[1] = "sums";
  refused(&spec, STATUS_INVALID_ARGUMENT, "\"sums\" is asked for twice");
}

static void bad_shapes_and_types_are_refused(void **state) {
  (void)state;
  struct spec spec = good;
  spec.inputs[0].datatype = "INT32";
  refused(&spec, STATUS_INVALID_ARGUMENT, "datatype is \"INT32\", expected INT64");
  spec.inputs[0].datatype = "";
  refused(&spec, STATUS_INVALID_ARGUMENT, "expected INT64");
  spec = good;
  spec.inputs[0].rank = 1;
  refused(&spec, STATUS_INVALID_ARGUMENT, "shape is [2], expected [batch, seq]");
  spec = good;
  spec.inputs[0].rank = 9;
  refused(&spec, STATUS_INVALID_ARGUMENT, "more than 8 dimensions");
  static const int64_t bad_batches[] = {0, -1, INT64_MIN};
  for (size_t i = 0; i < sizeof bad_batches / sizeof *bad_batches; i++) {
    spec = good;
    spec.inputs[0].shape[0] = bad_batches[i];
    spec.inputs[0].raw_bytes = 0;
    spec.inputs[0].raw = "";
    refused(&spec, STATUS_INVALID_ARGUMENT, "expected at least 1");
  }
  spec = good;
  spec.inputs[0].shape[1] = 0;
  refused(&spec, STATUS_INVALID_ARGUMENT, "seq is 0");
  spec = good;
  spec.inputs[1] = (struct tensor_spec)MASK;
  spec.inputs[1].shape[0] = 3;
  refused(&spec, STATUS_INVALID_ARGUMENT, "batch is 3, but another input has 2");
  spec = good;
  spec.inputs[1] =
      (struct tensor_spec){"bias", "INT64", 2, {2, 3}, ids6, sizeof ids6, NULL, 0, NULL, 0};
  refused(&spec, STATUS_INVALID_ARGUMENT, "shape is [2, 3], expected [batch, 2]");
}

static void overflowing_dimensions_are_refused(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{INT64_MAX, INT64_MAX}, {INT64_C(1) << 62, 4},
                                      {INT64_C(1) << 61, 1},  {INT64_C(1) << 32, INT64_C(1) << 29},
                                      {3, INT64_MAX},         {INT64_MAX / 3 + 1, 3}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    struct spec spec = good;
    memcpy(spec.inputs[0].shape, shapes[i], sizeof shapes[i]);
    refused(&spec, STATUS_INVALID_ARGUMENT, "raw_input_contents has 48 bytes, expected ");
    spec.inputs[0].raw = NULL;
    spec.inputs[0].typed = ids6;
    spec.inputs[0].n_typed = 6;
    refused(&spec, STATUS_INVALID_ARGUMENT, "fewer elements than its shape");
  }
}

static void byte_counts_must_be_exact(void **state) {
  (void)state;
  static const int off[] = {-48, -8, -1, 1, 8};
  static const int64_t more[7] = {0};
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
    struct spec spec = good;
    spec.inputs[0].raw = more;
    spec.inputs[0].raw_bytes = (size_t)(48 + off[i]);
    refused(&spec, STATUS_INVALID_ARGUMENT, "expected 48 for shape [2, 3] of INT64");
  }
  struct spec spec = good; // one element too few, one too many
  spec.inputs[0].raw = NULL;
  spec.inputs[0].typed = more;
  spec.inputs[0].n_typed = 5;
  refused(&spec, STATUS_INVALID_ARGUMENT, "contents has 5 elements, expected 6");
  spec.inputs[0].n_typed = 7;
  refused(&spec, STATUS_INVALID_ARGUMENT, "contents has 7 elements, expected 6");
}

static void content_forms_exclude_each_other(void **state) {
  (void)state;
  struct spec spec = good;
  spec.inputs[0].typed = ids6;
  spec.inputs[0].n_typed = 6;
  refused(&spec, STATUS_INVALID_ARGUMENT, "both raw_input_contents and contents");
  spec = good;
  spec.inputs[0].raw = NULL;
  refused(&spec, STATUS_INVALID_ARGUMENT, "no data");
  spec.inputs[0].floats = (const float[6]){0};
  spec.inputs[0].n_floats = 6;
  refused(&spec, STATUS_INVALID_ARGUMENT, "expected int64_contents for INT64");
  spec = good; // one raw for two inputs
  spec.inputs[1] = (struct tensor_spec)MASK;
  spec.inputs[1].raw = NULL;
  refused(&spec, STATUS_INVALID_ARGUMENT, "raw_input_contents: found 1, expected 2");
  spec = good;
  spec.shared_memory = true;
  refused(&spec, STATUS_INVALID_ARGUMENT, "shared memory is not supported");
}

static void half_types_are_raw_only(void **state) {
  (void)state;
  model->inputs[FAKE_IDS].dtype = DTYPE_BF16;
  struct spec spec = good;
  spec.inputs[0] =
      (struct tensor_spec){"ids", "BF16", 2, {2, 3}, NULL, 0, NULL, 0, (const float[6]){0}, 6};
  assert_int_equal(infer(&spec), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(call.text, "BF16 has no typed contents"));
  model->inputs[FAKE_IDS].dtype = DTYPE_I64;
}

static void bad_values_are_refused(void **state) {
  (void)state;
  const int64_t big[] = {1, 2, 1000000, 4, 5, 6}, negative[] = {1, 2, 3, 4, 5, -1},
                two[] = {1, 1, 2, 1, 1, 1}, none[6] = {0};
  struct spec spec = good;
  spec.inputs[0].raw = big;
  refused(&spec, STATUS_INVALID_ARGUMENT, "element [0, 2] is 1000000, expected 0 to 999999");
  spec.inputs[0].raw = negative;
  refused(&spec, STATUS_INVALID_ARGUMENT, "element [1, 2] is -1");
  spec = good;
  spec.inputs[1] = (struct tensor_spec)MASK;
  spec.inputs[1].raw = two;
  refused(&spec, STATUS_INVALID_ARGUMENT, "input \"mask\": element [0, 2] is 2, expected 0 or 1");
  spec.inputs[1].raw = none;
  refused(&spec, STATUS_INVALID_ARGUMENT, "keep no position");
}

static void lengths_bound_their_sequences(void **state) {
  (void)state;
  model->inputs[FAKE_MASK].role = ROLE_LENGTHS;
  model->inputs[FAKE_MASK].rank = 1;
  model->inputs[FAKE_MASK].per_token = false;
  const int64_t lengths[] = {2, 3};
  struct spec spec = good;
  spec.inputs[1] =
      (struct tensor_spec){"mask", "INT64", 1, {2}, lengths, sizeof lengths, NULL, 0, NULL, 0};
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  const int64_t tokens[] = {2, 1004, 0, 8, 1010, 2012};
  assert_output(response, 0, "tokens", tokens, 6);
  inference__model_infer_response__free_unpacked(response, NULL);
  static const int64_t bad[][2] = {{2, 4}, {-1, 3}, {INT64_MAX, 1}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    spec.inputs[1].raw = bad[i];
    refused(&spec, STATUS_INVALID_ARGUMENT, "expected 0 to 3");
  }
  const int64_t zeros[2] = {0, 0};
  spec.inputs[1].raw = zeros;
  refused(&spec, STATUS_INVALID_ARGUMENT, "keep no position");
}

static void fusion_must_be_one_of_ours(void **state) {
  (void)state;
  struct spec spec = good;
  spec.fusion = "maybe";
  refused(&spec, STATUS_INVALID_ARGUMENT, "found \"maybe\", expected \"on\", \"off\" or \"auto\"");
  spec.fusion_as_int = true;
  refused(&spec, STATUS_INVALID_ARGUMENT, "another type");
  spec = good;
  spec.fusion = "off";
  model->fusion_available[FUSION_OFF] = false;
  refused(&spec, STATUS_INVALID_ARGUMENT,
          "loaded with fusion \"on\" only; for all of them its file needs fusion: ab");
}

static void auto_runs_as_what_it_comes_out_as(void **state) {
  (void)state;
  struct spec spec = good;
  spec.fusion = "auto";
  model->auto_is = FUSION_OFF;
  assert_int_equal(infer(&spec), STATUS_OK);
  Inference__ModelInferResponse *response = reply();
  assert_string_equal(text_parameter(response, "fusion"), "off");
  inference__model_infer_response__free_unpacked(response, NULL);
}

static void sizes_over_the_limits_are_refused(void **state) {
  (void)state;
  static int64_t ids[65 * 65];
  struct spec spec = {.model = "m",
                      .inputs = {{"ids", "INT64", 2, {1, 65}, ids, 65 * 8, NULL, 0, NULL, 0}}};
  refused(&spec, STATUS_INVALID_ARGUMENT, "seq is 65, expected at most 64");
  spec.inputs[0].shape[0] = 65;
  spec.inputs[0].shape[1] = 1;
  refused(&spec, STATUS_RESOURCE_EXHAUSTED, "batch is 65, expected at most 64");
  spec.inputs[0].shape[0] = 5;
  spec.inputs[0].shape[1] = 13;
  refused(&spec, STATUS_RESOURCE_EXHAUSTED, "65 tokens, expected at most 64 (batch.max_tokens)");
  budget.limit_bytes =
      (int64_t)slab_pool_used_bytes(pool) + 4096; // room for the message, none for the reply
  spec = good;
  assert_int_equal(infer(&spec), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(call.text, "no memory for a reply"));
  budget.limit_bytes = 1 << 20;
}

static void malformed_bytes_are_internal(void **state) {
  (void)state;
  assert_int_equal(infer_bytes("\x0a\x05m", 3), STATUS_INTERNAL);
  assert_int_equal(infer_bytes("", 0), STATUS_NOT_FOUND); // no model has no name
  static uint8_t bytes[4096];
  size_t n = pack(&good, bytes, sizeof bytes);
  for (size_t cut = 0; cut < n;
       cut++) { // every cut: an error, never a crash or a reply of other data
    enum status status = infer_bytes(bytes, cut);
    assert_true(status == STATUS_INTERNAL || status == STATUS_NOT_FOUND ||
                status == STATUS_INVALID_ARGUMENT);
  }
  assert_int_equal(infer(&good), STATUS_OK);
}

static void an_id_longer_than_we_keep_is_refused(void **state) {
  (void)state;
  char id[300];
  memset(id, 'i', sizeof id - 1);
  id[sizeof id - 1] = 0;
  struct spec spec = good;
  spec.id = id;
  refused(&spec, STATUS_INVALID_ARGUMENT, "id: found 299 bytes, expected at most 256");
}

// ---- life ----
static void a_call_that_ends_first_leaves_nothing_behind(enum status why, enum status counted) {
  static uint8_t bytes[4096];
  const uint64_t before = model->metrics[FUSION_ON]->finished[counted];
  send_bytes(bytes, pack(&good, bytes, sizeof bytes));
  model_infer(&call, &api);
  assert_int_equal(call.answers, 0);
  call.gone = true;
  if (call.cancel) call.cancel(call.cancel_arg, why);
  while (atomic_load(&model->refs) > 2) {
    api_reap(NULL, 0, &api);
    sched_yield();
  }
  assert_int_equal(call.answers, 0);
  finish_call();
  assert_int_equal(slab_pool_used_bytes(pool), 0);
  assert_int_equal(model->metrics[FUSION_ON]->finished[counted], before + 1);
  call.gone = false;
  call.answers = 0;
}

// It counts as what the client was told.
static void a_client_that_vanishes_leaves_nothing_behind(void **state) {
  (void)state;
  a_call_that_ends_first_leaves_nothing_behind(STATUS_CANCELLED, STATUS_CANCELLED);
  assert_int_equal(infer(&good), STATUS_OK);
  a_call_that_ends_first_leaves_nothing_behind(STATUS_DEADLINE_EXCEEDED, STATUS_DEADLINE_EXCEEDED);
  a_call_that_ends_first_leaves_nothing_behind(STATUS_UNAVAILABLE, STATUS_UNAVAILABLE);
  assert_int_equal(infer(&good), STATUS_OK);
}

static void an_expired_request_is_answered_without_running(void **state) {
  (void)state;
  static uint8_t bytes[4096];
  send_bytes(bytes, pack(&good, bytes, sizeof bytes));
  call.deadline_ns = clock_now_ns() - 1;
  model_infer(&call, &api);
  while (call.answers == 0)
    api_reap(NULL, 0, &api);
  finish_call();
  assert_int_equal(call.status, STATUS_DEADLINE_EXCEEDED);
  assert_int_equal(fake_device.n_runs, 0);
}

static enum status infer_within(int64_t within_ns) {
  static uint8_t bytes[4096];
  send_bytes(bytes, pack(&good, bytes, sizeof bytes));
  call.deadline_ns = clock_now_ns() + within_ns;
  model_infer(&call, &api);
  while (call.answers == 0) {
    api_reap(NULL, 0, &api);
    sched_yield();
  }
  finish_call();
  assert_int_equal(slab_pool_used_bytes(pool), 0);
  assert_int_equal(atomic_load(&model->refs), 2);
  return call.status;
}

// By what batches of that size took, and by what waits or runs.
static void what_cannot_be_in_time_is_refused_at_once(void **state) {
  (void)state;
  const struct model_metrics *metrics = model->metrics[FUSION_ON];
  fake_device.run_ns = 60 * NS_PER_S; // on the fake clock: that is what is reported
  assert_int_equal(infer_within(30 * NS_PER_S), STATUS_OK); // nothing was known
  assert_int_equal(fake_device.n_runs, 1);
  assert_int_equal(infer_within(30 * NS_PER_S), STATUS_DEADLINE_EXCEEDED);
  assert_non_null(strstr(call.text, "refused at once"));
  assert_int_equal(metrics->refused[REFUSED_SLOW], 1);
  assert_int_equal(fake_device.n_runs, 1);
  struct service *service = &model->service[0][FUSION_ON];
  service_learn(service, 64, 100 * NS_PER_S, true, clock_now_ns()); // 1.6 s a token
  struct request waiting = {.n_tokens = 64, .deadline_ns = clock_now_ns()};
  struct load *load = executor_load(api.executors[0]);
  load_enter(load, &waiting, service);
  assert_int_equal(infer_within(90 * NS_PER_S), STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(metrics->refused[REFUSED_BUSY], 1);
  load_leave(load, &waiting);
  assert_int_equal(infer_within(90 * NS_PER_S), STATUS_OK);
  assert_int_equal(infer(&good), STATUS_OK); // without a deadline
  assert_int_equal(metrics->finished[STATUS_OK], 3);
}

static void a_connection_that_holds_too_much_gets_no_more_replies(void **state) {
  (void)state;
  static uint8_t bytes[4096];
  send_bytes(bytes, pack(&good, bytes, sizeof bytes));
  call.no_room = true;
  model_infer(&call, &api);
  finish_call();
  assert_int_equal(call.status, STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(model->metrics[FUSION_ON]->refused[REFUSED_MEMORY], 1);
  assert_int_equal(infer(&good), STATUS_OK);
  assert_int_equal(call.reserved, 0);
}

static void loading_is_unavailable(void **state) {
  (void)state;
  atomic_store(&api.state, API_LOADING);
  static uint8_t bytes[4096];
  send_bytes(bytes, pack(&good, bytes, sizeof bytes));
  model_infer(&call, &api);
  finish_call();
  assert_int_equal(call.status, STATUS_UNAVAILABLE);
  assert_false(api_ready(&api));
  atomic_store(&api.state, API_SERVING);
}

static void draining_is_not_ready_but_serves(void **state) {
  (void)state;
  api_drain(&api);
  assert_false(api_ready(&api));
  assert_int_equal(infer(&good), STATUS_OK);
}

static void a_lost_device_is_unavailable_and_not_ready(void **state) {
  (void)state;
  fake_device.lost = true;
  assert_int_equal(infer(&good), STATUS_UNAVAILABLE);
  assert_false(api_ready(&api));
  assert_int_equal(infer(&good), STATUS_UNAVAILABLE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
// Two devices: the lost one gets nothing more, the other goes on while the process drains.
static void requests_go_to_the_device_that_is_left(void **state) {
  (void)state;
  static struct device other;
  struct executor *executor, *both[2];
  other = (struct device){.now_ns = NS_PER_S, .max_rows = FAKE_MAX_ROWS, .caps = fake_device.caps};
  struct executor_options options = {.backend = &fake_backend,
                                     .device = &other,
                                     .device_index = 1,
                                     .n_loops = 1,
                                     .lanes = 1,
                                     .loop_wakes = {&loop_wake},
                                     .queue_requests = 4,
                                     .max_tokens = 64,
                                     .max_seqs = 64};
  assert_int_equal(executor_open(&options, &executor, NULL), STATUS_OK);
  both[0] = api.executors[0], both[1] = executor;
  api_serve(&api, both, 2, "fake");
  assert_true(api_ready(&api));
  fake_device.lost = true;
  assert_int_equal(infer(&good), STATUS_UNAVAILABLE);
  assert_false(api_ready(&api));
  assert_int_equal(infer(&good), STATUS_OK);
  assert_int_equal(other.n_runs, 1);
  other.lost = true;
  assert_int_equal(infer(&good), STATUS_UNAVAILABLE);
  assert_int_equal(infer(&good), STATUS_UNAVAILABLE);
  assert_int_equal(other.n_runs, 2); // the second was not even tried
  executor_close(executor);
  api.n_executors = 1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(all_outputs_come_in_signature_order),
      TEST(asked_outputs_come_in_the_order_asked),
      TEST(masked_positions_are_zeros),
      TEST(typed_contents_are_as_good_as_raw),
      TEST(the_reply_says_what_it_cost),
      TEST(an_output_without_steps_needs_no_device),
      TEST(ids_behind_the_mask_are_not_looked_at),
      TEST(bad_names_are_refused),
      TEST(bad_shapes_and_types_are_refused),
      TEST(overflowing_dimensions_are_refused),
      TEST(byte_counts_must_be_exact),
      TEST(content_forms_exclude_each_other),
      TEST(half_types_are_raw_only),
      TEST(bad_values_are_refused),
      TEST(lengths_bound_their_sequences),
      TEST(fusion_must_be_one_of_ours),
      TEST(auto_runs_as_what_it_comes_out_as),
      TEST(sizes_over_the_limits_are_refused),
      TEST(malformed_bytes_are_internal),
      TEST(an_id_longer_than_we_keep_is_refused),
      TEST(a_client_that_vanishes_leaves_nothing_behind),
      TEST(an_expired_request_is_answered_without_running),
      TEST(what_cannot_be_in_time_is_refused_at_once),
      TEST(a_connection_that_holds_too_much_gets_no_more_replies),
      TEST(loading_is_unavailable),
      TEST(draining_is_not_ready_but_serves),
      TEST(a_lost_device_is_unavailable_and_not_ready),
      TEST(requests_go_to_the_device_that_is_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
