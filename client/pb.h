// Protobuf wire format by hand, for the two messages of the hot path (ModelInferRequest,
// ModelInferResponse): the generated code would allocate for each field and copy each payload.
// Everything else uses protobuf-c. Pure functions of bytes; any thread.
#ifndef CLIENT_PB_H
#define CLIENT_PB_H

#include "base/slab.h"
#include "base/status.h"
#include <stdint.h>

// ---- writing: a growing buffer that remembers a failure -----------------------------------------
struct pb_buf {
  uint8_t *data;
  size_t bytes, capacity;
  bool failed; // out of memory: everything after it is dropped; look once at the end
};

void pb_free(struct pb_buf *buf);
void pb_append(struct pb_buf *buf, const void *data, size_t bytes); // as it is, no tag
void pb_varint(struct pb_buf *buf, uint64_t value);                 // as it is, no tag
void pb_put_varint(struct pb_buf *buf, uint32_t field, uint64_t value);
void pb_put_bytes(struct pb_buf *buf, uint32_t field, const void *data, size_t bytes);
void pb_put_text(struct pb_buf *buf, uint32_t field, const char *text);
void pb_put_message(struct pb_buf *buf, uint32_t field,
                    const struct pb_buf *message); // passes a failure on
// Only tag and length of a bytes field whose `bytes` follow from elsewhere.
void pb_put_length(struct pb_buf *buf, uint32_t field, size_t bytes);

// ---- reading: a cursor over borrowed bytes ------------------------------------------------------
enum pb_type { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct pb_reader {
  const uint8_t *at, *end;
  bool malformed; // bad tag, varint over 10 bytes, group
  bool cut;       // the last field reaches past `end`
};

struct pb_field {
  uint32_t number;
  enum pb_type type;
  uint64_t value;     // varint and fixed types
  struct slice bytes; // PB_BYTES: borrowed
};

struct pb_reader pb_reader_of(struct slice bytes);
// The next field; false at the end, or when malformed or cut (look at the flags).
bool pb_next(struct pb_reader *reader, struct pb_field *field);
bool pb_read_varint(struct pb_reader *reader, uint64_t *value); // for packed fields
bool slice_is(struct slice slice, const char *text);

#endif
