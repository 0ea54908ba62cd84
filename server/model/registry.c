// The set of models served: a small array, filled before the first request and read by every loop.
// See model.h.
#include "base/log.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

struct registry {
  struct model *models[LIMIT_MODELS];
  int n_models;
};

enum status registry_open(struct registry **out) {
  *out = calloc(1, sizeof **out);
  return *out != NULL ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void registry_close(struct registry *registry) {
  if (registry == NULL) return;
  for (int i = 0; i < registry->n_models; i++)
    model_put(registry->models[i]);
  free(registry);
}

static bool slice_is(struct slice slice, const char *text) {
  return slice.bytes == strlen(text) && memcmp(slice.data, text, slice.bytes) == 0;
}

enum status registry_add(struct registry *registry, struct model *model, struct error *err) {
  for (int i = 0; i < registry->n_models; i++) {
    const struct model *other = registry->models[i];
    if (strcmp(other->name, model->name) == 0 && strcmp(other->version, model->version) == 0)
      return error_set(err, STATUS_ALREADY_EXISTS,
                       "model \"%s\" version %s comes from %s and from %s", model->name,
                       model->version, other->path, model->path);
  }
  if (registry->n_models == LIMIT_MODELS)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "more than %d models", LIMIT_MODELS);
  registry->models[registry->n_models++] = model;
  return STATUS_OK;
}

struct model *registry_find(const struct registry *registry, struct slice name,
                            struct slice version) {
  for (int i = registry->n_models - 1; i >= 0; i--) { // without a version: the one added last
    struct model *model = registry->models[i];
    if (slice_is(name, model->name) && (version.bytes == 0 || slice_is(version, model->version)))
      return model;
  }
  return NULL;
}

int registry_count(const struct registry *registry) {
  return registry->n_models;
}

struct model *registry_at(const struct registry *registry, int index) {
  FW_ASSERT(index >= 0 && index < registry->n_models);
  return registry->models[index];
}
