// See safetensors.h. jansson parses the header; what it does not promise (depth, count, memory) is
// bounded before it sees a byte: its arrays and objects cost up to 50 times their text.
#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct safetensors {
  const char *name; // of the file, for messages; valid while parsing
  const uint8_t *data;
  size_t data_bytes;
  json_t *header; // owns the names
  struct safetensors_entry *entries;
  int32_t n_entries;
  void *map;
  size_t map_bytes;
};

static const struct {
  char word[12];
  uint8_t bytes;
  enum dtype dtype;
} dtypes[] = {
    {"F32", 4, DTYPE_F32},         {"F16", 2, DTYPE_F16},         {"BF16", 2, DTYPE_BF16},
    {"I64", 8, DTYPE_INVALID},     {"I32", 4, DTYPE_INVALID},     {"F64", 8, DTYPE_INVALID},
    {"U64", 8, DTYPE_INVALID},     {"U32", 4, DTYPE_INVALID},     {"I16", 2, DTYPE_INVALID},
    {"U16", 2, DTYPE_INVALID},     {"I8", 1, DTYPE_INVALID},      {"U8", 1, DTYPE_INVALID},
    {"BOOL", 1, DTYPE_INVALID},    {"F8_E4M3", 1, DTYPE_INVALID}, {"F8_E5M2", 1, DTYPE_INVALID},
    {"F8_E8M0", 1, DTYPE_INVALID}, {"C64", 8, DTYPE_INVALID},
};

static enum status wrong(const struct safetensors *file, struct error *err, const char *format, ...)
    PRINTF_LIKE(3, 4);
static enum status wrong(const struct safetensors *file, struct error *err, const char *format,
                         ...) {
  char message[ERROR_MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  return error_set_at(err, STATUS_INVALID_ARGUMENT, file->name, 0, 0, "%s", message);
}

// ---- header ---------------------------------------------------------------------------------

// Bounds nesting and the number of values, so that jansson's memory stays within a few times the
// limit on text.
static enum status scan_header(const struct safetensors *file, const char *text, size_t bytes,
                               struct error *err) {
  int depth = 0, n_containers = 0;
  bool quoted = false;
  for (size_t i = 0; i < bytes; i++) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') i++;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > 3) return wrong(file, err, "the header nests more than 3 deep at byte %zu", i);
      if (++n_containers > 3 * LIMIT_SAFETENSORS_TENSORS)
        return wrong(file, err, "the header has more than %d tensors", LIMIT_SAFETENSORS_TENSORS);
    } else if (c == '}' || c == ']') {
      depth--;
    }
  }
  return STATUS_OK;
}

static enum status load_header(struct safetensors *file, const uint8_t *bytes, size_t n_bytes,
                               struct error *err) {
  uint64_t header_bytes = 0;
  if (n_bytes < 8) return wrong(file, err, "%zu bytes: too short for a safetensors file", n_bytes);
  if (memcmp(bytes, "PK\3\4", 4) == 0)
    return wrong(file, err, "a zip archive, as PyTorch saves; expected a safetensors file");
  for (int i = 7; i >= 0; i--)
    header_bytes = header_bytes << 8 | bytes[i];
  if (header_bytes > n_bytes - 8)
    return wrong(file, err,
                 "the header should have %llu bytes, but the file has only %zu after its length",
                 (unsigned long long)header_bytes, n_bytes - 8);
  if (header_bytes > LIMIT_SAFETENSORS_HEADER)
    return wrong(file, err, "a header of %llu bytes; at most %d are read",
                 (unsigned long long)header_bytes, LIMIT_SAFETENSORS_HEADER);
  const char *text = (const char *)bytes + 8;
  enum status code = scan_header(file, text, header_bytes, err);
  if (code != STATUS_OK) return code;
  json_error_t json;
  file->header = json_loadb(text, header_bytes, JSON_REJECT_DUPLICATES, &json);
  if (file->header == NULL)
    return wrong(file, err, "the header is not right JSON: %s (byte %d)", json.text, json.position);
  if (!json_is_object(file->header)) return wrong(file, err, "the header is not a JSON object");
  file->data = bytes + 8 + header_bytes;
  file->data_bytes = n_bytes - 8 - header_bytes;
  return STATUS_OK;
}

// ---- one tensor -----------------------------------------------------------------------------

static enum status read_shape(const struct safetensors *file, const json_t *shape,
                              struct safetensors_entry *entry, size_t *elements,
                              struct error *err) {
  if (!json_is_array(shape) || json_array_size(shape) > LIMIT_TENSOR_RANK)
    return wrong(file, err, "tensor \"%s\": shape is not a list of at most %d sizes", entry->name,
                 LIMIT_TENSOR_RANK);
  entry->rank = (int32_t)json_array_size(shape);
  *elements = 1;
  for (int32_t i = 0; i < entry->rank; i++) {
    const json_t *dim = json_array_get(shape, (size_t)i);
    json_int_t value = json_integer_value(dim);
    if (!json_is_integer(dim) || value < 0)
      return wrong(file, err, "tensor \"%s\": shape[%d] is not a size", entry->name, i);
    if (__builtin_mul_overflow(*elements, (size_t)value, elements))
      return wrong(file, err, "tensor \"%s\": the product of its shape overflows", entry->name);
    entry->dims[i] = value;
  }
  return STATUS_OK;
}

static enum status read_dtype(const struct safetensors *file, const json_t *dtype,
                              struct safetensors_entry *entry, size_t *bytes, struct error *err) {
  const char *word = json_string_value(dtype);
  if (word == NULL) return wrong(file, err, "tensor \"%s\": dtype is not text", entry->name);
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    if (strcmp(word, dtypes[i].word) != 0) continue;
    memcpy(entry->dtype_word, dtypes[i].word, sizeof dtypes[i].word);
    entry->dtype = dtypes[i].dtype;
    *bytes = dtypes[i].bytes;
    return STATUS_OK;
  }
  return wrong(file, err, "tensor \"%s\": unknown dtype \"%.40s\"", entry->name, word);
}

static enum status read_offsets(const struct safetensors *file, const json_t *offsets,
                                struct safetensors_entry *entry, struct error *err) {
  const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
    return wrong(file, err, "tensor \"%s\": data_offsets is not a pair of integers", entry->name);
  json_int_t begin = json_integer_value(first), end = json_integer_value(last);
  if (begin < 0 || end < begin)
    return wrong(file, err, "tensor \"%s\": data_offsets [%lld, %lld] are no range", entry->name,
                 (long long)begin, (long long)end);
  if ((unsigned long long)end > file->data_bytes)
    return wrong(file, err, "tensor \"%s\": its data end at %lld, the file's at %zu", entry->name,
                 (long long)end, file->data_bytes);
  entry->data = file->data + begin;
  entry->bytes = (size_t)(end - begin);
  return STATUS_OK;
}

static enum status read_entry(const struct safetensors *file, const char *name, const json_t *value,
                              struct safetensors_entry *entry, struct error *err) {
  size_t elements = 0, element_bytes = 0, bytes;
  entry->name = name;
  if (!json_is_object(value)) return wrong(file, err, "tensor \"%s\": not an object", name);
  enum status code = read_dtype(file, json_object_get(value, "dtype"), entry, &element_bytes, err);
  if (code == STATUS_OK)
    code = read_shape(file, json_object_get(value, "shape"), entry, &elements, err);
  if (code == STATUS_OK)
    code = read_offsets(file, json_object_get(value, "data_offsets"), entry, err);
  if (code != STATUS_OK) return code;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes))
    return wrong(file, err, "tensor \"%s\": the product of its shape overflows", name);
  if (bytes != entry->bytes)
    return wrong(file, err, "tensor \"%s\": shape and dtype make %zu bytes, data_offsets %zu", name,
                 bytes, entry->bytes);
  return STATUS_OK;
}

// ---- all tensors ----------------------------------------------------------------------------

static int by_offset(const void *a, const void *b) {
  const struct safetensors_entry *x = a, *y = b;
  if (x->data != y->data) return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b) {
  const struct safetensors_entry *x = a, *y = b;
  return strcmp(x->name, y->name);
}

static enum status check_cover(const struct safetensors *file, struct error *err) {
  const uint8_t *at = file->data;
  for (int32_t i = 0; i < file->n_entries; i++) {
    const struct safetensors_entry *entry = &file->entries[i];
    if ((const uint8_t *)entry->data != at)
      return wrong(file, err, "tensor \"%s\" %s at byte %zu of the data", entry->name,
                   (const uint8_t *)entry->data < at ? "overlaps another one"
                                                     : "leaves a hole before it",
                   (size_t)((const uint8_t *)entry->data - file->data));
    at += entry->bytes;
  }
  size_t covered = (size_t)(at - file->data);
  if (covered != file->data_bytes)
    return wrong(file, err, "the tensors end at byte %zu of the data, the file at %zu", covered,
                 file->data_bytes);
  return STATUS_OK;
}

static enum status read_entries(struct safetensors *file, struct error *err) {
  size_t n = json_object_size(file->header);
  if (n > LIMIT_SAFETENSORS_TENSORS + 1)
    return wrong(file, err, "the header has more than %d tensors", LIMIT_SAFETENSORS_TENSORS);
  file->entries = calloc(n + 1, sizeof *file->entries);
  if (file->entries == NULL) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
  const char *name;
  json_t *value;
  json_object_foreach(file->header, name, value) {
    if (strcmp(name, "__metadata__") == 0) continue; // text for people, not read
    enum status code = read_entry(file, name, value, &file->entries[file->n_entries], err);
    if (code != STATUS_OK) return code;
    file->n_entries++;
  }
  if (file->n_entries == 0) return wrong(file, err, "the file has no tensors");
  qsort(file->entries, (size_t)file->n_entries, sizeof *file->entries, by_offset);
  enum status code = check_cover(file, err);
  qsort(file->entries, (size_t)file->n_entries, sizeof *file->entries, by_name);
  return code;
}

enum status safetensors_parse(const void *bytes, size_t n_bytes, const char *name,
                              struct safetensors **out, struct error *err) {
  struct safetensors *file = calloc(1, sizeof *file);
  if (file == NULL) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
  file->name = name;
  enum status code = load_header(file, bytes, n_bytes, err);
  if (code == STATUS_OK) code = read_entries(file, err);
  file->name = NULL;
  if (code == STATUS_OK)
    *out = file;
  else
    safetensors_close(file);
  return code;
}

// ---- files ----------------------------------------------------------------------------------

static enum status map_file(const char *path, void **map, size_t *bytes, struct error *err) {
  struct stat st;
  enum status code = STATUS_OK;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // NONBLOCK: a FIFO must not hold us
  if (fd < 0 || fstat(fd, &st) != 0) {
    code = error_set_at(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INVALID_ARGUMENT, path, 0,
                        0, "cannot be read: %s", strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    code = error_set_at(err, STATUS_INVALID_ARGUMENT, path, 0, 0, "not a regular file");
  } else if (st.st_size < 8) {
    code = error_set_at(err, STATUS_INVALID_ARGUMENT, path, 0, 0,
                        "%lld bytes: too short for a safetensors file", (long long)st.st_size);
  } else {
    *bytes = (size_t)st.st_size;
    *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*map == MAP_FAILED)
      code = error_set_at(err, STATUS_RESOURCE_EXHAUSTED, path, 0, 0, "cannot be mapped: %s",
                          strerror(errno));
  }
  if (fd >= 0) close(fd);
  return code;
}

enum status safetensors_open(const char *path, struct safetensors **out, struct error *err) {
  void *map = NULL;
  size_t bytes = 0;
  enum status code = map_file(path, &map, &bytes, err);
  if (code != STATUS_OK) return code;
  code = safetensors_parse(map, bytes, path, out, err);
  if (code != STATUS_OK) {
    munmap(map, bytes);
    return code;
  }
  (*out)->map = map;
  (*out)->map_bytes = bytes;
  return STATUS_OK;
}

void safetensors_close(struct safetensors *file) {
  if (file == NULL) return;
  json_decref(file->header);
  free(file->entries);
  if (file->map != NULL) munmap(file->map, file->map_bytes);
  free(file);
}

int32_t safetensors_count(const struct safetensors *file) {
  return file->n_entries;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *file, int32_t index) {
  return &file->entries[index];
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name) {
  struct safetensors_entry key = {.name = name};
  return bsearch(&key, file->entries, (size_t)file->n_entries, sizeof key, by_name);
}
