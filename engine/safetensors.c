#include "engine/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/json.h"

#define INDEX "model.safetensors.index.json"

struct shard {
    char *name;
    const uint8_t *map;
    uint64_t n_bytes, n_disk_bytes, n_header;
    struct fs_identity identity;
    bool mapped; /* ours to unmap, and fd ours to close */
    int fd;
};

struct safetensors {
    struct shard *shards;
    size_t n_shards;
    struct tensor *tensors; /* sorted by name; the names are ours */
    size_t n_tensors, cap_tensors;
};

static const struct {
    const char *name;
    size_t n_bytes;
} DTYPES[N_DTYPES] = {
    [DTYPE_BF16] = {"BF16", 2},    [DTYPE_F32] = {"F32", 4}, [DTYPE_E4M3] = {"F8_E4M3", 1},
    [DTYPE_E8M0] = {"F8_E8M0", 1}, [DTYPE_I8] = {"I8", 1},   [DTYPE_U8] = {"U8", 1},
    [DTYPE_I32] = {"I32", 4},      [DTYPE_I64] = {"I64", 8}, [DTYPE_F16] = {"F16", 2},
    [DTYPE_F64] = {"F64", 8},
};

static inline void safetensors_fini(struct safetensors **s)
{
    safetensors_free(*s);
}
#define AUTO_ST __attribute__((cleanup(safetensors_fini)))

const char *dtype_name(enum dtype t)
{
    return DTYPES[t].name;
}

size_t dtype_bytes(enum dtype t)
{
    return DTYPES[t].n_bytes;
}

/* ---- one header ---------------------------------------------------------------------------
 */

static enum err parse_dtype(const char *name, const json_t *v, enum dtype *out, struct error *e)
{
    const char *s = json_string_value(v);
    if (!s)
        return err_set(e, ERR_FORMAT, "tensor %.100s: no dtype", name);
    for (int i = 0; i < N_DTYPES; i++)
        if (!strcmp(s, DTYPES[i].name)) {
            *out = (enum dtype)i;
            return OK;
        }
    return err_set(e, ERR_UNSUPPORTED, "tensor %.100s: dtype %.20s", name, s);
}

/* A JSON integer that is a size: 0 .. 2^62. */
static bool json_size(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) > (json_int_t)1 << 62)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static enum err parse_shape(const char *name, const json_t *v, struct tensor *t,
                            uint64_t *n_bytes, struct error *e)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > TENSOR_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "tensor %.100s: shape is no list of at most %d sizes",
                       name, TENSOR_MAX_DIMS);
    uint64_t total = dtype_bytes(t->dtype);
    for (size_t i = 0; i < n; i++) {
        if (!json_size(json_array_get(v, i), &t->shape[i]))
            return err_set(e, ERR_FORMAT, "tensor %.100s: dimension %zu is no size", name, i);
        if (__builtin_mul_overflow(total, t->shape[i], &total))
            return err_set(e, ERR_FORMAT, "tensor %.100s: its shape overflows", name);
    }
    t->n_dims = (uint32_t)n;
    *n_bytes = total;
    return OK;
}

static enum err parse_tensor(const char *name, const json_t *v, const uint8_t *data,
                             uint64_t n_data, struct tensor *t, struct error *e)
{
    enum err rc = parse_dtype(name, json_object_get(v, "dtype"), &t->dtype, e);
    if (rc)
        return rc;
    uint64_t want = 0, from = 0, to = 0;
    if ((rc = parse_shape(name, json_object_get(v, "shape"), t, &want, e)))
        return rc;
    const json_t *range = json_object_get(v, "data_offsets");
    if (json_array_size(range) != 2 || !json_size(json_array_get(range, 0), &from) ||
        !json_size(json_array_get(range, 1), &to) || from > to)
        return err_set(e, ERR_FORMAT, "tensor %.100s: data_offsets are no range", name);
    if (to > n_data)
        return err_set(e, ERR_FORMAT,
                       "tensor %.100s: ends at %" PRIu64 ", the file has %" PRIu64
                       " data bytes",
                       name, to, n_data);
    if (to - from != want)
        return err_set(e, ERR_FORMAT,
                       "tensor %.100s: %" PRIu64 " bytes, its shape wants %" PRIu64, name,
                       to - from, want);
    t->data = data + from;
    t->n_bytes = want;
    return OK;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* The ranges must tile the data: what overlaps or is left over was not written by a sane tool.
 */
static enum err check_tiling(struct tensor *t, size_t n, const uint8_t *data, uint64_t n_data,
                             struct error *e)
{
    const uint8_t *at = data;
    if (n)
        qsort(t, n, sizeof(*t), by_place);
    for (size_t i = 0; i < n; i++) {
        if (t[i].data != at)
            return err_set(e, ERR_FORMAT, "tensor %.100s: %s at data byte %" PRIu64, t[i].name,
                           t[i].data < at ? "overlaps another" : "follows a hole",
                           (uint64_t)(t[i].data - data));
        at += t[i].n_bytes;
    }
    if ((uint64_t)(at - data) != n_data)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " bytes behind the last tensor",
                       n_data - (uint64_t)(at - data));
    return OK;
}

static enum err reserve_tensors(struct safetensors *s, size_t more, struct error *e)
{
    if (more > SAFETENSORS_MAX_TENSORS - s->n_tensors)
        return err_set(e, ERR_LIMIT, "more than %u tensors", SAFETENSORS_MAX_TENSORS);
    size_t need = s->n_tensors + more;
    if (need <= s->cap_tensors)
        return OK;
    struct tensor *p = realloc(s->tensors, need * sizeof(*p));
    if (!p)
        return err_set(e, ERR_NOMEM, "%zu tensors", need);
    s->tensors = p;
    s->cap_tensors = need;
    return OK;
}

static enum err add_tensors(struct safetensors *s, json_t *header, uint32_t shard,
                            const uint8_t *data, uint64_t n_data, struct error *e)
{
    enum err rc = reserve_tensors(s, json_object_size(header), e);
    if (rc)
        return rc;
    size_t first = s->n_tensors;
    const char *name;
    json_t *v;
    json_object_foreach(header, name, v) {
        if (!strcmp(name, "__metadata__"))
            continue;
        struct tensor t = {.shard = shard};
        if ((rc = parse_tensor(name, v, data, n_data, &t, e)))
            return rc;
        if (!(t.name = strdup(name)))
            return err_set(e, ERR_NOMEM, "tensor %.100s", name);
        s->tensors[s->n_tensors++] = t;
    }
    struct tensor *added = s->n_tensors > first ? s->tensors + first : NULL;
    return check_tiling(added, s->n_tensors - first, data, n_data, e);
}

static enum err parse_shard(struct safetensors *s, uint32_t shard, struct error *e)
{
    const uint8_t *p = s->shards[shard].map;
    uint64_t n = s->shards[shard].n_bytes, n_header = 0;
    if (n < 8)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " bytes are no safetensors file", n);
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | p[i];
    if (n_header > SAFETENSORS_MAX_HEADER)
        return err_set(e, ERR_LIMIT, "header of %" PRIu64 " bytes, at most %u", n_header,
                       SAFETENSORS_MAX_HEADER);
    if (n_header > n - 8)
        return err_set(e, ERR_FORMAT, "header of %" PRIu64 " bytes in a file of %" PRIu64,
                       n_header, n);
    s->shards[shard].n_header = 8 + n_header;
    static const struct json_limits limits = {.max_bytes = SAFETENSORS_MAX_HEADER,
                                              .max_depth = SAFETENSORS_MAX_DEPTH,
                                              .max_marks = SAFETENSORS_MAX_MARKS};
    json_auto_t *header = NULL;
    enum err rc = json_parse((const char *)p + 8, (size_t)n_header, &limits, &header, e);
    if (rc)
        return err_wrap(e, rc, "header");
    if (!json_is_object(header))
        return err_set(e, ERR_FORMAT, "header is no JSON object");
    return add_tensors(s, header, shard, p + 8 + n_header, n - 8 - n_header, e);
}

/* ---- files --------------------------------------------------------------------------------
 */

static enum err map_shard(struct shard *s, const char *path, struct error *e)
{
    AUTO_FD int fd = -1;
    struct stat st;
    enum err rc = fs_open_regular(path, O_RDONLY, &fd, e);
    if (rc || (rc = fs_identity(fd, path, &s->identity, e)))
        return rc;
    if (fstat(fd, &st))
        return err_sys(e, errno, "%s", path);
    if (st.st_size < 8)
        return err_set(e, ERR_FORMAT, "%s: not a safetensors file", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, errno, "map %s", path);
    s->map = p;
    s->n_bytes = (uint64_t)st.st_size;
    s->n_disk_bytes = (uint64_t)st.st_blocks * 512;
    s->mapped = true;
    s->fd = TAKE_FD(fd);
    return OK;
}

static enum err add_file(struct safetensors *s, const char *dir, const char *name,
                         struct error *e)
{
    AUTO(buf) struct buf path = BUF_INIT(4096);
    enum err rc = buf_printf(&path, e, "%s%s%s", dir, *dir ? "/" : "", name);
    if (rc)
        return rc;
    struct shard *shard = &s->shards[s->n_shards];
    if (!(shard->name = strdup(name)))
        return err_set(e, ERR_NOMEM, "%s", name);
    s->n_shards++;
    if ((rc = map_shard(shard, buf_str(&path), e)))
        return rc;
    /* By its name alone: with paths in front there is no room for what is wrong. */
    rc = parse_shard(s, (uint32_t)(s->n_shards - 1), e);
    return rc ? err_wrap(e, rc, "%s", name) : OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static enum err sort_tensors(struct safetensors *s, struct error *e)
{
    if (s->n_tensors)
        qsort(s->tensors, s->n_tensors, sizeof(*s->tensors), by_name);
    for (size_t i = 1; i < s->n_tensors; i++) {
        const struct tensor *a = &s->tensors[i - 1], *b = &s->tensors[i];
        if (!strcmp(a->name, b->name))
            return err_set(e, ERR_FORMAT, "tensor %.100s is in two shards, %.40s and %.40s",
                           a->name, s->shards[a->shard].name, s->shards[b->shard].name);
    }
    return OK;
}

static enum err new_set(struct safetensors **out, size_t n_shards, struct error *e)
{
    struct safetensors *s = calloc(1, sizeof(*s));
    if (s)
        s->shards = calloc(n_shards, sizeof(*s->shards));
    if (!s || !s->shards) {
        free(s);
        return err_set(e, ERR_NOMEM, "%zu shards", n_shards);
    }
    *out = s;
    return OK;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The shard names of a weight_map, each once, sorted. A name is a plain file name: an index may
 * not point out of its folder. */
static enum err shard_names(const json_t *map, const char ***out, size_t *n_out,
                            struct error *e)
{
    size_t n = json_object_size(map), n_names = 0;
    AUTO_FREE const char **names = calloc(n ? n : 1, sizeof(*names));
    if (!names)
        return err_set(e, ERR_NOMEM, "weight_map of %zu", n);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v) {
        const char *s = json_string_value(v);
        if (!s || !*s || *s == '.' || strchr(s, '/'))
            return err_set(e, ERR_FORMAT, "weight_map: %.100s is in no plain file", key);
        names[n_names++] = s;
    }
    qsort(names, n_names, sizeof(*names), by_string);
    size_t kept = 0;
    for (size_t i = 0; i < n_names; i++)
        if (!kept || strcmp(names[kept - 1], names[i]))
            names[kept++] = names[i];
    if (!kept || kept > SAFETENSORS_MAX_SHARDS)
        return err_set(e, ERR_LIMIT, "weight_map: %zu shards, want 1 to %d", kept,
                       SAFETENSORS_MAX_SHARDS);
    *n_out = kept;
    *out = TAKE(names);
    return OK;
}

/* Index and shards must tell the same: a tensor in another shard than the index says is a mix
 * of two downloads. */
static enum err check_index(const struct safetensors *s, const json_t *map, struct error *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v) {
        const struct tensor *t = safetensors_find(s, key);
        if (!t)
            return err_set(e, ERR_FORMAT, "tensor %.100s is in the index, not in %.60s", key,
                           json_string_value(v));
        if (strcmp(s->shards[t->shard].name, json_string_value(v)))
            return err_set(e, ERR_FORMAT, "tensor %.100s is in %.40s, the index says %.40s",
                           key, s->shards[t->shard].name, json_string_value(v));
    }
    return OK;
}

static enum err open_indexed(struct safetensors **out, const char *dir, const json_t *index,
                             struct error *e)
{
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        return err_set(e, ERR_FORMAT, INDEX ": no weight_map");
    AUTO_FREE const char **names = NULL;
    size_t n = 0;
    enum err rc = shard_names(map, &names, &n, e);
    if (rc)
        return err_wrap(e, rc, INDEX);
    AUTO_ST struct safetensors *s = NULL;
    if ((rc = new_set(&s, n, e)))
        return rc;
    for (size_t i = 0; i < n; i++)
        if ((rc = add_file(s, dir, names[i], e)))
            return rc;
    if ((rc = sort_tensors(s, e)))
        return rc;
    if ((rc = check_index(s, map, e)))
        return err_wrap(e, rc, INDEX);
    *out = TAKE(s);
    return OK;
}

static enum err open_one(struct safetensors **out, const char *dir, const char *name,
                         struct error *e)
{
    AUTO_ST struct safetensors *s = NULL;
    enum err rc = new_set(&s, 1, e);
    if (rc || (rc = add_file(s, dir, name, e)) || (rc = sort_tensors(s, e)))
        return rc;
    *out = TAKE(s);
    return OK;
}

enum err safetensors_open_file(struct safetensors **out, const char *path, struct error *e)
{
    return open_one(out, "", path, e);
}

enum err safetensors_open_dir(struct safetensors **out, const char *dir, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(SAFETENSORS_MAX_INDEX);
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof(path), e, "%s/" INDEX, dir);
    if (rc || (rc = fs_read_regular(path, &text, e)))
        return rc == ERR_NOTFOUND ? open_one(out, dir, "model.safetensors", e) : rc;
    static const struct json_limits limits = {.max_bytes = SAFETENSORS_MAX_INDEX,
                                              .max_depth = SAFETENSORS_MAX_DEPTH,
                                              .max_marks = SAFETENSORS_MAX_MARKS};
    json_auto_t *index = NULL;
    if ((rc = json_parse(buf_str(&text), text.len, &limits, &index, e)))
        return err_wrap(e, rc, INDEX);
    return open_indexed(out, dir, index, e);
}

enum err safetensors_parse(struct safetensors **out, const uint8_t *bytes, uint64_t n,
                           struct error *e)
{
    AUTO_ST struct safetensors *s = NULL;
    enum err rc = new_set(&s, 1, e);
    if (rc)
        return rc;
    s->n_shards = 1;
    s->shards[0] = (struct shard){.map = bytes, .n_bytes = n, .n_disk_bytes = n};
    if ((rc = parse_shard(s, 0, e)) || (rc = sort_tensors(s, e)))
        return rc;
    *out = TAKE(s);
    return OK;
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_tensors; i++)
        free((char *)(uintptr_t)s->tensors[i].name);
    free(s->tensors);
    for (size_t i = 0; i < s->n_shards; i++) {
        if (s->shards[i].mapped) {
            munmap((void *)(uintptr_t)s->shards[i].map, (size_t)s->shards[i].n_bytes);
            close(s->shards[i].fd);
        }
        free(s->shards[i].name);
    }
    free(s->shards);
    free(s);
}

/* ---- look-up ------------------------------------------------------------------------------
 */

const struct tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct tensor key = {.name = name};
    if (!s->n_tensors)
        return NULL;
    return bsearch(&key, s->tensors, s->n_tensors, sizeof(key), by_name);
}

const struct tensor *safetensors_list(const struct safetensors *s, size_t *n)
{
    *n = s->n_tensors;
    return s->tensors;
}

size_t safetensors_n_shards(const struct safetensors *s)
{
    return s->n_shards;
}

const uint8_t *safetensors_shard(const struct safetensors *s, size_t i, uint64_t *n_bytes)
{
    *n_bytes = s->shards[i].n_bytes;
    return s->shards[i].map;
}

uint64_t safetensors_shard_on_disk(const struct safetensors *s, size_t i)
{
    return s->shards[i].n_disk_bytes;
}

const char *safetensors_shard_name(const struct safetensors *s, size_t i)
{
    return s->shards[i].name;
}

uint64_t safetensors_shard_header(const struct safetensors *s, size_t i)
{
    return s->shards[i].n_header;
}

const struct fs_identity *safetensors_shard_identity(const struct safetensors *s, size_t i)
{
    return &s->shards[i].identity;
}

/* What became of a file that is not as it was. */
static enum err tell_change(const char *name, const struct fs_identity *was,
                            const struct fs_identity *is, struct error *e)
{
    if (was->n_bytes != is->n_bytes)
        return err_set(e, ERR_CONFLICT,
                       "%s: changed while it was in use, from %" PRIu64 " to %" PRIu64 " bytes",
                       name, was->n_bytes, is->n_bytes);
    if (was->mtime_ns != is->mtime_ns)
        return err_set(e, ERR_CONFLICT, "%s: written to while it was in use", name);
    return err_set(e, ERR_CONFLICT,
                   "%s: written to while it was in use, its size and mtime kept", name);
}

enum err safetensors_shard_unchanged(const struct safetensors *s, size_t i, int fd,
                                     struct error *e)
{
    const struct fs_identity *was = &s->shards[i].identity;
    struct fs_identity is;
    enum err rc = fs_identity(fd, s->shards[i].name, &is, e);
    if (rc || fs_is_same(was, &is))
        return rc;
    if (was->dev != is.dev || was->ino != is.ino)
        return err_set(e, ERR_CONFLICT, "%s: another file took its place while it was in use",
                       s->shards[i].name);
    return tell_change(s->shards[i].name, was, &is, e);
}

enum err safetensors_unchanged(const struct safetensors *s, struct error *e)
{
    for (size_t i = 0; i < s->n_shards; i++) {
        const struct shard *x = &s->shards[i];
        struct fs_identity is;
        struct stat st;
        if (!x->mapped)
            continue;
        enum err rc = fs_identity(x->fd, x->name, &is, e);
        if (rc)
            return rc;
        if (fs_is_same(&x->identity, &is))
            continue;
        /* Losing a name changes the ctime, too; with one left it cannot be told from a write.
         */
        bool is_written =
            x->identity.n_bytes != is.n_bytes || x->identity.mtime_ns != is.mtime_ns;
        if (is_written || fstat(x->fd, &st) || st.st_nlink)
            return tell_change(x->name, &x->identity, &is, e);
    }
    return OK;
}
