// `fusewire status` and `fusewire models`: what the server says of itself.
#include "base/clock.h"
#include "client/commands.h"
#include "client/connect.h"
#include "client/oip.h"
#include <stdlib.h>
#include <string.h>

struct status_options {
  struct connect_options connect;
  bool help;
  struct text_list models;
};

#define OFFSET(field) offsetof(struct status_options, field)

static const struct option_row rows[] = {
    {"model", OPTION_LIST, OFFSET(models), "NAME",
     "a model, if it is not a word of its own; may be repeated", 0, 0},
    {"help", OPTION_FLAG, OFFSET(help), NULL, "this text", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(connect)),
};
#define MODELS_ROWS rows
#define N_MODELS_ROWS ((int)(sizeof rows / sizeof rows[0]))
#define STATUS_ROWS (rows + 1) // --model is for `models` only
#define N_STATUS_ROWS (N_MODELS_ROWS - 1)

static int open_net(const char *command, const struct status_options *options, enum status parsed,
                    const struct error *err, struct net **net) {
  if (parsed != STATUS_OK) return command_usage_error(command, err);
  return connect_open(command, &options->connect, 1, net);
}

// "name   yes", or the failure in its place.
static bool print_answer(const char *name, enum status status, bool yes, const char *word,
                         const struct error *err) {
  if (status == STATUS_OK)
    printf("%-10s %s\n", name, word);
  else
    printf("%-10s %s: %s\n", name, status_name(status), err->message);
  return status == STATUS_OK && yes;
}

static bool print_metadata(struct net *net) {
  struct oip_server server;
  struct error err = {0};
  const enum status status = oip_server_metadata(net, &server, &err);
  if (status != STATUS_OK) return print_answer("server", status, false, "", &err);
  printf("%-10s %s %s\n%-10s", "server", server.name, server.version, "extensions");
  for (int i = 0; i < server.n_extensions; i++)
    printf(" %s", server.extensions[i]);
  puts(server.n_extensions ? "" : " none");
  return true;
}

int command_status(int argc, char **argv) {
  static const char *const health_words[] = {"UNKNOWN", "SERVING", "NOT_SERVING",
                                             "SERVICE_UNKNOWN"};
  struct status_options options = {.connect.url = CONNECT_DEFAULT_URL};
  struct net *net = NULL;
  struct error err = {0};
  bool live = false, ready = false, ok = true;
  int serving = 0;
  if (command_help("usage: fusewire status [options]\nIs the server live, ready, healthy, "
                   "and what is it?\n\n",
                   STATUS_ROWS, N_STATUS_ROWS, argc, argv)) {
    return EXIT_ALL_OK;
  }
  enum status status = options_parse(STATUS_ROWS, N_STATUS_ROWS, argc, argv, &options, &err);
  const int code = open_net("status", &options, status, &err, &net);
  if (code != EXIT_ALL_OK) return code;
  status = oip_server_live(net, &live, &err);
  ok &= print_answer("live", status, live, live ? "yes" : "no", &err);
  status = oip_server_ready(net, &ready, &err);
  ok &= print_answer("ready", status, ready, ready ? "yes" : "no", &err);
  status = oip_health(net, "", &serving, &err);
  ok &= print_answer("health", status, serving == 1,
                     serving >= 0 && serving < 4 ? health_words[serving] : "?", &err);
  ok &= print_metadata(net);
  net_close(net);
  return ok ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}

static int widest(const struct oip_tensor *tensors, int n, int width) {
  for (int i = 0; i < n; i++) {
    const int bytes = (int)strlen(tensors[i].name);
    if (bytes > width) width = bytes;
  }
  return width;
}

static void print_tensors(const char *word, const struct oip_tensor *tensors, int n, int width) {
  char shape[128];
  for (int i = 0; i < n; i++) {
    printf("  %-7s %-*s %-6s %s\n", i ? "" : word, width, tensors[i].name,
           datatype_name(tensors[i].type),
           shape_text(tensors[i].dims, tensors[i].rank, shape, sizeof shape));
  }
}

static bool print_model(struct net *net, const char *name) {
  struct error err = {0};
  struct oip_model model;
  bool ready = false;
  enum status status = oip_model_ready(net, name, NULL, &ready, &err);
  if (status == STATUS_OK)
    printf("%s: %s\n", name, ready ? "ready" : "not ready");
  else
    printf("%s: %s: %s\n", name, status_name(status), err.message);
  if (status != STATUS_OK) return false;
  status = oip_model_metadata(net, name, NULL, &model, &err);
  if (status != STATUS_OK) {
    printf("  metadata: %s: %s\n", status_name(status), err.message);
    return false;
  }
  printf("  %-7s %s\n  %-7s", "runs on", model.platform, "version");
  for (int i = 0; i < model.n_versions; i++)
    printf(" %s", model.versions[i]);
  puts("");
  const int width =
      widest(model.outputs, model.n_outputs, widest(model.inputs, model.n_inputs, 24));
  print_tensors("inputs", model.inputs, model.n_inputs, width);
  print_tensors("outputs", model.outputs, model.n_outputs, width);
  for (int i = 0; i < model.n_properties; i++) {
    printf("  %s = %s\n", model.properties[i].key, model.properties[i].value);
  }
  return ready;
}

// Without --model: all that the server lists. False: it cannot list, or some model is not well.
static bool print_listed(struct net *net) {
  struct oip_index *index = malloc(sizeof *index);
  struct error err = {0};
  bool ok = index != NULL;
  const enum status status =
      index ? oip_repository_index(net, index, &err) : STATUS_RESOURCE_EXHAUSTED;
  if (status == STATUS_UNIMPLEMENTED) {
    puts("The server has no RepositoryIndex (the protocol itself cannot list models); name them "
         "with --model.");
    ok = false;
  } else if (status != STATUS_OK) {
    printf("RepositoryIndex: %s: %s\n", status_name(status), err.message);
    ok = false;
  }
  for (int i = 0; status == STATUS_OK && i < index->n_models; i++)
    ok &= print_model(net, index->models[i].name);
  free(index);
  return ok;
}

int command_models(int argc, char **argv) {
  struct status_options options = {.connect.url = CONNECT_DEFAULT_URL};
  struct net *net = NULL;
  struct error err = {0};
  const char *word = NULL;
  bool ok = true;
  if (command_help("usage: fusewire models [MODEL] [options]\nA model, or all that the server's "
                   "RepositoryIndex lists: ready or not, signature,\nfusion mode, limits.\n\n",
                   MODELS_ROWS, N_MODELS_ROWS, argc, argv)) {
    return EXIT_ALL_OK;
  }
  const enum status status =
      options_parse_word(MODELS_ROWS, N_MODELS_ROWS, argc, argv, &options, &word, &err);
  const int code = open_net("models", &options, status, &err, &net);
  if (code != EXIT_ALL_OK) return code;
  if (word) ok = print_model(net, word);
  if (!word && options.models.n == 0) ok = print_listed(net);
  for (int i = 0; i < options.models.n; i++)
    ok &= print_model(net, options.models.items[i]);
  net_close(net);
  return ok ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}
