// Any bytes as a model file: graph and plans are built, or errors are told; no crash, no hang.
// links: fw_model fw_backend fw_graph fw_conf fw_base
// max_len: 1024
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

// The file that every run reads: in memory, and made once.
static int open_once(char *path, size_t path_bytes) {
  int fd = memfd_create("model", MFD_CLOEXEC);
  if (fd < 0) abort();
  snprintf(path, path_bytes, "/proc/self/fd/%d", fd);
  return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct server_conf conf;
  static char path[64];
  static int fd = -1;
  // A CPU as it may come: everything fuses, every dtype is there.
  struct plan_caps caps = {.row_chains = true,
                           .tile_rows = 32,
                           .tile_bytes = 1 << 19,
                           .epilogue_kinds = 31,
                           .epilogue_max = EPILOGUE_MAX};
  int errors = 0;
  memset(caps.dtype_ok, 1, sizeof caps.dtype_ok);
  if (fd < 0) {
    fd = open_once(path, sizeof path);
    server_conf_defaults(&conf);
  }
  if (ftruncate(fd, (off_t)size) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  struct model *model = NULL;
  enum status code = model_parse(path, &conf, &caps, count, &errors, &model);
  if ((code == STATUS_OK) != (errors == 0) || (code == STATUS_OK) != (model != NULL)) abort();
  if (model != NULL) model_put(model);
  return 0;
}
