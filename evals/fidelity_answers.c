/* What a resumed session answers: the experiments of verify-resume in which the model speaks.
 *
 * One conversation in the chat format that never stops (arm C), and at each question the same
 * asked of the session resumed there: exactly (X), deeply (D), by bounded replay (B).
 *
 *   needles    codes spread over a long opening text, each asked for (E5)
 *   distances  a code told some tokens before the resume point, out to where replay ends (E6)
 *   turns      an agent's trajectory: questions about files, tool calls, results (E8)
 *
 * X and D have to give the same ids, and rows with the same bits; B is reported. */
#include <stdlib.h>
#include <string.h>

#include "evals/dialogue.h"
#include "evals/fidelity.h"
#include "evals/gen.h"
#include "evals/prose.h"

#define N_DEPTHS 5
#define N_QUESTIONS 4 /* of the trajectory, for one probe */
#define MAX_BINS 64   /* of distances; behind them they are wider */
#define ANSWER_TOKENS 32
#define CALL_TOKENS 160
#define LINE_TOKENS 24    /* of a line with a code */
#define TAIL_TOKENS 8     /* from a code to the resume point, without prose */
#define ROOM_TOKENS 4096  /* for the tools' declarations */
#define PROBE_TOKENS 1024 /* of a question, its answer, a tool's result */
#define N_ARMS 3
#define FILE_LINES 6

static const enum resume_mode arm_modes[N_ARMS] = {RESUME_EXACT, RESUME_DEEP, RESUME_REPLAY};
static const char *const arm_names[N_ARMS] = {"X", "D", "B"};

static const char tools_json[] =
    "[{\"name\":\"grep\",\"description\":\"Search files for lines that match a pattern.\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"pattern\":{\"type\":\"string\"},"
    "\"path\":{\"type\":\"string\"}},\"required\":[\"pattern\"]}},"
    "{\"name\":\"list_dir\",\"description\":\"List a folder.\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"path\":{\"type\":\"string\"}}}},"
    "{\"name\":\"read_file\",\"description\":\"Read a file.\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"]}}]";

struct answers {
    const struct fidelity_options *o;
    const struct state_layout *layout;
    struct dialogue d;
    struct pyrandom random;
    json_t *tools, *probes;
    struct dialogue_answer c, other;
    struct buf text;
    uint32_t names[256], n_names, next_name; /* all different */
};

static void answers_fini(struct answers *s)
{
    dialogue_fini(&s->d);
    dialogue_answer_fini(&s->c);
    dialogue_answer_fini(&s->other);
    buf_fini(&s->text);
    json_decref(s->tools);
    json_decref(s->probes);
}

/* ---- one probe -------------------------------------------------------------------------- */

struct probe {
    const char *kind;   /* "needle", "distance", "turn" */
    const char *expect; /* that the answer holds; "": nothing is */
    const char *tool;   /* that is called, with expect in its arguments; NULL: none */
    double depth;       /* 0..1; negative: none */
    uint64_t distance;  /* tokens before the resume point; UINT64_MAX: none */
};

static bool holds(const struct buf *text, const char *what)
{
    return *what && memmem(text->data, text->len, what, strlen(what));
}

static bool is_right(const struct probe *p, const struct dialogue_answer *a)
{
    if (!p->tool)
        return holds(&a->text, p->expect);
    return a->name.len == strlen(p->tool) && holds(&a->name, p->tool) &&
           holds(&a->arguments, p->expect);
}

static enum err add_arm(struct answers *s, const struct probe *p, size_t i, json_t *arms,
                        struct error *e)
{
    struct arm_difference rows;
    uint64_t n_replayed = 0;
    enum err rc = dialogue_again(&s->d, arm_modes[i], &s->other, &rows, &n_replayed, e);
    if (rc)
        return err_wrap(e, rc, "%s at %llu", arm_names[i],
                        (unsigned long long)s->d.state.n_tokens);
    json_t *j = json_pack(
        "{s:b, s:b, s:b, s:I, s:I, s:I}", "right", is_right(p, &s->other), "same_ids",
        dialogue_same_ids(&s->c, &s->other), "same_action",
        dialogue_same_action(&s->c, &s->other), "rows", (json_int_t)rows.n_rows, "different",
        (json_int_t)(rows.n_different + rows.n_missing), "replayed", (json_int_t)n_replayed);
    return json_object_set_new(arms, arm_names[i], j)
               ? err_set(e, ERR_NOMEM, "no memory for an answer")
               : OK;
}

/* Every arm at the question that was asked last. */
static enum err add_probe(struct answers *s, const struct probe *p, struct error *e)
{
    json_t *arms = json_object();
    json_t *j = json_pack("{s:s, s:I, s:b, s:s%, s:s%, s:o}", "kind", p->kind, "position",
                          (json_int_t)s->d.state.n_tokens, "right", is_right(p, &s->c), "tool",
                          buf_str(&s->c.name), s->c.name.len, "arguments",
                          buf_str(&s->c.arguments), s->c.arguments.len, "arms", arms);
    if (!j || json_array_append_new(s->probes, j))
        return err_set(e, ERR_NOMEM, "no memory for an answer");
    if (p->depth >= 0)
        json_object_set_new(j, "depth", json_real(p->depth));
    if (p->distance != UINT64_MAX) {
        const uint64_t from = p->distance / s->layout->window * s->layout->window;
        json_object_set_new(j, "distance", json_integer((json_int_t)p->distance));
        json_object_set_new(j, "from", json_integer((json_int_t)from));
        json_object_set_new(j, "to", json_integer((json_int_t)(from + s->layout->window - 1)));
    }
    enum err rc = OK;
    for (size_t i = 0; i < N_ARMS && !rc; i++)
        if (strchr(s->o->arms, *arm_names[i]))
            rc = add_arm(s, p, i, arms, e);
    return rc;
}

static enum err ask(struct answers *s, bool is_result, uint32_t max_tokens, struct error *e)
{
    return dialogue_say(&s->d, is_result, &s->text, max_tokens, &s->c, e);
}

/* ---- codes ------------------------------------------------------------------------------ */

struct code {
    char name[PROSE_NAME_BYTES], value[16];
};

static struct code new_code(struct answers *s)
{
    struct code c;
    prose_name(s->names[s->next_name++ % s->n_names], c.name);
    snprintf(c.value, sizeof c.value, "%u", 100000 + pyrandom_below(&s->random, 900000));
    return c;
}

static enum err add_code(struct buf *out, const struct code *c, struct error *e)
{
    return buf_printf(out, e, "Remember: the %s code is %s.\n\n", c->name, c->value);
}

/* Sentences of prose that have as nearly n tokens as they can. */
static enum err add_prose(struct answers *s, uint64_t n, struct error *e)
{
    AUTO(gen_text) struct gen_text g = {.n_tokens = 0};
    AUTO(buf) struct buf piece = BUF_INIT(1 << 16);
    gen_text_init(&g, s->d.tokenizer, n);
    for (uint64_t have = 0, more = 0; have < n; have += more) {
        buf_clear(&piece);
        enum err rc = prose_sentence(&s->random, &piece, e);
        if (!rc)
            rc = buf_add_str(&piece, "\n\n", e);
        if (!rc)
            rc = gen_count(&g, piece.data, piece.len, &more, e);
        if (!rc && have + more > n && have + more - n > n - have)
            break;
        if (!rc)
            rc = buf_add(&s->text, piece.data, piece.len, e);
        if (rc)
            return rc;
    }
    return OK;
}

static enum err ask_code(struct answers *s, const struct code *c, struct probe *p,
                         struct error *e)
{
    buf_clear(&s->text);
    p->expect = c->value;
    enum err rc = buf_printf(&s->text, e, "What is the %s code?", c->name);
    if (!rc)
        rc = ask(s, false, ANSWER_TOKENS, e);
    return rc ? rc : add_probe(s, p, e);
}

/* E5: depth i of n is the middle of the i-th part of the opening. */
static enum err needles(struct answers *s, struct error *e)
{
    const uint32_t n = N_DEPTHS * s->o->n_probes;
    AUTO_FREE struct code *codes = calloc(n, sizeof *codes);
    if (!codes)
        return err_set(e, ERR_NOMEM, "no memory for %u codes", n);
    buf_clear(&s->text);
    enum err rc = OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        const uint64_t part = s->o->length / n;
        codes[i] = new_code(s);
        rc = add_prose(s, part / 2, e);
        if (!rc)
            rc = add_code(&s->text, &codes[i], e);
        if (!rc)
            rc = add_prose(s, part / 2 > LINE_TOKENS ? part / 2 - LINE_TOKENS : 0, e);
    }
    if (!rc)
        rc = ask(s, false, ANSWER_TOKENS, e);
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct probe p = {.kind = "needle", .depth = (i + 0.5) / n, .distance = UINT64_MAX};
        rc = ask_code(s, &codes[i], &p, e);
    }
    return rc;
}

/* E6: told, then so many tokens of prose, then stopped. */
static enum err distance(struct answers *s, uint64_t tokens, struct error *e)
{
    const struct code c = new_code(s);
    struct probe p = {.kind = "distance", .depth = -1};
    uint64_t end = 0;
    buf_clear(&s->text);
    enum err rc = add_code(&s->text, &c, e);
    if (!rc && tokens > TAIL_TOKENS)
        rc = add_prose(s, tokens - TAIL_TOKENS, e);
    const uint64_t from = s->d.view.n_ids;
    if (!rc)
        rc = ask(s, false, ANSWER_TOKENS / 2, e);
    if (!rc)
        rc = dialogue_find(&s->d, from, c.value, &end, e);
    if (!rc && end > s->d.view.n_ids)
        rc = err_set(e, ERR_CORRUPT, "code %s is not on the tape", c.value);
    p.distance = s->d.view.n_ids - end;
    return rc ? rc : ask_code(s, &c, &p, e);
}

/* A window wide, out to where a deep resume begins: further back nothing is run again. */
static uint64_t n_bins(const struct state_layout *l)
{
    return l->window ? (l->replay_tokens + l->window - 1) / l->window : 0;
}

static enum err distances(struct answers *s, struct error *e)
{
    const uint64_t width = s->layout->window, n = n_bins(s->layout);
    const uint64_t step = (n + MAX_BINS - 1) / MAX_BINS;
    enum err rc = OK;
    for (uint32_t k = 0; k < s->o->n_probes; k++)
        for (uint64_t i = 0; i < n && !rc; i += step)
            rc = distance(s, i * width + width / 2, e);
    return rc;
}

/* ---- the trajectory --------------------------------------------------------------------- */

/* A question about a file, the model's call, what the file holds, the model's answer. A model
 * that calls nothing is told the file all the same. */
static enum err turns(struct answers *s, struct error *e)
{
    enum err rc = OK;
    for (uint32_t q = 0; q < N_QUESTIONS * s->o->n_probes && !rc; q++) {
        struct code lines[FILE_LINES];
        char path[64];
        const uint32_t at = pyrandom_below(&s->random, FILE_LINES);
        for (size_t i = 0; i < FILE_LINES; i++)
            lines[i] = new_code(s);
        snprintf(path, sizeof path, "etc/%s.conf", lines[0].name);
        struct probe call = {.kind = "turn",
                             .tool = "read_file",
                             .expect = path,
                             .depth = -1,
                             .distance = UINT64_MAX};
        struct probe answer = {
            .kind = "turn", .expect = lines[at].value, .depth = -1, .distance = UINT64_MAX};
        buf_clear(&s->text);
        rc = buf_printf(&s->text, e, "Read %s: what is `%s.limit`?", path, lines[at].name);
        if (!rc)
            rc = ask(s, false, CALL_TOKENS, e);
        if (!rc)
            rc = add_probe(s, &call, e);
        buf_clear(&s->text);
        for (size_t i = 0; i < FILE_LINES && !rc; i++)
            rc = buf_printf(&s->text, e, "%s.limit = %s\n", lines[i].name, lines[i].value);
        if (!rc)
            rc = ask(s, true, CALL_TOKENS, e);
        if (!rc)
            rc = add_probe(s, &answer, e);
    }
    return rc;
}

/* ---- results ---------------------------------------------------------------------------- */

/* The probes of a kind as one check of an arm. */
static enum err add_check(const json_t *probes, const char *kind, const char *arm,
                          const char *what, json_t *checks, struct error *e)
{
    json_int_t n = 0, rows = 0, other = 0, replayed = 0, position = 0;
    size_t i;
    json_t *p;
    json_array_foreach(probes, i, p) {
        const json_t *a = json_object_get(json_object_get(p, "arms"), arm);
        if (!a || strcmp(json_string_value(json_object_get(p, "kind")), kind) != 0)
            continue;
        n++;
        position = json_integer_value(json_object_get(p, "position"));
        rows += json_integer_value(json_object_get(a, "rows"));
        other += json_integer_value(json_object_get(a, "different")) +
                 !json_is_true(json_object_get(a, "same_ids"));
        replayed += json_integer_value(json_object_get(a, "replayed"));
    }
    if (!n)
        return OK;
    json_t *c =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:b, s:I, s:f}", "arm", arm, "what", what,
                  "position", position, "rows", rows, "different", other, "missing", 0, "equal",
                  rows > 0 && !other, "replayed", replayed, "ms", 0.0);
    return json_array_append_new(checks, c) ? err_set(e, ERR_NOMEM, "no memory for a check")
                                            : OK;
}

enum err fidelity_answer_checks(const json_t *probes, json_t *checks, struct error *e)
{
    static const char *const kinds[][2] = {
        {"needle", "answers: codes by depth"},
        {"distance", "answers: codes by distance to the resume"},
        {"turn", "answers: next tool and arguments, each turn"},
        {"sample", "answers: the suite's samples, each in a fork"}};
    enum err rc = OK;
    for (size_t i = 0; i < N_ARMS - 1; i++) /* B is not held to anything */
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds && !rc; k++)
            rc = add_check(probes, kinds[k][0], arm_names[i], kinds[k][1], checks, e);
    return rc;
}

static enum err begin(struct answers *s, struct error *e)
{
    const uint64_t bins = n_bins(s->layout), most = bins < MAX_BINS ? bins : MAX_BINS;
    s->n_names = sizeof s->names / sizeof *s->names;
    pyrandom_init(&s->random, s->o->seed + 1);
    enum err rc = pyrandom_sample(&s->random, PROSE_N_NAMES, s->n_names, s->names, e);
    s->tools = json_loads(tools_json, 0, NULL);
    if (!rc && !s->tools)
        rc = err_set(e, ERR_NOMEM, "no memory for tools");
    const struct dialogue_options o = {
        .model = s->o->model,
        .engine = s->o->engine,
        .tools = s->tools,
        .max_tokens = s->o->length + ROOM_TOKENS +
                      s->o->n_probes * (PROBE_TOKENS * (N_DEPTHS + most + 2 * N_QUESTIONS) +
                                        most * (s->layout->replay_tokens + s->layout->window))};
    if (!rc)
        rc = dialogue_open(&s->d, &o, e);
    s->d.c.wake_fd = s->d.a.wake_fd = s->o->wake_fd;
    return rc;
}

enum err fidelity_answers(const struct fidelity_options *o, const struct state_layout *layout,
                          json_t *checks, json_t **out, struct error *e)
{
    AUTO(answers)
    struct answers s = {
        .o = o, .layout = layout, .probes = json_array(), .text = BUF_INIT(64 << 20)};
    dialogue_answer_init(&s.c);
    dialogue_answer_init(&s.other);
    enum err rc = begin(&s, e);
    if (!rc)
        rc = needles(&s, e);
    if (!rc)
        rc = distances(&s, e);
    if (!rc)
        rc = turns(&s, e);
    if (!rc)
        rc = fidelity_answer_checks(s.probes, checks, e);
    if (!rc)
        *out = json_incref(s.probes);
    return rc ? err_wrap(e, rc, "answers") : OK;
}
