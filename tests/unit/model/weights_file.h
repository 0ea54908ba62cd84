// A safetensors file of a given header, for tests: its data are zeros.
#ifndef UNIT_MODEL_WEIGHTS_FILE_H
#define UNIT_MODEL_WEIGHTS_FILE_H

#include "unit/conf/collect.h"

#define WEIGHTS_FILE_BYTES 2048 // most of header and data together

static inline void write_weights(const char *to, const char *header, size_t data_bytes) {
  size_t length = strlen(header);
  uint8_t bytes[WEIGHTS_FILE_BYTES] = {(uint8_t)length, (uint8_t)(length >> 8)};
  assert_true(8 + length + data_bytes <= sizeof bytes);
  memcpy(bytes + 8, header, length);
  write_file(to, bytes, 8 + length + data_bytes);
}

#endif
