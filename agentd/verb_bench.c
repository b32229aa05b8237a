/* agentd bench: what a part of agentd costs on this machine. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "agentd/bench_store.h"
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "base/options.h"

#define DEFAULT_TOKENS 1048576
#define DEFAULT_HISTORY 119000 /* tokens before the first append */

static const char *const on_off[] = {"off", "on", NULL};

struct values {
    int geometry, encrypt;
    int64_t tokens, block_tokens, pairs, appends, step;
    const char *dir;
    bool json, gate;
};

#define AT(member) offsetof(struct values, member)
static const struct option table[] = {
    {"geometry", 0, OPTION_ENUM, AT(geometry), "NAME", 0, 0, bench_geometry_names,
     "what a token's state looks like (default v4.1-flash)", false},
    {"tokens", 0, OPTION_INT, AT(tokens), "N", 1, 1 << 24, NULL,
     "length of the session (default 1048576; with --appends 119000)", false},
    {"block-tokens", 0, OPTION_INT, AT(block_tokens), "N", 0, 65536, NULL,
     "tokens of a block (default 2048)", false},
    {"encrypt", 0, OPTION_ENUM, AT(encrypt), "on|off", 0, 0, on_off,
     "seal extents, or only tag them (default off)", false},
    {"pairs", 0, OPTION_INT, AT(pairs), "N", 1, BENCH_MAX_PAIRS, NULL,
     "raw reads and restores, in turns (default 5)", false},
    {"appends", 0, OPTION_INT, AT(appends), "N", 1, 100000, NULL,
     "instead: what N appends to the session write", false},
    {"step", 0, OPTION_INT, AT(step), "N", 1, 1 << 20, NULL,
     "tokens of an append (default 875)", false},
    {"dir", 0, OPTION_STRING, AT(dir), "DIR", 0, 0, NULL,
     "where the files are made, and removed (default: agentd/ in the XDG cache folder)", false},
    {"json", 0, OPTION_FLAG, AT(json), NULL, 0, 0, NULL, "as JSON", false},
    {"gate", 0, OPTION_FLAG, AT(gate), NULL, 0, 0, NULL,
     "exit code 1 unless every limit is met", false},
};
const struct command verb_bench_command = {
    "bench",
    "store",
    "what saving and restoring state costs here, beside the raw disk",
    OPTION_TABLE(table),
    OPTION_TABLE_EMPTY,
    1,
    1};

#define MB(x) ((x) / 1e6)
#define GB(x) ((x) / 1e9)

/* ---- text -------------------------------------------------------------------------------- */

static enum err add_lines(const struct bench_line *l, size_t n, struct buf *out,
                          struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = buf_printf(out, e, "%-30s %8.3f   at %s %.2f: %s\n", l[i].name, l[i].value,
                        l[i].at_least ? "least" : "most", l[i].limit,
                        bench_line_met(&l[i]) ? "met" : "NOT MET");
    return rc;
}

static enum err add_pair(const char *name, const struct bench_pair *p, bool encrypt,
                         struct buf *out, struct error *e)
{
    double least = encrypt && p->ceiling_bps < p->raw_bps ? p->ceiling_bps : p->raw_bps;
    return buf_printf(out, e, "%-8s %9.0f %9.0f %9.0f %8.3f %9.1f %9.1f %9.1f %8.3f\n", name,
                      MB(p->raw_bps), MB(p->ceiling_bps), MB(p->restore_bps),
                      p->restore_bps / least, p->find_ms, p->first_ms, p->whole_ms,
                      p->first_ms / p->whole_ms);
}

static enum err restore_text(const struct bench *b, const struct bench_restore *r,
                             struct buf *out, struct error *e)
{
    const struct bench_options *o = b->o;
    enum err rc = buf_printf(
        out, e,
        "geometry  %s, %llu tokens, encrypt=%s\n"
        "stored    %.1f MB in %u packs, written at %.0f MB/s; store opened in %.1f ms\n"
        "read      %.1f MB, %s, %s; nothing cached before any read\n"
        "ceilings  tags %.2f GB/s on one core, %.2f on %u; cipher %.2f, %.2f\n\n"
        "pair          raw    cipher   restore    ratio      find     first     whole    "
        "share\n"
        "             MB/s      MB/s      MB/s                 ms        ms        ms\n",
        bench_geometry_names[o->geometry], (unsigned long long)o->n_tokens, on_off[o->encrypt],
        MB((double)r->stored), r->n_packs, MB(r->write_bps), r->open_ms, MB((double)r->bytes),
        r->direct ? "O_DIRECT" : "buffered", r->backend, GB(r->tag.one), GB(r->tag.all),
        r->n_cores, GB(r->seal.one), GB(r->seal.all));
    for (uint32_t i = 0; i < o->n_pairs && !rc; i++) {
        char name[12];
        snprintf(name, sizeof name, "%u", i + 1);
        rc = add_pair(name, &r->pairs[i], o->encrypt, out, e);
    }
    if (!rc)
        rc = add_pair("median", &r->median, o->encrypt, out, e);
    if (!rc)
        rc = buf_add_byte(out, '\n', e);
    return rc ? rc : add_lines(r->lines, r->n_lines, out, e);
}

static enum err appends_text(const struct bench *b, const struct bench_appends *r,
                             struct buf *out, struct error *e)
{
    const struct bench_options *o = b->o;
    enum err rc = buf_printf(
        out, e,
        "geometry  %s, %llu tokens, then %u appends of %llu, encrypt=%s\n"
        "rows      %.1f kB an append\n"
        "written   %.1f kB of tails (%.1f at most), %.1f of blocks, %.1f of tips an append\n"
        "took      %.1f ms an append (median), %.1f at most\n"
        "live      %.1f bytes a token after gc, tips apart\n\n",
        bench_geometry_names[o->geometry], (unsigned long long)o->n_tokens, o->n_appends,
        (unsigned long long)o->step, on_off[o->encrypt], r->row_bytes / 1e3,
        r->tail_bytes / 1e3, r->tail_most / 1e3, r->block_bytes / 1e3, r->tip_bytes / 1e3,
        r->ms_median, r->ms_most, r->live_bytes);
    return rc ? rc : add_lines(r->lines, r->n_lines, out, e);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *lines_json(const struct bench_line *l, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:s, s:b}", "name", l[i].name,
                                              "value", l[i].value, "limit", l[i].limit, "at",
                                              l[i].at_least ? "least" : "most", "met",
                                              (int)bench_line_met(&l[i])));
    return list;
}

static json_t *pair_json(const struct bench_pair *p)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "raw_bytes_per_s", p->raw_bps,
                     "cipher_bytes_per_s", p->ceiling_bps, "restore_bytes_per_s",
                     p->restore_bps, "find_ms", p->find_ms, "first_ms", p->first_ms, "whole_ms",
                     p->whole_ms);
}

static json_t *ceiling_json(const struct bench_ceiling *c)
{
    return json_pack("{s:f, s:f}", "one_core", c->one, "all_cores", c->all);
}

static json_t *restore_json(const struct bench *b, const struct bench_restore *r)
{
    json_t *pairs = json_array();
    for (uint32_t i = 0; i < b->o->n_pairs; i++)
        json_array_append_new(pairs, pair_json(&r->pairs[i]));
    return json_pack(
        "{s:s, s:I, s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:b, s:s, s:{s:o, s:o}, s:o, s:o, s:f, "
        "s:f, s:o}",
        "geometry", bench_geometry_names[b->o->geometry], "tokens", (json_int_t)b->o->n_tokens,
        "encrypt", (int)b->o->encrypt, "cores", (json_int_t)r->n_cores, "packs",
        (json_int_t)r->n_packs, "stored_bytes", (json_int_t)r->stored, "read_bytes",
        (json_int_t)r->bytes, "write_bytes_per_s", r->write_bps, "open_ms", r->open_ms,
        "direct", (int)r->direct, "backend", r->backend, "ceilings", "tag",
        ceiling_json(&r->tag), "seal", ceiling_json(&r->seal), "pairs", pairs, "median",
        pair_json(&r->median), "ratio", r->ratio, "first_of_whole", r->first_of_whole, "lines",
        lines_json(r->lines, r->n_lines));
}

static json_t *appends_json(const struct bench *b, const struct bench_appends *r)
{
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
        "geometry", bench_geometry_names[b->o->geometry], "history", (json_int_t)b->o->n_tokens,
        "appends", (json_int_t)b->o->n_appends, "step", (json_int_t)b->o->step, "tokens",
        (json_int_t)r->n_tokens, "encrypt", (int)b->o->encrypt, "row_bytes", r->row_bytes,
        "tail_bytes", r->tail_bytes, "most_tail_bytes", r->tail_most, "block_bytes",
        r->block_bytes, "tip_bytes", r->tip_bytes, "median_ms", r->ms_median, "most_ms",
        r->ms_most, "live_bytes_per_token", r->live_bytes, "lines",
        lines_json(r->lines, r->n_lines));
}

/* ---- the verb ---------------------------------------------------------------------------- */

static enum err write_report(struct buf *text, json_t *json, bool as_json, struct error *e)
{
    enum err rc = !as_json ? verb_text_write(text->data, text->len, e)
                  : json   ? verb_text_write_json(json, e)
                           : err_set(e, ERR_NOMEM, "report");
    json_decref(json);
    return rc;
}

static bool all_met(const struct bench_line *l, size_t n)
{
    bool met = true;
    for (size_t i = 0; i < n; i++)
        met = met && bench_line_met(&l[i]);
    return met;
}

static enum err run(const struct values *v, struct bench *b, bool *met, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    json_t *json = NULL;
    enum err rc;
    if (b->o->n_appends) {
        struct bench_appends r;
        if ((rc = bench_appends(b, &r, e)) || (rc = appends_text(b, &r, &text, e)))
            return rc;
        *met = all_met(r.lines, r.n_lines);
        json = appends_json(b, &r);
    } else {
        struct bench_restore r;
        if ((rc = bench_restore(b, &r, e)) || (rc = restore_text(b, &r, &text, e)))
            return rc;
        *met = all_met(r.lines, r.n_lines);
        json = restore_json(b, &r);
    }
    return write_report(&text, json, v->json, e);
}

/* The folder that was asked for, or the one where packs would lie. */
static enum err find_dir(const struct values *v, char *out, struct error *e)
{
    enum err rc = v->dir ? fs_path(out, FS_PATH_BYTES, e, "%s", v->dir)
                         : fs_place_path(FS_CACHE, "agentd", out, FS_PATH_BYTES, e);
    return rc ? rc : fs_mkdir_p(out, e);
}

int verb_bench(int argc, char **argv)
{
    struct values v = {.pairs = 5, .step = 875};
    struct options parsed;
    struct error e = {0};
    struct bench b = {0};
    char dir[FS_PATH_BYTES];
    bool met = false;
    enum err rc =
        options_parse(&verb_bench_command, argc, (const char *const *)argv, &v, &parsed, &e);
    if (!rc && parsed.help) {
        options_usage(&verb_bench_command, "agentd", stdout);
        return EXIT_DONE;
    }
    if (!rc && strcmp(parsed.args[0], "store") != 0)
        rc = err_set(&e, ERR_INVAL, "nothing to measure is called \"%s\": store is",
                     parsed.args[0]);
    if (rc)
        return verb_fail("bench", rc, &e);
    /* What was made is removed first: see bench_append. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    const struct bench_options o = {
        .geometry = (enum bench_geometry)v.geometry,
        .n_tokens = (uint64_t)(v.tokens    ? v.tokens
                               : v.appends ? DEFAULT_HISTORY
                                           : DEFAULT_TOKENS),
        .block_tokens = (uint32_t)v.block_tokens,
        .encrypt = v.encrypt != 0,
        .n_pairs = (uint32_t)v.pairs,
        .n_appends = (uint32_t)v.appends,
        .step = (uint64_t)v.step,
        .dir = dir,
    };
    if (!(rc = find_dir(&v, dir, &e)) && !(rc = bench_begin(&b, &o, &e)))
        rc = run(&v, &b, &met, &e);
    bench_end(&b);
    if (rc)
        return verb_fail("bench", rc, &e);
    return v.gate && !met ? EXIT_FAILED : EXIT_DONE;
}
