// The options about the connection, which every command has, and opening it by them.
#ifndef CLIENT_CONNECT_H
#define CLIENT_CONNECT_H

#include "client/net.h"
#include "client/options.h"

#define CONNECT_DEFAULT_URL "localhost:8001"
#define CONNECT_TOKEN_VARIABLE "FUSEWIRE_TOKEN"

struct connect_options {
  const char *url, *ca, *certificate, *key, *server_name, *token_file;
  int64_t wait_ns;
  bool tls;
};

// Rows of an option table; `at` is where the command's target struct has its connect_options.
#define CONNECT_OFFSET(at, field) ((at) + offsetof(struct connect_options, field))
#define CONNECT_ROWS(at)                                                                           \
  {"url",                                                                                          \
   OPTION_TEXT,                                                                                    \
   CONNECT_OFFSET(at, url),                                                                        \
   "ADDRESS",                                                                                      \
   "host:port, [v6 address]:port or unix:PATH (default " CONNECT_DEFAULT_URL ")",                  \
   0,                                                                                              \
   0},                                                                                             \
      {"tls",                                                                                      \
       OPTION_FLAG,                                                                                \
       CONNECT_OFFSET(at, tls),                                                                    \
       NULL,                                                                                       \
       "speak TLS; https:// before the host does the same",                                        \
       0,                                                                                          \
       0},                                                                                         \
      {"cacert",                                                                                   \
       OPTION_TEXT,                                                                                \
       CONNECT_OFFSET(at, ca),                                                                     \
       "FILE",                                                                                     \
       "authorities to trust, PEM (default: the system's)",                                        \
       0,                                                                                          \
       0},                                                                                         \
      {"cert",                                                                                     \
       OPTION_TEXT,                                                                                \
       CONNECT_OFFSET(at, certificate),                                                            \
       "FILE",                                                                                     \
       "certificate to show to a server that asks (mTLS), PEM",                                    \
       0,                                                                                          \
       0},                                                                                         \
      {"key", OPTION_TEXT, CONNECT_OFFSET(at, key), "FILE", "its private key, PEM", 0, 0},         \
      {"server-name",                                                                              \
       OPTION_TEXT,                                                                                \
       CONNECT_OFFSET(at, server_name),                                                            \
       "NAME",                                                                                     \
       "the name that the server's certificate must have (default: the host\nof --url)",           \
       0,                                                                                          \
       0},                                                                                         \
      {"token-file",                                                                               \
       OPTION_TEXT,                                                                                \
       CONNECT_OFFSET(at, token_file),                                                             \
       "FILE",                                                                                     \
       "bearer token of every call: the file's first line that is no #comment\n"                   \
       "(default: the environment's " CONNECT_TOKEN_VARIABLE ", if there)",                        \
       0,                                                                                          \
       0},                                                                                         \
  {                                                                                                \
    "wait", OPTION_DURATION, CONNECT_OFFSET(at, wait_ns), "TIME",                                  \
        "wait so long for the server to be there and ready (default: one\nattempt, ready or "      \
        "not)",                                                                                    \
        0, 0                                                                                       \
  }

// EXIT_ALL_OK with `net` open; else what went wrong is on stderr and this is the exit code.
MUST_USE int connect_open(const char *command, const struct connect_options *options, int n_conns,
                          struct net **net);
// The token in a file's text: its first line that is neither empty nor a comment, without the white
// space around it. INVALID_ARGUMENT: none, too long, or not of visible ASCII. Pure.
MUST_USE enum status connect_token(struct slice text, const char *source, char out[NET_TOKEN_BYTES],
                                   struct error *err);

#endif
