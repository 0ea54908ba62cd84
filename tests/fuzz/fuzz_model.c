// Any bytes as a model file: graph and plans are built, or errors are told; no crash, no hang.
// links: fw_model fw_backend fw_graph fw_conf fw_base
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void count(const struct error *err, void *arg) {
  if (err->message[0] == '\0') abort();
  ++*(int *)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct server_conf conf;
  // A CPU as it may come: everything fuses, every dtype is there.
  struct plan_caps caps = {.row_chains = true,
                           .tile_rows = 32,
                           .tile_bytes = 1 << 19,
                           .epilogue_kinds = 31,
                           .epilogue_max = EPILOGUE_MAX};
  memset(caps.dtype_ok, 1, sizeof caps.dtype_ok);
  server_conf_defaults(&conf);
  char path[64];
  int fd = memfd_create("model", MFD_CLOEXEC), errors = 0;
  if (fd < 0) return 0;
  if (size != 0 && write(fd, data, size) != (ssize_t)size) abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  struct model *model = NULL;
  enum status code = model_parse(path, &conf, &caps, count, &errors, &model);
  if ((code == STATUS_OK) != (errors == 0) || (code == STATUS_OK) != (model != NULL)) abort();
  if (model != NULL) model_put(model);
  close(fd);
  return 0;
}
