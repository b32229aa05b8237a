/* One extent of the catalog with its row, of whichever kind, read and verified whole: for
 * moving it (pack_rewrite.h) and for looking at all of them (fsck.h). Store's thread. */
#ifndef SESSIONS_WHOLE_H
#define SESSIONS_WHOLE_H

#include "sessions/head_internal.h"

struct whole {
    enum catalog_table kind;
    int64_t id;
    union {
        struct block_row block;
        struct tail_row tail;
        struct tip_row tip;
    } row;
};

/* What all kinds of rows have in common. */
struct extent_row *whole_row(struct whole *w);
/* By w->kind and w->id. Errors as block_read. */
NODISCARD enum err whole_load(struct store *st, struct whole *w, struct error *e);
NODISCARD enum err whole_store(struct store *st, const struct whole *w, struct error *e);

/* The bytes of the extent into st->extent as they are on disk, every tag checked and the header
 * compared with the row; *h is the header (to be given to head_extent_fini). ERR_CORRUPT,
 * ERR_FORMAT, ERR_NOTFOUND or ERR_IO: unusable. */
NODISCARD enum err whole_read(struct store *st, struct whole *w, struct head_extent *h,
                              struct error *e);

#endif
