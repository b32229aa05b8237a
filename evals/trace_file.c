/* The two forms of a trace. The bytes are an outsider's: every field is checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/options.h"
#include "evals/trace.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)
#define MAX_LINE_BYTES ((size_t)64 << 20)
#define MAX_LINE_BLOCKS (TRACE_MAX_LENGTH / TRACE_BLOCK_TOKENS + 1)
#define MAX_COLUMNS 64

/* ---- Mooncake --------------------------------------------------------------------------- */

static enum err read_blocks(const json_t *list, uint64_t *out, struct error *e)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return err_set(e, ERR_FORMAT,
                           "\"hash_ids\"[%zu]: want a number that is not negative", i);
        out[i] = (uint64_t)json_integer_value(v);
    }
    return OK;
}

static enum err parse_request(struct trace *t, const char *line, size_t n, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = MAX_LINE_BYTES, .max_depth = 4};
    json_auto_t *o = NULL;
    json_t *list;
    int64_t timestamp = 0, input = 0, output = 0;
    enum err rc = json_parse(line, n, &limits, &o, e);
    if (!rc && !json_is_object(o))
        rc = err_set(e, ERR_FORMAT, "want an object");
    if (!rc)
        rc = json_need_int(o, "timestamp", 0, TRACE_MAX_MS, &timestamp, e);
    if (!rc)
        rc = json_need_int(o, "input_length", 0, TRACE_MAX_LENGTH, &input, e);
    if (!rc)
        rc = json_need_int(o, "output_length", 0, TRACE_MAX_LENGTH, &output, e);
    if (!rc)
        rc = json_need_arr(o, "hash_ids", &list, e);
    if (rc)
        return rc;
    const int64_t n_want = (input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
    const size_t n_have = json_array_size(list);
    if (n_have != (size_t)n_want)
        return err_set(e, ERR_FORMAT, "\"hash_ids\": %zu for %" PRId64 " tokens, want %" PRId64,
                       n_have, input, n_want);
    AUTO_FREE uint64_t *blocks = calloc(n_have + 1, sizeof *blocks);
    if (!blocks)
        return err_set(e, ERR_NOMEM, "no memory for %zu blocks", n_have);
    const struct trace_step s = {.input_len = (uint32_t)input,
                                 .output_len = (uint32_t)output,
                                 .n_blocks = (uint32_t)n_have};
    if (!(rc = read_blocks(list, blocks, e)))
        rc = trace_add_session(t, t->n_sessions, timestamp, e);
    return rc ? rc : trace_add_step(t, &s, blocks, e);
}

static enum err write_request(const struct trace *t, const struct trace_session *session,
                              struct buf *out, struct error *e)
{
    const struct trace_step *s = &t->steps[session->step];
    enum err rc = buf_printf(out, e,
                             "{\"timestamp\": %" PRId64 ", \"input_length\": %u, "
                             "\"output_length\": %u, \"hash_ids\": [",
                             session->arrival_ms, s->input_len, s->output_len);
    for (uint32_t i = 0; i < s->n_blocks && !rc; i++)
        rc = buf_printf(out, e, "%s%" PRIu64, i ? ", " : "", t->blocks[s->block + i]);
    return rc ? rc : buf_add_str(out, "]}\n", e);
}

/* ---- TraceLab --------------------------------------------------------------------------- */

enum column { SESSION, ARRIVAL, ROUND, PREFIX, INPUT, OUTPUT, WAIT, N_KNOWN };

static const struct {
    const char *name;
    int64_t max;
} columns[N_KNOWN] = {
    {"session_id", INT64_MAX},
    {"arrival_time", TRACE_MAX_MS},
    {"round_idx", TRACE_MAX_STEPS},
    {"prefix_len", TRACE_MAX_LENGTH},
    {"input_len", TRACE_MAX_LENGTH},
    {"output_len", TRACE_MAX_LENGTH},
    {"tool_wait_after_ms", TRACE_MAX_MS},
};

struct csv {
    int place[N_KNOWN]; /* of each column; -1: missing */
    int n_columns;      /* 0: the header is still to come */
    uint32_t next_round;
};

/* The next field of [*p, end), without its comma; false behind the last. */
static bool next_field(const char **p, const char *end, const char **field, size_t *n)
{
    if (*p > end)
        return false;
    const char *comma = memchr(*p, ',', (size_t)(end - *p));
    *field = *p;
    *n = (size_t)((comma ? comma : end) - *p);
    *p += *n + 1;
    return true;
}

static enum err parse_header(struct csv *c, const char *line, size_t n, struct error *e)
{
    const char *p = line, *field;
    size_t len;
    for (int k = 0; k < N_KNOWN; k++)
        c->place[k] = -1;
    for (; next_field(&p, line + n, &field, &len); c->n_columns++) {
        if (c->n_columns == MAX_COLUMNS)
            return err_set(e, ERR_LIMIT, "over %d columns", MAX_COLUMNS);
        for (int k = 0; k < N_KNOWN; k++) {
            if (strlen(columns[k].name) != len || memcmp(columns[k].name, field, len) != 0)
                continue;
            if (c->place[k] >= 0)
                return err_set(e, ERR_FORMAT, "column %s stands there twice", columns[k].name);
            c->place[k] = c->n_columns;
        }
    }
    for (int k = 0; k < N_KNOWN; k++)
        if (c->place[k] < 0 && k != ARRIVAL)
            return err_set(e, ERR_FORMAT, "no column %s", columns[k].name);
    return OK;
}

static enum err parse_number(enum column k, const char *field, size_t n, int64_t *out,
                             struct error *e)
{
    char text[24];
    if (n < sizeof text) {
        memcpy(text, field, n);
        text[n] = 0;
        if (strlen(text) == n && !options_parse_int(text, 0, columns[k].max, out, NULL))
            return OK;
    }
    return err_set(e, ERR_FORMAT, "%s: want 0..%" PRId64, columns[k].name, columns[k].max);
}

static enum err parse_fields(const struct csv *c, const char *line, size_t n,
                             int64_t v[N_KNOWN], struct error *e)
{
    const char *p = line, *field;
    size_t len;
    int at = 0;
    v[ARRIVAL] = -1;
    for (; next_field(&p, line + n, &field, &len); at++)
        for (int k = 0; k < N_KNOWN; k++) {
            enum err rc =
                c->place[k] == at ? parse_number((enum column)k, field, len, &v[k], e) : OK;
            if (rc)
                return rc;
        }
    return at == c->n_columns ? OK
                              : err_set(e, ERR_FORMAT, "%d fields, want %d", at, c->n_columns);
}

/* A round that goes on, or the first of a new session. The tokens of a session are those of its
 * first prefix and of all rounds; no prefix may reach past them. */
static enum err add_round(struct trace *t, struct csv *c, const int64_t v[N_KNOWN],
                          struct error *e)
{
    const struct trace_session *last = t->n_sessions ? &t->sessions[t->n_sessions - 1] : NULL;
    enum err rc = OK;
    if (!v[ROUND]) {
        rc = trace_add_session(t, (uint64_t)v[SESSION], v[ARRIVAL], e);
        c->next_round = 0;
    } else if (!last || last->id != (uint64_t)v[SESSION] || v[ROUND] != c->next_round) {
        return err_set(e, ERR_FORMAT, "round %" PRId64 " of session %" PRId64 " does not go on",
                       v[ROUND], v[SESSION]);
    } else {
        const struct trace_step *before = &t->steps[t->n_steps - 1];
        if (v[PREFIX] > (int64_t)before->prefix_len + before->input_len + before->output_len)
            return err_set(e, ERR_FORMAT,
                           "prefix_len: %" PRId64 " is more than the session has", v[PREFIX]);
    }
    const struct trace_step s = {.prefix_len = (uint32_t)v[PREFIX],
                                 .input_len = (uint32_t)v[INPUT],
                                 .output_len = (uint32_t)v[OUTPUT],
                                 .wait_ms = v[WAIT]};
    c->next_round++;
    return rc ? rc : trace_add_step(t, &s, NULL, e);
}

static enum err parse_round(struct trace *t, struct csv *c, const char *line, size_t n,
                            struct error *e)
{
    int64_t v[N_KNOWN] = {0};
    if (!c->n_columns)
        return parse_header(c, line, n, e);
    enum err rc = parse_fields(c, line, n, v, e);
    return rc ? rc : add_round(t, c, v, e);
}

static bool knows_arrivals(const struct trace *t)
{
    for (uint32_t k = 0; k < t->n_sessions; k++)
        if (t->sessions[k].arrival_ms < 0)
            return false;
    return true;
}

static enum err write_rounds(const struct trace *t, struct buf *out, struct error *e)
{
    const bool arrivals = knows_arrivals(t);
    enum err rc = buf_printf(out, e,
                             "session_id,%sround_idx,prefix_len,input_len,output_len,"
                             "tool_wait_after_ms\n",
                             arrivals ? "arrival_time," : "");
    for (uint32_t k = 0; k < t->n_sessions && !rc; k++) {
        const struct trace_session *session = &t->sessions[k];
        for (uint32_t i = 0; i < session->n_steps && !rc; i++) {
            const struct trace_step *s = &t->steps[session->step + i];
            rc = buf_printf(out, e, "%" PRIu64 ",", session->id);
            if (!rc && arrivals)
                rc = buf_printf(out, e, "%" PRId64 ",", session->arrival_ms);
            if (!rc)
                rc = buf_printf(out, e, "%u,%u,%u,%u,%" PRId64 "\n", i, s->prefix_len,
                                s->input_len, s->output_len, s->wait_ms);
        }
    }
    return rc;
}

/* ---- files ------------------------------------------------------------------------------ */

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum err check_ids(const struct trace *t, struct error *e)
{
    AUTO_FREE uint64_t *ids = calloc(t->n_sessions + 1, sizeof *ids);
    if (!ids)
        return err_set(e, ERR_NOMEM, "no memory for %u sessions", t->n_sessions);
    for (uint32_t k = 0; k < t->n_sessions; k++)
        ids[k] = t->sessions[k].id;
    qsort(ids, t->n_sessions, sizeof *ids, compare_ids);
    for (uint32_t k = 1; k < t->n_sessions; k++)
        if (ids[k] == ids[k - 1])
            return err_set(e, ERR_FORMAT, "session %" PRIu64 " begins twice", ids[k]);
    return OK;
}

enum err trace_parse(struct trace *out, enum trace_form form, const char *text, size_t n,
                     const char *name, struct error *e)
{
    struct trace t = TRACE_INIT(form);
    struct csv c = {.n_columns = 0};
    enum err rc = OK;
    uint64_t line = 0;
    for (const char *p = text, *end = text + n; p < end && !rc; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol ? eol : end) - p);
        const char *at = p;
        p += len + 1;
        if (len && at[len - 1] == '\r')
            len--;
        if (len)
            rc = form == TRACE_MOONCAKE ? parse_request(&t, at, len, e)
                                        : parse_round(&t, &c, at, len, e);
    }
    if (rc)
        err_wrap(e, rc, "%s:%" PRIu64, name, line);
    else if ((rc = check_ids(&t, e)))
        err_wrap(e, rc, "%s", name);
    if (rc) {
        trace_fini(&t);
        return rc;
    }
    *out = t;
    return OK;
}

enum err trace_load(struct trace *out, const char *path, struct error *e)
{
    AUTO(buf) struct buf file = BUF_INIT(MAX_FILE_BYTES);
    enum err rc = fs_read_file(path, &file, e);
    if (rc)
        return rc;
    const enum trace_form form = *buf_str(&file) == '{' ? TRACE_MOONCAKE : TRACE_TRACELAB;
    return trace_parse(out, form, buf_str(&file), file.len, path, e);
}

enum err trace_write(const struct trace *t, struct buf *out, struct error *e)
{
    if (t->form == TRACE_TRACELAB)
        return write_rounds(t, out, e);
    enum err rc = OK;
    for (uint32_t k = 0; k < t->n_sessions && !rc; k++)
        rc = write_request(t, &t->sessions[k], out, e);
    return rc;
}
