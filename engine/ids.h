/* A growing list of token ids that cannot be made without a maximum; the twin of base/buf.h.
 *
 *     AUTO(ids) struct ids out = IDS_INIT(1 << 20);
 */
#ifndef ENGINE_IDS_H
#define ENGINE_IDS_H

#include "base/auto.h"
#include "base/err.h"

#include <stdint.h>

struct ids {
    uint32_t *v;
    size_t n;
    size_t cap;
    size_t max; /* most ids this list may ever hold */
};

#define IDS_INIT(max_ids)                                                                      \
    {                                                                                          \
        NULL, 0, 0, (max_ids)                                                                  \
    }

/* Frees the memory; the list is empty and usable again with the same maximum. */
void ids_fini(struct ids *l);
/* Makes room for n more. ERR_LIMIT past max, ERR_NOMEM; the contents stay as they were. */
NODISCARD enum err ids_reserve(struct ids *l, size_t n, struct error *e);
NODISCARD enum err ids_add(struct ids *l, uint32_t id, struct error *e);
NODISCARD enum err ids_add_all(struct ids *l, const uint32_t *v, size_t n, struct error *e);

#endif
