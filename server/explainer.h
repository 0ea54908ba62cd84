// The thread that writes what Explain asks for, so that no loop does. It gives way to what serves.
#ifndef EXPLAINER_H
#define EXPLAINER_H

#include "api/api.h"

#include <pthread.h>

struct explainer {
  struct wake wake; // for api_options.explainer
  struct api *api;
  pthread_t thread;
  bool started;
  _Atomic bool stop;
};

void explainer_init(struct explainer *explainer, struct api *api); // before anybody may ask
MUST_USE enum status explainer_start(struct explainer *explainer, struct error *err);
// After the document that it is at, some milliseconds; the rest stays with the api.
void explainer_stop(struct explainer *explainer);

#endif
