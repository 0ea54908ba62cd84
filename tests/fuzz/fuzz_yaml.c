// Any bytes as a configuration file: a tree or an error, and getters on every value.
// links: fw_conf fw_base
#include "conf/yaml.h"

#include <stdlib.h>
#include <string.h>

static void visit(struct conf_report *report, const struct conf_node *node, int *budget) {
  char path[256], text[64], near[64];
  int64_t integer;
  double number;
  bool flag;
  int index;
  const char *word;
  if (--*budget < 0) return;
  conf_path(node, path, sizeof path);
  conf_describe(node, text, sizeof text);
  (void)conf_int(report, node, -5, 1000, &integer);
  (void)conf_float(report, node, 0, 1, &number);
  (void)conf_bool(report, node, &flag);
  (void)conf_text(report, node, 16, true, &word);
  (void)conf_enum(report, node, "on|off|ab", &index);
  if (node->kind == CONF_SCALAR) (void)conf_nearest(node->text, "linear|gelu|a", near, sizeof near);
  if (node->kind == CONF_MAP) (void)conf_check_keys(report, node, "name|graph|inputs");
  for (int i = 0; i < node->n_items; i++)
    visit(report, node->items[i], budget);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct conf_report report = {.file = "fuzz.yaml"};
  struct conf_doc *doc = conf_parse((const char *)data, size, &report);
  if (doc == NULL && report.n_errors == 0) abort(); // refused without a word
  int budget = 4096;
  if (doc != NULL) visit(&report, conf_root(doc), &budget);
  conf_free(doc);
  return 0;
}
