#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/encode.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/ulid.h"
#include "sessions/bundle_internal.h"
#include "sessions/tape.h"

#define FORMAT_NAME "agentd-bundle"

static const char *const fixed_names[] = {BUNDLE_SESSION, BUNDLE_ITEMS, BUNDLE_TAPE};

static uint64_t part_max(enum bundle_part part)
{
    switch (part) {
    case PART_SESSION:
        return BUNDLE_MAX_SESSION;
    case PART_ITEMS:
        return BUNDLE_MAX_ITEMS;
    case PART_TAPE:
        return TAPE_TOKENS_MAX * 4 < ARCHIVE_FILE_MAX ? TAPE_TOKENS_MAX * 4
                                                      : ARCHIVE_FILE_MAX - 1;
    case PART_KV:
        return BUNDLE_MAX_KV_PART;
    case PART_BLOB:
        break;
    }
    return BUNDLE_MAX_BLOB;
}

void bundle_manifest_fini(struct bundle_manifest *m)
{
    free(m->files);
    memset(m, 0, sizeof *m);
}

static bool fits(const struct bundle_manifest *m, const struct bundle_file *f)
{
    bool kv = f->part == PART_KV;
    uint64_t sum = (kv ? m->total_kv : m->total - m->total_kv) + f->bytes;
    return f->bytes <= part_max(f->part) && sum <= (kv ? BUNDLE_MAX_KV : BUNDLE_MAX_TOTAL) &&
           m->n_of[f->part] < (kv ? BUNDLE_MAX_KV_PARTS : BUNDLE_MAX_BLOBS) &&
           m->n_files < BUNDLE_MAX_FILES;
}

enum err bundle_manifest_add(struct bundle_manifest *m, struct bundle_file f, struct error *e)
{
    if (!fits(m, &f)) {
        char name[ARCHIVE_NAME_CAP];
        bundle_file_name(&f, name);
        return err_set(e, ERR_LIMIT, "bundle: %s of %llu bytes: too much for a bundle", name,
                       (unsigned long long)f.bytes);
    }
    if (m->n_files == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 16;
        struct bundle_file *grown = realloc(m->files, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "bundle: out of memory");
        m->files = grown;
        m->cap = cap;
    }
    m->files[m->n_files++] = f;
    m->n_of[f.part]++;
    m->total += f.bytes;
    m->total_kv += f.part == PART_KV ? f.bytes : 0;
    return OK;
}

void bundle_file_name(const struct bundle_file *f, char out[ARCHIVE_NAME_CAP])
{
    char hex[HEX_CHARS(HASH_BYTES)];
    hex_encode(f->hash, HASH_BYTES, hex);
    if (f->part >= PART_BLOB)
        snprintf(out, ARCHIVE_NAME_CAP, "%s%s", f->part == PART_KV ? BUNDLE_KV : BUNDLE_BLOBS,
                 hex);
    else
        snprintf(out, ARCHIVE_NAME_CAP, "%s", fixed_names[f->part]);
}

/* ---- writing ----------------------------------------------------------------------------- */

enum err bundle_manifest_write(const struct bundle_manifest *m, uint64_t now_ms,
                               struct buf *out, struct error *e)
{
    json_auto_t *root =
        json_pack("{s:s, s:i, s:{s:s, s:s}, s:I, s:b, s:[]}", "format", FORMAT_NAME, "version",
                  BUNDLE_VERSION, "session", "id", m->id, "name", m->name, "exportedMs",
                  (json_int_t)now_ms, "redacted", m->redacted, "files");
    json_t *files = json_object_get(root, "files");
    for (size_t i = 0; i < m->n_files; i++) {
        char name[ARCHIVE_NAME_CAP], hex[HEX_CHARS(HASH_BYTES)];
        bundle_file_name(&m->files[i], name);
        hex_encode(m->files[i].hash, HASH_BYTES, hex);
        if (json_array_append_new(files,
                                  json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                            (json_int_t)m->files[i].bytes, "blake2b", hex)))
            return err_set(e, ERR_NOMEM, "bundle: out of memory");
    }
    if (!root)
        return err_set(e, ERR_NOMEM, "bundle: out of memory");
    return json_write(root, JSON_COMPACT, out, e);
}

/* ---- reading ----------------------------------------------------------------------------- */

static enum err parse_name(const char *name, size_t i, struct bundle_file *f, struct error *e)
{
    uint8_t hash[HASH_BYTES];
    if (i < PART_BLOB) {
        f->part = (enum bundle_part)i;
        if (strcmp(name, fixed_names[i]) == 0)
            return OK;
        return err_set(e, ERR_FORMAT, "bundle: member %zu is %.80s, want %s", i + 1, name,
                       fixed_names[i]);
    }
    bool kv = strncmp(name, BUNDLE_KV, sizeof BUNDLE_KV - 1) == 0;
    size_t dir = kv ? sizeof BUNDLE_KV - 1 : sizeof BUNDLE_BLOBS - 1;
    f->part = kv ? PART_KV : PART_BLOB;
    if ((!kv && strncmp(name, BUNDLE_BLOBS, dir) != 0) ||
        hex_decode(name + dir, strlen(name + dir), hash, sizeof hash, NULL))
        return err_set(e, ERR_FORMAT, "bundle: %.80s is no name of a member", name);
    if (memcmp(hash, f->hash, sizeof hash) != 0)
        return err_set(e, ERR_FORMAT, "bundle: %.80s is not named by its hash", name);
    return OK;
}

static enum err read_file(const json_t *j, struct bundle_manifest *m, struct error *e)
{
    struct bundle_file f = {0};
    const char *name = NULL, *hash = NULL;
    int64_t bytes = 0;
    size_t n_hash = 0;
    enum err rc;
    if ((rc = json_need_str(j, "name", &name, NULL, e)) ||
        (rc = json_need_int(j, "bytes", 0, INT64_MAX, &bytes, e)) ||
        (rc = json_need_str(j, "blake2b", &hash, &n_hash, e)) ||
        (rc = hex_decode(hash, n_hash, f.hash, sizeof f.hash, e)) ||
        (rc = parse_name(name, m->n_files, &f, e)))
        return rc;
    f.bytes = (uint64_t)bytes;
    const struct bundle_file *last = m->n_files ? &m->files[m->n_files - 1] : NULL;
    /* Sorted, so that none can be there twice. */
    if (last && last->part >= PART_BLOB &&
        (last->part > f.part ||
         (last->part == f.part && memcmp(last->hash, f.hash, HASH_BYTES) >= 0)))
        return err_set(e, ERR_FORMAT, "bundle: %.80s is out of order, or there twice", name);
    rc = bundle_manifest_add(m, f, e);
    return rc == ERR_LIMIT ? ERR_FORMAT : rc;
}

static enum err read_head(const json_t *root, struct bundle_manifest *m, struct error *e)
{
    const char *format = NULL, *id = NULL, *name = NULL;
    int64_t version = 0;
    json_t *session = NULL;
    enum err rc;
    if ((rc = json_need_str(root, "format", &format, NULL, e)))
        return rc;
    if (strcmp(format, FORMAT_NAME) != 0)
        return err_set(e, ERR_FORMAT, "bundle: format is %.40s, want " FORMAT_NAME, format);
    if ((rc = json_need_int(root, "version", 1, INT64_MAX, &version, e)))
        return rc;
    if (version > BUNDLE_VERSION)
        return err_set(e, ERR_FORMAT, "bundle: version %lld, this build reads up to %d",
                       (long long)version, BUNDLE_VERSION);
    if ((rc = json_need_obj(root, "session", &session, e)) ||
        (rc = json_need_str(session, "id", &id, NULL, e)) ||
        (rc = json_need_str(session, "name", &name, NULL, e)) ||
        (rc = json_need_bool(root, "redacted", &m->redacted, e)))
        return rc;
    if (!ulid_is_valid(id, strlen(id)))
        return err_set(e, ERR_FORMAT, "bundle: session id %.40s is no ULID", id);
    snprintf(m->id, sizeof m->id, "%s", id);
    if (strlen(name) >= sizeof m->name)
        return err_set(e, ERR_FORMAT, "bundle: session name of %zu bytes", strlen(name));
    snprintf(m->name, sizeof m->name, "%s", name);
    return OK;
}

enum err bundle_manifest_read(const char *text, size_t n, struct bundle_manifest *out,
                              struct error *e)
{
    static const struct json_limits limits = {.max_bytes = BUNDLE_MAX_MANIFEST, .max_depth = 8};
    json_auto_t *root = NULL;
    json_t *files = NULL;
    struct bundle_manifest m = {0};
    enum err rc = json_parse(text, n, &limits, &root, e);
    if (rc)
        return err_wrap(e, rc == ERR_NOMEM ? rc : ERR_FORMAT, "bundle: manifest");
    if (!(rc = read_head(root, &m, e)))
        rc = json_need_arr(root, "files", &files, e);
    for (size_t i = 0; !rc && i < json_array_size(files); i++)
        rc = read_file(json_array_get(files, i), &m, e);
    if (!rc && m.n_files < PART_BLOB)
        rc = err_set(e, ERR_FORMAT, "bundle: only %zu members", m.n_files);
    if (!rc && m.files[PART_TAPE].bytes % 4)
        rc = err_set(e, ERR_FORMAT, "bundle: a tape of %llu bytes",
                     (unsigned long long)m.files[PART_TAPE].bytes);
    if (rc) {
        bundle_manifest_fini(&m);
        return rc;
    }
    *out = m;
    return OK;
}

const struct bundle_file *bundle_find(const struct bundle_manifest *m, enum bundle_part part,
                                      const uint8_t hash[HASH_BYTES])
{
    size_t lo = PART_BLOB + (part == PART_KV ? m->n_of[PART_BLOB] : 0), hi = lo + m->n_of[part];
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = memcmp(m->files[mid].hash, hash, HASH_BYTES);
        if (c == 0)
            return &m->files[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* ---- shared ------------------------------------------------------------------------------ */

enum err bundle_spool_open(const char *near, int *fd, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s.spool-XXXXXX", near);
    if (rc)
        return rc;
    int f = mkostemp(path, O_CLOEXEC);
    if (f < 0)
        return err_sys(e, errno, "make %s", path);
    unlink(path);
    *fd = f;
    return OK;
}

void bundle_reset_permissions(json_t *config)
{
    if (json_object_get(config, "approve"))
        json_object_set_new(config, "approve", json_string("ask"));
}
