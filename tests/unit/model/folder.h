// A folder with a model file in it, made by `setup_folder` and gone with `teardown_folder`; the
// settings that it is read with, and the mistakes that are told.
#ifndef UNIT_MODEL_FOLDER_H
#define UNIT_MODEL_FOLDER_H

#include "unit/conf/collect.h"

#include "model/model.h"

static struct collect collected;
static struct server_conf conf;
static char folder[256], path[300]; // path: the model file's, which the test writes

static inline int setup_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "%s", temp_folder());
  snprintf(path, sizeof path, "%s/m.yaml", folder);
  server_conf_defaults(&conf);
  return 0;
}

static inline int teardown_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

#endif
