#include "conf/places.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

// host:port, [ipv6]:port or :port, as net/ takes them. `host` may be empty: every address.
static bool split(const char *text, char host[256]) {
  const char *colon = strrchr(text, ':'), *from = text;
  if (colon == NULL || colon[1] == '\0' || strlen(colon + 1) > 5) return false;
  if (colon[1 + strspn(colon + 1, "0123456789")] != '\0' || strtol(colon + 1, NULL, 10) > 65535)
    return false;
  size_t bytes = (size_t)(colon - text);
  if (text[0] == '[') {
    if (bytes < 3 || colon[-1] != ']') return false;
    from++;
    bytes -= 2;
  } else if (memchr(text, ':', bytes) != NULL) {
    return false; // an IPv6 address needs its brackets
  }
  if (bytes >= 256) return false;
  memcpy(host, from, bytes);
  host[bytes] = '\0';
  return true;
}

// NULL, or why no address comes of it. Literal ones need no resolver.
static const char *unresolved(const char *host) {
  struct in6_addr address;
  struct addrinfo *found = NULL;
  const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  if (host[0] == '\0' || inet_pton(AF_INET, host, &address) == 1 ||
      inet_pton(AF_INET6, host, &address) == 1)
    return NULL;
  int rv = getaddrinfo(host, NULL, &hints, &found);
  if (rv != 0) return gai_strerror(rv);
  freeaddrinfo(found);
  return NULL;
}

static void check_address(struct conf_report *report, const struct conf_node *node,
                          const char *value) {
  char host[256];
  if (!split(value, host)) {
    conf_fail(report, node, "expected host:port, [ipv6]:port or :port, found \"%.100s\"", value);
    return;
  }
  const char *why = unresolved(host);
  if (why != NULL) conf_fail(report, node, "host \"%.100s\": %s", host, why);
}

static void check_unix(struct conf_report *report, const struct conf_node *node,
                       const char *value) {
  const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
  if (strlen(value) > most)
    conf_fail(report, node, "a path of %zu bytes; a Unix socket's has at most %zu", strlen(value),
              most);
  struct stat there; // a socket that an earlier process left is replaced; nothing else is
  if (value[0] != '\0' && lstat(value, &there) == 0 && !S_ISSOCK(there.st_mode))
    conf_fail(report, node, "\"%.200s\" is there and is no socket", value);
}

static void check_folder(struct conf_report *report, const struct conf_node *node,
                         const char *value) {
  struct stat there;
  if (value[0] == '\0') return;
  if (stat(value, &there) != 0)
    conf_fail(report, node, "folder \"%.200s\": %s", value, strerror(errno));
  else if (!S_ISDIR(there.st_mode))
    conf_fail(report, node, "\"%.200s\" is no folder", value);
}

// What --check must not wait for or read without an end. One that is missing is told by whoever
// opens it, and may come back before a reload needs it.
static void check_files(struct conf_report *report, const struct conf_node *root,
                        const struct server_conf *conf) {
  const struct {
    const char *section, *key, *value;
  } files[] = {{"tls", "certificate", conf->tls_certificate},
               {"tls", "key", conf->tls_key},
               {"tls", "client_ca", conf->tls_client_ca},
               {"auth", "token_file", conf->token_file},
               {"trace", "ca", conf->trace_ca}};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    const struct conf_node *map = conf_find(root, files[i].section), *node = NULL;
    if (map != NULL && map->kind == CONF_MAP) node = conf_find(map, files[i].key);
    struct stat there;
    if (node != NULL && stat(files[i].value, &there) == 0 && !S_ISREG(there.st_mode))
      conf_fail(report, node, "\"%.200s\" is no regular file", files[i].value);
  }
}

void places_check(struct conf_report *report, const struct conf_node *root,
                  const struct server_conf *conf) {
  check_files(report, root, conf);
  const struct conf_node *server = conf_find(root, "server"), *node;
  if (server == NULL || server->kind != CONF_MAP) return;
  if ((node = conf_find(server, "listen")) != NULL) check_address(report, node, conf->listen);
  if ((node = conf_find(server, "admin")) != NULL && conf->admin[0] != '\0')
    check_address(report, node, conf->admin);
  if ((node = conf_find(server, "unix")) != NULL) check_unix(report, node, conf->unix_path);
  if ((node = conf_find(server, "repository")) != NULL)
    check_folder(report, node, conf->repository);
}
