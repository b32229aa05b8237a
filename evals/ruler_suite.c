#include "evals/ruler_suite.h"

#include <errno.h>

#include "base/fs.h"

struct sink {
    struct suite_writer *w;
    const char *task;
    uint32_t n_tokens;
    FILE *f; /* the original's file */
    struct buf line;
};

static enum err add(void *user, const struct ruler_sample *s, struct error *e)
{
    struct sink *k = user;
    struct suite_sample out = {.question = "",
                               .answer_prefix = s->answer_prefix,
                               .n_answer_prefix = s->n_answer_prefix,
                               .answers = s->outputs,
                               .metric = SUITE_ALL_MATCH,
                               .max_tokens = s->n_tokens_to_generate,
                               .depth = -1};
    if (s->token_position_answer >= 0)
        out.depth = (double)s->token_position_answer / (double)s->length;
    snprintf(out.id, sizeof out.id, "%s/%s/%u/%llu", RULER_SUITE, k->task, k->n_tokens,
             (unsigned long long)s->ordinal);
    snprintf(out.context, sizeof out.context, "%s/%s/%u/c%llu", RULER_SUITE, k->task,
             k->n_tokens, (unsigned long long)s->ordinal);
    buf_clear(&k->line);
    enum err rc = ruler_line(s, &k->line, e);
    if (!rc && fwrite(k->line.data, 1, k->line.len, k->f) != k->line.len)
        rc = err_sys(e, errno, "%s: write", k->task);
    if (!rc)
        rc = suite_add_context(k->w, out.context, s->length - s->n_tokens_to_generate, s->input,
                               s->n_input, e);
    return rc ? rc : suite_add_sample(k->w, &out, e);
}

static enum err add_task(const struct ruler_suite *s, enum ruler_task task, uint32_t n_tokens,
                         struct suite_writer *w, struct error *e)
{
    const struct ruler_options o = {.task = task,
                                    .n_tokens = n_tokens,
                                    .n_samples = s->n_samples,
                                    .seed = s->seed,
                                    .tokenizer = s->tokenizer,
                                    .nouns = s->nouns,
                                    .adjectives = s->adjectives,
                                    .verbs = s->verbs,
                                    .english_words = s->english_words};
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s-%u.jsonl", w->dir,
                          ruler_task_names[task], n_tokens);
    if (rc)
        return rc;
    AUTO_FILE FILE *f = fopen(path, "we");
    if (!f)
        return err_sys(e, errno, "%s", path);
    AUTO(buf) struct buf line = BUF_INIT(SUITE_MAX_LINE_BYTES);
    struct sink k = {w, ruler_task_names[task], n_tokens, f, line};
    rc = ruler_generate(&o, add, &k, e);
    line = k.line; /* whose memory it is */
    if (!rc && fflush(f))
        rc = err_sys(e, errno, "%s", path);
    return rc;
}

enum err ruler_suite_add(const struct ruler_suite *s, uint32_t n_tokens, struct suite_writer *w,
                         struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < s->n_tasks && !rc; i++)
        rc = add_task(s, s->tasks[i], n_tokens, w, e);
    return rc;
}
