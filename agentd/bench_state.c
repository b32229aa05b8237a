#include "agentd/bench_state.h"

#include <stdio.h>
#include <string.h>

#include "base/aio.h"

#define VOCABULARY 129280u
#define CHECK_ROWS 4096u

const char *const bench_geometry_names[] = {"v4.1-flash", "small", NULL};

static void add_plane(struct state_layout *l, const char *name, enum plane_kind kind,
                      uint32_t row_bytes, uint32_t ratio)
{
    struct plane_spec *p = &l->planes[l->n_planes++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->kind = kind;
    p->row_bytes = row_bytes;
    p->ratio = ratio;
}

/* KV sources 2, 8, 14 with ratio 2 and 20 with ratio 1; rows of 512 FP4 with an E4M3 scale per
 * 16, keys of 128 FP4 with a UE8M0 scale per 32. The tip: 43 rings of 128 rows of 528 bytes,
 * the open groups of 4 compressors, the last residual, fields. */
static void flash(struct state_layout *l)
{
    static const char *const names[] = {"L2", "L8", "L14", "L20"};
    for (int i = 0; i < 4; i++) {
        char name[24];
        uint32_t ratio = i < 3 ? 2 : 1;
        snprintf(name, sizeof name, "%s.kv", names[i]);
        add_plane(l, name, PLANE_MAIN, 512 / 2 + 512 / 16, ratio);
        snprintf(name, sizeof name, "%s.index", names[i]);
        add_plane(l, name, PLANE_INDEX, 128 / 2 + 128 / 32, ratio);
    }
    l->tip_bytes = 43 * 128 * 528 + 4 * 2 * 512 * 4 + 5120 * 4 + 176;
    l->replay_tokens = 5081;
    l->window = 128;
}

void bench_layout(enum bench_geometry g, struct state_layout *out)
{
    *out = (struct state_layout){.replay_tokens = 10, .window = 4, .tip_bytes = 20000};
    memset(out->fingerprint, 0xbe, sizeof out->fingerprint);
    snprintf(out->numerics, sizeof out->numerics, "bench/1");
    if (g == BENCH_V41_FLASH) {
        flash(out);
        return;
    }
    add_plane(out, "L0.kv", PLANE_MAIN, 20, 2);
    add_plane(out, "L0.index", PLANE_INDEX, 4, 2);
    add_plane(out, "L1.kv", PLANE_MAIN, 12, 1);
    add_plane(out, "L1.index", PLANE_INDEX, 3, 1);
}

/* SplitMix64's finaliser: neighbours have nothing in common. */
static uint64_t mix(uint64_t v)
{
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return v ^ (v >> 31);
}

/* Bytes [at, at + n) of a stream. */
static void fill(uint64_t stream, uint64_t at, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n;) {
        uint64_t word = mix((stream << 48) + (at + i) / 8);
        size_t skip = (size_t)((at + i) % 8);
        size_t take = 8 - skip < n - i ? 8 - skip : n - i;
        memcpy(out + i, (const uint8_t *)&word + skip, take);
        i += take;
    }
}

void bench_ids(uint64_t from, uint64_t n, uint32_t *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = (uint32_t)(mix(from + i + 1) % VOCABULARY);
}

void bench_rows(const struct state_layout *l, uint32_t plane, uint64_t first, uint64_t n,
                void *out)
{
    uint64_t row = l->planes[plane].row_bytes;
    fill(plane + 1, first * row, (size_t)(n * row), out);
}

void bench_tip(const struct state_layout *l, uint64_t position, void *out)
{
    fill(0xffff, position * l->tip_bytes, (size_t)l->tip_bytes, out);
}

/* ---- room -------------------------------------------------------------------------------- */

enum err bench_room_new(struct bench_room *r, const struct state_layout *l, uint64_t n_tokens,
                        struct error *e)
{
    struct bench_room room = {.regions = {.n_tokens = n_tokens}};
    enum err rc = aio_buffer_new((size_t)l->tip_bytes, &room.tip, e);
    for (uint32_t p = 0; p < l->n_planes && !rc; p++) {
        /* A run that begins inside a group completes one row more than its length has. */
        uint64_t rows = state_rows(&l->planes[p], n_tokens) + 1;
        room.bytes[p] = (size_t)(rows * l->planes[p].row_bytes);
        rc = aio_buffer_new(room.bytes[p], &room.regions.plane[p], e);
    }
    *r = room;
    r->tip_bytes = (size_t)l->tip_bytes;
    if (rc)
        bench_room_fini(r);
    return rc;
}

void bench_room_fini(struct bench_room *r)
{
    for (uint32_t p = 0; p < STATE_MAX_PLANES; p++)
        aio_buffer_free(r->regions.plane[p], r->bytes[p]);
    aio_buffer_free(r->tip, r->tip_bytes);
    memset(r, 0, sizeof *r);
}

void bench_room_fill(struct bench_room *r, const struct state_layout *l, uint64_t from,
                     uint64_t to)
{
    for (uint32_t p = 0; p < l->n_planes; p++) {
        uint32_t ratio = l->planes[p].ratio;
        bench_rows(l, p, from / ratio, to / ratio - from / ratio, r->regions.plane[p]);
    }
    bench_tip(l, to, r->tip);
}

static enum err check_plane(const struct bench_room *r, const struct state_layout *l,
                            uint32_t plane, uint64_t n_rows, uint8_t *want, struct error *e)
{
    size_t row = l->planes[plane].row_bytes;
    const uint8_t *got = r->regions.plane[plane];
    for (uint64_t at = 0; at < n_rows; at += CHECK_ROWS) {
        size_t n = (size_t)(n_rows - at < CHECK_ROWS ? n_rows - at : CHECK_ROWS);
        bench_rows(l, plane, at, n, want);
        for (size_t i = 0; i < n; i++)
            if (memcmp(got + (at + i) * row, want + i * row, row) != 0)
                return err_set(e, ERR_CORRUPT, "plane %.23s: row %llu is not what was saved",
                               l->planes[plane].name, (unsigned long long)(at + i));
    }
    return OK;
}

enum err bench_room_check(const struct bench_room *r, const struct state_layout *l,
                          uint64_t n_tokens, struct error *e)
{
    size_t most = r->tip_bytes;
    for (uint32_t p = 0; p < l->n_planes; p++)
        if (most < (size_t)CHECK_ROWS * l->planes[p].row_bytes)
            most = (size_t)CHECK_ROWS * l->planes[p].row_bytes;
    void *want;
    enum err rc = aio_buffer_new(most, &want, e);
    if (rc)
        return rc;
    for (uint32_t p = 0; p < l->n_planes && !rc; p++)
        rc = check_plane(r, l, p, state_rows(&l->planes[p], n_tokens), want, e);
    bench_tip(l, n_tokens, want);
    if (!rc && memcmp(r->tip, want, r->tip_bytes) != 0)
        rc = err_set(e, ERR_CORRUPT, "the tip is not what was saved");
    aio_buffer_free(want, most);
    return rc;
}
