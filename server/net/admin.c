// The admin port: HTTP/1.1 by libmicrohttpd, in its own thread, so that a scrape never delays a
// call.
#include "base/log.h"
#include "net/address.h"
#include "net/internal.h"
#include <microhttpd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADMIN_CONNECTIONS 64
#define ADMIN_OF_ONE_ADDRESS 16 // a client that dribbles cannot keep probes from elsewhere out
#define ADMIN_TIMEOUT_S 10
#define METRICS_FIRST_BYTES (64 * 1024)

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code,
                             struct MHD_Response *response, const char *type) {
  if (!response) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  enum MHD_Result result = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return result;
}

static enum MHD_Result reply_text(struct MHD_Connection *connection, unsigned code,
                                  const char *text) {
  struct MHD_Response *response = MHD_create_response_from_buffer(
      strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
  return reply(connection, code, response, "text/plain; charset=utf-8");
}

// The text may grow between two calls (a counter gets a digit): ask again until it fits.
static char *expose_metrics(const struct net_options *options, size_t *bytes) {
  size_t room = METRICS_FIRST_BYTES;
  char *text = NULL;
  for (int attempt = 0; attempt < 8; attempt++) {
    char *larger = realloc(text, room);
    if (!larger) break;
    text = larger;
    *bytes = options->metrics(text, room, options->app);
    if (*bytes <= room) return text;
    room = *bytes + 4096;
  }
  free(text);
  return NULL;
}

static enum MHD_Result serve_metrics(const struct net_options *options,
                                     struct MHD_Connection *connection) {
  if (!options->metrics) return reply_text(connection, MHD_HTTP_NOT_FOUND, "no metrics here\n");
  size_t bytes = 0;
  char *text = expose_metrics(options, &bytes);
  if (!text)
    return reply_text(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory for the metrics\n");
  struct MHD_Response *response =
      MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
  if (!response) free(text);
  return reply(connection, MHD_HTTP_OK, response, "text/plain; version=0.0.4; charset=utf-8");
}

static enum MHD_Result serve_health(struct MHD_Connection *connection, bool healthy) {
  return reply_text(connection, healthy ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                    healthy ? "ok\n" : "not ready\n");
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **state) {
  (void)version, (void)upload;
  const struct net_options *options = arg;
  static int headers_seen;
  if (!*state) { // first call: headers only. Answering before the body is read would close the
                 // connection
    *state = &headers_seen;
    return MHD_YES;
  }
  if (*upload_bytes > 0) {
    *upload_bytes = 0; // a body is read and forgotten
    return MHD_YES;
  }
  if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
    return reply_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
  if (strcmp(url, "/metrics") == 0) return serve_metrics(options, connection);
  if (strcmp(url, "/v2/health/live") == 0)
    return serve_health(connection, !options->live || options->live(options->app));
  if (strcmp(url, "/v2/health/ready") == 0)
    return serve_health(connection, !options->ready || options->ready(options->app));
  return reply_text(connection, MHD_HTTP_NOT_FOUND,
                    "known: /metrics /v2/health/live /v2/health/ready\n");
}

enum status admin_open(struct net *net, struct error *err) {
  const char *address = net->options.admin;
  if (!address || address[0] == 0) return STATUS_OK;
  int fd;
  enum status status = address_listen(address, false, 0, &fd, &net->admin.port, err);
  if (status != STATUS_OK) return status;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  net->admin.daemon = MHD_start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL, 0, NULL, NULL, on_request, &net->options,
      MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)ADMIN_CONNECTIONS,
      MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)ADMIN_OF_ONE_ADDRESS,
      MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)ADMIN_TIMEOUT_S, MHD_OPTION_END);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (net->admin.daemon) return STATUS_OK;
  close(fd);
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the admin server on '%s'",
                   address);
}

void admin_close(struct net *net) {
  if (net->admin.daemon) MHD_stop_daemon(net->admin.daemon); // closes its socket
  net->admin.daemon = NULL;
}
