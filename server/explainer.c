#include "explainer.h"

#include "base/clock.h"

#include <sys/resource.h>
#include <unistd.h>

#define EXPLAINER_NICE 10

void explainer_init(struct explainer *explainer, struct api *api) {
  *explainer = (struct explainer){.api = api};
  wake_init(&explainer->wake, NULL, NULL);
}

static void *explainer_main(void *arg) {
  struct explainer *explainer = arg;
  setpriority(PRIO_PROCESS, (id_t)gettid(), EXPLAINER_NICE); // of this thread, on Linux
  while (!atomic_load(&explainer->stop)) {
    if (!api_explain_next(explainer->api)) wake_wait(&explainer->wake, CLOCK_NEVER);
  }
  return NULL;
}

enum status explainer_start(struct explainer *explainer, struct error *err) {
  explainer->started = pthread_create(&explainer->thread, NULL, explainer_main, explainer) == 0;
  if (explainer->started) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the thread that explains");
}

void explainer_stop(struct explainer *explainer) {
  if (!explainer->started) return;
  atomic_store(&explainer->stop, true);
  wake_signal(&explainer->wake);
  pthread_join(explainer->thread, NULL);
  explainer->started = false;
}
