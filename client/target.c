#include "client/target.h"
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

bool target_split(const char *text, char host[TARGET_NAME_BYTES], char port[16]) {
  const bool bracket = text[0] == '[';
  const char *from = text + bracket;
  const char *end = bracket ? strchr(from, ']') : strrchr(text, ':');
  if (!end || end == from || (size_t)(end - from) >= TARGET_NAME_BYTES) return false;
  if (!bracket && memchr(from, ':', (size_t)(end - from)))
    return false; // a bare v6 address is ambiguous
  const char *colon = end + bracket;
  const size_t n_port = strlen(colon + (*colon == ':'));
  if (*colon != ':' || n_port == 0 || n_port > 15 || strspn(colon + 1, "0123456789") != n_port)
    return false;
  const unsigned long number = strtoul(colon + 1, NULL, 10);
  if (number == 0 || number > 65535) return false; // the resolver would take it modulo 65536
  memcpy(host, from, (size_t)(end - from));
  host[end - from] = 0;
  memcpy(port, colon + 1, n_port + 1);
  return true;
}

static enum status unix_socket(const char *path, struct target *out, struct error *err) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (strncmp(path, "//", 2) == 0) path += 2; // unix:///run/fw.sock, as gRPC writes it
  const size_t bytes = strlen(path);
  if (bytes == 0 || bytes >= sizeof at.sun_path) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--url unix:%s: expected a path of 1 to %zu bytes", path,
                     sizeof at.sun_path - 1);
  }
  memcpy(at.sun_path, path, bytes + 1);
  memcpy(&out->address, &at, sizeof at);
  out->address_bytes = sizeof at;
  out->local = true;
  snprintf(out->name, sizeof out->name, "localhost");
  snprintf(out->authority, sizeof out->authority, "localhost");
  return STATUS_OK;
}

static bool is_loopback(const struct sockaddr_storage *address) {
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  memcpy(&v4, address, sizeof v4);
  memcpy(&v6, address, sizeof v6);
  if (address->ss_family == AF_INET) return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

// Prefer IPv4 for names with both: the daemon listens on 0.0.0.0 by default.
static void choose_address(const struct addrinfo *found, struct target *out) {
  const struct addrinfo *choice = found;
  for (const struct addrinfo *at = found; at; at = at->ai_next) {
    if (at->ai_family != AF_INET) continue;
    choice = at;
    break;
  }
  memcpy(&out->address, choice->ai_addr, choice->ai_addrlen);
  out->address_bytes = choice->ai_addrlen;
  out->local = is_loopback(&out->address);
}

static const char *without_scheme(const char *url, bool *tls) {
  static const struct {
    const char *text;
    bool tls;
  } schemes[] = {{"grpc://", false}, {"http://", false}, {"grpcs://", true}, {"https://", true}};
  for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    const size_t bytes = strlen(schemes[i].text);
    if (strncmp(url, schemes[i].text, bytes) != 0) continue;
    *tls = schemes[i].tls;
    return url + bytes;
  }
  return url;
}

enum status target_resolve(const char *url, struct target *out, struct error *err) {
  char port[16];
  struct addrinfo *found = NULL;
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  memset(out, 0, sizeof *out);
  if (strncmp(url, "unix:", 5) == 0) return unix_socket(url + 5, out, err);
  if (!target_split(without_scheme(url, &out->tls), out->name, port)) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--url %s: expected host:port, [v6 address]:port or unix:PATH", url);
  }
  const int error = getaddrinfo(out->name, port, &hints, &found);
  if (error || !found)
    return error_set(err, STATUS_UNAVAILABLE, "%s: %s", url, gai_strerror(error));
  choose_address(found, out);
  freeaddrinfo(found);
  out->name[strcspn(out->name, "%")] = 0; // the zone of a link-local address is ours alone
  snprintf(out->authority, sizeof out->authority, strchr(out->name, ':') ? "[%s]:%s" : "%s:%s",
           out->name, port);
  return STATUS_OK;
}
