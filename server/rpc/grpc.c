#include "rpc/grpc.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/utf8.h"
#include "obs/metrics.h"
#include <inttypes.h>
#include <string.h>

bool grpc_content_type_ok(const uint8_t *value, size_t bytes) {
  static const char want[] = "application/grpc";
  size_t want_bytes = sizeof want - 1;
  if (bytes < want_bytes || memcmp(value, want, want_bytes) != 0) return false;
  return bytes == want_bytes || value[want_bytes] == '+' || value[want_bytes] == ';';
}

static int64_t timeout_unit_ns(uint8_t unit) {
  switch (unit) {
  case 'H':
    return 3600 * NS_PER_S;
  case 'M':
    return 60 * NS_PER_S;
  case 'S':
    return NS_PER_S;
  case 'm':
    return NS_PER_MS;
  case 'u':
    return NS_PER_US;
  case 'n':
    return 1;
  default:
    return 0;
  }
}

// 8 digits of hours are 3.6e20 ns, more than int64 holds: saturate to "never".
bool grpc_timeout_parse(const uint8_t *value, size_t bytes, int64_t *timeout_ns) {
  if (bytes < 2 || bytes > 9) return false;
  int64_t number = 0;
  for (size_t i = 0; i + 1 < bytes; i++) {
    if (value[i] < '0' || value[i] > '9') return false;
    number = number * 10 + (value[i] - '0');
  }
  int64_t unit = timeout_unit_ns(value[bytes - 1]);
  if (unit == 0) return false;
  if (__builtin_mul_overflow(number, unit, timeout_ns)) *timeout_ns = CLOCK_NEVER;
  return true;
}

// n lower-case hex digits at `text`, not all of them 0 unless `zero`.
static bool hex_ok(const uint8_t *text, int n, bool zero) {
  for (int i = 0; i < n; i++) {
    bool digit = text[i] >= '0' && text[i] <= '9', letter = text[i] >= 'a' && text[i] <= 'f';
    if (!digit && !letter) return false;
    zero = zero || text[i] != '0';
  }
  return zero;
}

bool grpc_traceparent_take(const uint8_t *value, size_t bytes,
                           char out[GRPC_TRACEPARENT_BYTES + 1]) {
  if (bytes < GRPC_TRACEPARENT_BYTES || !hex_ok(value, 2, true) || memcmp(value, "ff", 2) == 0)
    return false;
  bool later = memcmp(value, "00", 2) != 0;
  if (bytes > GRPC_TRACEPARENT_BYTES && !(later && value[GRPC_TRACEPARENT_BYTES] == '-'))
    return false;
  if (value[2] != '-' || !hex_ok(value + 3, 32, false) || value[35] != '-' ||
      !hex_ok(value + 36, 16, false) || value[52] != '-' || !hex_ok(value + 53, 2, true))
    return false;
  memcpy(out, value, GRPC_TRACEPARENT_BYTES);
  out[GRPC_TRACEPARENT_BYTES] = '\0';
  if (!later) return true;
  memcpy(out, "00", 2);
  out[53] = '0', out[54] = strchr("13579bdf", value[54]) ? '1' : '0';
  return true;
}

static bool key_char_ok(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c != 0 && strchr("_-*/@", c) != NULL);
}

// "key=value", without the blanks around it.
static bool member_ok(const uint8_t *text, size_t bytes) {
  const uint8_t *equals = memchr(text, '=', bytes);
  size_t key = equals ? (size_t)(equals - text) : 0, value = bytes - key - 1;
  if (key == 0 || key > 256 || value == 0 || value > 256) return false;
  if (strchr("_-*/@", text[0]) != NULL) return false;
  for (size_t i = 0; i < key; i++)
    if (!key_char_ok(text[i])) return false;
  for (size_t i = key + 1; i < bytes; i++)
    if (text[i] < 0x20 || text[i] > 0x7e || text[i] == '=') return false;
  return true;
}

bool grpc_tracestate_ok(const uint8_t *value, size_t bytes) {
  enum { MEMBERS_MAX = 32 };
  int n = 0;
  if (bytes > GRPC_TRACESTATE_BYTES) return false;
  for (size_t at = 0, next; at < bytes; at = next + 1) {
    const uint8_t *comma = memchr(value + at, ',', bytes - at);
    size_t end = next = comma ? (size_t)(comma - value) : bytes;
    while (at < end && (value[at] == ' ' || value[at] == '\t'))
      at++;
    while (at < end && (value[end - 1] == ' ' || value[end - 1] == '\t'))
      end--;
    if (at == end) continue; // an empty one is allowed
    if (++n > MEMBERS_MAX || !member_ok(value + at, end - at)) return false;
  }
  return n > 0;
}

enum grpc_encoding grpc_encoding_parse(const uint8_t *value, size_t bytes) {
  return bytes == 0 || (bytes == 8 && memcmp(value, "identity", 8) == 0) ? GRPC_IDENTITY
                                                                         : GRPC_UNSUPPORTED;
}

void grpc_prefix_write(uint8_t out[GRPC_PREFIX_BYTES], uint32_t message_bytes) {
  out[0] = 0;
  out[1] = (uint8_t)(message_bytes >> 24);
  out[2] = (uint8_t)(message_bytes >> 16);
  out[3] = (uint8_t)(message_bytes >> 8);
  out[4] = (uint8_t)message_bytes;
}

// ---- grpc-message ----

static size_t encode_byte(uint8_t byte, uint8_t *out) {
  static const char hex[] = "0123456789ABCDEF";
  if (byte >= 0x20 && byte <= 0x7E && byte != '%') {
    out[0] = byte;
    return 1;
  }
  out[0] = '%';
  out[1] = (uint8_t)hex[byte >> 4];
  out[2] = (uint8_t)hex[byte & 15];
  return 3;
}

size_t grpc_message_encode(const char *text, uint8_t out[GRPC_MESSAGE_ENCODED_BYTES]) {
  static const uint8_t replacement[] = {0xEF, 0xBF, 0xBD};
  const uint8_t *at = (const uint8_t *)text;
  size_t n = 0, taken = 0;
  while (*at) {
    size_t bytes = utf8_bytes(at, 4);
    const uint8_t *from = bytes ? at : replacement;
    size_t from_bytes = bytes ? bytes : sizeof replacement;
    if (taken + from_bytes > GRPC_MESSAGE_MAX_BYTES) break;
    for (size_t i = 0; i < from_bytes; i++)
      n += encode_byte(from[i], out + n);
    taken += from_bytes;
    at += bytes ? bytes : 1;
  }
  return n;
}

// ---- messages ----

static enum status check_flag(uint8_t flag, enum grpc_encoding encoding, struct error *err) {
  if (flag == 0) return STATUS_OK;
  if (flag != 1)
    return error_set(err, STATUS_INTERNAL, "message flag byte is %u, expected 0", flag);
  if (encoding == GRPC_UNSUPPORTED)
    return error_set(err, STATUS_UNIMPLEMENTED,
                     "message is compressed; only grpc-encoding identity is accepted");
  return error_set(err, STATUS_INTERNAL,
                   "message is marked compressed, but grpc-encoding names no compression");
}

// A slab for at least `needed` bytes: all that was declared, unless that would be too far ahead;
// then eightfold steps, so that little is copied twice.
static enum status framer_grow(struct grpc_framer *framer, struct grpc_room *room, size_t needed,
                               struct error *err) {
  size_t bytes = framer->declared;
  if (room->ahead_bytes - framer->ahead + (framer->declared - framer->filled) > room->ahead_limit) {
    bytes = framer->slab ? framer->slab->capacity_bytes * 8 : GRPC_SMALL_SLAB_BYTES;
    while (bytes < needed)
      bytes *= 8;
    bytes = bytes < framer->declared ? bytes : framer->declared;
  }
  struct slab *slab = slab_get(room->pool, bytes > 0 ? bytes : 1);
  if (!slab) {
    metrics_call_refused(CALL_REFUSED_TOTAL_BYTES);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "no room for a message of %" PRIu32 " bytes: limits.total_bytes is used up",
                     framer->declared);
  }
  if (framer->slab) {
    copy_bytes(slab->data, framer->slab->data, framer->filled);
    slab_put(room->pool, framer->slab);
  }
  framer->slab = slab;
  framer->room =
      slab->capacity_bytes < framer->declared ? (uint32_t)slab->capacity_bytes : framer->declared;
  room->ahead_bytes += framer->room - framer->filled - framer->ahead;
  framer->ahead = framer->room - framer->filled;
  return STATUS_OK;
}

// A slab is up to twice as large as what it is for.
bool grpc_room_fair(const struct grpc_room *room, size_t bytes) {
  int64_t slab_bytes = bytes < GRPC_SMALL_SLAB_BYTES ? GRPC_SMALL_SLAB_BYTES : 2 * (int64_t)bytes;
  return slab_bytes <= slab_pool_fair_bytes(room->pool, room->held_bytes);
}

// The prefix is complete: check it, count the declared length, take the first slab.
static enum status framer_start(struct grpc_framer *framer, struct grpc_room *room,
                                enum grpc_encoding encoding, struct error *err) {
  const uint8_t *p = framer->prefix;
  framer->declared = (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4];
  enum status status = check_flag(p[0], encoding, err);
  if (status != STATUS_OK) return status;
  if (framer->declared > room->max_message_bytes) {
    metrics_call_refused(CALL_REFUSED_MESSAGE_BYTES);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "message of %" PRIu32 " bytes is larger than limits.message_bytes (%" PRId64
                     ")",
                     framer->declared, room->max_message_bytes);
  }
  if (framer->declared > room->connection_bytes - room->held_bytes) {
    metrics_call_refused(CALL_REFUSED_CONNECTION_BYTES);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "message of %" PRIu32 " bytes beside %" PRId64
                     " held for this connection is more than limits.connection_bytes (%" PRId64 ")",
                     framer->declared, room->held_bytes, room->connection_bytes);
  }
  if (!grpc_room_fair(room, framer->declared)) {
    metrics_call_refused(CALL_REFUSED_TOTAL_BYTES);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "no room for a message of %" PRIu32 " bytes beside %" PRId64
                     " held for this connection: limits.total_bytes is nearly used up",
                     framer->declared, room->held_bytes);
  }
  framer->counted = framer->declared;
  room->held_bytes += framer->counted;
  return framer_grow(framer, room, 0, err);
}

bool grpc_framer_whole(const struct grpc_framer *framer) {
  return framer->have == GRPC_PREFIX_BYTES && framer->filled == framer->declared;
}

enum status grpc_framer_take(struct grpc_framer *framer, struct grpc_room *room,
                             enum grpc_encoding encoding, const uint8_t *data, size_t bytes,
                             size_t *used, struct error *err) {
  *used = bytes;
  if (framer->have < GRPC_PREFIX_BYTES) {
    size_t take = GRPC_PREFIX_BYTES - framer->have;
    take = take < bytes ? take : bytes;
    memcpy(framer->prefix + framer->have, data, take);
    framer->have += (uint8_t)take;
    data += take;
    bytes -= take;
    if (framer->have < GRPC_PREFIX_BYTES) return STATUS_OK;
    enum status status = framer_start(framer, room, encoding, err);
    if (status != STATUS_OK) return status;
  }
  if (bytes > framer->declared - framer->filled) {
    *used -= bytes - (framer->declared - framer->filled);
    bytes = framer->declared - framer->filled;
  }
  if (bytes == 0) return STATUS_OK;
  size_t needed = framer->filled + bytes;
  if (needed > framer->room) {
    enum status status = framer_grow(framer, room, needed, err);
    if (status != STATUS_OK) return status;
  }
  copy_bytes(framer->slab->data + framer->filled, data, bytes);
  framer->filled += (uint32_t)bytes;
  framer->ahead -= (uint32_t)bytes;
  room->ahead_bytes -= (int64_t)bytes;
  return STATUS_OK;
}

enum status grpc_framer_feed(struct grpc_framer *framer, struct grpc_room *room,
                             enum grpc_encoding encoding, const uint8_t *data, size_t bytes,
                             struct error *err) {
  size_t used;
  enum status status = grpc_framer_take(framer, room, encoding, data, bytes, &used, err);
  if (status == STATUS_OK && used < bytes)
    status = error_set(err, STATUS_UNIMPLEMENTED, "more than one message in a unary call");
  return status;
}

enum status grpc_framer_end(const struct grpc_framer *framer, struct error *err) {
  if (framer->have == 0) return error_set(err, STATUS_UNIMPLEMENTED, "no message in a unary call");
  if (framer->have < GRPC_PREFIX_BYTES)
    return error_set(err, STATUS_INTERNAL,
                     "stream ended after %u of the 5 bytes of a message prefix", framer->have);
  if (framer->filled < framer->declared)
    return error_set(err, STATUS_INTERNAL,
                     "stream ended after %" PRIu32 " of the message's %" PRIu32 " bytes",
                     framer->filled, framer->declared);
  return STATUS_OK;
}

void grpc_framer_drop(struct grpc_framer *framer, struct grpc_room *room) {
  if (framer->slab) slab_put(room->pool, framer->slab);
  framer->slab = NULL;
  FW_ASSERT(room->held_bytes >= framer->counted);
  room->held_bytes -= framer->counted;
  room->ahead_bytes -= framer->ahead;
  framer->counted = framer->ahead = 0;
}
