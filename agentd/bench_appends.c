/* bench store --appends: what a step of an agent writes, and what is left of it. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agentd/bench_store.h"
#include "sessions/gc.h"
#include "sessions/head.h"
#include "sessions/store.h"

#define SAVE_EVERY 16384u

/* The session as it is before the first append. */
static enum err write_history(struct bench *b, struct bench_room *room, struct error *e)
{
    enum err rc = OK;
    for (uint64_t at = 0; at < b->o->n_tokens && !rc;) {
        uint64_t n = b->o->n_tokens - at < SAVE_EVERY ? b->o->n_tokens - at : SAVE_EVERY;
        rc = bench_append(b, room, at, n, NULL, e);
        at += n;
    }
    return rc;
}

/* Bytes that the packs take on disk. */
static enum err disk_bytes(const char *folder, uint64_t *out, struct error *e)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return err_sys(e, errno, "open %s", folder);
    *out = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        struct stat sb;
        if (!fstatat(dirfd(dir), d->d_name, &sb, 0) && S_ISREG(sb.st_mode))
            *out += (uint64_t)sb.st_blocks * 512;
    }
    closedir(dir);
    return OK;
}

static enum err append_all(struct bench *b, struct bench_room *room, struct bench_appends *out,
                           double *ms, uint64_t *last_tips, struct error *e)
{
    const struct bench_options *o = b->o;
    struct head_receipt r;
    uint64_t tail = 0, tip = 0, all = 0;
    for (uint32_t i = 0; i < o->n_appends; i++) {
        uint64_t t0 = clock_mono_ns(b->clock);
        enum err rc = bench_append(b, room, o->n_tokens + i * o->step, o->step, &r, e);
        if (rc)
            return rc;
        ms[i] = (double)(clock_mono_ns(b->clock) - t0) / 1e6;
        tail += r.bytes_tail;
        if ((double)r.bytes_tail > out->tail_most)
            out->tail_most = (double)r.bytes_tail;
        tip += r.bytes_tip;
        all += r.bytes_written;
        *last_tips = i + 2 < o->n_appends ? 0 : *last_tips + r.bytes_tip;
    }
    double n = o->n_appends;
    out->tail_bytes = (double)tail / n;
    out->tip_bytes = (double)tip / n;
    out->block_bytes = (double)(all - tail - tip) / n;
    return OK;
}

static void sum_up(const struct bench *b, struct bench_appends *out)
{
    for (uint32_t p = 0; p < b->layout.n_planes; p++)
        out->row_bytes +=
            (double)b->o->step * b->layout.planes[p].row_bytes / b->layout.planes[p].ratio;
    double both = out->tail_bytes + out->block_bytes;
    out->lines[0] = (struct bench_line){"largest_tail_of_rows", out->tail_most / out->row_bytes,
                                        1.05, false};
    out->lines[1] =
        (struct bench_line){"tails_and_blocks_of_rows", both / out->row_bytes, 2.1, false};
    out->lines[2] = (struct bench_line){"live_bytes_a_token", out->live_bytes, 900, false};
    out->n_lines = 3;
}

enum err bench_appends(struct bench *b, struct bench_appends *out, struct error *e)
{
    const struct bench_options *o = b->o;
    struct bench_room room;
    struct gc_report gc;
    uint64_t disk = 0, last_tips = 0;
    *out = (struct bench_appends){.n_tokens = o->n_tokens + o->n_appends * o->step};
    double *ms = malloc(o->n_appends * sizeof *ms);
    if (!ms)
        return err_set(e, ERR_NOMEM, "bench: out of memory");
    enum err rc =
        bench_room_new(&room, &b->layout, o->step > SAVE_EVERY ? o->step : SAVE_EVERY, e);
    if (rc) {
        free(ms);
        return rc;
    }
    if (!(rc = write_history(b, &room, e)) &&
        !(rc = append_all(b, &room, out, ms, &last_tips, e)) &&
        !(rc = gc_run(b->store, &gc, e)) && !(rc = disk_bytes(b->packs, &disk, e))) {
        out->ms_median = bench_median(ms, o->n_appends);
        out->ms_most = ms[o->n_appends - 1];
        out->live_bytes = (double)(disk - last_tips) / (double)out->n_tokens;
        sum_up(b, out);
    }
    bench_room_fini(&room);
    free(ms);
    return rc;
}
