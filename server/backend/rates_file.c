#include "backend/rates_file.h"
#include "base/regular.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAMILY "fusewire rates "
// 7: other fields, or other ways to measure them, than those of lower numbers.
#define FIRST_LINE FAMILY "7"
#define LINE_BYTES 256
#define FILE_BYTES_MAX (1 << 20)

// Numbers that are measured, by name, and the range outside of which a file is not believed.
static const struct field {
  const char *name;
  size_t offset;
  double least, most;
} fields[] = {{"read", offsetof(struct device_rates, read), 1e6, 1e15},
              {"triad", offsetof(struct device_rates, triad), 1e6, 1e15},
              {"copy", offsetof(struct device_rates, copy), 1e6, 1e15},
              {"write", offsetof(struct device_rates, write), 1e6, 1e15},
              {"cache", offsetof(struct device_rates, cache), 1e6, 1e16},
              {"vector", offsetof(struct device_rates, vector), 1e6, 1e17},
              {"reduced", offsetof(struct device_rates, reduced), 1e6, 1e17},
              {"special", offsetof(struct device_rates, special), 1e6, 1e17},
              {"special_16", offsetof(struct device_rates, special_16), 1e6, 1e17},
              {"softmax", offsetof(struct device_rates, softmax), 1e6, 1e18},
              {"attention_fp32", offsetof(struct device_rates, attention_f32), 0, 1e18},
              {"epilogue", offsetof(struct device_rates, epilogue), 1e6, 1e18},
              {"epilogue_fp32", offsetof(struct device_rates, epilogue_f32), 0, 1e18},
              {"finish", offsetof(struct device_rates, finish), 0, 1e18},
              {"attention_finish", offsetof(struct device_rates, attention_finish), 0, 1e18},
              {"fused_product", offsetof(struct device_rates, fused_product), 0.01, 1},
              {"launch_us", offsetof(struct device_rates, launch_us), 1e-3, 1e6},
              {"product_fp32", offsetof(struct device_rates, product[DTYPE_F32]), 1e6, 1e18},
              {"product_fp16", offsetof(struct device_rates, product[DTYPE_F16]), 0, 1e18},
              {"product_bf16", offsetof(struct device_rates, product[DTYPE_BF16]), 0, 1e18}};
#define FIELDS (sizeof fields / sizeof *fields)

static double *field_of(struct device_rates *rates, size_t i) {
  return (double *)(void *)((char *)rates + fields[i].offset);
}

enum status device_facts_init(struct device_facts *facts, const struct device_rates *defaults) {
  *facts = (struct device_facts){.rates = *defaults};
  facts->shapes.shapes = calloc(SHAPES_MAX, sizeof *facts->shapes.shapes);
  return facts->shapes.shapes ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void device_facts_deinit(struct device_facts *facts) {
  free(facts->shapes.shapes);
  *facts = (struct device_facts){0};
}

// ---- text ----
size_t device_facts_print(const struct device_facts *facts, char *out, size_t out_bytes) {
  struct device_rates rates = facts->rates;
  size_t used = (size_t)snprintf(out, out_bytes, "%s\n", FIRST_LINE);
#define ROOM out_bytes > used ? out + used : NULL, out_bytes > used ? out_bytes - used : 0
  for (size_t i = 0; facts->measured && i < FIELDS; i++)
    used += (size_t)snprintf(ROOM, "%s %.6g\n", fields[i].name, *field_of(&rates, i));
  for (int32_t i = 0; i < facts->shapes.n; i++) {
    const struct measured_shape *s = &facts->shapes.shapes[i];
    used += (size_t)snprintf(ROOM, "shape %d %d %d %s %s %s %.3f %.3f\n", s->n, s->k, s->m,
                             dtype_name(s->x_dtype), dtype_name(s->y_dtype), s->epilogue,
                             s->fused_us, s->apart_us);
  }
#undef ROOM
  return used;
}

static bool dtype_of(const char *word, enum dtype *out) {
  for (int d = DTYPE_F32; d < DTYPE_COUNT; d++)
    if (strcmp(word, dtype_name((enum dtype)d)) == 0) {
      *out = (enum dtype)d;
      return true;
    }
  return false;
}

static bool number_of(const char *text, double least, double most, double *out) {
  char *end;
  *out = strtod(text, &end);
  return end != text && *end == '\0' && *out >= least && *out <= most; // NaN is neither
}

static bool count_of(const char *text, int32_t *out) {
  double value;
  if (!number_of(text, 1, 1 << 24, &value)) return false;
  *out = (int32_t)value;
  return *out == value;
}

static bool shape_of(char *line, struct measured_shape *out) {
  char *words[9], *at = NULL;
  int n = 0;
  for (char *word = strtok_r(line, " ", &at); word && n < 9; word = strtok_r(NULL, " ", &at))
    words[n++] = word;
  *out = (struct measured_shape){0};
  if (n != 9 || !count_of(words[1], &out->n) || !count_of(words[2], &out->k) ||
      !count_of(words[3], &out->m) || !dtype_of(words[4], &out->x_dtype) ||
      !dtype_of(words[5], &out->y_dtype) || strlen(words[6]) >= sizeof out->epilogue ||
      !number_of(words[7], 0, 1e12, &out->fused_us) ||
      !number_of(words[8], 0, 1e12, &out->apart_us))
    return false;
  memcpy(out->epilogue, words[6], strlen(words[6]) + 1);
  return true;
}

static bool rate_of(char *line, struct device_rates *rates, uint32_t *seen) {
  char *space = strchr(line, ' ');
  if (!space) return false;
  *space = '\0';
  for (size_t i = 0; i < FIELDS; i++) {
    double value;
    if (strcmp(line, fields[i].name) != 0) continue;
    if (!number_of(space + 1, fields[i].least, fields[i].most, &value)) return false;
    *field_of(rates, i) = value;
    *seen |= 1u << i;
    return true;
  }
  return false;
}

struct reader {
  struct device_rates rates;
  struct measured_shape *shapes;
  int32_t n_shapes;
  uint32_t seen;
};

static bool take_line(struct reader *reader, char *line, int number) {
  if (number == 1) return strcmp(line, FIRST_LINE) == 0;
  if (strncmp(line, "shape ", 6) != 0) return rate_of(line, &reader->rates, &reader->seen);
  return reader->n_shapes < SHAPES_MAX && shape_of(line, &reader->shapes[reader->n_shapes++]);
}

static enum status take_lines(const char *text, size_t bytes, struct reader *reader,
                              struct error *err) {
  int number = 0;
  for (size_t at = 0; at < bytes;) {
    char line[LINE_BYTES];
    const char *end = memchr(text + at, '\n', bytes - at);
    size_t length = end ? (size_t)(end - text) - at : bytes - at;
    number++;
    // Without its end a line, and so its number, may have been cut short.
    bool fits = end && length < sizeof line && !memchr(text + at, '\0', length);
    if (fits) memcpy(line, text + at, length), line[length] = '\0';
    if (number == 1 && fits && strcmp(line, FIRST_LINE) != 0 &&
        strncmp(line, FAMILY, sizeof FAMILY - 1) == 0)
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "of another version's format; `fusewired tune` measures anew");
    if (!fits || !take_line(reader, line, number))
      return error_set(err, STATUS_INVALID_ARGUMENT, "line %d is not of a file of rates", number);
    at += length + 1;
  }
  if (number == 0) return error_set(err, STATUS_INVALID_ARGUMENT, "the file is empty");
  if (reader->seen != 0 && reader->seen != (1u << FIELDS) - 1)
    return error_set(err, STATUS_INVALID_ARGUMENT, "some of the rates are missing");
  return STATUS_OK;
}

enum status device_facts_parse(const char *text, size_t bytes, struct device_facts *facts,
                               struct error *err) {
  struct reader reader = {.rates = facts->rates};
  reader.shapes = calloc(SHAPES_MAX, sizeof *reader.shapes);
  if (!reader.shapes) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
  enum status status = take_lines(text, bytes, &reader, err);
  if (status == STATUS_OK) {
    facts->rates = reader.rates;
    facts->measured = facts->measured || reader.seen != 0;
    memcpy(facts->shapes.shapes, reader.shapes, SHAPES_MAX * sizeof *reader.shapes);
    facts->shapes.n = reader.n_shapes;
  }
  free(reader.shapes);
  return status;
}

// ---- files ----
bool device_facts_path(const char *folder, const char *id, char *out, size_t out_bytes) {
  int n = snprintf(out, out_bytes, "%s/%s.rates", folder, id);
  if (n < 0 || (size_t)n >= out_bytes) return false;
  for (char *at = out + strlen(folder) + 1; *at; at++) {
    bool plain = (*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') ||
                 (*at >= 'a' && *at <= 'z') || strchr("._-", *at);
    if (!plain) *at = '_';
  }
  return true;
}

static enum status fail(struct error *err, const char *path, const char *what) {
  int reason = errno;
  return error_set(err, reason == ENOENT ? STATUS_NOT_FOUND : STATUS_UNAVAILABLE, "%s: %s: %s",
                   path, what, strerror(reason));
}

enum status device_facts_read(const char *path, struct device_facts *facts, struct error *err) {
  enum status regular = regular_file("rates", path, err); // a FIFO would hold up the start
  if (regular != STATUS_OK) return regular;
  FILE *file = fopen(path, "re");
  if (!file) return fail(err, path, "cannot be opened");
  char *text = malloc(FILE_BYTES_MAX);
  size_t bytes = text ? fread(text, 1, FILE_BYTES_MAX, file) : 0;
  enum status status = STATUS_OK;
  struct error why = {0};
  if (!text)
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
  else if (ferror(file) || bytes == FILE_BYTES_MAX)
    status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: cannot be read, or is too long", path);
  else if ((status = device_facts_parse(text, bytes, facts, &why)) != STATUS_OK)
    status = error_set(err, status, "%s: %s", path, why.message);
  free(text);
  fclose(file);
  return status;
}

enum status device_facts_write(const char *path, const struct device_facts *facts,
                               struct error *err) {
  char other[1400];
  int n = snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
  size_t bytes = device_facts_print(facts, NULL, 0);
  char *text = malloc(bytes + 1);
  if (n < 0 || (size_t)n >= sizeof other || !text) {
    free(text);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
  }
  device_facts_print(facts, text, bytes + 1);
  for (char *slash = other; (slash = strchr(slash + 1, '/'));) { // ~/.cache may be new as well
    *slash = '\0';
    (void)mkdir(other, 0700);
    *slash = '/';
  }
  FILE *file = fopen(other, "we");
  bool ok = file && fwrite(text, 1, bytes, file) == bytes;
  if (file && fclose(file) != 0) ok = false;
  free(text);
  if (ok && rename(other, path) == 0) return STATUS_OK;
  enum status status = fail(err, path, "cannot be written");
  if (file) (void)unlink(other);
  return status == STATUS_NOT_FOUND ? STATUS_UNAVAILABLE : status;
}
