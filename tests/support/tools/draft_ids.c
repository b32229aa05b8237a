/* draft_ids MODEL IDS N: what the draft layers guess behind each of the positions N-1, N, ...
 * of the ids in the file, in mode math: a line each of block_size ids and as many confidence
 * logits. For tests/reference. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/draft.h"
#include "tests/support/drive.h"

#define MAX_IDS 65536

static size_t read_ids(const char *path, uint32_t *ids)
{
    FILE *f = fopen(path, "re");
    size_t n = 0;
    while (f && n < MAX_IDS && fscanf(f, "%" SCNu32, &ids[n]) == 1)
        n++;
    if (f)
        fclose(f);
    return n;
}

static int guess(struct engine *engine, struct seq *s, uint32_t anchor)
{
    const struct sampling greedy = {.top_p = 1};
    struct model *m = model_of(engine);
    struct draft d;
    struct error e = {0};
    if (draft_propose(m, seq_of(s), anchor, &greedy, m->config.draft_block, &d, &e)) {
        fprintf(stderr, "draft_ids: %s\n", e.msg);
        return 1;
    }
    for (uint32_t i = 0; i < d.n; i++)
        printf("%" PRIu32 " ", d.ids[i]);
    for (uint32_t i = 0; i < d.n; i++)
        printf("%.9g%s", (double)d.confidence[i], i + 1 < d.n ? " " : "\n");
    return 0;
}

int main(int argc, char **argv)
{
    static uint32_t ids[MAX_IDS];
    const struct engine_options o = {.precision = PRECISION_MATH, .n_threads = 1};
    size_t n = argc == 4 ? read_ids(argv[2], ids) : 0;
    size_t n_prompt = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (!n_prompt || n_prompt >= n) {
        fprintf(stderr, "usage: draft_ids MODEL IDS N, with 0 < N < number of ids\n");
        return 2;
    }
    struct engine *engine = drive_open(argv[1], &o);
    struct seq *s = drive_seq(engine);
    int rc = 0;
    drive_input(engine, s, ids, n_prompt, PREFILL_FULL);
    for (size_t i = n_prompt; i < n && !rc; i++) {
        rc = guess(engine, s, ids[i]);
        if (i + 1 < n && !rc)
            drive_forced(engine, s, &ids[i], 1);
    }
    seq_free(s);
    engine_free(engine);
    return rc;
}
