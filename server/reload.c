#include "reload.h"
#include "base/log.h"
#include "notify.h"
#include "sched/needs.h"
#include "settings.h"

#include <ctype.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

_Static_assert(sizeof((struct reloader *)0)->paths[0] == sizeof((struct model *)0)->path, "paths");
#define RELOAD_NICE 10 // what loads gives way to what serves

// ---- errors of a model file: the first one is the answer, all of them are logged ----
struct report {
  int n;
  struct error first;
};

static void report(const struct error *err, void *arg) {
  struct report *to = arg;
  char text[ERROR_MESSAGE_BYTES + 320];
  if (to->n++ == 0) to->first = *err;
  log_error("model_file", "%s", error_text(err, text, sizeof text));
}

// ---- the models there are ----
static const struct registry_table *table(const struct reloader *reloader) {
  return registry_table(reloader->parts->registry);
}

static int served(const struct reloader *reloader, const struct model *out[LIMIT_MODELS]) {
  const struct registry_table *all = table(reloader);
  int n = 0;
  for (int i = 0; i < all->n; i++)
    if (all->entries[i].model) out[n++] = all->entries[i].model;
  return n;
}

// The entry shows this from now on. What readers may still see of the old table is freed here, or
// at the end, if it comes first.
static enum status entry_set(struct reloader *reloader, int index, struct model *model,
                             enum model_state state, const char *reason, struct error *err) {
  struct registry *registry = reloader->parts->registry;
  enum status status = registry_set(registry, index, model, state, reason, err);
  if (status == STATUS_OK && api_quiesce(reloader->api, &reloader->stop))
    registry_reclaim(registry);
  return status;
}

// Nobody holds these any more.
static void bury(struct reloader *reloader) {
  bool freed = false;
  for (struct model *dead = graveyard_take(&reloader->parts->graveyard), *next; dead; dead = next) {
    next = dead->next_dead;
    for (int i = 0; i < reloader->n_executors; i++)
      executor_forget(reloader->executors[i], dead);
    log_info("model_freed", "model %s version %s: its last request is answered", dead->name,
             dead->version);
    const struct registry_table *all = table(reloader);
    for (int i = 0; i < all->n; i++) {
      const struct registry_entry *entry = &all->entries[i];
      if (entry->state != MODEL_UNLOADING || strcmp(entry->name, dead->name) != 0 ||
          strcmp(entry->version, dead->version) != 0)
        continue;
      (void)entry_set(reloader, i, NULL, MODEL_UNAVAILABLE, "unloaded", NULL);
      break; // the table is another now
    }
    model_free(dead);
    freed = true;
  }
  if (freed) atomic_store(&reloader->trim, true);
}

// What freed models and the loops' pools leave goes back to the system: glibc would keep it, in
// pieces between what lives on, and RSS would stay what it was at its highest.
static void trim(struct reloader *reloader) {
  if (atomic_exchange(&reloader->trim, false)) malloc_trim(0);
}

// ---- building ----
static bool ending(const struct reloader *reloader) {
  return atomic_load(&reloader->stop) || atomic_load(&reloader->api->state) != API_SERVING;
}

static enum status stopped(const struct reloader *reloader, struct error *err) {
  if (!ending(reloader)) return STATUS_OK;
  return error_set(err, STATUS_UNAVAILABLE, "the server is shutting down");
}

static enum status parse(struct reloader *reloader, const char *path, struct model **out,
                         struct error *err) {
  struct plan_caps caps = devices_plan_caps(&reloader->parts->devices);
  struct report to = {0};
  enum status status = model_parse(path, reloader->parts->conf, &caps, report, &to, out);
  if (status == STATUS_OK) return status;
  char text[ERROR_MESSAGE_BYTES + 320] = "";
  if (to.n > 0) error_text(&to.first, text, sizeof text);
  if (to.n > 1) return error_set(err, status, "%s (and %d more)", text, to.n - 1);
  return error_set(err, status, "%s", to.n > 0 ? text : path);
}

// Bound, prepared and run once in every size, on every device.
static enum status ready_up(struct reloader *reloader, struct model *model, struct error *err) {
  const struct model *others[LIMIT_MODELS];
  struct devices *devices = &reloader->parts->devices;
  int n_others = served(reloader, others), n_admitted = 0;
  enum status status = model_bind(model, devices->backend, devices->list, devices->n, err);
  if (status == STATUS_OK) status = audits_fill(&reloader->parts->audits, model, err);
  if (status != STATUS_OK) return status;
  needs_fill(model);
  for (int i = 0; i < reloader->n_executors && status == STATUS_OK; i++) {
    status = stopped(reloader, err);
    if (status != STATUS_OK) break;
    n_admitted++;
    status = executor_admit(reloader->executors[i], model, others, n_others, err);
  }
  for (int i = 0; i < n_admitted && status != STATUS_OK; i++)
    executor_forget(reloader->executors[i], model);
  return status;
}

static bool taken(const struct reloader *reloader, int index, const struct model *model) {
  const struct registry_table *all = table(reloader);
  for (int i = 0; i < all->n; i++)
    if (i != index && strcmp(all->entries[i].name, model->name) == 0 &&
        strcmp(all->entries[i].version, model->version) == 0)
      return true;
  return false;
}

static bool names(const struct model_list *list, const char *path) {
  for (int i = 0; i < list->n; i++)
    if (strcmp(list->paths[i], path) == 0) return true;
  return false;
}

// The entry that a model of a new file takes over: of its name and version, and either serving
// nothing or from a file that nobody names any more. -1: none.
static int entry_for(const struct reloader *reloader, const struct model *model) {
  const struct registry_table *all = table(reloader);
  for (int i = 0; i < all->n; i++)
    if (strcmp(all->entries[i].name, model->name) == 0 &&
        strcmp(all->entries[i].version, model->version) == 0)
      return !all->entries[i].model || !names(&reloader->listed, reloader->paths[i]) ? i : -1;
  return -1;
}

// A model of that file, ready to serve. `name`: what it has to be called; NULL: as it likes, and
// *index becomes its entry. *index -1: none yet.
static enum status build(struct reloader *reloader, const char *path, const char *name, int *index,
                         struct model **out, struct error *err) {
  struct model *model = NULL;
  enum status status = parse(reloader, path, &model, err);
  if (status != STATUS_OK) return status;
  if (!name) *index = entry_for(reloader, model);
  if (name && strcmp(model->name, name) != 0)
    status = error_set(err, STATUS_FAILED_PRECONDITION,
                       "%s: name: found \"%s\", expected \"%s\": a model keeps its name", path,
                       model->name, name);
  else if (taken(reloader, *index, model))
    status = error_set(err, STATUS_ALREADY_EXISTS,
                       "%s: model \"%s\" version %s comes from another file too", path, model->name,
                       model->version);
  if (status == STATUS_OK) status = stopped(reloader, err);
  if (status == STATUS_OK) status = ready_up(reloader, model, err);
  if (status == STATUS_OK) {
    model->graveyard = &reloader->parts->graveyard;
    *out = model;
  } else {
    model_put(model);
  }
  return status;
}

// ---- load ----
static void say_failed(const char *name, const struct error *err, const char *what) {
  log_error("load_failed", "model %s: %s; %s", name, err->message, what);
}

static enum status reload_entry(struct reloader *reloader, int index, struct error *err) {
  const struct registry_entry *entry = &table(reloader)->entries[index];
  char name[LIMIT_NAME_BYTES];
  memcpy(name, entry->name, sizeof name);
  struct model *old = entry->model, *model = NULL;
  int64_t began_ns = clock_now_ns();
  if (!old) (void)entry_set(reloader, index, NULL, MODEL_LOADING, "", NULL);
  enum status status = build(reloader, reloader->paths[index], name, &index, &model, err);
  if (status == STATUS_OK) status = entry_set(reloader, index, model, MODEL_READY, "", err);
  if (status == STATUS_OK) {
    log_info("model_loaded", "model %s version %s from %s in %lld ms, in the place of %s",
             model->name, model->version, model->path,
             (long long)((clock_now_ns() - began_ns) / NS_PER_MS), old ? "another" : "nothing");
    return status;
  }
  if (model) model_put(model);
  say_failed(name, err, old ? "the one that was loaded before serves on" : "it does not serve");
  (void)entry_set(reloader, index, old, old ? MODEL_READY : MODEL_UNAVAILABLE, err->message, NULL);
  return status;
}

// NAME.yaml of the repository's folder; the name comes from a client and must be no path.
static enum status path_of(const struct reloader *reloader, const char *name, char *out,
                           size_t out_bytes, struct error *err) {
  const char *folder = reloader->parts->conf->repository;
  bool plain = isalnum((unsigned char)name[0]) != 0;
  for (const char *c = name; *c; c++)
    plain = plain && (isalnum((unsigned char)*c) || strchr("._-", *c));
  if (!folder[0])
    return error_set(err, STATUS_NOT_FOUND,
                     "model_name: no model \"%.64s\" is known, and server.repository is not set",
                     name);
  if (!plain)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "model_name: expected letters, digits, '.', '_' and '-', beginning with a "
                     "letter or a digit");
  int n = snprintf(out, out_bytes, "%s/%s.yaml", folder, name);
  if (n > 0 && (size_t)n < out_bytes && access(out, R_OK) == 0) return STATUS_OK;
  return error_set(err, STATUS_NOT_FOUND,
                   "model_name: no model \"%.64s\" is known, and there is no %.64s.yaml in "
                   "server.repository",
                   name, name);
}

static enum status entry_add(struct reloader *reloader, struct model *model, struct error *err) {
  enum status status = registry_add(reloader->parts->registry, model, err);
  if (status == STATUS_OK && api_quiesce(reloader->api, &reloader->stop))
    registry_reclaim(reloader->parts->registry);
  return status;
}

// A file that no entry comes from; `name` as for build.
static enum status load_file(struct reloader *reloader, const char *path, const char *name,
                             struct error *err) {
  struct model *model = NULL;
  int index = -1;
  int64_t began_ns = clock_now_ns();
  enum status status = build(reloader, path, name, &index, &model, err);
  if (status == STATUS_OK && index >= 0)
    status = entry_set(reloader, index, model, MODEL_READY, "", err);
  else if (status == STATUS_OK)
    status = entry_add(reloader, model, err);
  if (status != STATUS_OK) {
    if (model) model_put(model);
    say_failed(name ? name : path, err, "it does not serve");
    return status;
  }
  if (index < 0) index = table(reloader)->n - 1;
  snprintf(reloader->paths[index], sizeof reloader->paths[index], "%s", path);
  log_info("model_loaded", "model %s version %s from %s in %lld ms", model->name, model->version,
           path, (long long)((clock_now_ns() - began_ns) / NS_PER_MS));
  return status;
}

static enum status load_new(struct reloader *reloader, const char *name, struct error *err) {
  char path[sizeof reloader->paths[0]];
  enum status status = path_of(reloader, name, path, sizeof path, err);
  if (status == STATUS_OK) return load_file(reloader, path, name, err);
  say_failed(name, err, "it does not serve");
  return status;
}

// Every version of that name.
static enum status load(struct reloader *reloader, const char *name, struct error *err) {
  enum status status = STATUS_OK;
  bool known = false;
  for (int i = 0; i < table(reloader)->n && status == STATUS_OK; i++) {
    if (strcmp(table(reloader)->entries[i].name, name) != 0) continue;
    known = true;
    status = reload_entry(reloader, i, err);
  }
  return known ? status : load_new(reloader, name, err);
}

static enum status unload_entry(struct reloader *reloader, int index, const char *why,
                                struct error *err) {
  const struct registry_entry *entry = &table(reloader)->entries[index];
  if (!entry->model) return STATUS_OK;
  log_info("model_unloading", "model %s version %s: %sno new requests", entry->name, entry->version,
           why);
  return entry_set(reloader, index, NULL, MODEL_UNLOADING, "", err);
}

static enum status unload(struct reloader *reloader, const char *name, struct error *err) {
  enum status status = STATUS_OK;
  bool known = false;
  for (int i = 0; i < table(reloader)->n && status == STATUS_OK; i++) {
    if (strcmp(table(reloader)->entries[i].name, name) != 0) continue;
    known = true;
    status = unload_entry(reloader, i, "", err);
  }
  if (known) return status;
  const struct slice asked = {(const uint8_t *)name, strlen(name)};
  const char *near = registry_nearest(reloader->parts->registry, asked);
  return error_set(err, STATUS_NOT_FOUND, "model_name: no model \"%.64s\" is known%s%s%s", name,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

// ---- life ----
static void wake(void *arg) {
  wake_signal(arg);
}

void reloader_init(struct reloader *reloader) {
  wake_init(&reloader->wake, NULL, NULL);
  reloader->parts->graveyard.on_arrival = wake;
  reloader->parts->graveyard.arg = &reloader->wake;
}

void reloader_ask(struct reloader *reloader) {
  atomic_store(&reloader->all, true);
  wake_signal(&reloader->wake);
}

void reloader_trim(struct reloader *reloader) {
  atomic_store(&reloader->trim, true);
  wake_signal(&reloader->wake);
}

void reloader_stop(struct reloader *reloader) {
  atomic_store(&reloader->stop, true);
  wake_signal(&reloader->wake);
}

static void list_fill(struct model_list *list, const struct server_conf *conf) {
  _Static_assert(sizeof list->paths == sizeof conf->models, "lists of models");
  memcpy(list->paths, conf->models, sizeof list->paths);
  list->n = conf->n_models;
}

// Models of the start are no different from those that come later.
static void adopt(struct reloader *reloader) {
  const struct registry_table *all = table(reloader);
  list_fill(&reloader->listed, reloader->parts->conf);
  for (int i = 0; i < all->n; i++)
    memcpy(reloader->paths[i], all->entries[i].model->path, sizeof reloader->paths[i]);
}

// ---- SIGHUP ----
static void settings_report(const struct error *err, void *n_errors) {
  char text[ERROR_MESSAGE_BYTES + 320];
  log_error("settings", "%s", error_text(err, text, sizeof text));
  ++*(int *)n_errors;
}

static void needs_restart(const char *path) {
  log_warn("restart_needed", "%s has changed in the server file; the running value stays", path);
}

static int entry_of_path(const struct reloader *reloader, const char *path) {
  for (int i = 0; i < table(reloader)->n; i++)
    if (strcmp(reloader->paths[i], path) == 0) return i;
  return -1;
}

static void follow_list(struct reloader *reloader, const struct model_list *before) {
  const struct model_list *now = &reloader->listed;
  struct error err;
  // What serves, but for what is to go; models of the repository are in neither list.
  for (int i = 0, n = table(reloader)->n; i < n && !ending(reloader); i++)
    if (table(reloader)->entries[i].model &&
        (names(now, reloader->paths[i]) || !names(before, reloader->paths[i])))
      (void)reload_entry(reloader, i, &err);
  // What is new, has failed so far, or is back.
  for (int i = 0; i < now->n && !ending(reloader); i++) {
    int index = entry_of_path(reloader, now->paths[i]);
    if (index < 0)
      (void)load_file(reloader, now->paths[i], NULL, &err);
    else if (!table(reloader)->entries[index].model && !names(before, now->paths[i]))
      (void)reload_entry(reloader, index, &err);
  }
  for (int i = 0; i < before->n && !ending(reloader); i++) {
    int index = entry_of_path(reloader, before->paths[i]);
    if (index >= 0 && !names(now, before->paths[i]))
      (void)unload_entry(reloader, index, "not in the list of models any more, ", &err);
  }
}

// Settings with a mistake in them change nothing.
static void reload_all(struct reloader *reloader) {
  static struct server_conf fresh; // large, as the next; of this thread alone
  static struct model_list before;
  notify_reloading();
  log_info("reloading", "the list of models is read again, and every model that serves");
  if (settings_read(reloader->args, &fresh, settings_report) > 0) {
    log_error("reload_failed", "the settings have mistakes: nothing is changed");
  } else if (fresh.n_models == 0 && reloader->listed.n > 0 && fresh.models_place.line == 0) {
    // A file that is being written again looks like this for a moment.
    log_error("reload_failed", "the settings have no list models any more: nothing is changed; an "
                               "empty one, models: [], unloads all");
  } else {
    server_conf_compare(reloader->parts->conf, &fresh, needs_restart);
    before = reloader->listed;
    list_fill(&reloader->listed, &fresh);
    follow_list(reloader, &before);
  }
  const struct model *models[LIMIT_MODELS];
  int n_served = served(reloader, models);
  log_info("reloaded", "%d model%s", n_served, n_served == 1 ? " serves" : "s serve");
  notify_ready(n_served);
}

void reloader_run(struct reloader *reloader) {
  adopt(reloader);
  setpriority(PRIO_PROCESS, (id_t)gettid(), RELOAD_NICE); // of this thread, on Linux
  while (!atomic_load(&reloader->stop)) {
    struct api_job *job;
    bury(reloader);
    trim(reloader);
    if (atomic_exchange(&reloader->all, false)) reload_all(reloader);
    while (!atomic_load(&reloader->stop) && (job = api_job_next(reloader->api))) {
      job->status = stopped(reloader, &job->err); // a drain does not wait for what is still to load
      if (job->status == STATUS_OK)
        job->status = job->load ? load(reloader, job->name, &job->err)
                                : unload(reloader, job->name, &job->err);
      api_job_done(reloader->api, job);
      bury(reloader);
      trim(reloader);
    }
    wake_wait(&reloader->wake, CLOCK_NEVER);
  }
}
