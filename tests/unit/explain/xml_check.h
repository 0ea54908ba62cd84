// Is a text well-formed XML of the plain kind that we write: one root, tags that nest, attributes
// in double quotes and once each, the five entities and #39, nothing else with & or <? Returns
// where it is not, or NULL.
#ifndef UNIT_EXPLAIN_XML_CHECK_H
#define UNIT_EXPLAIN_XML_CHECK_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define XML_DEPTH 16

static bool xml_name(const char **at) {
  const char *begin = *at;
  while (isalnum((unsigned char)**at) || **at == '-' || **at == ':')
    ++*at;
  return *at > begin;
}

static bool xml_text_char(const char **at) {
  static const char *const entities[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"};
  if (**at != '&') {
    unsigned char c = (unsigned char)*(*at)++;
    return (c >= 0x20 && c < 0x7f) || c == '\n';
  }
  for (int i = 0; i < 5; i++)
    if (strncmp(*at, entities[i], strlen(entities[i])) == 0) {
      *at += strlen(entities[i]);
      return true;
    }
  return false;
}

static bool xml_attributes(const char **at) {
  const char *names[16];
  size_t sizes[16];
  int n = 0;
  while (**at == ' ') {
    ++*at;
    const char *name = *at;
    if (n == 16 || !xml_name(at)) return false;
    names[n] = name;
    sizes[n] = (size_t)(*at - name);
    for (int i = 0; i < n; i++)
      if (sizes[i] == sizes[n] && memcmp(names[i], name, sizes[n]) == 0) return false;
    n++;
    if (*(*at)++ != '=' || *(*at)++ != '"') return false;
    while (**at && **at != '"')
      if (**at == '<' || !xml_text_char(at)) return false;
    if (*(*at)++ != '"') return false;
  }
  return true;
}

static const char *xml_fault(const char *at) {
  const char *open[XML_DEPTH];
  size_t sizes[XML_DEPTH];
  int depth = 0, roots = 0;
  while (*at) {
    const char *begin = at;
    if (*at != '<') {
      if (depth == 0 && *at != '\n') return at;
      if (*at == '>' || !xml_text_char(&at)) return begin;
      continue;
    }
    bool closes = *++at == '/';
    at += closes;
    const char *name = at;
    if (!xml_name(&at)) return begin;
    size_t size = (size_t)(at - name);
    if (closes) {
      if (depth == 0 || sizes[depth - 1] != size || memcmp(open[depth - 1], name, size) != 0)
        return begin;
      depth--;
    } else {
      if (!xml_attributes(&at) || depth == XML_DEPTH) return begin;
      roots += depth == 0;
      open[depth] = name;
      sizes[depth++] = size;
    }
    if (!closes && *at == '/') {
      at++;
      depth--;
    }
    if (*at++ != '>') return begin;
  }
  return depth == 0 && roots == 1 ? NULL : at;
}

#endif
