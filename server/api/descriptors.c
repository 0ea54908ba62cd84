#include "api/descriptors.h"
#include "base/log.h"

#include <string.h>

extern const unsigned char proto_descriptors[];
extern const unsigned long proto_descriptors_bytes;

// Field numbers of descriptor.proto.
enum { SET_FILE = 1 };
enum { FILE_NAME = 1, FILE_PACKAGE, FILE_DEPENDENCY, FILE_MESSAGE, FILE_ENUM, FILE_SERVICE };
enum { ANY_NAME = 1 }; // of every kind of thing
enum {
  MESSAGE_FIELD = 2,
  MESSAGE_NESTED,
  MESSAGE_ENUM,
}; // of DescriptorProto
enum { ENUM_VALUE = 2, SERVICE_METHOD = 2 };

static struct descriptor_file files[DESCRIPTOR_FILES];
static int n_files;

// ---- reading ----
static uint64_t varint(const uint8_t **at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    uint8_t byte = *(*at)++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

// The next field that has bytes; others are passed over. False: the message ends.
static bool next(struct slice *rest, uint32_t *field, struct slice *value) {
  const uint8_t *at = rest->data, *end = at + rest->bytes;
  while (at < end) {
    uint64_t key = varint(&at);
    if ((key & 7) == 2) {
      size_t bytes = (size_t)varint(&at);
      *field = (uint32_t)(key >> 3);
      *value = (struct slice){at, bytes};
      at += bytes;
      FW_ASSERT(at <= end);
      *rest = (struct slice){at, (size_t)(end - at)};
      return true;
    }
    FW_ASSERT((key & 7) == 0); // nothing in our files needs another kind
    (void)varint(&at);
  }
  return false;
}

static struct slice name_of(struct slice message) {
  uint32_t field;
  for (struct slice value; next(&message, &field, &value);)
    if (field == ANY_NAME) return value;
  return (struct slice){NULL, 0};
}

static bool same(struct slice a, struct slice b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

// Takes "name" or "name." off the front; false: something else is there.
static bool take(struct slice *symbol, struct slice name) {
  if (name.bytes == 0 || symbol->bytes < name.bytes ||
      memcmp(symbol->data, name.data, name.bytes) != 0)
    return false;
  bool more = symbol->bytes > name.bytes;
  if (more && symbol->data[name.bytes] != '.') return false;
  size_t taken = name.bytes + more;
  *symbol = (struct slice){symbol->data + taken, symbol->bytes - taken};
  return true;
}

// ---- looking ----
static bool has_part(struct slice message, uint32_t part, struct slice name) {
  uint32_t field;
  for (struct slice value; next(&message, &field, &value);)
    if (field == part && same(name_of(value), name)) return true;
  return false;
}

// What is left of a symbol behind the message's own name; empty: the message itself. Nested only as
// deep as our files are.
static bool in_message(struct slice message, struct slice symbol, bool only_message, int depth) {
  if (symbol.bytes == 0) return true;
  uint32_t field;
  struct slice all = message;
  for (struct slice value; next(&message, &field, &value);) {
    struct slice left = symbol;
    if (field == MESSAGE_NESTED && depth > 0 && take(&left, name_of(value)) &&
        in_message(value, left, only_message, depth - 1))
      return true;
    if (field == MESSAGE_ENUM && !only_message && take(&left, name_of(value)) &&
        (left.bytes == 0 || has_part(value, ENUM_VALUE, left)))
      return true;
  }
  return !only_message && has_part(all, MESSAGE_FIELD, symbol);
}

static bool in_file(const struct descriptor_file *file, struct slice symbol, bool only_message) {
  uint32_t field;
  struct slice rest = file->bytes;
  if (!take(&symbol, file->package) || symbol.bytes == 0) return false;
  for (struct slice value; next(&rest, &field, &value);) {
    struct slice left = symbol;
    if (field < FILE_MESSAGE || field > FILE_SERVICE) continue;
    if (field != FILE_MESSAGE && only_message) continue;
    if (field == FILE_ENUM && has_part(value, ENUM_VALUE, symbol)) return true; // beside its enum
    if (!take(&left, name_of(value))) continue;
    if (field == FILE_MESSAGE ? in_message(value, left, only_message, 4)
                              : left.bytes == 0 || has_part(value, SERVICE_METHOD, left))
      return true;
  }
  return false;
}

const struct descriptor_file *descriptors_symbol(struct slice symbol) {
  if (symbol.bytes == 0 || symbol.data[symbol.bytes - 1] == '.') return NULL;
  for (int i = 0; i < n_files; i++)
    if (in_file(&files[i], symbol, false)) return &files[i];
  return NULL;
}

bool descriptors_message(struct slice symbol) {
  if (symbol.bytes == 0 || symbol.data[symbol.bytes - 1] == '.') return false;
  for (int i = 0; i < n_files; i++)
    if (in_file(&files[i], symbol, true)) return true;
  return false;
}

const struct descriptor_file *descriptors_named(struct slice name) {
  for (int i = 0; i < n_files; i++)
    if (same(files[i].name, name)) return &files[i];
  return NULL;
}

int descriptors_count(void) {
  return n_files;
}

const struct descriptor_file *descriptors_at(int index) {
  FW_ASSERT(index >= 0 && index < n_files);
  return &files[index];
}

// ---- the index ----
static void file_read(struct descriptor_file *file, struct slice bytes) {
  *file = (struct descriptor_file){.bytes = bytes};
  uint32_t field;
  for (struct slice value; next(&bytes, &field, &value);) {
    if (field == FILE_NAME) file->name = value;
    if (field == FILE_PACKAGE) file->package = value;
    if (field != FILE_DEPENDENCY) continue;
    FW_ASSERT(file->n_imports < DESCRIPTOR_IMPORTS);
    file->imports[file->n_imports++] = value;
  }
}

void descriptors_setup(void) {
  struct slice set = {proto_descriptors, proto_descriptors_bytes};
  uint32_t field;
  n_files = 0;
  for (struct slice value; next(&set, &field, &value);) {
    FW_ASSERT(field == SET_FILE && n_files < DESCRIPTOR_FILES);
    file_read(&files[n_files++], value);
  }
}
