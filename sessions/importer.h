/* A bundle on its way in, for the files that take it apart: importer_unpack.c puts its members
 * into the spool, importer_tape.c writes what they say as a tape, bundle_import.c makes the
 * session around it, and looks at its model state. */
#ifndef SESSIONS_IMPORTER_H
#define SESSIONS_IMPORTER_H

#include "base/json.h"
#include "sessions/bundle_internal.h"
#include "sessions/bundle_kv.h"
#include "sessions/tape.h"

/* Members lie in the spool, hashed, before any of them is looked at. */
struct importer {
    struct store *st;
    const struct bundle_import *o;
    struct bundle_manifest m;
    int spool;
    const uint8_t *bytes; /* the spool, mapped */
    json_t *session;
    struct bundle_state state; /* position 0: none */
    bool has_state;            /* and it is to be taken */
    uint64_t seq;              /* events written */
    size_t turn;               /* turns written */
    size_t restart;            /* restarts done */
    uint64_t max_position;     /* of events since the tape began anew */
    struct bundle_imported done;
};

/* Into the spool, and x->bytes. ERR_FORMAT: it is no bundle, or not what its hashes say. */
NODISCARD enum err importer_unpack(struct importer *x, struct error *e);
/* A member's bytes, borrowed: [f->bytes]. */
const char *importer_member(const struct importer *x, const struct bundle_file *f);

/* In the import's transaction; what the tape refuses is the bundle's fault: ERR_FORMAT. First
 * items with the turns between them, then the tape that they stand on, then calls. */
NODISCARD enum err importer_write_items(struct importer *x, struct error *e);
NODISCARD enum err importer_write_tape(struct importer *x, struct error *e);
NODISCARD enum err importer_write_calls(struct importer *x, struct error *e);
/* One step of them. */
NODISCARD enum err importer_apply(struct importer *x, struct tape_commit *c, uint64_t t_ms,
                                  struct error *e);

/* The field's value, or returns from where this stands. */
#define NEED_UINT(object, field, out)                                                          \
    do {                                                                                       \
        int64_t v_ = 0;                                                                        \
        enum err rc_ = json_need_int(object, field, 0, INT64_MAX, &v_, e);                     \
        if (rc_)                                                                               \
            return rc_;                                                                        \
        (out) = (uint64_t)v_;                                                                  \
    } while (0)

#endif
