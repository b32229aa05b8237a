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
#define PACK_TRAILER_MAGIC "AGDLIST1"

NODISCARD enum err pack_row_take(struct query *q, struct pack_row *out, struct error *e);
NODISCARD enum err pack_open_fd(const struct store *st, const char *path, int flags, int *fd,
                                bool *direct, struct error *e);
NODISCARD enum err pack_read_super(const struct store *st, int fd, struct pack_super *out,
                                   struct error *e);

#endif
