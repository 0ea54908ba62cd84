// Any bytes as a configuration file: a tree or an error, and getters on every value.
// links: fw_conf fw_base
// max_len: 768
#include "conf/yaml.h"

#include <stdlib.h>
#include <string.h>

// One question a value: which one goes by the file's length and the value's place, so that a
// longer or shorter file asks others. All of them of each value took nine tenths of a run.
static void ask(struct conf_report *report, const struct conf_node *node, unsigned which) {
  char text[256];
  int64_t integer;
  double number;
  bool flag;
  int index;
  const char *word;
  switch (which % 8) {
  case 0:
    conf_path(node, text, sizeof text);
    break;
  case 1:
    conf_describe(node, text, 64);
    break;
  case 2:
    (void)conf_int(report, node, -5, 1000, &integer);
    break;
  case 3:
    (void)conf_float(report, node, 0, 1, &number);
    break;
  case 4:
    (void)conf_bool(report, node, &flag);
    break;
  case 5:
    (void)conf_text(report, node, 16, true, &word);
    break;
  case 6:
    (void)conf_enum(report, node, "on|off|ab", &index);
    break;
  default:
    if (node->kind == CONF_SCALAR) (void)conf_nearest(node->text, "linear|gelu|a", text, 64);
  }
}

static void visit(struct conf_report *report, const struct conf_node *node, size_t size,
                  int *budget) {
  if (--*budget < 0) return;
  ask(report, node, (unsigned)size + (unsigned)*budget);
  if (node->kind == CONF_MAP && (size ^ (size_t)*budget) % 4 == 0)
    (void)conf_check_keys(report, node, "name|graph|inputs");
  for (int i = 0; i < node->n_items; i++)
    visit(report, node->items[i], size, budget);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct conf_report report = {.file = "fuzz.yaml"};
  struct conf_doc *doc = conf_parse((const char *)data, size, &report);
  if (doc == NULL && report.n_errors == 0) abort(); // refused without a word
  int budget = 256;
  if (doc != NULL) visit(&report, conf_root(doc), size, &budget);
  conf_free(doc);
  return 0;
}
