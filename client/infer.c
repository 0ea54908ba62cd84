// `fusewire infer`: one request from files (or a synthetic one), its outputs and what it cost.
#include "base/clock.h"
#include "client/call.h"
#include "client/commands.h"
#include "client/connect.h"
#include "client/file.h"
#include "client/input.h"
#include "client/npy.h"
#include "client/reply.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct infer_options {
  struct connect_options connect;
  const char *model, *version, *fusion, *output_dir;
  struct text_list inputs, outputs;
  int64_t tokens, batch, max_id, seed, deadline_ms, timeout_ns;
  bool help;
};

#define OFFSET(field) offsetof(struct infer_options, field)

static const char usage[] =
    "usage: fusewire infer MODEL [--input name=file.npy ...] [options]\n"
    "One request, from files or a synthetic one: prints the outputs and what the call cost.\n\n";

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, OFFSET(model), "NAME", "the model, if it is not a word of its own", 0,
     0},
    {"model-version", OPTION_TEXT, OFFSET(version), "V",
     "its version (default: the server's choice)", 0, 0},
    {"input", OPTION_LIST, OFFSET(inputs), "SPEC",
     "name=file.npy, or name:DTYPE:shape=file.raw (ids:INT64:1x16=ids.raw), or\n"
     "name:BF16=file.npy (the same bits as another type); once for each input.\n"
     "None: a synthetic request of the model's signature",
     0, 0},
    {"tokens", OPTION_COUNT, OFFSET(tokens), "N",
     "length of the synthetic request's sequences (default 16)", 1, 1 << 20},
    {"batch", OPTION_COUNT, OFFSET(batch), "N", "its rows (default 1)", 1, 65536},
    {"max-id", OPTION_COUNT, OFFSET(max_id), "N", "its token ids are random in 1..N (default 1000)",
     1, INT32_MAX},
    {"seed", OPTION_COUNT, OFFSET(seed), "N", "of the synthetic request (default 1)", 0,
     INT64_MAX / 2},
    {"output", OPTION_LIST, OFFSET(outputs), "NAME",
     "ask for this output only; may be repeated (default: all)", 0, 0},
    {"output-dir", OPTION_TEXT, OFFSET(output_dir), "DIR", "write each output to DIR/name.npy", 0,
     0},
    {"fusion", OPTION_TEXT, OFFSET(fusion), "MODE",
     "the request parameter: on, off or auto (default: not sent)", 0, 0},
    {"deadline-ms", OPTION_COUNT, OFFSET(deadline_ms), "N", "send grpc-timeout", 1, 86400000},
    {"timeout", OPTION_DURATION, OFFSET(timeout_ns), "TIME",
     "give up without a deadline (default 60s)", 0, 0},
    {"help", OPTION_FLAG, OFFSET(help), NULL, "this text", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(connect)),
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

// ---- printing -----------------------------------------------------------------------------------

static void print_values(const struct reply_output *output) {
  float value = 0;
  if (output->type != TYPE_FP32) return;
  const size_t n = output->raw.bytes / 4, shown = n < 5 ? n : 5;
  for (size_t i = 0; i < shown; i++) {
    memcpy(&value, output->raw.data + 4 * i, 4);
    printf("%s%.6g", i ? ", " : "  ", (double)value);
  }
  if (n > shown) printf(", ...");
}

static void print_cost(const struct reply_cost *cost) {
  if (!cost->present && !cost->device[0]) {
    puts("the reply carries no cost parameters");
    return;
  }
  if (cost->fusion[0]) printf("%-18s %s\n", "fusion", cost->fusion);
  if (cost->device[0]) printf("%-18s %s\n", "device", cost->device);
  if (cost->batch_close[0]) printf("%-18s %s\n", "batch_close", cost->batch_close);
  for (int i = 0; i < COST_COUNT; i++) {
    if (!(cost->present & 1u << i)) continue;
    printf("%-18s %.*f\n", cost_name((enum cost)i),
           cost->value[i] == (double)(int64_t)cost->value[i] ? 0 : 3, cost->value[i]);
  }
}

struct word {
  char text[256];
};

static struct word word_of(struct slice name) {
  struct word word;
  const int bytes = name.bytes < sizeof word.text ? (int)name.bytes : (int)sizeof word.text - 1;
  snprintf(word.text, sizeof word.text, "%.*s", bytes, (const char *)name.data);
  call_tame(word.text);
  return word;
}

static void print_reply(const struct reply *reply, double ms) {
  char shape[128];
  int width = 18; // that of the figures below, unless a name is longer
  const struct word model = word_of(reply->model_name), version = word_of(reply->model_version);
  printf("%s version %s answered in %.3f ms\n", model.text, version.text, ms);
  for (int i = 0; i < reply->n_outputs; i++) {
    const int bytes = (int)strlen(word_of(reply->outputs[i].name).text);
    if (bytes > width) width = bytes;
  }
  for (int i = 0; i < reply->n_outputs; i++) {
    const struct reply_output *output = &reply->outputs[i];
    const struct word name = word_of(output->name);
    printf("%-*s %s %s", width, name.text, datatype_name(output->type),
           shape_text(output->dims, output->rank, shape, sizeof shape));
    print_values(output);
    putchar('\n');
  }
  print_cost(&reply->cost);
}

// A name from the server becomes a file name: only plain characters do.
static bool plain_name(struct slice name) {
  if (name.bytes == 0 || name.bytes > 200 || name.data[0] == '.') return false;
  for (size_t i = 0; i < name.bytes; i++) {
    const uint8_t c = name.data[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

static enum status write_outputs(const char *dir, const struct reply *reply, struct error *err) {
  if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
    return error_set(err, STATUS_FAILED_PRECONDITION, "%s: cannot make the folder: %s (errno %d)",
                     dir, strerror(errno), errno);
  }
  for (int i = 0; i < reply->n_outputs; i++) {
    const struct reply_output *output = &reply->outputs[i];
    char path[4096];
    const struct word name = word_of(output->name);
    if (!plain_name(output->name)) {
      return error_set(err, STATUS_INVALID_ARGUMENT, "output name '%s' cannot be a file name",
                       name.text);
    }
    const int bytes = snprintf(path, sizeof path, "%s/%s.%s", dir, name.text,
                               datatype_npy(output->type) ? "npy" : "raw");
    if (bytes >= (int)sizeof path) {
      return error_set(err, STATUS_INVALID_ARGUMENT, "--output-dir: a path of %d bytes; at most %d",
                       bytes, (int)sizeof path - 1);
    }
    const enum status status =
        datatype_npy(output->type)
            ? npy_write(path, output->type, output->dims, output->rank, output->raw, err)
            : file_write(path, &output->raw, 1, err);
    if (status != STATUS_OK) return status;
    printf("wrote %s\n", path);
  }
  return STATUS_OK;
}

// ---- the request --------------------------------------------------------------------------------

static enum status make_input(const struct infer_options *o, struct net *net,
                              struct request_input *out, struct error *err) {
  struct oip_model model;
  struct rng rng = {(uint64_t)o->seed};
  if (o->inputs.n) return input_from_files(&o->inputs, out, err);
  enum status status = oip_model_metadata(net, o->model, o->version, &model, err);
  if (status != STATUS_OK) return status;
  int64_t *lengths = calloc((size_t)o->batch, sizeof *lengths);
  if (!lengths) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  for (int64_t i = 0; i < o->batch; i++)
    lengths[i] = o->tokens;
  const struct input_rows input_rows = {o->batch, lengths, NULL};
  status = input_make(&model, &input_rows, o->max_id, &rng, out, err);
  free(lengths);
  return status;
}

// `*local`: the call went well, and what failed is ours.
static enum status call_and_show(const struct infer_options *o, struct net *net,
                                 const struct payload *payload, bool *local, struct error *err) {
  struct call_method method = {.path = METHOD_INFER};
  struct reply *reply = malloc(sizeof *reply);
  *local = false;
  struct slice message = {0};
  const struct slice parts[CALL_PARTS] = {payload->head[0], payload->body};
  if (!reply) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  call_timeout_text(o->deadline_ms * NS_PER_MS, method.timeout);
  const int64_t start = clock_now_ns();
  enum status status =
      net_call_parts(net, &method, parts,
                     o->deadline_ms ? o->deadline_ms * NS_PER_MS : o->timeout_ns, &message, err);
  const double ms = (double)(clock_now_ns() - start) / NS_PER_MS;
  if (status == STATUS_OK) status = reply_parse(message, reply, err);
  if (status == STATUS_OK) print_reply(reply, ms);
  *local = status == STATUS_OK;
  if (status == STATUS_OK && o->output_dir) status = write_outputs(o->output_dir, reply, err);
  free(reply);
  file_free(&message);
  return status;
}

static int run(const struct infer_options *o, struct net *net, struct payload_set *payloads) {
  struct error err = {0};
  struct request_input input;
  bool local = false;
  const struct payload_options payload_options = {.model = o->model,
                                                  .version = o->version,
                                                  .outputs = &o->outputs,
                                                  .fusion = {o->fusion, NULL}};
  enum status status = make_input(o, net, &input, &err);
  if (status != STATUS_OK)
    return o->inputs.n ? command_usage_error("infer", &err) : command_failure("infer", &err);
  status = payload_set_add(payloads, &payload_options, &input, &err);
  request_input_free(&input);
  if (status == STATUS_OK) status = call_and_show(o, net, &payloads->items[0], &local, &err);
  if (status == STATUS_OK) return EXIT_ALL_OK;
  if (local) return command_local_failure("infer", &err);
  const int code = command_failure("infer", &err);
  if (status == STATUS_INVALID_ARGUMENT && !o->inputs.n && strstr(err.message, "input \""))
    fprintf(stderr,
            "The request was synthetic: --tokens %" PRId64 ", --batch %" PRId64
            ", ids up to --max-id %" PRId64 ".\n",
            o->tokens, o->batch, o->max_id);
  return code;
}

int command_infer(int argc, char **argv) {
  struct infer_options o = {.connect.url = CONNECT_DEFAULT_URL,
                            .tokens = 16,
                            .batch = 1,
                            .max_id = 1000,
                            .seed = 1,
                            .timeout_ns = 60 * NS_PER_S};
  struct payload_set payloads = {0};
  struct net *net = NULL;
  struct error err = {0};
  if (command_help(usage, rows, N_ROWS, argc, argv)) return EXIT_ALL_OK;
  const char *word = NULL;
  enum status status = options_parse_word(rows, N_ROWS, argc, argv, &o, &word, &err);
  if (status == STATUS_OK) status = command_model(word, &o.model, &err);
  if (status != STATUS_OK) return command_usage_error("infer", &err);
  int code = connect_open("infer", &o.connect, 1, &net);
  if (code != EXIT_ALL_OK) return code;
  code = run(&o, net, &payloads);
  net_close(net); // first: queued bytes borrow from the payload
  payload_set_free(&payloads);
  return code;
}
