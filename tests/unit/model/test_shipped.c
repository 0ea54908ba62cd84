// The model files of config/models: all parse and plan; MiniLM becomes the nodes of minilm.nodes.
//
// The real weights may not be here, so a sparse file of the right names and shapes stands in for
// them.
#include "unit/conf/collect.h"

#include "model/model.h"

#include <sys/stat.h>

enum { HIDDEN = 384, WIDE = 1536, LAYERS = 6 };

static struct collect collected;
static struct server_conf conf;
static char folder[256], config[300], weights[300], copy[400];

// A CPU that fuses everything.
static struct plan_caps all_caps(void) {
  struct plan_caps caps = {.row_chains = true,
                           .tile_rows = 64,
                           .tile_bytes = 1 << 19,
                           .epilogue_kinds = 31,
                           .epilogue_max = EPILOGUE_MAX};
  memset(caps.dtype_ok, 1, sizeof caps.dtype_ok);
  return caps;
}

// ---- a stand-in for model.safetensors
// --------------------------------------------------------------

static char header[65536];
static size_t header_bytes, data_bytes;

static void add_weight(const char *name, int rows, int cols) {
  char shape[32];
  size_t bytes = 4 * (size_t)(rows != 0 ? rows : 1) * (size_t)cols;
  if (rows != 0)
    snprintf(shape, sizeof shape, "%d,%d", rows, cols);
  else
    snprintf(shape, sizeof shape, "%d", cols);
  header_bytes +=
      (size_t)snprintf(header + header_bytes, sizeof header - header_bytes,
                       "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                       header_bytes == 0 ? '{' : ',', name, shape, data_bytes, data_bytes + bytes);
  data_bytes += bytes;
  assert_true(header_bytes < sizeof header);
}

static void add_pair(const char *prefix, int rows, int cols, int vector) {
  char name[160];
  snprintf(name, sizeof name, "%s.weight", prefix);
  add_weight(name, rows, cols);
  snprintf(name, sizeof name, "%s.bias", prefix);
  add_weight(name, 0, vector);
}

static void add_layer(int layer) {
  static const struct {
    const char *name;
    int rows, cols, vector;
  } parts[] = {{"attention.self.query", HIDDEN, HIDDEN, HIDDEN},
               {"attention.self.key", HIDDEN, HIDDEN, HIDDEN},
               {"attention.self.value", HIDDEN, HIDDEN, HIDDEN},
               {"attention.output.dense", HIDDEN, HIDDEN, HIDDEN},
               {"attention.output.LayerNorm", 0, HIDDEN, HIDDEN},
               {"intermediate.dense", WIDE, HIDDEN, WIDE},
               {"output.dense", HIDDEN, WIDE, HIDDEN},
               {"output.LayerNorm", 0, HIDDEN, HIDDEN}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "encoder.layer.%d.%s", layer, parts[i].name);
    add_pair(prefix, parts[i].rows, parts[i].cols, parts[i].vector);
  }
}

static void make_weights(const char *path) {
  add_weight("embeddings.word_embeddings.weight", 30522, HIDDEN);
  add_weight("embeddings.token_type_embeddings.weight", 2, HIDDEN);
  add_weight("embeddings.position_embeddings.weight", 512, HIDDEN);
  add_pair("embeddings.LayerNorm", 0, HIDDEN, HIDDEN);
  for (int i = 0; i < LAYERS; i++)
    add_layer(i);
  header[header_bytes++] = '}';
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  for (int i = 0; i < 8; i++)
    fputc((int)(header_bytes >> (8 * i) & 255), file);
  assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(truncate(path, (off_t)(8 + header_bytes + data_bytes)), 0); // sparse
}

// <folder>/config/models/<name> beside <folder>/.cache/minilm/model.safetensors, as in a checkout.
static int setup(void **state) {
  (void)state;
  char path[300];
  snprintf(folder, sizeof folder, "%s", temp_folder());
  snprintf(config, sizeof config, "%s/config", folder);
  assert_int_equal(mkdir(config, 0700), 0);
  snprintf(config, sizeof config, "%s/config/models", folder);
  assert_int_equal(mkdir(config, 0700), 0);
  snprintf(path, sizeof path, "%s/.cache", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/.cache/minilm", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(weights, sizeof weights, "%s/.cache/minilm/model.safetensors", folder);
  make_weights(weights);
  server_conf_defaults(&conf);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  const char *const folders[] = {"config/models", "config", ".cache/minilm", ".cache", ""};
  unlink(weights);
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
    rmdir(path);
  }
  return 0;
}

static size_t read_file(const char *path, char *out, size_t size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail_msg("cannot open %s", path);
  size_t n = fread(out, 1, size - 1, file);
  out[n] = '\0';
  fclose(file);
  return n;
}

static struct model *load(const char *name) {
  static char text[65536];
  char path[300];
  struct model *model = NULL;
  struct plan_caps caps = all_caps();
  snprintf(path, sizeof path, "config/models/%s", name);
  snprintf(copy, sizeof copy, "%s/%s", config, name);
  write_file(copy, text, read_file(path, text, sizeof text));
  collected = (struct collect){0};
  enum status code = model_parse(copy, &conf, &caps, collect_error, &collected, &model);
  unlink(copy);
  assert_string_equal(collected.text, "");
  assert_int_equal(code, STATUS_OK);
  return model;
}

// ---- tests
// ----------------------------------------------------------------------------------------

static void every_shipped_model_parses_and_plans(void **state) {
  (void)state;
  const struct {
    const char *name;
    int n_nodes, n_weights, n_outputs;
    bool sequences;
  } models[] = {{"identity.yaml", 1, 0, 1, false},     {"mlp.yaml", 5, 6, 1, false},
                {"attention.yaml", 7, 10, 1, true},    {"chain.yaml", 16, 8, 1, false},
                {"bert-base.yaml", 151, 197, 2, true}, {"minilm.yaml", 80, 101, 2, true},
                {"minilm-bf16.yaml", 82, 101, 2, true}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    struct model *model = load(models[i].name);
    print_message("%s: %d nodes, %d and %d steps\n", models[i].name, model->graph.n_nodes,
                  model->plans[FUSION_OFF]->n_steps, model->plans[FUSION_ON]->n_steps);
    assert_int_equal(model->graph.n_nodes, models[i].n_nodes);
    assert_int_equal(model->weights.n_weights, models[i].n_weights);
    assert_int_equal(model->n_outputs, models[i].n_outputs);
    assert_int_equal(model->has_sequences, models[i].sequences);
    assert_int_equal(model->plans[FUSION_ON]->n_outputs, models[i].n_outputs);
    model_put(model);
  }
}

static void minilm_becomes_the_nodes_written_down(void **state) {
  (void)state;
  static char golden[32768], text[32768];
  struct model *model = load("minilm.yaml");
  size_t used = 0;
  for (int32_t i = 0; i < model->graph.n_nodes; i++) {
    const struct node *node = &model->graph.nodes[i];
    const struct tensor *tensors = model->graph.tensors, *out = &tensors[node->out];
    used += (size_t)snprintf(text + used, sizeof text - used, "%s %s [%d] <", op_name(node->op),
                             out->name, out->cols);
    for (int j = 0; j < node->n_in; j++)
      used += (size_t)snprintf(text + used, sizeof text - used, " %s", tensors[node->in[j]].name);
    used += (size_t)snprintf(text + used, sizeof text - used, "\n");
  }
  model_put(model);
  if (getenv("UPDATE_GOLDEN") != NULL) write_file("tests/unit/model/minilm.nodes", text, used);
  read_file("tests/unit/model/minilm.nodes", golden, sizeof golden);
  assert_string_equal(text, golden);
}

static void minilm_speaks_hugging_faces_names(void **state) {
  (void)state;
  struct model *model = load("minilm.yaml");
  assert_string_equal(model->inputs[0].name, "input_ids");
  assert_int_equal(model->inputs[0].dtype, DTYPE_I64);
  assert_int_equal(model->inputs[0].index_limit, 30522);
  assert_string_equal(model->inputs[1].name, "attention_mask");
  assert_int_equal(model->inputs[1].role, ROLE_MASK);
  assert_true(model->inputs[1].optional);
  assert_string_equal(model->inputs[2].name, "token_type_ids");
  assert_int_equal(model->inputs[2].index_limit, 2);
  assert_true(model->inputs[2].optional);
  assert_string_equal(model->outputs[0].name, "last_hidden_state");
  assert_int_equal(model->outputs[0].rank, 3);
  assert_int_equal(model->outputs[0].dims[2], HIDDEN);
  assert_string_equal(model->outputs[1].name, "sentence_embedding");
  assert_int_equal(model->outputs[1].rank, 2);
  assert_int_equal(model->outputs[1].dtype, DTYPE_F32);
  assert_int_equal(model->max_seqlen, 512);
  model_put(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_shipped_model_parses_and_plans),
      cmocka_unit_test(minilm_becomes_the_nodes_written_down),
      cmocka_unit_test(minilm_speaks_hugging_faces_names),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
