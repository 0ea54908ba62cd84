// Text that comes from outside: is it UTF-8, and may a terminal or a log have it.
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

// Length of the well-formed character at `at`, of which `room` > 0 bytes may be read: 1..4, or 0
// where there is none (overlong, surrogate, past U+10FFFF, cut short). A NUL is a character of one
// byte, and cuts short what it stands in.
static inline size_t utf8_bytes(const uint8_t *at, size_t room) {
  uint8_t lead = at[0];
  if (lead < 0x80) return 1;
  size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  for (size_t i = 1; i < bytes; i++)
    if (i >= room || (at[i] & 0xc0) != 0x80) return 0;
  if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f)) return 0;
  if ((lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f)) return 0;
  return bytes;
}

// Replaces by '?' each byte of a control character (those of U+0080..U+009F too: terminals obey
// them) and of what is no UTF-8, so that names may be shown: a name that a message cuts short ends
// within a character. `text` is NUL-terminated. Any thread.
static inline void utf8_make_printable(char *text) {
  for (uint8_t *at = (uint8_t *)text; *at != '\0';) {
    size_t bytes = utf8_bytes(at, 4);
    if (bytes == 0 || at[0] < 0x20 || at[0] == 0x7f)
      *at++ = '?';
    else if (at[0] == 0xc2 && at[1] < 0xa0)
      *at++ = '?', *at++ = '?';
    else
      at += bytes;
  }
}

#endif
