// Any bytes as a safetensors file: what is taken may be read to its last byte.
// links: fw_model fw_base
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

static unsigned volatile sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct safetensors *file = NULL;
  struct error err = {0};
  uint8_t *exact = malloc(size != 0 ? size : 1); // one byte too far is seen
  if (exact == NULL) return 0;
  if (size != 0) memcpy(exact, data, size);
  enum status code = safetensors_parse(exact, size, "fuzz", &file, &err);
  if (code != STATUS_OK && err.message[0] == '\0') abort(); // refused without a word
  size_t covered = 0;
  for (int32_t i = 0; file != NULL && i < safetensors_count(file); i++) {
    const struct safetensors_entry *entry = safetensors_at(file, i);
    const uint8_t *bytes = entry->data;
    if (safetensors_find(file, entry->name) != entry) abort();
    if (entry->bytes != 0) sink += bytes[0] + bytes[entry->bytes - 1];
    covered += entry->bytes;
  }
  if (file != NULL && covered > size) abort(); // tensors may not share bytes
  safetensors_close(file);
  free(exact);
  return 0;
}
