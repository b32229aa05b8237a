/* What exporting and importing share: the manifest, and the spool. */
#ifndef SESSIONS_BUNDLE_INTERNAL_H
#define SESSIONS_BUNDLE_INTERNAL_H

#include <jansson.h>

#include "base/buf.h"
#include "base/hash.h"
#include "sessions/archive.h"
#include "sessions/bundle.h"

#define BUNDLE_SESSION "session.json"
#define BUNDLE_ITEMS "items.jsonl"
#define BUNDLE_TAPE "tape.u32"
#define BUNDLE_BLOBS "blobs/"
#define BUNDLE_KV "kv/"
#define BUNDLE_MAX_FILES (3u + BUNDLE_MAX_BLOBS + BUNDLE_MAX_KV_PARTS)

/* Names in the order that they have, and the most bytes of each. */
enum bundle_part { PART_SESSION, PART_ITEMS, PART_TAPE, PART_BLOB, PART_KV };

struct bundle_file {
    enum bundle_part part;
    uint8_t hash[HASH_BYTES];
    uint64_t bytes;
    uint64_t at; /* in the spool */
};

struct bundle_manifest {
    char id[SESSION_ID_CAP];
    char name[SESSION_NAME_CAP];
    bool redacted;
    struct bundle_file *files;
    size_t n_files, cap;
    size_t n_of[PART_KV + 1]; /* files of each part */
    uint64_t total;           /* bytes of all files */
    uint64_t total_kv;        /* of these */
};
void bundle_manifest_fini(struct bundle_manifest *m);
/* Appends a file. ERR_LIMIT: too many. */
NODISCARD enum err bundle_manifest_add(struct bundle_manifest *m, struct bundle_file f,
                                       struct error *e);
/* The name of a member. */
void bundle_file_name(const struct bundle_file *f, char out[ARCHIVE_NAME_CAP]);
/* As JSON text, appended. */
NODISCARD enum err bundle_manifest_write(const struct bundle_manifest *m, uint64_t now_ms,
                                         struct buf *out, struct error *e);
/* Reads and checks all of it: version, names, order, caps, duplicates. ERR_FORMAT. */
NODISCARD enum err bundle_manifest_read(const char *text, size_t n, struct bundle_manifest *out,
                                        struct error *e);
/* The blob or part of state with this hash (binary search: they are sorted by it), or NULL. */
const struct bundle_file *bundle_find(const struct bundle_manifest *m, enum bundle_part part,
                                      const uint8_t hash[HASH_BYTES]);

/* A nameless file of ours beside the database, for members on their way. *fd is closed by the
 * caller. */
struct store;
NODISCARD enum err bundle_spool_open(const char *near, int *fd, struct error *e);

/* Approval as a bundle has it, in place. */
void bundle_reset_permissions(json_t *config);

#endif
