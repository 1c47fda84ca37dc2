/* Look packed bytes up in tables: 16 bytes of codes share a row of 256 entries. Built on the user's machine. */
#include <stddef.h>
#include <stdint.h>

#define LOOK(NAME, TYPE)                                                                             \
  void NAME(const uint8_t *codes, const uint8_t *rows, const TYPE *table, TYPE *out, size_t groups) { \
    for (size_t g = 0; g < groups; ++g) {                                                            \
      const TYPE *row = table + 256 * (size_t)rows[g];                                               \
      for (int i = 0; i < 16; ++i) out[16 * g + i] = row[codes[16 * g + i]];                         \
    }                                                                                                \
  }

LOOK(look16, uint16_t)
LOOK(look32, uint32_t)
LOOK(look64, uint64_t)
