/* Importing a tip: whatever the bytes are, they are refused as what they are and the import
 * stays open for the real tip; or they are taken, and then the sequence goes on, and its own
 * tip is taken and says the same. The first byte says what the rest is, because no mutation
 * gets past a checksum:
 *
 *     0  a whole tip, of the first state
 *     n  laid over the real tip of the n-th state from its position (offset 56, engine/tip.h)
 *        on, the sum put right
 *
 * The states: behind a run; inside an input segment of each of the three modes. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/observe.h"
#include "tests/support/drive.h"

#define MODEL "tests/golden/c_replay/model"
#define N_STATES 4
#define N_IDS 4096 /* of its context */
#define AT_POSITION 56
#define AT_LEN 104
#define CHUNK 8
#define MAX_STEPS 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct engine *m;
static struct drive_state states[N_STATES];
static uint32_t ids[N_IDS];
static uint8_t *tip;

static void need(bool cond)
{
    if (!cond)
        abort();
}

static void begin_world(void)
{
    static const struct segment segments[] = {{0, 70, SEGMENT_INPUT, PREFILL_CED},
                                              {70, 3, SEGMENT_GENERATED, PREFILL_CED},
                                              {73, 60, SEGMENT_INPUT, PREFILL_CED_REPORT},
                                              {133, 20, SEGMENT_INPUT, PREFILL_FULL}};
    static const uint64_t stops[N_STATES] = {73, 20, 83, 138};
    const struct tape_view tape = {.ids = ids, .n_ids = 153, .segments = segments, 4};
    const struct engine_options o = {.n_threads = 1, .no_weight_digest = true};
    if (m)
        return;
    m = drive_open(MODEL, &o);
    drive_ids(ids, N_IDS, 5);
    for (size_t i = 0; i < N_STATES; i++) {
        struct seq *s = drive_seq(m);
        drive_tape(m, s, &tape, stops[i], NULL);
        need(seq_position(s) == stops[i]);
        drive_export(m, s, &states[i]);
        seq_free(s);
    }
    need((tip = malloc(states[0].tip_bytes)) != NULL);
}

static struct seq *begin_import(const struct drive_state *st)
{
    struct seq *s = drive_seq(m);
    struct state_regions r;
    need(seq_import_begin(s, st->n_tokens, &r, NULL) == OK);
    for (uint32_t i = 0; i < st->n_planes; i++)
        memcpy(r.plane[i], st->plane[i], st->plane_bytes[i]);
    return s;
}

/* The rest of what is open, its beginning at least, or two tokens more. */
static void go_on(struct seq *s, uint64_t end)
{
    const struct generate_options g = {.sampling = {.top_p = 1}, .max_tokens = 2};
    struct engine_event ev[8];
    uint64_t start;
    enum prefill_mode mode;
    enum err rc;
    if (seq_segment_open(s, &start, &mode)) {
        need(end <= N_IDS);
        need(seq_input(s, ids, end - seq_position(s), mode, NULL) == OK);
    } else if ((rc = seq_generate(s, &g, NULL))) {
        need(rc == ERR_CONFLICT); /* no last row */
    }
    engine_limit_chunk(m, CHUNK);
    for (size_t n, i = 0; engine_has_work(m); i++) {
        if (i == MAX_STEPS)
            seq_cancel(s);
        need(engine_step(m, ev, 8, &n, NULL) == OK);
        while (n)
            free(ev[--n].logprobs);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error e = {0};
    begin_world();
    if (!size || data[0] > N_STATES)
        return 0;
    const struct drive_state *st = &states[data[0] ? data[0] - 1 : 0];
    const size_t n = st->tip_bytes, from = data[0] ? AT_POSITION : 0;
    size_t n_bytes = data[0] ? n : size - 1;
    memcpy(tip, st->tip, n);
    memcpy(tip + from, data + 1, size - 1 < n - from ? size - 1 : n - from);
    if (data[0])
        hash_bytes(NULL, tip, n - HASH_BYTES, tip + n - HASH_BYTES);
    struct seq *s = begin_import(st);
    enum err rc = seq_import_tip(s, tip, n_bytes, NULL, &e);
    need(rc == OK || (rc == ERR_FORMAT && e.msg[0]));
    need(seq_position(s) == (rc ? 0 : st->n_tokens));
    need(!rc || seq_import_tip(s, st->tip, n, NULL, NULL) == OK);
    if (!rc) {
        struct drive_state own, again;
        uint64_t open[2]; /* its start and length */
        memcpy(open, tip + AT_LEN - 8, sizeof open);
        drive_export(m, s, &own);
        go_on(s, open[0] + open[1]);
        seq_free(s);
        s = drive_import(m, &own);
        drive_export(m, s, &again);
        need(!memcmp(own.tip, again.tip, n));
        drive_state_free(&own);
        drive_state_free(&again);
    }
    seq_free(s);
    return 0;
}
