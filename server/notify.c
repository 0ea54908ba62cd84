#include "notify.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int notify_fd = -1;
static int64_t alive_every_ns;

// A path, or a name in Linux's abstract name space behind '@'. Connected once: the environment is
// not looked at again.
static int notify_connect(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t bytes = strlen(path);
  if ((path[0] != '/' && path[0] != '@') || bytes < 2 || bytes >= sizeof address.sun_path) {
    log_warn("notify", "NOTIFY_SOCKET: expected a path or @name of less than %zu bytes",
             sizeof address.sun_path);
    return -1;
  }
  memcpy(address.sun_path, path, bytes);
  if (path[0] == '@') address.sun_path[0] = 0;
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, length) == 0) return fd;
  log_warn("notify", "NOTIFY_SOCKET: %s", strerror(errno));
  if (fd >= 0) close(fd);
  return -1;
}

static int64_t number_of(const char *name) {
  const char *text = getenv(name);
  return text ? strtoll(text, NULL, 10) : 0;
}

void notify_open(void) {
  const char *path = getenv("NOTIFY_SOCKET");
  if (!path || !path[0]) return;
  notify_fd = notify_connect(path);
  int64_t usec = number_of("WATCHDOG_USEC"), pid = number_of("WATCHDOG_PID");
  bool for_us = pid == 0 || pid == getpid();
  if (notify_fd >= 0 && for_us && usec > 0 && usec < INT64_MAX / NS_PER_US)
    alive_every_ns = usec * NS_PER_US / 2;
}

static void say(const char *text) {
  if (notify_fd < 0) return;
  if (send(notify_fd, text, strlen(text), MSG_NOSIGNAL) < 0)
    log_warn("notify", "the supervisor does not listen: %s", strerror(errno));
}

void notify_ready(int n_models) {
  char text[64];
  snprintf(text, sizeof text, "READY=1\nSTATUS=%d models\n", n_models);
  say(text);
}

void notify_reloading(void) {
  char text[80];
  snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld\n",
           (long long)(clock_now_ns() / NS_PER_US));
  say(text);
}

void notify_stopping(void) {
  say("STOPPING=1\n");
}

void notify_alive(void) {
  say("WATCHDOG=1\n");
}

int64_t notify_alive_every_ns(void) {
  return alive_every_ns;
}
