/* Experts of a device that has no room for all: in which order they are read, copied and
 * computed. All that a layer misses is on its way before anything of the layer is computed, and
 * copies run beside what computes the shared expert and those that are there; nothing is copied
 * over what is queued to be read. */
#include <stdlib.h>

#include "engine/experts.h"
#include "engine/model.h"
#include "tests/support/conversation.h"
#include "tests/support/fenced.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model" /* 8 layers of 8 experts, 2 of a token */
#define N_PROMPT 90
#define PARTS 6  /* reads of an expert */
#define STAGED 8 /* experts that are on their way at once */
#define MAX_USED 4096

static struct watch {
    struct kernels k; /* as they were */
    struct engine *m;
    const void *used[MAX_USED]; /* weights that ops were given since the host has waited */
    size_t n_used;
    size_t n_slots;
    size_t n_free; /* room for reads when there are none */
    uint64_t misses;
    size_t n_shared; /* shared experts alone, that is: something was missing */
    size_t n_before; /* experts that were there computed before anything was waited for */
    size_t n_uploads, n_behind; /* parts, beside ops and behind them */
    bool may_be_first;
} w;

static struct experts *experts_of_model(void)
{
    return model_of(w.m)->experts;
}

static void note(const void *p)
{
    assert_true(w.n_used < MAX_USED);
    w.used[w.n_used++] = p;
}

static void moe_part(struct kernels *k, const struct k_moe *a)
{
    const struct tier *t = experts_tier(experts_of_model());
    uint64_t misses = tier_counters(t).misses;
    bool any = false;
    for (uint32_t i = 0; i < a->n_expert; i++)
        if (a->only[i]) {
            any = true;
            note(a->experts[i].w1.data);
        }
    if (!any) { /* the shared one: what is missing is on its way */
        size_t missing = (size_t)(misses - w.misses);
        assert_true(missing > 0);
        size_t most = w.n_slots < STAGED ? w.n_slots : STAGED;
        size_t reads = PARTS * (missing < most ? missing : most);
        assert_int_equal(w.n_free - tier_n_free(t), reads);
        w.n_shared++;
        w.may_be_first = true;
    } else {
        w.n_before += w.may_be_first;
        w.may_be_first = false;
    }
    w.misses = misses;
    w.k.moe_part(k, a);
}

static void moe(struct kernels *k, const struct k_moe *a)
{
    w.misses = tier_counters(experts_tier(experts_of_model())).misses;
    for (uint32_t i = 0; i < a->n_expert; i++)
        if (a->experts[i].w1.data)
            note(a->experts[i].w1.data);
    w.k.moe(k, a);
}

/* The host has waited for all that was queued. */
static void copy_out(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    w.n_used = 0;
    w.k.copy_out(k, dst, src, bytes);
}

static bool upload(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    for (size_t i = 0; i < w.n_used; i++)
        assert_ptr_not_equal(w.used[i], dst);
    if (!w.k.upload(k, dst, src, bytes))
        return false;
    w.n_uploads++;
    return true;
}

static enum err upload_end(struct kernels *k, struct error *e)
{
    w.may_be_first = false;
    return w.k.upload_end(k, e);
}

static void copy_in(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    w.n_behind += bytes > 1000; /* an expert's part, or ids and rows, which are no matter */
    w.k.copy_in(k, dst, src, bytes);
}

static uint64_t slot_bytes(void)
{
    struct engine_options o = {.no_weight_digest = true};
    struct engine *m = drive_open(MODEL, &o);
    uint64_t n = experts_slot_bytes(&model_of(m)->config);
    engine_free(m);
    return n;
}

static void run(uint64_t n_slots, size_t n_refused, struct conversation *out)
{
    struct engine_options o = {.expert_ram = n_slots * slot_bytes(),
                               .chunk_tokens = 32,
                               .digests = true,
                               .no_weight_digest = true,
                               .n_threads = 1};
    backend_option(&o, "fenced");
    w = (struct watch){.m = drive_open(MODEL, &o), .n_slots = n_slots};
    struct kernels *k = &model_of(w.m)->k;
    w.k = *k;
    w.n_free = tier_n_free(experts_tier(experts_of_model()));
    k->moe_part = moe_part, k->moe = moe;
    k->copy_out = copy_out, k->copy_in = copy_in;
    k->upload = upload, k->upload_end = upload_end;
    fenced_refuse_uploads(n_refused);
    conversation_run(w.m, N_PROMPT, out);
    fenced_refuse_uploads(0);
    *k = w.k;
    engine_free(w.m);
    assert_int_equal(fenced_bytes(), 0);
}

static void test_order(void **state)
{
    static const uint64_t SLOTS[] = {20, 40, 9, 1};
    struct conversation all, some;
    (void)state;
    run(0, 0, &all);
    assert_int_equal(w.n_shared, 0);
    for (size_t i = 0; i < sizeof(SLOTS) / sizeof(*SLOTS); i++) {
        run(SLOTS[i], 0, &some);
        conversation_assert_same(&all, &some);
        drive_state_free(&some.state);
        assert_true(w.n_shared > 50);
        if (SLOTS[i] < 9) /* a layer's own: each is copied behind the one before */
            continue;
        assert_true(w.n_uploads > 50 * PARTS);
        assert_true(w.n_before > 10); /* what is there does not wait for what comes */
    }
    drive_state_free(&all.state);
}

/* What cannot be copied beside the ops is copied behind them, whole. */
static void test_refused(void **state)
{
    struct conversation all, some;
    (void)state;
    run(0, 0, &all);
    run(20, 200 * PARTS + 3, &some);
    conversation_assert_same(&all, &some);
    assert_true(w.n_behind > 100);
    drive_state_free(&some.state);
    drive_state_free(&all.state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_refused)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
