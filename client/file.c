#include "client/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status read_all(int fd, const char *path, uint8_t *data, size_t bytes,
                            struct error *err) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = read(fd, data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return error_set(err, STATUS_DATA_LOSS, "%s: read %zu of %zu bytes: %s", path, done, bytes,
                       n < 0 ? strerror(errno) : "the file became shorter");
    }
    done += (size_t)n;
  }
  return STATUS_OK;
}

enum status file_read(const char *path, struct slice *out, struct error *err) {
  struct stat info;
  uint8_t *data = NULL;
  enum status status = STATUS_OK;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return error_set(err, STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: not a regular file", path);
    goto out;
  }
  if ((uint64_t)info.st_size > FILE_MAX_BYTES) {
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: %lld bytes; at most %zu are read", path,
                       (long long)info.st_size, FILE_MAX_BYTES);
    goto out;
  }
  data = malloc((size_t)info.st_size + 1);
  if (!data) {
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory", path);
    goto out;
  }
  status = read_all(fd, path, data, (size_t)info.st_size, err);
  if (status != STATUS_OK) goto out;
  data[info.st_size] = 0;
  *out = (struct slice){data, (size_t)info.st_size};
  data = NULL;
out:
  free(data);
  close(fd);
  return status;
}

void file_free(struct slice *file) {
  free((void *)(uintptr_t)file->data);
  *file = (struct slice){0};
}

static enum status cannot_write(const char *path, int cause, struct error *err) {
  return error_set(err, STATUS_FAILED_PRECONDITION, "%s: cannot write: %s (errno %d)", path,
                   strerror(cause), cause);
}

enum status file_write(const char *path, const struct slice *parts, int n_parts,
                       struct error *err) {
  const bool to_stdout = strcmp(path, "-") == 0;
  const char *name = to_stdout ? "standard output" : path;
  FILE *file = to_stdout ? stdout : fopen(path, "we");
  if (!file) return cannot_write(name, errno, err);
  int cause = 0; // of the first failure
  for (int i = 0; !cause && i < n_parts; i++) {
    if (fwrite(parts[i].data, 1, parts[i].bytes, file) < parts[i].bytes) cause = errno;
  }
  if (fflush(file) != 0 && !cause) cause = errno;
  if (!to_stdout && fclose(file) != 0 && !cause) cause = errno;
  return cause ? cannot_write(name, cause, err) : STATUS_OK;
}
