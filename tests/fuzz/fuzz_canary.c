// A planted fault that libFuzzer and the replay of its corpus must find, or they find nothing
// elsewhere. links:
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size >= 4 && data[0] == 'F' && data[1] == 'U' && data[2] == 'S' && data[3] == 'E') abort();
  return 0;
}
