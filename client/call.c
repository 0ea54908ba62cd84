#include "client/call.h"
#include "base/utf8.h"
#include "client/pb.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void call_reset(struct call *call) {
  call->status = STATUS_UNKNOWN;
  call->message[0] = 0;
  call->reply_bytes = 0;
  call->reply_length = call->reply_seen = 0;
  call->done_ns = 0;
  call->unprocessed = false;
  call->http_status = 0;
  call->grpc_status = -1;
  call->prefix_bytes = 0;
  call->sent_bytes = 0;
  call->faulty = false;
}

static bool grow_reply(struct call *call) {
  const size_t bytes = (size_t)call->reply_length;
  if (bytes <= call->reply_capacity) return true;
  uint8_t *reply = realloc(call->reply, bytes);
  if (!reply) return false;
  call->reply = reply;
  call->reply_capacity = bytes;
  return true;
}

static bool prefix_done(struct call *call) {
  const uint8_t *p = call->prefix;
  call->reply_length = (uint64_t)p[1] << 24 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 8 | p[4];
  if (p[0] != 0) call->faulty = true; // we offer no compression
  return !call->grow || grow_reply(call);
}

bool call_receive(struct call *call, const uint8_t *data, size_t bytes) {
  while (bytes > 0 && call->prefix_bytes < sizeof call->prefix) {
    call->prefix[call->prefix_bytes++] = *data++;
    bytes--;
    if (call->prefix_bytes == sizeof call->prefix && !prefix_done(call)) return false;
  }
  call->reply_seen += bytes;
  if (call->reply_seen > call->reply_length) call->faulty = true; // a second message
  size_t room = call->reply_capacity - call->reply_bytes;
  if (room > call->reply_length - call->reply_bytes)
    room = (size_t)call->reply_length - call->reply_bytes;
  const size_t n = bytes < room ? bytes : room;
  if (n == 0) return true;
  memcpy(call->reply + call->reply_bytes, data, n);
  call->reply_bytes += n;
  return true;
}

static int hex_digit(uint8_t c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// `n` without a character that was cut in its middle.
static size_t whole_characters(const char *out, size_t n) {
  size_t start = n;
  while (start > 0 && n - start < 4) {
    if (((uint8_t)out[--start] & 0xc0) != 0x80) break;
  }
  const uint8_t lead = n ? (uint8_t)out[start] : 0;
  const size_t needed = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return n - start >= needed || n == 0 ? n : start;
}

void call_tame(char *text) {
  char *const start = text;
  for (; *text; text++)
    if ((uint8_t)*text < 0x20 || *text == 0x7f) *text = ' ';
  utf8_make_printable(start);
}

void call_percent_decode(struct slice text, char *out, size_t out_bytes) {
  size_t n = 0;
  for (size_t i = 0; i < text.bytes && n + 1 < out_bytes; i++) {
    uint8_t c = text.data[i];
    if (c == '%' && text.bytes - i > 2) {
      const int high = hex_digit(text.data[i + 1]), low = hex_digit(text.data[i + 2]);
      if (high >= 0 && low >= 0) {
        c = (uint8_t)(high << 4 | low);
        i += 2;
      }
    }
    out[n++] = c ? (char)c : ' ';
  }
  out[whole_characters(out, n)] = 0;
  call_tame(out);
}

static int32_t small_number(struct slice text) {
  int32_t value = 0;
  if (text.bytes == 0 || text.bytes > 4) return -1;
  for (size_t i = 0; i < text.bytes; i++) {
    if (text.data[i] < '0' || text.data[i] > '9') return -1;
    value = value * 10 + (text.data[i] - '0');
  }
  return value;
}

void call_header(struct call *call, struct slice name, struct slice value) {
  if (slice_is(name, "grpc-status")) {
    const int32_t code = small_number(value);
    call->grpc_status = code >= 0 && code < STATUS_COUNT ? code : STATUS_UNKNOWN;
  } else if (slice_is(name, "grpc-message")) {
    call_percent_decode(value, call->message, sizeof call->message);
  } else if (slice_is(name, ":status")) {
    call->http_status = small_number(value);
  }
}

static enum status status_of_http(int32_t http_status) {
  switch (http_status) {
  case 400:
    return STATUS_INTERNAL;
  case 401:
    return STATUS_UNAUTHENTICATED;
  case 403:
    return STATUS_PERMISSION_DENIED;
  case 404:
    return STATUS_UNIMPLEMENTED;
  case 429:
  case 502:
  case 503:
  case 504:
    return STATUS_UNAVAILABLE;
  default:
    return STATUS_UNKNOWN;
  }
}

static enum status status_of_http2(uint32_t error) {
  switch (error) {
  case 0x7:
    return STATUS_UNAVAILABLE; // REFUSED_STREAM
  case 0x8:
    return STATUS_CANCELLED; // CANCEL
  case 0xb:
    return STATUS_RESOURCE_EXHAUSTED; // ENHANCE_YOUR_CALM
  case 0xc:
    return STATUS_PERMISSION_DENIED; // INADEQUATE_SECURITY
  default:
    return STATUS_INTERNAL;
  }
}

void call_conclude(struct call *call, uint32_t http2_error) {
  if (call->grpc_status >= 0) {
    call->status = (enum status)call->grpc_status;
  } else if (http2_error != 0) {
    call->status = status_of_http2(http2_error);
    snprintf(call->message, sizeof call->message, "stream reset, HTTP/2 error %" PRIu32,
             http2_error);
  } else {
    call->status = call->http_status == 200 ? STATUS_UNKNOWN : status_of_http(call->http_status);
    snprintf(call->message, sizeof call->message, "HTTP status %" PRId32 " without a grpc-status",
             call->http_status);
  }
  if (call->status != STATUS_OK) return;
  const bool whole =
      call->prefix_bytes == sizeof call->prefix && call->reply_seen == call->reply_length;
  if (whole && !call->faulty) return;
  call->status = STATUS_INTERNAL;
  snprintf(call->message, sizeof call->message,
           "status OK, but the message is %s (%" PRIu64 " of %" PRIu64 " bytes)",
           call->faulty ? "misframed" : "incomplete", call->reply_seen, call->reply_length);
}

void call_timeout_text(int64_t timeout_ns, char out[24]) {
  static const struct {
    char unit;
    int64_t ns;
  } units[] = {{'u', 1000}, {'m', 1000000}, {'S', 1000000000}};
  out[0] = 0;
  if (timeout_ns <= 0) return;
  for (int i = 0; i < 3; i++) {
    const int64_t value = (timeout_ns + units[i].ns - 1) / units[i].ns;
    if (value > 99999999) continue; // the protocol allows 8 digits
    snprintf(out, 24, "%" PRId64 "%c", value, units[i].unit);
    return;
  }
  snprintf(out, 24, "99999999S");
}
