// One POST after the other to one URL, by libcurl, on one thread that is never kept longer than it
// wants to be. The other side is not trusted: what it answers is bounded in time and bytes.
#ifndef TRACE_POST_H
#define TRACE_POST_H

#include "base/status.h"
#include <stdatomic.h>
#include <stdint.h>

#define POST_ANSWER_BYTES 4096       // kept of an answer's body
#define POST_ANSWER_MAX_BYTES 262144 // of headers and body: then we hang up

enum post_result { POST_TAKEN, POST_REFUSED, POST_LATER }; // later: it may help to ask again
struct post_answer {
  enum post_result result;
  int64_t retry_after_s;           // what the other side asked for; 0: nothing
  uint8_t body[POST_ANSWER_BYTES]; // of POST_TAKEN
  size_t bytes;                    // of the whole body; may be more than is kept
  char text[256];                  // what went wrong
};

struct post;
// INVALID_ARGUMENT: no URL that we could POST to.
MUST_USE enum status post_check(const char *url, struct error *err);
// `ca`: PEM file for https; "": the system's. The process's first use of libcurl: no other thread
// may be doing the same.
MUST_USE enum status post_open(const char *url, const char *ca, int64_t timeout_ms,
                               struct post **out, struct error *err);
void post_close(struct post *post); // NULL is fine
// Waits for the answer until `timeout_ms` have passed or it is `until_ns`, which another thread may
// bring nearer (and call post_wake).
void post_send(struct post *post, const uint8_t *body, size_t bytes,
               const _Atomic int64_t *until_ns, struct post_answer *answer);
void post_wake(struct post *post); // any thread

#endif
