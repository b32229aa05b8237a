#include <stdlib.h>

#include "engine/tokenizer.h"
#include "evals/fidelity.h"
#include "evals/prose.h"

#define QUESTION 200
#define THINKING 72
#define RESULT 240
#define CALL 56
#define MAX_SEGMENTS 65536

static enum err write_ids(struct fidelity_tape *t, const struct tokenizer *k, uint64_t n,
                          uint64_t seed, struct error *e)
{
    AUTO(ids) struct ids ids = IDS_INIT(n + 4096);
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    struct pyrandom r;
    pyrandom_init(&r, seed);
    while (ids.n < n) {
        buf_clear(&text);
        enum err rc = prose_sentences(&r, 4, &text, e);
        if (!rc)
            rc = buf_add_str(&text, "\n\n", e);
        if (!rc)
            rc = tokenizer_encode(k, text.data, text.len, &ids, e);
        if (rc)
            return rc;
    }
    t->ids = ids.v;
    ids.v = NULL;
    ids.n = 0;
    return OK;
}

static void add(struct fidelity_tape *t, uint64_t *at, uint64_t end, uint64_t len,
                enum segment_kind kind)
{
    if (*at >= end || t->view.n_segments == MAX_SEGMENTS)
        return;
    len = len < end - *at ? len : end - *at;
    t->segments[t->view.n_segments++] = (struct segment){*at, len, kind, PREFILL_CED};
    *at += len;
}

enum err fidelity_tape_make(struct fidelity_tape *t, const char *model, uint64_t length,
                            uint64_t continuation, uint64_t seed, struct error *e)
{
    struct tokenizer *k = NULL;
    uint64_t at = 0;
    *t = (struct fidelity_tape){.ids = NULL};
    enum err rc = tokenizer_open(&k, model, e);
    if (!rc)
        rc = write_ids(t, k, length + continuation, seed, e);
    tokenizer_free(k);
    if (rc)
        return rc;
    if (!(t->segments = calloc(MAX_SEGMENTS, sizeof *t->segments)))
        return err_set(e, ERR_NOMEM, "no memory for segments");
    add(t, &at, length, QUESTION, SEGMENT_INPUT);
    add(t, &at, length, THINKING, SEGMENT_GENERATED);
    add(t, &at, length, length * 6 / 10, SEGMENT_INPUT);
    while (at < length && t->view.n_segments < MAX_SEGMENTS - 4) {
        add(t, &at, length, CALL, SEGMENT_GENERATED);
        add(t, &at, length, RESULT, SEGMENT_INPUT);
    }
    add(t, &at, length, length, SEGMENT_INPUT);
    add(t, &at, length + continuation, continuation, SEGMENT_GENERATED);
    t->view.ids = t->ids;
    t->view.n_ids = length + continuation;
    t->view.segments = t->segments;
    return OK;
}

void fidelity_tape_fini(struct fidelity_tape *t)
{
    free(t->ids);
    free(t->segments);
    *t = (struct fidelity_tape){.ids = NULL};
}
