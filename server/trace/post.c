#include "trace/post.h"
#include "base/clock.h"
#include "base/regular.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct post {
  CURLM *multi;
  CURL *easy;
  struct curl_slist *headers;
  struct post_answer *answer; // of the POST that is under way
  size_t received;
  char error[CURL_ERROR_SIZE];
};

#define HOST_BYTES 253 // of a name, by the rules of the DNS
#define LABEL_BYTES 63

static bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c & 0x80;
}

// A part between dots: '_' is in no name of a host, but in those of containers; a byte beyond ASCII
// is part of a name in other letters.
static bool label_ok(const char *label, size_t bytes) {
  if (bytes == 0 || bytes > LABEL_BYTES || label[0] == '-' || label[bytes - 1] == '-') return false;
  for (size_t i = 0; i < bytes; i++)
    if (!is_letter_or_digit(label[i]) && label[i] != '-' && label[i] != '_') return false;
  return true;
}

// libcurl's parser takes anything for a host that has none of the characters that end one; that it
// cannot be one would be told only when spans are lost.
static const char *host_fault(const char *host) {
  struct in6_addr address;
  if (host[0] == '[') return NULL; // libcurl has looked at it
  size_t bytes = strlen(host);
  if (bytes > 0 && host[bytes - 1] == '.') bytes--;
  if (bytes == 0) return "it has no host";
  if (bytes > HOST_BYTES) return "its host is too long for a name";
  const char *label = host;
  for (const char *end; label < host + bytes; label = end + 1) {
    size_t left = (size_t)(host + bytes - label), n = strcspn(label, ".");
    end = label + (n < left ? n : left);
    if (!label_ok(label, (size_t)(end - label))) return "its host is neither a name nor an address";
    bool last = end == host + bytes, number = strspn(label, "0123456789") == (size_t)(end - label);
    if (last && number && inet_pton(AF_INET, host, &address) != 1)
      return "its host is no IPv4 address";
  }
  return host[bytes - 1] == '.' ? "its host is neither a name nor an address" : NULL;
}

static const char *url_fault(CURLU *parsed, const char *url) {
  char *host = NULL, *port = NULL;
  const char *slashes = strstr(url, "://"), *fault = NULL;
  CURLUcode code = curl_url_set(parsed, CURLUPART_URL, url, 0);
  if (code == CURLUE_OK) code = curl_url_get(parsed, CURLUPART_HOST, &host, 0);
  if (code != CURLUE_OK)
    fault = curl_url_strerror(code);
  else if (!slashes || slashes[3] == '/') // which libcurl would skip
    fault = "it has no host";
  else
    fault = host_fault(host);
  if (!fault && curl_url_get(parsed, CURLUPART_PORT, &port, 0) == CURLUE_OK &&
      strtol(port, NULL, 10) == 0)
    fault = "port 0 is nobody's";
  curl_free(host);
  curl_free(port);
  return fault;
}

enum status post_check(const char *url, struct error *err) {
  CURLU *parsed = curl_url();
  if (!parsed) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a URL");
  const char *fault = url_fault(parsed, url);
  curl_url_cleanup(parsed);
  if (!fault) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "trace.endpoint: \"%.100s\" is no URL: %s", url,
                   fault);
}

// ---- what comes back ----
static bool too_much(struct post *post, size_t bytes) {
  post->received += bytes;
  return post->received > POST_ANSWER_MAX_BYTES;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg) {
  (void)data;
  return too_much(arg, size * n) ? 0 : size * n;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg) {
  struct post *post = arg;
  struct post_answer *answer = post->answer;
  size_t bytes = size * n, room = sizeof answer->body;
  if (too_much(post, bytes)) return 0;
  if (answer->bytes < room)
    memcpy(answer->body + answer->bytes, data,
           bytes < room - answer->bytes ? bytes : room - answer->bytes);
  answer->bytes += bytes;
  return bytes;
}

static void judge(struct post *post, CURLcode code) {
  struct post_answer *answer = post->answer;
  long status = 0;
  curl_off_t retry_after = 0;
  curl_easy_getinfo(post->easy, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(post->easy, CURLINFO_RETRY_AFTER, &retry_after);
  bool cut_off = code == CURLE_WRITE_ERROR && post->received > POST_ANSWER_MAX_BYTES;
  if (code != CURLE_OK && !cut_off) {
    answer->result = POST_LATER;
    snprintf(answer->text, sizeof answer->text, "%s",
             post->error[0] ? post->error : curl_easy_strerror(code));
    return;
  }
  bool later = status == 429 || status == 502 || status == 503 || status == 504;
  answer->result = status >= 200 && status < 300 ? POST_TAKEN : later ? POST_LATER : POST_REFUSED;
  answer->retry_after_s = later && retry_after > 0 ? (int64_t)retry_after : 0;
  snprintf(answer->text, sizeof answer->text, "HTTP status %ld", status);
}

// ---- a POST ----
static int64_t ms_left(const _Atomic int64_t *until_ns) {
  int64_t until = atomic_load(until_ns);
  if (until == CLOCK_NEVER) return 1000;
  int64_t left_ns = until - clock_now_ns();
  return left_ns <= 0 ? 0 : left_ns / NS_PER_MS + 1;
}

static bool ended(struct post *post) {
  int left;
  const CURLMsg *message;
  while ((message = curl_multi_info_read(post->multi, &left))) {
    if (message->msg != CURLMSG_DONE) continue;
    judge(post, message->data.result);
    return true;
  }
  return false;
}

static void wait_for_end(struct post *post, const _Atomic int64_t *until_ns) {
  for (;;) {
    int running;
    int64_t left_ms = ms_left(until_ns);
    if (left_ms == 0 || curl_multi_perform(post->multi, &running) != CURLM_OK) return;
    if (ended(post)) return;
    if (running > 0)
      curl_multi_poll(post->multi, NULL, 0, left_ms > 1000 ? 1000 : (int)left_ms, NULL);
  }
}

void post_send(struct post *post, const uint8_t *body, size_t bytes,
               const _Atomic int64_t *until_ns, struct post_answer *answer) {
  answer->result = POST_LATER;
  answer->retry_after_s = 0;
  answer->bytes = 0;
  snprintf(answer->text, sizeof answer->text, "there was no time for an answer");
  post->answer = answer;
  post->received = 0;
  post->error[0] = 0;
  curl_easy_setopt(post->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
  curl_easy_setopt(post->easy, CURLOPT_POSTFIELDS, body);
  if (curl_multi_add_handle(post->multi, post->easy) != CURLM_OK) return;
  wait_for_end(post, until_ns);
  curl_multi_remove_handle(post->multi, post->easy);
}

void post_wake(struct post *post) {
  curl_multi_wakeup(post->multi);
}

// ---- open and close ----
static bool set_headers(struct post *post) {
  static const char *const fields[] = {"Content-Type: application/x-protobuf", "Expect:"};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    struct curl_slist *longer = curl_slist_append(post->headers, fields[i]);
    if (!longer) return false;
    post->headers = longer;
  }
  return curl_easy_setopt(post->easy, CURLOPT_HTTPHEADER, post->headers) == CURLE_OK;
}

static bool set_options(struct post *post, const char *url, const char *ca, int64_t timeout_ms) {
  CURL *easy = post->easy;
  bool ok = curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK && set_headers(post);
  ok = ok && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
  ok = ok && curl_easy_setopt(easy, CURLOPT_USERAGENT, "fusewired/" FUSEWIRE_VERSION) == CURLE_OK;
  if (ca[0]) ok = ok && curl_easy_setopt(easy, CURLOPT_CAINFO, ca) == CURLE_OK;
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);   // there are other threads
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); // no waiting for a name server
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, post);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, post);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, post->error);
  return ok;
}

enum status post_open(const char *url, const char *ca, int64_t timeout_ms, struct post **out,
                      struct error *err) {
  *out = NULL;
  struct post *post = calloc(1, sizeof *post);
  if (!post || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    free(post);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot begin to use libcurl");
  }
  post->multi = curl_multi_init();
  post->easy = curl_easy_init();
  enum status status = post_check(url, err);
  if (status == STATUS_OK) status = regular_file("trace.ca", ca, err);
  if (status == STATUS_OK &&
      (!post->multi || !post->easy || !set_options(post, url, ca, timeout_ms)))
    status =
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "libcurl cannot be set up for trace.endpoint");
  if (status == STATUS_OK)
    *out = post;
  else
    post_close(post);
  return status;
}

void post_close(struct post *post) {
  if (!post) return;
  curl_easy_cleanup(post->easy);
  curl_multi_cleanup(post->multi);
  curl_slist_free_all(post->headers);
  curl_global_cleanup();
  free(post);
}
