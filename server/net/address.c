#include "net/address.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024 // the kernel cuts it to somaxconn

struct host_port {
  char host[256]; // empty: every address
  char port[8];
};

static bool port_ok(const char *text) {
  unsigned value = 0;
  size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > 5 || text[digits] != 0) return false;
  for (size_t i = 0; i < digits; i++)
    value = value * 10 + (unsigned)(text[i] - '0');
  return value <= 65535;
}

static bool split(const char *address, struct host_port *out) {
  const char *colon = strrchr(address, ':');
  if (!colon || !port_ok(colon + 1)) return false;
  const char *from = address;
  size_t bytes = (size_t)(colon - address);
  if (address[0] == '[') {
    if (bytes < 3 || colon[-1] != ']') return false;
    from++;
    bytes -= 2;
  } else if (memchr(address, ':', bytes)) {
    return false; // an IPv6 address needs its brackets
  }
  if (bytes >= sizeof out->host) return false;
  memcpy(out->host, from, bytes);
  out->host[bytes] = 0;
  snprintf(out->port, sizeof out->port, "%s", colon + 1);
  return true;
}

static int bind_one(const struct addrinfo *info, bool shared) {
  int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int on = 1, saved;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      (!shared || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0) &&
      bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
    return fd;
  saved = errno;
  close(fd);
  errno = saved;
  return -1;
}

static int bound_port(int fd) {
  union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
  } bound = {.v6 = {0}};
  socklen_t bytes = sizeof bound;
  if (getsockname(fd, &bound.any, &bytes) != 0) return -1;
  return ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
}

enum status address_listen(const char *address, bool shared, int port_0, int *fd, int *port,
                           struct error *err) {
  struct host_port parts;
  if (!split(address, &parts))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "address '%s': expected host:port, [ipv6]:port or :port", address);
  if (port_0 > 0 && strtol(parts.port, NULL, 10) == 0)
    snprintf(parts.port, sizeof parts.port, "%u", (unsigned)port_0 & 0xFFFFU);
  struct addrinfo hints = {
      .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
  if (parts.host[0] == 0) hints.ai_family = AF_INET;
  struct addrinfo *found = NULL;
  int rv = getaddrinfo(parts.host[0] ? parts.host : NULL, parts.port, &hints, &found);
  if (rv != 0)
    return error_set(err, STATUS_INVALID_ARGUMENT, "address '%s': %s", address, gai_strerror(rv));
  *fd = -1;
  for (const struct addrinfo *info = found; info && *fd < 0; info = info->ai_next)
    *fd = bind_one(info, shared);
  int saved = errno;
  freeaddrinfo(found);
  if (*fd < 0)
    return error_set(
        err, saved == EMFILE || saved == ENFILE ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE,
        "cannot listen on '%s': %s", address, strerror(saved));
  *port = bound_port(*fd);
  return STATUS_OK;
}

// A socket that nobody listens on any more is what a killed server leaves behind.
static bool remove_dead(const struct sockaddr_un *at) {
  struct stat there;
  if (lstat(at->sun_path, &there) != 0) return errno == ENOENT;
  if (!S_ISSOCK(there.st_mode)) return false;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  bool dead = connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED;
  close(fd);
  return dead && unlink(at->sun_path) == 0;
}

enum status address_listen_unix(const char *path, int *fd, struct error *err) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  size_t bytes = strlen(path);
  if (bytes >= sizeof at.sun_path)
    return error_set(err, STATUS_INVALID_ARGUMENT, "server.unix: '%s' is longer than %zu bytes",
                     path, sizeof at.sun_path - 1);
  memcpy(at.sun_path, path, bytes + 1);
  if (!remove_dead(&at))
    return error_set(err, STATUS_UNAVAILABLE, "server.unix: '%s' is in use or no socket", path);
  *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (*fd >= 0 && bind(*fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(*fd, BACKLOG) == 0)
    return STATUS_OK;
  int saved = errno;
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return error_set(err, STATUS_UNAVAILABLE, "cannot listen on '%s': %s", path, strerror(saved));
}
