// Bytes -> libyaml events -> tree. Built with an explicit stack, so that hostile nesting cannot
// exhaust ours.
#include "conf/yaml.h"
#include "base/log.h"
#include "bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

struct block { // memory of a document: freed as a whole
  struct block *next;
};

struct anchor {
  const char *name;
  struct conf_node *node;
};

struct conf_doc {
  struct block *blocks;
  struct conf_node *root;
};

// A list or map that is still open.
struct frame {
  struct conf_node *node;
  const char *key; // map: the key that waits for its value; NULL: the next scalar is a key
  int key_line, key_column;
  bool skip; // map: the value belongs to a duplicate key and is dropped
  int capacity;
};

struct builder {
  struct conf_doc *doc;
  struct conf_report *report;
  struct frame stack[LIMIT_CONF_DEPTH];
  int depth, n_nodes, n_anchors, n_documents;
  struct anchor anchors[64];
};

static void *doc_take(struct conf_doc *doc, size_t bytes) {
  struct block *block = calloc(1, sizeof *block + bytes);
  if (block == NULL) return NULL;
  block->next = doc->blocks;
  doc->blocks = block;
  return block + 1;
}

void conf_free(struct conf_doc *doc) {
  if (doc == NULL) return;
  for (struct block *block = doc->blocks, *next; block != NULL; block = next) {
    next = block->next;
    free(block);
  }
  free(doc);
}

const struct conf_node *conf_root(const struct conf_doc *doc) {
  return doc->root;
}

static char *doc_text(struct conf_doc *doc, const char *text, size_t bytes) {
  char *copy = doc_take(doc, bytes + 1);
  if (copy != NULL && bytes != 0) memcpy(copy, text, bytes);
  return copy;
}

static bool fail(struct builder *b, yaml_mark_t mark, const char *message) {
  conf_fail_at(b->report, (int)mark.line + 1, (int)mark.column + 1, "%s", message);
  return false;
}

static bool no_memory(struct builder *b, yaml_mark_t mark) {
  return fail(b, mark, "out of memory");
}

static bool count_nodes(struct builder *b, int n, yaml_mark_t mark) {
  if (n <= LIMIT_CONF_NODES - b->n_nodes) {
    b->n_nodes += n;
    return true;
  }
  conf_fail_at(b->report, (int)mark.line + 1, (int)mark.column + 1,
               "more than %d values once aliases are expanded", LIMIT_CONF_NODES);
  return false;
}

// Room for one more item, by doubling: old arrays stay in the document until it is freed (at most
// as much again).
static bool grow_items(struct builder *b, struct frame *frame) {
  if (frame->node->n_items < frame->capacity) return true;
  int capacity = frame->capacity == 0 ? 8 : 2 * frame->capacity;
  struct conf_node **items = doc_take(b->doc, (size_t)capacity * sizeof(struct conf_node *));
  if (items == NULL) return false;
  if (frame->node->n_items != 0)
    memcpy(items, frame->node->items, (size_t)frame->node->n_items * sizeof(struct conf_node *));
  frame->node->items = items;
  frame->capacity = capacity;
  return true;
}

// Hang a finished or just opened node into the innermost open list or map.
static bool attach(struct builder *b, struct conf_node *node, yaml_mark_t mark) {
  if (b->depth == 0) {
    b->doc->root = node;
    return true;
  }
  struct frame *frame = &b->stack[b->depth - 1];
  node->parent = frame->node;
  if (frame->node->kind == CONF_MAP) {
    node->key = frame->key;
    node->key_line = frame->key_line;
    node->key_column = frame->key_column;
    frame->key = NULL;
    if (frame->skip) return true;
  } else {
    node->index = frame->node->n_items;
  }
  if (!grow_items(b, frame)) return no_memory(b, mark);
  frame->node->items[frame->node->n_items++] = node;
  return true;
}

static struct conf_node *new_node(struct builder *b, enum conf_kind kind, yaml_mark_t mark) {
  if (!count_nodes(b, 1, mark)) return NULL;
  struct conf_node *node = doc_take(b->doc, sizeof *node);
  if (node == NULL) {
    no_memory(b, mark);
    return NULL;
  }
  node->kind = kind;
  node->line = (int)mark.line + 1;
  node->column = (int)mark.column + 1;
  node->n_nodes = node->height = 1;
  return node;
}

static bool add_anchor(struct builder *b, const yaml_char_t *name, struct conf_node *node,
                       yaml_mark_t mark) {
  if (name == NULL) return true;
  if (b->n_anchors == (int)(sizeof b->anchors / sizeof *b->anchors))
    return fail(b, mark, "more than 64 anchors");
  const char *copy = doc_text(b->doc, (const char *)name, strlen((const char *)name));
  if (copy == NULL) return no_memory(b, mark);
  b->anchors[b->n_anchors++] = (struct anchor){copy, node};
  return true;
}

static bool waits_for_key(const struct builder *b) {
  return b->depth > 0 && b->stack[b->depth - 1].node->kind == CONF_MAP &&
         b->stack[b->depth - 1].key == NULL;
}

static bool take_key(struct builder *b, const char *text, yaml_mark_t mark) {
  struct frame *frame = &b->stack[b->depth - 1];
  if (frame->node->n_items == LIMIT_CONF_KEYS) return fail(b, mark, "too many keys in one map");
  frame->key = text;
  frame->key_line = (int)mark.line + 1;
  frame->key_column = (int)mark.column + 1;
  const struct conf_node *first = conf_find(frame->node, text);
  frame->skip = first != NULL;
  if (first == NULL) return true;
  char path[512];
  conf_path(first, path, sizeof path);
  conf_fail_at(b->report, frame->key_line, frame->key_column,
               "%s: duplicate key \"%s\"; the first one is at line %d", path, text,
               first->key_line);
  return true; // go on: later mistakes are worth telling as well
}

static bool on_scalar(struct builder *b, const yaml_event_t *event) {
  const char *value = (const char *)event->data.scalar.value;
  size_t bytes = event->data.scalar.length;
  yaml_mark_t mark = event->start_mark;
  if (event->data.scalar.tag != NULL) return fail(b, mark, "tags (!...) are not used here");
  if (memchr(value, 0, bytes) != NULL) return fail(b, mark, "NUL byte in text");
  char *text = doc_text(b->doc, value, bytes);
  if (text == NULL) return no_memory(b, mark);
  if (waits_for_key(b)) {
    if (event->data.scalar.anchor != NULL) return fail(b, mark, "an anchor cannot be on a key");
    return count_nodes(b, 1, mark) && take_key(b, text, mark);
  }
  struct conf_node *node = new_node(b, CONF_SCALAR, mark);
  if (node == NULL) return false;
  node->text = text;
  node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
  return attach(b, node, mark) && add_anchor(b, event->data.scalar.anchor, node, mark);
}

static bool on_open(struct builder *b, enum conf_kind kind, const yaml_char_t *tag,
                    const yaml_char_t *anchor, yaml_mark_t mark) {
  if (tag != NULL) return fail(b, mark, "tags (!...) are not used here");
  if (waits_for_key(b)) return fail(b, mark, "a key must be text, not a list or a map");
  if (b->depth == LIMIT_CONF_DEPTH) {
    conf_fail_at(b->report, (int)mark.line + 1, (int)mark.column + 1,
                 "lists and maps nested more than %d deep", LIMIT_CONF_DEPTH);
    return false;
  }
  struct conf_node *node = new_node(b, kind, mark);
  if (node == NULL || !attach(b, node, mark) || !add_anchor(b, anchor, node, mark)) return false;
  b->stack[b->depth++] = (struct frame){.node = node};
  return true;
}

static void on_close(struct builder *b) {
  FW_ASSERT(b->depth > 0); // libyaml pairs its events
  struct conf_node *node = b->stack[--b->depth].node;
  FW_ASSERT(node != NULL);
  for (int i = 0; i < node->n_items; i++) {
    node->n_nodes += node->items[i]->n_nodes + (node->kind == CONF_MAP);
    if (node->items[i]->height >= node->height) node->height = node->items[i]->height + 1;
  }
}

static bool is_open(const struct builder *b, const struct conf_node *node) {
  for (int i = 0; i < b->depth; i++)
    if (b->stack[i].node == node) return true;
  return false;
}

static bool on_alias(struct builder *b, const yaml_event_t *event) {
  const char *name = (const char *)event->data.alias.anchor;
  yaml_mark_t mark = event->start_mark;
  const struct conf_node *target = NULL;
  for (int i = 0; i < b->n_anchors; i++) // the last one of a name counts
    if (strcmp(b->anchors[i].name, name) == 0) target = b->anchors[i].node;
  if (target == NULL) {
    conf_fail_at(b->report, (int)mark.line + 1, (int)mark.column + 1, "no anchor \"&%s\" above",
                 name);
    return false;
  }
  if (waits_for_key(b)) return fail(b, mark, "an alias cannot be a key");
  if (is_open(b, target)) return fail(b, mark, "an alias inside the value that it stands for");
  if (b->depth + target->height > LIMIT_CONF_DEPTH + 1)
    return fail(b, mark, "lists and maps nested too deep through an alias");
  struct conf_node *node = new_node(b, target->kind, mark);
  if (node == NULL || !count_nodes(b, target->n_nodes - 1, mark)) return false;
  node->quoted = target->quoted;
  node->text = target->text;
  node->items = target->items;
  node->n_items = target->n_items;
  node->n_nodes = target->n_nodes;
  node->height = target->height;
  return attach(b, node, mark);
}

static bool on_event(struct builder *b, const yaml_event_t *event) {
  switch (event->type) {
  case YAML_SCALAR_EVENT:
    return on_scalar(b, event);
  case YAML_SEQUENCE_START_EVENT:
    return on_open(b, CONF_LIST, event->data.sequence_start.tag, event->data.sequence_start.anchor,
                   event->start_mark);
  case YAML_MAPPING_START_EVENT:
    return on_open(b, CONF_MAP, event->data.mapping_start.tag, event->data.mapping_start.anchor,
                   event->start_mark);
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT:
    on_close(b);
    return true;
  case YAML_ALIAS_EVENT:
    return on_alias(b, event);
  case YAML_DOCUMENT_START_EVENT:
    if (b->n_documents++ != 0) return fail(b, event->start_mark, "a second document in one file");
    return true;
  default:
    return true;
  }
}

// libyaml's own message, with the usual cause in plain words where we know it.
static void syntax_error(struct builder *b, const yaml_parser_t *parser, const char *text,
                         size_t bytes) {
  int line = (int)parser->problem_mark.line + 1, column = (int)parser->problem_mark.column + 1;
  size_t at = 0;
  for (size_t i = 0, seen = 1; i < bytes && seen < (size_t)line; i++)
    if (text[i] == '\n' && ++seen == (size_t)line) at = i + 1;
  at +=
      parser->problem_mark.column; // in characters: right for what stands before a tab in practice
  if (parser->error == YAML_MEMORY_ERROR) {
    conf_fail_at(b->report, line, column, "out of memory");
  } else if (parser->error == YAML_READER_ERROR) {
    for (size_t i = 0; i < bytes && i < parser->problem_offset; i++)
      if (text[i] == '\n') line++;
    conf_fail_at(b->report, line, 1, "not text in UTF-8: %s", parser->problem);
  } else if (at < bytes && text[at] == '\t') {
    conf_fail_at(b->report, line, column, "a tab where YAML wants spaces");
  } else {
    const char *context = parser->context != NULL ? parser->context : "";
    bool in_braces = strstr(context, "flow mapping") != NULL;
    conf_fail_at(
        b->report, line, column, "%s%s%s%s", parser->problem, *context ? ", " : "", context,
        in_braces ? "; a text with { } [ ] , or : in it, as \"layer.{i}\", needs quotes" : "");
  }
}

static bool parse_events(struct builder *b, yaml_parser_t *parser, const char *text, size_t bytes) {
  for (;;) {
    yaml_event_t event;
    if (!yaml_parser_parse(parser, &event)) {
      syntax_error(b, parser, text, bytes);
      return false;
    }
    bool ok = on_event(b, &event), end = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (!ok || end) return ok;
  }
}

static bool finish_root(struct builder *b) {
  struct conf_node *root = b->doc->root;
  if (root != NULL && root->kind == CONF_SCALAR && root->text[0] == '\0' && !root->quoted)
    root = NULL; // a file of comments only
  if (root == NULL) {
    b->doc->root = new_node(b, CONF_MAP, (yaml_mark_t){0});
    return b->doc->root != NULL;
  }
  return conf_is_map(b->report, root);
}

struct conf_doc *conf_parse(const char *text, size_t bytes, struct conf_report *report) {
  if (bytes > LIMIT_CONF_BYTES) {
    conf_fail_at(report, 0, 0, "%zu bytes; at most %d are read", bytes, LIMIT_CONF_BYTES);
    return NULL;
  }
  if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { // some editors begin UTF-8 files so
    text += 3;
    bytes -= 3;
  }
  yaml_parser_t parser;
  struct conf_doc *doc = calloc(1, sizeof *doc);
  struct builder *b = calloc(1, sizeof *b);
  bool ok = false;
  if (doc == NULL || b == NULL || !yaml_parser_initialize(&parser)) {
    conf_fail_at(report, 0, 0, "out of memory");
    goto out;
  }
  b->doc = doc;
  b->report = report;
  yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
  ok = parse_events(b, &parser, text, bytes) && finish_root(b);
  yaml_parser_delete(&parser);
out:
  free(b);
  if (!ok) {
    conf_free(doc);
    doc = NULL;
  }
  return doc;
}

// Opens a regular file only: O_NONBLOCK so that a FIFO without a writer cannot hold us.
static int open_regular(const char *path, size_t *bytes, struct conf_report *report,
                        enum status *code) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) {
    *code = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INVALID_ARGUMENT;
    conf_fail_at(report, 0, 0, "cannot be read: %s", strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    conf_fail_at(report, 0, 0, "not a regular file (%s)",
                 S_ISDIR(st.st_mode)    ? "a directory"
                 : S_ISFIFO(st.st_mode) ? "a FIFO"
                                        : "a device or socket");
  } else if (st.st_size > LIMIT_CONF_BYTES) {
    *code = STATUS_RESOURCE_EXHAUSTED;
    conf_fail_at(report, 0, 0, "%lld bytes; at most %d are read", (long long)st.st_size,
                 LIMIT_CONF_BYTES);
  } else {
    *bytes = (size_t)st.st_size;
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

struct conf_doc *conf_load(const char *path, struct conf_report *report, enum status *code) {
  enum status ignored;
  if (code == NULL) code = &ignored;
  *code = STATUS_INVALID_ARGUMENT;
  report->file = path;
  size_t size = 0, got = 0;
  int fd = open_regular(path, &size, report, code);
  if (fd < 0) return NULL;
  struct conf_doc *doc = NULL;
  char *text = malloc(size + 1);
  while (text != NULL && got < size) {
    ssize_t n = read(fd, text + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += (size_t)n;
  }
  if (text == NULL)
    conf_fail_at(report, 0, 0, "out of memory");
  else if (got < size)
    conf_fail_at(report, 0, 0, "cut short while it was read: %zu of %zu bytes", got, size);
  else
    doc = conf_parse(text, size, report);
  free(text);
  close(fd);
  if (doc != NULL && report->n_errors == 0) *code = STATUS_OK;
  return doc;
}
