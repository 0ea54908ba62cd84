// The three formats: texts and JSON of shipped models byte by byte (a wanted change: run this
// program once with FUSEWIRE_GOLDEN_WRITE=1 and read the diff), JSON that a parser takes and whose
// figures agree, SVG that is well-formed whatever the names are, and limits.
#include "worlds.h"
#include "xml_check.h"

#include <jansson.h>

// ---- golden ----
// The program's version is no part of what is compared.
static void hide_version(char *text) {
  static const char version[] = "\"fusewire\": \"" FUSEWIRE_VERSION "\"";
  for (char *at = text; *at; at++)
    if (strncmp(at, version, sizeof version - 1) == 0) {
      memset(at + 13, 'v', strlen(FUSEWIRE_VERSION));
      return;
    }
}

#define FILE_BYTES (1 << 18)
static void read_text(const char *path, char out[FILE_BYTES]) {
  FILE *file = fopen(path, "r");
  if (!file) fail_msg("%s: no such file", path);
  out[fread(out, 1, FILE_BYTES - 1, file)] = '\0';
  fclose(file);
}

static void compare_file(const char *text, const char *path) {
  static char golden[FILE_BYTES];
  if (getenv("FUSEWIRE_GOLDEN_WRITE")) write_file(path, text, strlen(text));
  read_text(path, golden);
  if (strcmp(text, golden) == 0) return;
  size_t at = 0;
  while (text[at] == golden[at])
    at++;
  while (at > 0 && text[at - 1] != '\n')
    at--;
  fail_msg("%s: differs from byte %zu on; now\n%.400s\n", path, at, text + at);
}

static void compare_golden(const char *text, const char *name) {
  char path[128];
  snprintf(path, sizeof path, "tests/golden/explain_%s", name);
  compare_file(text, path);
}

static void golden_of(int index, bool gpu, enum explain_format format, const char *name) {
  struct device_caps caps = fixed_caps(gpu);
  struct model *model = load_shipped(index, &caps);
  char *text = explained(model, &caps, format, 128, 0);
  hide_version(text);
  compare_golden(text, name);
  free(text);
  model_put(model);
}

// The picture of docs/EXPLAIN.md: BERT-base in bf16 on an H200, by the default rates.
static void picture_of_the_manual(void **state) {
  (void)state;
  static char yaml[1 << 14];
  char path[] = "/tmp/fusewire-explain-XXXXXX";
  struct device_caps caps = fixed_caps(true);
  snprintf(caps.description, sizeof caps.description, "NVIDIA H200");
  caps.graph_tokens = 4096;
  caps.plan.rates = device_rates_gpu();
  FILE *file = fopen("config/models/bert-base.yaml", "r");
  assert_non_null(file);
  size_t bytes = fread(yaml, 1, sizeof yaml - 64, file);
  fclose(file);
  bytes += (size_t)snprintf(yaml + bytes, 64, "\ncompute: bf16\nbatch: {max_tokens: 16384}\n");
  close(mkstemp(path));
  write_file(path, yaml, bytes);
  struct model *model = load_file(path, &caps);
  unlink(path);
  char *svg = explained(model, &caps, EXPLAIN_SVG, 4096, 32);
  compare_file(svg, "docs/explain-bert-base.svg");
  free(svg);
  model_put(model);
}

// The example there: an attention block on two cores of an EPYC, by their default rates.
static void example_of_the_manual(void **state) {
  (void)state;
  static char page[FILE_BYTES], now[FILE_BYTES];
  struct device_caps caps = fixed_caps(false);
  snprintf(caps.description, sizeof caps.description, "AMD EPYC (avx2, 2 threads)");
  caps.plan.product_finish = caps.plan.attention_finish = caps.plan.pool_before = true;
  caps.plan.tile_bytes = 384 << 10; // of a second-level cache of 512 KiB; the third has 32 MiB
  caps.plan.rates = device_rates_cpu(2);
  caps.plan.rates.row_bytes = 256 << 10;
  for (int kind = 0; kind < CLASS_COUNT; kind++)
    caps.plan.rates.walks[kind].rows = 64 * 2;
  struct model *model = load_shipped(1, &caps);
  char *text = explained(model, &caps, EXPLAIN_TEXT, 512, 0);
  read_text("docs/EXPLAIN.md", page);
  char *from = strstr(page, "## An example");
  from = from ? strstr(from, "```\n") : NULL;
  assert_non_null(from);
  char *to = strstr(from += strlen("```\n"), "```\n");
  assert_non_null(to);
  int used = snprintf(now, sizeof now, "%.*s%s%s", (int)(from - page), page, text, to);
  assert_in_range(used, 1, sizeof now - 1);
  compare_file(now, "docs/EXPLAIN.md");
  free(text);
  model_put(model);
}

static void text_of_bert_base(void **state) {
  (void)state;
  golden_of(0, false, EXPLAIN_TEXT, "bert-base_cpu.txt");
}
static void text_of_an_attention_block_on_a_gpu(void **state) {
  (void)state;
  golden_of(1, true, EXPLAIN_TEXT, "attention_gpu.txt");
}
static void text_of_a_chain_on_a_gpu(void **state) {
  (void)state;
  golden_of(3, true, EXPLAIN_TEXT, "chain_gpu.txt");
}
static void text_of_a_model_without_kernels(void **state) {
  (void)state;
  golden_of(4, false, EXPLAIN_TEXT, "identity_cpu.txt");
}
static void json_of_an_mlp_block(void **state) {
  (void)state;
  golden_of(2, false, EXPLAIN_JSON, "mlp_cpu.json");
}

// ---- JSON ----
static double number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("\"%s\" is no number", key);
  return json_number_value(value);
}

static json_t *parse(const char *text) {
  json_error_t error;
  json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (!root) fail_msg("line %d: %s", error.line, error.text);
  return root;
}

static void check_plan(const json_t *plan, size_t n_nodes) {
  const json_t *kernels = json_object_get(plan, "kernels"), *total = json_object_get(plan, "total");
  static const char *const sums[] = {"read_bytes", "write_bytes", "expected_bytes", "flops"};
  assert_int_equal((size_t)number(total, "kernels"), json_array_size(kernels));
  for (int i = 0; i < 4; i++) {
    double sum = 0;
    for (size_t k = 0; k < json_array_size(kernels); k++)
      sum += number(json_array_get(kernels, k), sums[i]);
    assert_near(sum, number(total, sums[i]), 1 + (double)json_array_size(kernels)); // rounded ones
  }
  for (size_t k = 0; k < json_array_size(kernels); k++) {
    const json_t *kernel = json_array_get(kernels, k), *nodes = json_object_get(kernel, "nodes");
    assert_int_equal((size_t)number(kernel, "id"), k);
    assert_true(json_array_size(nodes) > 0);
    for (size_t n = 0; n < json_array_size(nodes); n++)
      assert_true((size_t)json_integer_value(json_array_get(nodes, n)) < n_nodes);
    assert_true(number(kernel, "lower_bytes") <= number(kernel, "expected_bytes") + 1);
    assert_true(number(kernel, "expected_bytes") <= number(kernel, "upper_bytes") + 1);
  }
}

static void json_parses_and_its_figures_agree(void **state) {
  (void)state;
  for (int i = 0; i < 2 * N_SHIPPED; i++) {
    struct device_caps caps = fixed_caps(i % 2);
    struct model *model = load_shipped(i / 2, &caps);
    char *text = explained(model, &caps, EXPLAIN_JSON, 0, 0);
    json_t *root = parse(text);
    size_t n_nodes = json_array_size(json_object_get(root, "nodes"));
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "fusewire.explain/1");
    assert_int_equal(n_nodes, model->graph.n_nodes);
    assert_int_equal(json_array_size(json_object_get(root, "edges")),
                     model->plans[FUSION_ON]->n_decisions);
    json_t *plans = json_object_get(root, "plans");
    check_plan(json_object_get(plans, "fused"), n_nodes);
    check_plan(json_object_get(plans, "unfused"), n_nodes);
    bool kernels = model->plans[FUSION_ON]->n_steps > 0;
    assert_int_equal(json_is_object(json_object_get(root, "graph_sizes")), i % 2 && kernels);
    json_decref(root);
    free(text);
    model_put(model);
  }
}

// ---- SVG ----
static void assert_xml(const char *text, const char *what) {
  const char *fault = xml_fault(text);
  if (fault)
    fail_msg("%s: not well-formed at byte %zu: %.80s", what, (size_t)(fault - text), fault);
}

static void the_xml_check_finds_faults(void **state) {
  (void)state;
  static const char *const good[] = {"<a/>\n", "<a b=\"1\" c=\"&lt;\"><b>x &amp; y</b></a>"};
  static const char *const bad[] = {"",
                                    "<a>",
                                    "<a></b>",
                                    "<a>&nope;</a>",
                                    "<a>&</a>",
                                    "<a b=1/>",
                                    "<a/><b/>",
                                    "<a b=\"<\"/>",
                                    "<a>\x01</a>",
                                    "<a>\xff</a>",
                                    "<a b=\"1\" b=\"2\"/>",
                                    "x<a/>"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    assert_null(xml_fault(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (!xml_fault(bad[i])) fail_msg("found nothing wrong with %s", bad[i]);
}

static void svg_is_well_formed(void **state) {
  (void)state;
  for (int i = 0; i < 2 * N_SHIPPED; i++) {
    struct device_caps caps = fixed_caps(i % 2);
    struct model *model = load_shipped(i / 2, &caps);
    char *text = explained(model, &caps, EXPLAIN_SVG, 0, 0);
    assert_xml(text, shipped[i / 2]);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
    model_put(model);
  }
}

// ---- names ----
// What a model file's loader would refuse, too: the formats do not rely on it.
static void hostile_names_break_nothing(void **state) {
  (void)state;
  static const char evil[] = "</text><script>alert(\"1\")</script>&#0;'\\\x1b[2J\x01\xff\xc3\n%s%n";
  struct device_caps caps = fixed_caps(true);
  for (int i = 0; i < EXPLAIN_FORMATS * (N_SHIPPED - 1); i++) { // all but the largest
    int format = i % EXPLAIN_FORMATS;
    struct model *model = load_shipped(1 + i / EXPLAIN_FORMATS, &caps);
    memcpy(model->name, evil, sizeof evil);
    memcpy(model->version, evil, 30);
    memcpy(model->inputs[0].name, evil, sizeof evil);
    for (int32_t t = 0; t < model->graph.n_tensors; t++) {
      char *name = model->graph.tensors[t].name;
      snprintf(name, LIMIT_NAME_BYTES, "%d%s", t, evil);
      if (t % 5) memset(name, "<&\"\\"[t % 4], LIMIT_NAME_BYTES - 1);
    }
    for (int mode = 0; mode < FUSION_MODES; mode++)
      for (int32_t s = 0; s < model->plans[mode]->n_steps; s++)
        memcpy(model->plans[mode]->steps[s].label, evil, sizeof evil);
    char *text = explained(model, &caps, (enum explain_format)format, 0, 0);
    for (const char *c = text; *c; c++)
      if ((*c < ' ' && *c != '\n') || *c > '~') fail_msg("byte %02x got through", (uint8_t)*c);
    if (format == EXPLAIN_SVG) {
      assert_xml(text, "hostile names");
      assert_null(strstr(text, "<script"));
      assert_null(strstr(text, "-1,")); // kernels of a plan that has none
    }
    if (format == EXPLAIN_JSON) {
      json_t *root = parse(text);
      const char *name = json_string_value(json_object_get(json_object_get(root, "model"), "name"));
      assert_memory_equal(name, "</text><script>alert(\"1\")</script>&#0;'\\?[2J????%s%n", 51);
      json_decref(root);
    }
    free(text);
    model_put(model);
  }
}

// How many lines of the section with this heading have `words`; all of them in one column.
static int aligned(const char *text, const char *heading, const char *words) {
  const char *line = strstr(text, heading);
  int n = 0;
  size_t column = 0;
  assert_non_null(line);
  line = strchr(strchr(line, '\n') + 1, '\n') + 1; // behind the line under it
  while (*line && strncmp(line, "\n\n", 2) != 0) {
    const char *end = strchr(line, '\n'), *found = strstr(line, words);
    if (found && found < end) {
      size_t at = (size_t)(found - line);
      if (n > 0 && at != column)
        fail_msg("%s: \"%s\" in columns %zu and %zu\n%.*s", heading, words, column, at,
                 (int)(end - line), line);
      column = at;
      n++;
    }
    line = end + 1;
  }
  return n;
}

// How many lines about an edge there are; all as wide as their heading, with or without times.
static int edges_in_width(const char *text) {
  const char *line = strstr(text, "Edges: what passes");
  int n = 0;
  assert_non_null(line);
  for (; *line; line = strchr(line, '\n') + 1) {
    int bytes = (int)strcspn(line, "\n");
    const char *arrow = strstr(line, " -> ");
    if (!arrow || arrow >= line + bytes) continue;
    if (bytes != 9 + 72 + 21 && bytes != 9 + 72 + 41) fail_msg("%.*s", bytes, line);
    n++;
  }
  return n;
}

static void long_names_keep_the_columns(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(false);
  struct model *model = load_shipped(1, &caps);
  const struct graph *graph = &model->graph;
  for (int32_t t = 0; t < graph->n_tensors; t += 2) // every second stays short
    snprintf(graph->tensors[t].name, LIMIT_NAME_BYTES, "first%d%0*d.last%d", t, 30 + 6 * (t % 30),
             7, t);
  static char text[1 << 18];
  char *document = explained(model, &caps, EXPLAIN_TEXT, 0, 0);
  assert_true(strlen(document) < sizeof text);
  memcpy(text, document, strlen(document));
  free(document);
  assert_int_equal(aligned(text, "The graph: operations", " of "), graph->n_nodes);
  const struct plan *off = model->plans[FUSION_OFF];
  int n_kernels = aligned(text, "One op at a time: kernels", " us  ");
  n_kernels += aligned(text, "One op at a time: kernels", " ms  ");
  assert_int_equal(n_kernels, off->n_steps);
  assert_true(aligned(text, "Memory, one op at a time", " arena  ") > 3);
  assert_true(edges_in_width(text) > 3);
  // Both ends of a name, and both names of an edge.
  const struct node *last = &graph->nodes[graph->n_nodes - 1];
  for (int i = 0; i < last->n_in; i++) {
    char begins[32], ends[32];
    if (last->in[i] % 2) continue;
    snprintf(begins, sizeof begins, " first%d0", last->in[i]);
    snprintf(ends, sizeof ends, "7.last%d", last->in[i]);
    assert_non_null(strstr(text, begins));
    assert_non_null(strstr(text, ends));
  }
  document = explained(model, &caps, EXPLAIN_JSON, 0, 0);
  for (int32_t n = 0; n < graph->n_nodes; n++)
    assert_non_null(strstr(document, graph->tensors[graph->nodes[n].out].name));
  free(document);
  model_put(model);
}

// ---- size ----
// Many products of different widths: no two kernels alike, more than a picture shows.
static struct model *wide_model(const struct device_caps *caps, int n) {
  static char text[1 << 16], path[300];
  int used = snprintf(text, sizeof text,
                      "name: wide\nweights: {synthetic: {seed: 1}}\n"
                      "inputs: [{name: x, dtype: fp32, shape: [batch, 8]}]\ngraph:\n");
  for (int i = 0; i < n; i++)
    used += snprintf(text + used, sizeof text - (size_t)used,
                     "  - linear: {weights: w%d, features: %d, out: t%d}\n  - gelu: {out: g%d}\n",
                     i, 9 + i, i, i);
  used +=
      snprintf(text + used, sizeof text - (size_t)used, "outputs: [{name: y, from: g%d}]\n", n - 1);
  snprintf(path, sizeof path, "%s/wide.yaml", temp_folder());
  write_file(path, text, (size_t)used);
  return load_file(path, caps);
}

static void many_kinds_of_kernels_fit_the_picture(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(true);
  struct model *model = wide_model(&caps, 300);
  char *text = explained(model, &caps, EXPLAIN_SVG, 0, 0);
  assert_xml(text, "300 products");
  assert_non_null(strstr(text, "kinds more"));
  assert_non_null(strstr(text, "the rest is in the text"));
  assert_true(strlen(text) < 300 << 10);
  free(text);
  text = explained(model, &caps, EXPLAIN_TEXT, 0, 0);
  assert_non_null(strstr(text, "300 of 599 edges are fused"));
  free(text);
  model_put(model);
}

// A cheap result that two kernels need is computed in both: its node stands in two kernels.
static void a_result_computed_again_is_shown(void **state) {
  (void)state;
  static const char text[] =
      "name: again\nbatch: {max_tokens: 131072}\nweights: {synthetic: {seed: 1}}\nfusion: auto\n"
      "inputs: [{name: x, dtype: fp32, shape: [batch, 512]}]\ngraph:\n"
      "  - relu: {out: h}\n"
      "  - layer_norm: {weights: n1}\n"
      "  - linear: {weights: w, features: 512, bias: false}\n"
      "  - layer_norm: {weights: n2, out: z}\n"
      "  - mul: {in: [z, h], out: y}\n"
      "outputs: [y]\n";
  struct device_caps caps = fixed_caps(true);
  char path[300];
  caps.plan.rates = device_rates_gpu();
  snprintf(path, sizeof path, "%s/again.yaml", temp_folder());
  write_file(path, text, sizeof text - 1);
  struct model *model = load_file(path, &caps);
  assert_int_equal(model->fusion_default, FUSION_AUTO);
  char *found = explained(model, &caps, EXPLAIN_TEXT, 2048, 0);
  assert_non_null(strstr(found, "computed again"));
  assert_non_null(strstr(found, "would take a part (auto)"));
  free(found);
  found = explained(model, &caps, EXPLAIN_SVG, 2048, 0);
  assert_xml(found, "computed again");
  free(found);
  json_t *root = parse(found = explained(model, &caps, EXPLAIN_JSON, 2048, 0));
  json_t *plan = json_object_get(json_object_get(root, "plans"), "fused");
  assert_string_equal(json_string_value(json_object_get(plan, "fusion")), "auto");
  int with_relu = 0;
  for (size_t k = 0; k < json_array_size(json_object_get(plan, "kernels")); k++) {
    json_t *nodes = json_object_get(json_array_get(json_object_get(plan, "kernels"), k), "nodes");
    for (size_t n = 0; n < json_array_size(nodes); n++)
      with_relu += json_integer_value(json_array_get(nodes, n)) == 0;
  }
  assert_int_equal(with_relu, 2);
  json_decref(root);
  free(found);
  model_put(model);
}

// Rows that a kernel makes for its own pooling are none of its operands.
static void what_is_pooled_as_it_is_made_is_not_read(void **state) {
  (void)state;
  static const char text[] =
      "name: pooled\nweights: {synthetic: {seed: 1}}\n"
      "inputs: [{name: x, dtype: fp32, shape: [batch, seq, 8]}]\ngraph:\n"
      "  - layer_norm: {weights: n, out: z}\n  - pool: {kind: mean, out: y}\noutputs: [y]\n";
  struct device_caps caps = fixed_caps(false);
  char path[300];
  caps.plan.pool_before = true;
  snprintf(path, sizeof path, "%s/pooled.yaml", temp_folder());
  write_file(path, text, sizeof text - 1);
  struct model *model = load_file(path, &caps);
  char *found = explained(model, &caps, EXPLAIN_JSON, 16, 0);
  json_t *root = parse(found);
  json_t *kernels =
      json_object_get(json_object_get(json_object_get(root, "plans"), "fused"), "kernels");
  assert_int_equal(json_array_size(kernels), 1);
  json_t *reads = json_object_get(json_array_get(kernels, 0), "reads");
  assert_int_equal(json_array_size(reads), 3); // x, gamma, beta
  for (size_t i = 0; i < json_array_size(reads); i++)
    assert_string_not_equal(json_string_value(json_array_get(reads, i)), "z");
  assert_near(number(json_array_get(kernels, 0), "read_bytes"), 16 * 8 * 4 + 2 * 8 * 4, 0.5);
  json_decref(root);
  free(found);
  model_put(model);
}

// Hundreds of attentions over a million tokens: more bytes than 64 bits count.
static void figures_beyond_64_bits_stay_positive(void **state) {
  (void)state;
  static const char text[] =
      "name: vast\nbatch: {max_tokens: 1048576}\nmax_seqlen: 1048576\n"
      "inputs: [{name: x, dtype: fp32, shape: [batch, seq, 4096]}]\ngraph:\n"
      "  - relu: {out: a0}\n"
      "  - repeat: {times: 200, body: [{attention: {in: ['a{i}', 'a{i}', 'a{i}'], heads: 4096, "
      "out: 'a{i+1}'}}]}\noutputs: [a200]\n";
  struct device_caps caps = fixed_caps(false);
  char path[300];
  snprintf(path, sizeof path, "%s/vast.yaml", temp_folder());
  write_file(path, text, sizeof text - 1);
  struct model *model = load_file(path, &caps);
  for (int format = 0; format < EXPLAIN_FORMATS; format++) {
    char *found = explained(model, &caps, (enum explain_format)format, 1048576, 1);
    if (format == EXPLAIN_JSON) {
      json_t *root = parse(found);
      json_t *total =
          json_object_get(json_object_get(json_object_get(root, "plans"), "unfused"), "total");
      assert_true(json_integer_value(json_object_get(total, "read_bytes")) == INT64_MAX);
      json_decref(root);
      assert_null(strstr(found, "bytes\": -"));
    }
    if (format == EXPLAIN_SVG) assert_xml(found, "a vast model");
    free(found);
  }
  model_put(model);
}

static void a_step_that_no_output_needs_is_told(void **state) {
  (void)state;
  static const char text[] =
      "name: idle\ninputs: [{name: x, dtype: fp32, shape: [batch, 8]}]\ngraph:\n"
      "  - relu: {out: y}\n  - tanh: {in: x, out: idle}\n  - identity: {in: y, out: z}\n"
      "outputs: [z]\n";
  struct device_caps caps = fixed_caps(false);
  char path[300];
  snprintf(path, sizeof path, "%s/idle.yaml", temp_folder());
  write_file(path, text, sizeof text - 1);
  struct model *model = load_file(path, &caps);
  char *found = explained(model, &caps, EXPLAIN_TEXT, 16, 0);
  assert_non_null(strstr(found, "of x\n")); // relu
  assert_non_null(strstr(found, "of x; never runs, no output needs it\n"));
  assert_non_null(strstr(found, "of y\n")); // identity: a view, which is needed
  free(found);
  model_put(model);
}

static void the_longest_document_is_a_limit(void **state) {
  (void)state;
  struct device_caps caps = fixed_caps(false);
  struct model *model = load_shipped(0, &caps);
  for (int format = 0; format < EXPLAIN_FORMATS; format++) {
    struct explain_options options = {
        .model = model, .caps = &caps, .format = (enum explain_format)format};
    char *text = explained(model, &caps, options.format, 0, 0), *none;
    size_t whole = strlen(text), bytes;
    struct error err = {0};
    options.most_bytes = whole;
    assert_int_equal(explain_write(&options, &none, &bytes, &err), STATUS_OK);
    assert_int_equal(bytes, whole);
    free(none);
    options.most_bytes = whole - 1;
    assert_int_equal(explain_write(&options, &none, &bytes, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_null(none);
    assert_non_null(strstr(err.message, "more than"));
    free(text);
  }
  model_put(model);
}

static void formats_have_names(void **state) {
  (void)state;
  enum explain_format format;
  for (int f = 0; f < EXPLAIN_FORMATS; f++) {
    assert_true(explain_format_find(explain_format_name((enum explain_format)f), &format));
    assert_int_equal(format, f);
  }
  assert_false(explain_format_find("pdf", &format));
  assert_string_equal(explain_content_type(EXPLAIN_SVG), "image/svg+xml");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_of_bert_base),
      cmocka_unit_test(picture_of_the_manual),
      cmocka_unit_test(example_of_the_manual),
      cmocka_unit_test(text_of_an_attention_block_on_a_gpu),
      cmocka_unit_test(text_of_a_chain_on_a_gpu),
      cmocka_unit_test(text_of_a_model_without_kernels),
      cmocka_unit_test(json_of_an_mlp_block),
      cmocka_unit_test(json_parses_and_its_figures_agree),
      cmocka_unit_test(the_xml_check_finds_faults),
      cmocka_unit_test(svg_is_well_formed),
      cmocka_unit_test(hostile_names_break_nothing),
      cmocka_unit_test(long_names_keep_the_columns),
      cmocka_unit_test(many_kinds_of_kernels_fit_the_picture),
      cmocka_unit_test(a_result_computed_again_is_shown),
      cmocka_unit_test(what_is_pooled_as_it_is_made_is_not_read),
      cmocka_unit_test(figures_beyond_64_bits_stay_positive),
      cmocka_unit_test(a_step_that_no_output_needs_is_told),
      cmocka_unit_test(the_longest_document_is_a_limit),
      cmocka_unit_test(formats_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
