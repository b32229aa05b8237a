/* Names for people: "brisk-otter". */
#ifndef AGENTD_NAMES_H
#define AGENTD_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* Writes the name that belongs to `draw`; two of about 4,000 draws are alike. With suffix > 0
 * the number is put behind ("brisk-otter-7"), for when a name is taken. cap >= 32. */
void name_make(uint64_t draw, unsigned suffix, char *out, size_t cap);

#endif
