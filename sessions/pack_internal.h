/* What pack.c, pack_write.c and scan.c share. */
#ifndef SESSIONS_PACK_INTERNAL_H
#define SESSIONS_PACK_INTERNAL_H

#include "sessions/pack.h"

/* The pack that is being filled. */
struct pack_writer {
    struct pack_row row; /* row.length: committed bytes; id 0: none is open */
    int fd;
    bool direct;
    bool named;   /* its name is durable in the folder */
    bool dirty;   /* written since the last sync */
    uint64_t end; /* where the next extent goes */
};

struct packs {
    struct pack_file open[PACK_MAX_OPEN];
    uint64_t clock;
    struct pack_writer writer;
    struct pack_row *touched; /* packs that were sealed since the last commit */
    size_t n_touched, cap_touched;
    int64_t killed[PACK_MAX_KILLED];
    size_t n_killed;
};

/* One entry of the list in a sealed pack. */
#define PACK_LIST_BYTES 104u

/* The last page of a sealed pack: magic, offset of the list, zeros, tag in the last 16 bytes.
 */
#define PACK_TRAILER_MAGIC "AGDLIST1"
void pack_trailer_encode(const uint8_t *uuid, const uint8_t header_key[CRYPTO_KEY_BYTES],
                         uint64_t list_off, uint8_t page[EXTENT_PAGE]);

/* Closes the pack that is being filled; it is opened again from its row. */
void pack_close_writer(struct store *st);

NODISCARD enum err pack_row_take(struct query *q, struct pack_row *out, struct error *e);
NODISCARD enum err pack_open_fd(const struct store *st, const char *path, int flags, int *fd,
                                bool *direct, struct error *e);
NODISCARD enum err pack_read_super(const struct store *st, int fd, struct pack_super *out,
                                   struct error *e);

#endif
