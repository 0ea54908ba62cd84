// gRPC's own rules above HTTP/2, as functions of bytes: message framing, grpc-timeout,
// percent-encoding, header checks. Sans-I/O; everything here comes from outside and is hostile
// until checked.
#ifndef RPC_GRPC_H
#define RPC_GRPC_H

#include "base/slab.h"
#include <stdint.h>

// ---- headers ----
// "application/grpc" and then nothing, "+..." or ";...". Anything else is answered HTTP 415.
bool grpc_content_type_ok(const uint8_t *value, size_t bytes);
// 1 to 8 digits and one of HMSmun. False: malformed.
bool grpc_timeout_parse(const uint8_t *value, size_t bytes, int64_t *timeout_ns);

// W3C Trace Context, version 00: "00-" 32 hex digits "-" 16 "-" 2, lower case, neither id zero. Of
// a later version what that standard says is certain of it: the two ids and whether it is sampled,
// and whatever it may have behind them is passed over. Into `out` as version 00; false: it is none.
#define GRPC_TRACEPARENT_BYTES 55
bool grpc_traceparent_take(const uint8_t *value, size_t bytes,
                           char out[GRPC_TRACEPARENT_BYTES + 1]);
// The list beside it: "key=value" of up to 32 vendors, with commas between them; of several headers
// all, so joined. At most so many bytes of it are kept, which is what everybody must carry.
#define GRPC_TRACESTATE_BYTES 512
bool grpc_tracestate_ok(const uint8_t *value, size_t bytes);

enum grpc_encoding { GRPC_IDENTITY, GRPC_UNSUPPORTED }; // we decompress nothing
enum grpc_encoding grpc_encoding_parse(const uint8_t *value, size_t bytes);

// Percent-encodes `text` for grpc-message: all but 0x20-0x24 and 0x26-0x7E. Text that is not UTF-8
// gets U+FFFD for its bad bytes, and what does not fit is cut between characters. Returns bytes
// written; no terminator.
#define GRPC_MESSAGE_MAX_BYTES 1024 // of text, before encoding
#define GRPC_MESSAGE_ENCODED_BYTES (3 * GRPC_MESSAGE_MAX_BYTES)
size_t grpc_message_encode(const char *text, uint8_t out[GRPC_MESSAGE_ENCODED_BYTES]);

// ---- messages ----
#define GRPC_PREFIX_BYTES 5
void grpc_prefix_write(uint8_t out[GRPC_PREFIX_BYTES], uint32_t message_bytes);

// Where a connection's messages may go. `held_bytes` counts declared lengths of requests and sizes
// of answers; `ahead_bytes` is the part of the slabs that is allocated but not filled yet.
struct grpc_room {
  struct slab_pool *pool;
  int64_t max_message_bytes; // limits.message_bytes
  int64_t connection_bytes;  // limits.connection_bytes
  int64_t
      ahead_limit; // slabs may be allocated so far ahead of the bytes; then they grow as bytes come
  int64_t held_bytes, ahead_bytes;
};
// Whether this connection may have a message of `bytes`, as far as the process's budget goes
// (slab_pool_fair_bytes).
bool grpc_room_fair(const struct grpc_room *room, size_t bytes);

// Assembles the one message of a unary call from DATA bytes cut anywhere. As long as the connection
// is not too far ahead, the slab has the message's size from the start and each byte is copied
// once. A peer that declares much and sends little gets a small slab that grows, so that five bytes
// never cost more than a few KiB.
#define GRPC_SMALL_SLAB_BYTES 4096
struct grpc_framer {
  struct slab *slab; // NULL before the prefix is complete
  uint32_t declared; // length in the prefix
  uint32_t filled;   // bytes of the message so far
  uint32_t room;     // bytes that fit without growing
  uint32_t counted;  // what this framer has added to room->held_bytes
  uint32_t ahead;    // ... and to room->ahead_bytes
  uint8_t have;      // bytes of prefix so far
  uint8_t prefix[GRPC_PREFIX_BYTES];
};

// Appends. A failure is the call's answer (code and message in `err`):
//   UNIMPLEMENTED: a second message; a compressed message in an encoding we lack
//   INTERNAL: a flag byte that is neither 0 nor 1; flag 1 without an encoding
//   RESOURCE_EXHAUSTED: a length over limits.message_bytes, or no room; nothing is allocated
// After a failure the framer is to be given to grpc_framer_drop.
MUST_USE enum status grpc_framer_feed(struct grpc_framer *framer, struct grpc_room *room,
                                      enum grpc_encoding encoding, const uint8_t *data,
                                      size_t bytes, struct error *err);
// For calls of many messages: takes at most to the end of the message that it is in, and says how
// many bytes that were (at least one of `bytes` > 0). Same failures but "a second message".
MUST_USE enum status grpc_framer_take(struct grpc_framer *framer, struct grpc_room *room,
                                      enum grpc_encoding encoding, const uint8_t *data,
                                      size_t bytes, size_t *used, struct error *err);
bool grpc_framer_whole(const struct grpc_framer *framer); // a message is complete
// At END_STREAM. UNIMPLEMENTED: no message; INTERNAL: a truncated one. OK: `slab` holds `declared`
// bytes.
MUST_USE enum status grpc_framer_end(const struct grpc_framer *framer, struct error *err);
// Gives back the slab, if still here, and the budget.
void grpc_framer_drop(struct grpc_framer *framer, struct grpc_room *room);

#endif
