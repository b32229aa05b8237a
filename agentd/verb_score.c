/* agentd score: logits of given tokens, offline. The tokens are cut into segments, run as a
 * session would run them, and may be cut once more: there the state is exported, everything is
 * freed, and a new sequence goes on by one of the resume modes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/score_dump.h"
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "base/fs.h"
#include "engine/config.h"

#define SCORE_MAX_IDS_BYTES (256u << 20)
#define SCORE_MAX_SEGMENTS 65536

struct score_options {
    const char *model, *ids, *segments, *mode, *isa, *cuda_library, *resume, *dump, *out;
    int64_t device, prefill, chunk, threads, cut;
    int precision, backend;
};

static const char *const PRECISIONS[] = {"fast", "fp32kvq", "math", "official", NULL};
static const char *const BACKENDS[] = {"cpu", "ref", "cuda", NULL};

#define AT(member) offsetof(struct score_options, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "model folder", .required = true},
    {"ids", 0, OPTION_STRING, AT(ids), "FILE", .help = "one decimal id a line",
     .required = true},
    {"prefill", 0, OPTION_INT, AT(prefill), "N", .min = 1, .max = INT32_MAX,
     .help = "one input segment of N ids, the rest decoded"},
    {"segments", 0, OPTION_STRING, AT(segments), "N1,G1,...",
     .help = "lengths of input and generated segments in turn, the rest decoded"},
    {"mode", 0, OPTION_STRING, AT(mode), "MODE,...",
     .help = "ced, ced-report or full, one per input segment, the last repeated"},
    {"precision", 0, OPTION_ENUM, AT(precision), "MODE", .choices = PRECISIONS,
     .help = "where values are rounded"},
    {"backend", 0, OPTION_ENUM, AT(backend), "NAME", .choices = BACKENDS,
     .help = "where it is computed"},
    {"isa", 0, OPTION_STRING, AT(isa), "NAME",
     .help = "of backend cpu: avx512bf16, avx512, avx2, portable"},
    {"device", 0, OPTION_INT, AT(device), "N", .max = 1023, .help = "GPU of backend cuda"},
    {"cuda-library", 0, OPTION_STRING, AT(cuda_library), "FILE",
     .help = "of backend cuda (default: as for serve)"},
    {"chunk", 0, OPTION_INT, AT(chunk), "N", .min = 0, .max = 65536,
     .help = "most ids of one step"},
    {"threads", 0, OPTION_INT, AT(threads), "N", .min = 0, .max = 256,
     .help = "threads (default: all cores)"},
    {"cut", 0, OPTION_INT, AT(cut), "P", .min = 1, .max = INT32_MAX,
     .help = "export the state behind P ids, free all, go on by --resume"},
    {"resume", 0, OPTION_STRING, AT(resume), "KIND", .help = "exact, deep, replay or cold"},
    {"dump", 0, OPTION_STRING, AT(dump), "FILE",
     .help = "planes, rings and tensors between the layers, as safetensors"},
    {"output", 'o', OPTION_STRING, AT(out), "LOGITS", .help = "raw f32 rows (- is stdout)",
     .required = true},
};
#undef AT

const struct command verb_score_command = {
    "score", "", "logits of given tokens", OPTION_TABLE(table), OPTION_TABLE_EMPTY, 0, 0};

struct score {
    const struct score_options *o;
    struct engine_options engine_options;
    struct ids ids;
    struct segment *segments;
    size_t n_segments;
    uint64_t cut; /* 0: none left to do */
    enum resume_mode resume;

    struct engine *m;
    struct seq *s;
    FILE *out;
    uint64_t rows_from; /* rows below are not written (again) */
    bool write_failed;
    struct record record;
    struct dump *dump;  /* NULL without --dump */
    int64_t *window_lo; /* [n_segments][layers], with --dump */
};

/* ---- what to run --------------------------------------------------------------------------
 */

static enum err read_ids(const char *path, struct ids *out, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(SCORE_MAX_IDS_BYTES);
    enum err rc = fs_read_file(path, &text, e);
    if (rc)
        return rc;
    const char *s = buf_str(&text);
    for (size_t line = 1; *s; line++) {
        char *end = NULL;
        errno = 0;
        unsigned long v = strtoul(s, &end, 10);
        if (*s < '0' || *s > '9' || errno || v > UINT32_MAX ||
            (*end && *end != '\n' && strncmp(end, "\r\n", 2) != 0))
            return err_set(e, ERR_INVAL, "%s, line %zu: no decimal id", path, line);
        if ((rc = ids_add(out, (uint32_t)v, e)))
            return rc;
        s = end + strspn(end, "\r");
        s += *s == '\n';
    }
    return out->n ? OK : err_set(e, ERR_INVAL, "%s: no ids", path);
}

static enum err add_segment(struct score *x, uint64_t start, uint64_t len,
                            enum segment_kind kind, enum prefill_mode mode, struct error *e)
{
    if (x->n_segments == SCORE_MAX_SEGMENTS)
        return err_set(e, ERR_LIMIT, "--segments: more than %d", SCORE_MAX_SEGMENTS);
    struct segment *p = realloc(x->segments, (x->n_segments + 1) * sizeof(*p));
    if (!p)
        return err_set(e, ERR_NOMEM, "segments");
    x->segments = p;
    p[x->n_segments++] = (struct segment){start, len, kind, mode};
    return OK;
}

/* The next entry of a mode list; the last one stays. */
static enum err next_mode(const char **list, enum prefill_mode *mode, struct error *e)
{
    char word[24];
    size_t n = strcspn(*list, ",");
    if (!**list)
        return OK;
    snprintf(word, sizeof(word), "%.*s", (int)n, *list);
    enum err rc = prefill_mode_parse(word, mode, e);
    if (rc)
        return err_wrap(e, rc, "--mode");
    *list += n + ((*list)[n] == ',');
    return OK;
}

/* Input and generated lengths in turn; what is left of the ids is generated. */
static enum err plan_segments(struct score *x, struct error *e)
{
    const char *list = x->o->segments, *modes = x->o->mode ? x->o->mode : "";
    char prefill[24];
    uint64_t at = 0;
    enum prefill_mode mode = PREFILL_CED;
    enum segment_kind kind = SEGMENT_INPUT;
    enum err rc = OK;
    if (!list) {
        snprintf(prefill, sizeof(prefill), "%" PRIu64,
                 x->o->prefill ? (uint64_t)x->o->prefill : x->ids.n);
        list = prefill;
    }
    while (*list && !rc) {
        char *end = NULL;
        unsigned long long n = strtoull(list, &end, 10);
        if (*list < '0' || *list > '9' || (*end && (*end != ',' || !end[1])))
            return err_set(e, ERR_INVAL, "--segments %s: want lengths, parted by commas", list);
        if (n > x->ids.n - at)
            return err_set(e, ERR_INVAL, "segments of %llu ids and more, there are %zu",
                           (unsigned long long)at + n, x->ids.n);
        if (kind == SEGMENT_INPUT && (rc = next_mode(&modes, &mode, e)))
            return rc;
        rc = add_segment(x, at, n, kind, mode, e);
        at += n;
        kind = kind == SEGMENT_INPUT ? SEGMENT_GENERATED : SEGMENT_INPUT;
        list = *end ? end + 1 : end;
    }
    if (!rc && *modes)
        return err_set(e, ERR_INVAL, "--mode: more modes than input segments, from %s", modes);
    if (!rc && at < x->ids.n)
        rc = add_segment(x, at, x->ids.n - at, SEGMENT_GENERATED, PREFILL_CED, e);
    return rc;
}

static enum err check_options(struct score *x, struct error *e)
{
    const struct score_options *o = x->o;
    if (o->prefill && o->segments)
        return err_set(e, ERR_INVAL, "--prefill and --segments: give one");
    if (!o->cut != !o->resume)
        return err_set(e, ERR_INVAL, "--cut and --resume belong together");
    if (o->cut && (uint64_t)o->cut > x->ids.n)
        return err_set(e, ERR_INVAL, "--cut %" PRId64 ", there are %zu ids", o->cut, x->ids.n);
    x->cut = (uint64_t)o->cut;
    enum err rc = o->resume ? resume_mode_parse(o->resume, &x->resume, e) : OK;
    return rc ? err_wrap(e, rc, "--resume") : plan_segments(x, e);
}

/* ---- rows ---------------------------------------------------------------------------------
 */

static void on_logits(void *user, struct seq *s, uint64_t position, const float *logits)
{
    struct score *x = user;
    size_t n = engine_describe(x->m)->vocab_size;
    if (position < x->rows_from)
        return;
    if (fwrite(logits, sizeof(*logits), n, x->out) != n)
        x->write_failed = true;
    if (x->dump)
        record_logits(&x->record, s, position, logits);
}

static void on_tensor(void *user, struct seq *s, const struct observed *o)
{
    struct score *x = user;
    if (o->pos0 >= x->rows_from)
        record_observed(&x->record, s, o);
}

static void watch(struct score *x, bool on)
{
    struct observer o = {.user = x, .logits = on_logits, .tensor = x->dump ? on_tensor : NULL};
    engine_observe(x->m, on ? &o : NULL);
}

static enum err open_engine(struct score *x, struct error *e)
{
    enum err rc = engine_open_model(&x->m, x->o->model, &x->engine_options, e);
    if (rc)
        return rc;
    uint32_t vocab = engine_describe(x->m)->vocab_size;
    for (size_t i = 0; i < x->ids.n; i++)
        if (x->ids.v[i] >= vocab)
            return err_set(e, ERR_INVAL, "%s, line %zu: id %u, the vocabulary has %u",
                           x->o->ids, i + 1, x->ids.v[i], vocab);
    if (x->dump)
        x->record.engine = x->m;
    watch(x, true);
    return seq_new(x->m, NULL, &x->s, e);
}

static void close_engine(struct score *x)
{
    seq_free(x->s);
    engine_free(x->m);
    x->s = NULL;
    x->m = NULL;
    x->record.engine = NULL;
}

/* Steps until the queued work is done or the position is `stop`. */
static enum err run_until(struct score *x, uint64_t stop, struct error *e)
{
    while (engine_has_work(x->m)) {
        struct engine_event events[8];
        size_t n = 0;
        uint64_t left = stop - seq_position(x->s);
        if (!left)
            seq_cancel(x->s);
        engine_limit_chunk(x->m, left < UINT32_MAX ? (uint32_t)left : 0);
        enum err rc = engine_step(x->m, events, 8, &n, e);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED) {
                if (e)
                    *e = events[i].error;
                return events[i].error.code;
            }
        if (x->write_failed)
            return err_set(e, ERR_IO, "%s: cannot write", x->o->out);
    }
    engine_limit_chunk(x->m, 0);
    return OK;
}

/* Runs segment g from where the sequence stands, up to position `stop` at most. */
static enum err run_segment(struct score *x, const struct segment *g, uint64_t stop,
                            struct error *e)
{
    uint64_t at = seq_position(x->s), end = g->start + g->len;
    const uint32_t *ids = x->ids.v + at;
    enum err rc;
    if (at >= end || at >= stop)
        return OK;
    if (g->kind == SEGMENT_INPUT) {
        rc = seq_input(x->s, ids, end - at, g->mode, e);
    } else {
        struct generate_options o = {.max_tokens = end - at,
                                     .given = ids,
                                     .n_given = end - at,
                                     .end_with_given = true,
                                     .resumes = at > g->start};
        rc = seq_generate(x->s, &o, e);
    }
    return rc ? rc : run_until(x, stop, e);
}

/* ---- the cut ------------------------------------------------------------------------------
 */

struct saved {
    uint32_t n_planes;
    void *plane[STATE_MAX_PLANES], *tip;
    size_t plane_bytes[STATE_MAX_PLANES], tip_bytes;
    struct seq_digest digest;
};

static void saved_fini(struct saved *v)
{
    for (uint32_t i = 0; i < v->n_planes; i++)
        free(v->plane[i]);
    free(v->tip);
}

static enum err save(const struct score *x, struct saved *v, struct error *e)
{
    const struct state_layout *l = engine_describe(x->m)->layout;
    enum err rc = OK;
    v->digest = seq_digest(x->s);
    for (uint32_t i = 0; i < l->n_planes && !rc; i++) {
        uint64_t n = state_rows(&l->planes[i], x->cut);
        v->plane_bytes[i] = n * l->planes[i].row_bytes;
        if (!(v->plane[i] = malloc(v->plane_bytes[i] + 1)))
            return err_set(e, ERR_NOMEM, "plane %s", l->planes[i].name);
        v->n_planes = i + 1;
        rc = seq_export_rows(x->s, i, 0, n, v->plane[i], e);
    }
    v->tip_bytes = l->tip_bytes;
    if (!rc && !(v->tip = malloc(v->tip_bytes)))
        return err_set(e, ERR_NOMEM, "tip");
    return rc ? rc : seq_export_tip(x->s, v->tip, e);
}

static enum err restore(struct score *x, const struct saved *v, uint64_t *start,
                        struct error *e)
{
    struct tape_view tape = {.ids = x->ids.v,
                             .n_ids = x->ids.n,
                             .segments = x->segments,
                             .n_segments = x->n_segments};
    struct state_regions regions;
    uint64_t n_replayed = 0;
    enum err rc = seq_import_begin(x->s, x->cut, &regions, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < v->n_planes; i++)
        memcpy(regions.plane[i], v->plane[i], v->plane_bytes[i]);
    if (x->resume == RESUME_EXACT) {
        *start = x->cut;
        return seq_import_tip(x->s, v->tip, v->tip_bytes, &v->digest, e);
    }
    if ((rc = seq_rebuild(x->s, &tape, x->resume, &v->digest, &n_replayed, e)))
        return rc;
    *start = x->cut - n_replayed;
    watch(x, false);
    rc = run_until(x, UINT64_MAX, e);
    watch(x, true);
    return rc;
}

static enum err dump_resumed(struct score *x, uint64_t start, struct error *e)
{
    enum err rc;
    if (!x->dump)
        return OK;
    if ((rc = dump_i32(x->dump, "resume.start", (int32_t)start, e)) ||
        (rc = dump_windows(x->dump, "resume", x->m, x->s, e)) ||
        (rc = dump_pending(x->dump, x->m, x->s, e)))
        return rc;
    return dump_planes(x->dump, "prefix", x->m, x->s, e);
}

/* At position `cut`: out, free, in again. Cold starts over; its rows below are known already.
 */
static enum err cut_and_resume(struct score *x, struct error *e)
{
    struct saved v = {0};
    uint64_t start = 0;
    enum err rc = save(x, &v, e);
    if (!rc) {
        close_engine(x);
        x->rows_from = x->cut;
        rc = open_engine(x, e);
    }
    if (!rc && x->resume != RESUME_COLD)
        rc = restore(x, &v, &start, e);
    if (!rc && x->resume != RESUME_COLD)
        rc = dump_resumed(x, start, e);
    saved_fini(&v);
    return rc;
}

/* ---- all of it ----------------------------------------------------------------------------
 */

static enum err note_segment(struct score *x, size_t k, struct error *e)
{
    const struct config *c = engine_config(x->m);
    char prefix[24];
    if (!x->dump)
        return OK;
    for (uint32_t l = 0; l < c->n_layers; l++)
        x->window_lo[k * c->n_layers + l] = (int64_t)engine_window_lo(x->s, l);
    snprintf(prefix, sizeof(prefix), "seg%zu", k);
    return dump_windows(x->dump, prefix, x->m, x->s, e);
}

static enum err run_tape(struct score *x, struct error *e)
{
    for (size_t k = 0; k < x->n_segments; k++) {
        const struct segment *g = &x->segments[k];
        uint64_t end = g->start + g->len;
        bool cut_here = x->cut && x->cut <= end;
        enum err rc = run_segment(x, g, cut_here ? x->cut : UINT64_MAX, e);
        if (rc)
            return rc;
        if (cut_here) {
            if ((rc = cut_and_resume(x, e)))
                return rc;
            x->cut = 0;
            if (x->resume == RESUME_COLD) {
                k = SIZE_MAX; /* from the first segment again */
                continue;
            }
            if ((rc = run_segment(x, g, UINT64_MAX, e)))
                return rc;
        }
        if ((rc = note_segment(x, k, e)))
            return rc;
    }
    return OK;
}

static enum err write_dump(struct score *x, struct error *e)
{
    const struct config *c = engine_config(x->m);
    enum err rc = x->record.error.code;
    if (rc) {
        *e = x->record.error;
        return rc;
    }
    if ((rc = dump_windows(x->dump, "final", x->m, x->s, e)) ||
        (rc = dump_planes(x->dump, "final", x->m, x->s, e)) ||
        (rc = dump_window_lo(x->dump, x->window_lo, x->n_segments, c->n_layers, e)) ||
        (rc = dump_record(x->dump, &x->record, x->segments, x->n_segments, e)))
        return rc;
    return dump_write(x->dump, x->o->dump, e);
}

static enum err start_dump(struct score *x, struct error *e)
{
    enum err rc = dump_new(&x->dump, e);
    if (rc)
        return rc;
    record_init(&x->record, x->m, true);
    watch(x, true);
    x->window_lo = calloc(x->n_segments * engine_config(x->m)->n_layers, sizeof(*x->window_lo));
    return x->window_lo ? OK : err_set(e, ERR_NOMEM, "dump");
}

static enum err open_output(struct score *x, struct error *e)
{
    x->out = strcmp(x->o->out, "-") ? fopen(x->o->out, "we") : stdout;
    return x->out ? OK : err_sys(e, errno, "%s", x->o->out);
}

static void notice_unused(const struct engine *m)
{
    uint64_t n = engine_describe(m)->n_unused_tensors;
    if (n)
        fprintf(stderr,
                "agentd score: %" PRIu64 " tensors of vision, or of draft layers that the "
                "config switches off, are skipped\n",
                n);
}

static enum err score(struct score *x, struct error *e)
{
    enum err rc;
    if ((rc = read_ids(x->o->ids, &x->ids, e)) || (rc = check_options(x, e)) ||
        (rc = open_engine(x, e)))
        return rc;
    notice_unused(x->m);
    if ((x->o->dump && (rc = start_dump(x, e))) || (rc = open_output(x, e)) ||
        (rc = run_tape(x, e)))
        return rc;
    if (fflush(x->out))
        return err_sys(e, errno, "%s", x->o->out);
    return x->dump ? write_dump(x, e) : OK;
}

int verb_score(int argc, char **argv)
{
    static const enum precision precisions[] = {PRECISION_FAST, PRECISION_FP32KVQ,
                                                PRECISION_MATH, PRECISION_OFFICIAL};
    struct score_options o = {0};
    struct error e = {0};
    int code;
    if (verb_text_options(&verb_score_command, argc, argv, &o, &code))
        return code;
    struct score x = {.o = &o,
                      .engine_options = {.precision = precisions[o.precision],
                                         .backend = BACKENDS[o.backend],
                                         .isa = o.isa,
                                         .cuda_library = o.cuda_library,
                                         .device = (int)o.device,
                                         .n_threads = (uint32_t)o.threads,
                                         .chunk_tokens = (uint32_t)o.chunk,
                                         .no_weight_digest = true},
                      .ids = IDS_INIT(SCORE_MAX_IDS_BYTES / 2)};
    enum err rc = score(&x, &e);
    if (x.out && x.out != stdout)
        fclose(x.out);
    close_engine(&x);
    record_fini(&x.record);
    dump_free(x.dump);
    free(x.window_lo);
    free(x.segments);
    ids_fini(&x.ids);
    return rc ? verb_fail("score", rc, &e) : EXIT_DONE;
}
