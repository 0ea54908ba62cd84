#include "explain/facts.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name, *content_type;
} formats[EXPLAIN_FORMATS] = {
    [EXPLAIN_TEXT] = {"text", "text/plain"},
    [EXPLAIN_JSON] = {"json", "application/json"},
    [EXPLAIN_SVG] = {"svg", "image/svg+xml"},
};

const char *explain_format_name(enum explain_format format) {
  return (unsigned)format < EXPLAIN_FORMATS ? formats[format].name : "?";
}

const char *explain_content_type(enum explain_format format) {
  return (unsigned)format < EXPLAIN_FORMATS ? formats[format].content_type : "?";
}

bool explain_format_find(const char *word, enum explain_format *out) {
  for (int f = 0; f < EXPLAIN_FORMATS; f++)
    if (strcmp(word, formats[f].name) == 0) {
      *out = (enum explain_format)f;
      return true;
    }
  return false;
}

bool explain_fusion_find(const char *word, enum fusion_mode *out) {
  *out = strcmp(word, "on") == 0 ? FUSION_ON : strcmp(word, "auto") == 0 ? FUSION_AUTO : FUSION_OFF;
  return *out != FUSION_OFF || word[0] == '\0';
}

enum status explain_write(const struct explain_options *options, char **out, size_t *out_bytes,
                          struct error *err) {
  struct facts facts;
  struct out text = {.most = options->most_bytes};
  *out = NULL;
  *out_bytes = 0;
  enum status status = facts_make(options, &facts, err);
  if (status == STATUS_OK) {
    if (options->format == EXPLAIN_JSON)
      explain_json(&facts, &text);
    else if (options->format == EXPLAIN_SVG)
      explain_svg(&facts, &text);
    else
      explain_text(&facts, &text);
    if (text.failed == STATUS_OUT_OF_RANGE)
      status = error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "the explanation has more than %zu bytes; `fusewired explain` writes any",
                         options->most_bytes);
    else if (text.failed != STATUS_OK)
      status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the explanation");
  }
  facts_free(&facts);
  if (status != STATUS_OK) {
    out_free(&text);
    return status;
  }
  *out = text.data;
  *out_bytes = text.used;
  return STATUS_OK;
}
