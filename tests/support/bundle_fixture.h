/* Bundles made by hand: good ones with other members, and bad ones of every kind. */
#ifndef TESTS_SUPPORT_BUNDLE_FIXTURE_H
#define TESTS_SUPPORT_BUNDLE_FIXTURE_H

#include "base/buf.h"
#include "base/hash.h"

/* One member as it will stand in the archive. */
struct bundle_member {
    const char *name;
    const void *bytes;
    size_t n;
};

/* A session.json without turns and calls, for a tape of n tokens in one input segment. */
void bundle_session_text(uint64_t n_tokens, struct buf *out);
/* The name of a blob with these bytes. */
void bundle_blob_name(const void *bytes, size_t n, char out[100]);
/* A manifest of version 1 for these members: sizes and hashes as they are. */
void bundle_manifest_text(const struct bundle_member *m, size_t n, struct buf *out);
/* A file at path: the manifest first, then the members. */
void bundle_write(const char *path, const char *manifest, const struct bundle_member *m,
                  size_t n);
/* bundle_manifest_text and bundle_write. */
void bundle_write_members(const char *path, const struct bundle_member *m, size_t n);
/* One zstd frame around these bytes, as a file. */
void bundle_write_frame(const char *path, const void *bytes, size_t n);
/* The inflated archive of a file. */
void bundle_inflate(const char *path, struct buf *out);
/* The bytes of a member in an inflated archive; NULL if it has none of this name. */
const uint8_t *bundle_member_of(const struct buf *tar, const char *name, size_t *n);
/* Asserts that two files are the same but for what an import changes: every member but the
 * manifest is equal, and of the manifest all behind id, name and time, where the hashes of all
 * members stand. */
void bundles_same(const char *one, const char *two);

#endif
