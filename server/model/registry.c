// The models that are known: a small table that is replaced as a whole. See model.h.
#include "base/log.h"
#include "conf/yaml.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What readers may still see, until registry_reclaim.
struct retired {
  struct retired *next;
  struct registry_table *table;
  struct model *model; // may be NULL
};

struct registry {
  struct registry_table *_Atomic table;
  struct retired *retired;
};

const char *model_state_name(enum model_state state) {
  static const char *const names[] = {"READY", "LOADING", "UNLOADING", "UNAVAILABLE"};
  FW_ASSERT((size_t)state < sizeof names / sizeof *names);
  return names[state];
}

static struct registry_table *table_of(const struct registry *registry) {
  return atomic_load_explicit(&registry->table, memory_order_relaxed); // the writer's own
}

// A copy with room for n entries.
static struct registry_table *table_copy(const struct registry_table *from, int n) {
  size_t bytes = sizeof *from + (size_t)n * sizeof from->entries[0];
  struct registry_table *table = calloc(1, bytes);
  if (table == NULL) return NULL;
  int kept = from->n < n ? from->n : n;
  table->n = n;
  memcpy(table->entries, from->entries, (size_t)kept * sizeof from->entries[0]);
  return table;
}

enum status registry_open(struct registry **out) {
  *out = calloc(1, sizeof **out);
  struct registry_table *table = calloc(1, sizeof *table);
  if (*out != NULL && table != NULL) {
    atomic_init(&(*out)->table, table);
    return STATUS_OK;
  }
  free(table);
  free(*out);
  *out = NULL;
  return STATUS_RESOURCE_EXHAUSTED;
}

void registry_reclaim(struct registry *registry) {
  while (registry->retired != NULL) {
    struct retired *first = registry->retired;
    registry->retired = first->next;
    if (first->model != NULL) model_put(first->model);
    free(first->table);
    free(first);
  }
}

void registry_close(struct registry *registry) {
  if (registry == NULL) return;
  registry_reclaim(registry);
  struct registry_table *table = table_of(registry);
  for (int i = 0; i < table->n; i++)
    if (table->entries[i].model != NULL) model_put(table->entries[i].model);
  free(table);
  free(registry);
}

// Release: a reader that sees the table sees all of the models in it.
static void publish(struct registry *registry, struct registry_table *table,
                    struct retired *retired, struct model *dropped) {
  *retired = (struct retired){registry->retired, table_of(registry), dropped};
  registry->retired = retired;
  atomic_store_explicit(&registry->table, table, memory_order_release);
}

static enum status no_memory(struct error *err) {
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the table of models");
}

static void entry_name(struct registry_entry *entry, const struct model *model) {
  memcpy(entry->name, model->name, sizeof entry->name);
  memcpy(entry->version, model->version, sizeof entry->version);
}

enum status registry_add(struct registry *registry, struct model *model, struct error *err) {
  const struct registry_table *old = table_of(registry);
  for (int i = 0; i < old->n; i++) {
    const struct registry_entry *other = &old->entries[i];
    if (strcmp(other->name, model->name) != 0 || strcmp(other->version, model->version) != 0)
      continue;
    if (other->model && strcmp(other->model->path, model->path) == 0)
      return error_set(err, STATUS_ALREADY_EXISTS, "model \"%s\" version %s is listed twice: %s",
                       model->name, model->version, model->path);
    return error_set(err, STATUS_ALREADY_EXISTS,
                     "model \"%s\" version %s comes from %s and from %s", model->name,
                     model->version, other->model ? other->model->path : "another file",
                     model->path);
  }
  if (old->n == LIMIT_MODELS)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "more than %d models", LIMIT_MODELS);
  struct registry_table *table = table_copy(old, old->n + 1);
  struct retired *retired = malloc(sizeof *retired);
  if (table == NULL || retired == NULL) {
    free(table);
    free(retired);
    return no_memory(err);
  }
  struct registry_entry *entry = &table->entries[old->n];
  entry_name(entry, model);
  entry->state = MODEL_READY;
  entry->model = model;
  publish(registry, table, retired, NULL);
  return STATUS_OK;
}

enum status registry_set(struct registry *registry, int index, struct model *model,
                         enum model_state state, const char *reason, struct error *err) {
  const struct registry_table *old = table_of(registry);
  FW_ASSERT(index >= 0 && index < old->n);
  struct registry_table *table = table_copy(old, old->n);
  struct retired *retired = malloc(sizeof *retired);
  if (table == NULL || retired == NULL) {
    free(table);
    free(retired);
    return no_memory(err);
  }
  struct registry_entry *entry = &table->entries[index];
  struct model *before = entry->model;
  if (model != NULL) entry_name(entry, model);
  entry->model = model;
  entry->state = state;
  snprintf(entry->reason, sizeof entry->reason, "%s", reason);
  publish(registry, table, retired, before == model ? NULL : before);
  return STATUS_OK;
}

// ---- readers ----

const struct registry_table *registry_table(const struct registry *registry) {
  return atomic_load_explicit(&registry->table, memory_order_acquire);
}

static bool slice_is(struct slice slice, const char *text) {
  return slice.bytes == strlen(text) && memcmp(slice.data, text, slice.bytes) == 0;
}

struct model *registry_find(const struct registry *registry, struct slice name,
                            struct slice version) {
  const struct registry_table *table = registry_table(registry);
  for (int i = table->n - 1; i >= 0; i--) { // without a version: the one added last
    const struct registry_entry *entry = &table->entries[i];
    if (entry->model != NULL && slice_is(name, entry->name) &&
        (version.bytes == 0 || slice_is(version, entry->version)))
      return entry->model;
  }
  return NULL;
}

static void lower(char *out, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    out[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] - 'A' + 'a') : text[i];
}

const char *registry_nearest(const struct registry *registry, struct slice name) {
  const struct registry_table *table = registry_table(registry);
  const char *best = NULL;
  char word[CONF_FAR], other[CONF_FAR];
  int best_distance = 1 + conf_near(name.bytes);
  if (name.bytes >= sizeof word) return NULL;
  lower(word, (const char *)name.data, name.bytes);
  for (int i = 0; i < table->n; i++) {
    const struct registry_entry *entry = &table->entries[i];
    size_t bytes = strlen(entry->name);
    if (entry->model == NULL || bytes >= sizeof other) continue;
    lower(other, entry->name, bytes);
    int distance = conf_distance_within(word, name.bytes, other, bytes, best_distance - 1);
    if (distance >= best_distance || distance >= (int)bytes) continue;
    best_distance = distance;
    best = entry->name;
  }
  return best;
}

int registry_count(const struct registry *registry) {
  return registry_table(registry)->n;
}

struct model *registry_at(const struct registry *registry, int index) {
  const struct registry_table *table = registry_table(registry);
  FW_ASSERT(index >= 0 && index < table->n);
  return table->entries[index].model;
}
