/* The sampler: greedy and its ties, the filters, the distribution, and that a draw depends on
 * seed and position alone. */
#include <math.h>

#include "engine/sample.h"
#include "tests/support/test.h"

#define N 8

static uint32_t draw(const struct sampling *s, const float *logits, uint64_t position)
{
    struct k_sample_entry scratch[2 * N];
    struct error e = {0};
    uint32_t id = UINT32_MAX;
    assert_ok(sample_token(s, NULL, logits, N, position, scratch, &id, &e), &e);
    return id;
}

static void test_greedy(void **state)
{
    const struct sampling s = {.temperature = 0, .top_p = 1};
    const float logits[N] = {0, 3, -1, 7, 7, 2, 6, 1};
    (void)state;
    for (uint64_t p = 0; p < 50; p++)
        assert_int_equal(draw(&s, logits, p), 3); /* the first of two equal ones */
}

static void test_counter(void **state)
{
    struct sampling s = {.seed = 42, .temperature = 1, .top_p = 1};
    const float flat[N] = {0};
    uint32_t first[200];
    size_t other_seed = 0, other_position = 0;
    (void)state;
    for (uint64_t p = 0; p < 200; p++)
        first[p] = draw(&s, flat, p);
    for (uint64_t p = 200; p-- > 0;) /* in any order */
        assert_int_equal(draw(&s, flat, p), first[p]);
    s.seed = 43;
    for (uint64_t p = 0; p < 200; p++) {
        other_seed += draw(&s, flat, p) != first[p];
        other_position += p && first[p] != first[p - 1];
    }
    assert_in_range(other_seed, 140, 199); /* 7 of 8 by chance */
    assert_in_range(other_position, 140, 199);
}

/* Frequencies within four standard deviations of what the softmax says. */
static void test_distribution(void **state)
{
    const struct sampling s = {.seed = 1, .temperature = 0.5F, .top_p = 1};
    const float logits[N] = {0, 0.5F, 1, -0.5F, 0.25F, 0.75F, -2, 0};
    double p[N], total = 0;
    size_t count[N] = {0}, n = 20000;
    (void)state;
    for (int i = 0; i < N; i++)
        total += p[i] = exp((double)logits[i] / 0.5);
    for (size_t i = 0; i < n; i++)
        count[draw(&s, logits, i)]++;
    for (int i = 0; i < N; i++) {
        double mean = (double)n * p[i] / total, sd = sqrt(mean * (1 - p[i] / total));
        if (fabs((double)count[i] - mean) > 4 * sd)
            fail_msg("id %d: %zu draws, want %g +- %g", i, count[i], mean, sd);
    }
}

/* ids that are ever drawn, as a bit mask */
static unsigned support(const struct sampling *s, const float *logits)
{
    unsigned seen = 0;
    for (uint64_t p = 0; p < 4000; p++)
        seen |= 1u << draw(s, logits, p);
    return seen;
}

static void test_filters(void **state)
{
    /* probabilities 1/2, 1/4, 1/8, ... of the largest */
    float logits[N];
    struct sampling s = {.seed = 9, .temperature = 1, .top_p = 1};
    (void)state;
    for (int i = 0; i < N; i++)
        logits[(i + 3) % N] = (float)(-0.6931471805599453 * i); /* the best is id 3 */
    assert_int_equal(support(&s, logits), 0xff);
    s.top_k = 3;
    assert_int_equal(support(&s, logits), 1 << 3 | 1 << 4 | 1 << 5);
    s.top_k = 0;
    s.top_p = 0.7F; /* .50 + .25 reach it */
    assert_int_equal(support(&s, logits), 1 << 3 | 1 << 4);
    s.top_p = 0.0001F; /* the best one always stays */
    assert_int_equal(support(&s, logits), 1 << 3);
    s.top_p = 1;
    s.min_p = 0.2F; /* at least a fifth of the best */
    assert_int_equal(support(&s, logits), 1 << 3 | 1 << 4 | 1 << 5);
    s.top_k = 2;
    assert_int_equal(support(&s, logits), 1 << 3 | 1 << 4);
}

/* Bias is added first: it changes what is best, what is cut, and how often something is drawn.
 */
static void test_bias(void **state)
{
    const struct logit_bias up[] = {{1, 5}, {6, -100}, {N + 3, 100}}; /* the last: no such id */
    const float logits[N] = {0, 0, 0, 0, 0, 0, 2, 0};
    struct sampling s = {.seed = 4, .top_p = 1, .bias = up, .n_bias = 3};
    (void)state;
    assert_int_equal(draw(&s, logits, 1), 1);
    s.temperature = 1;
    assert_int_equal(support(&s, logits), 0xff & ~(1 << 6));
    s.top_k = 1;
    assert_int_equal(support(&s, logits), 1 << 1);
    s.n_bias = 0;
    assert_int_equal(support(&s, logits), 1 << 6);
}

static void test_logprobs(void **state)
{
    const float logits[N] = {1, 3, -1, 3, 0, 2, 2.5F, 1};
    struct token_logprobs p;
    double total = 0;
    (void)state;
    for (int i = 0; i < N; i++)
        total += exp((double)logits[i]);
    sample_logprobs(logits, N, 4, 5, &p);
    assert_int_equal(p.id, 4);
    assert_true(fabs((double)p.logprob - log(1 / total)) < 1e-6);
    assert_int_equal(p.n_top, 5);
    static const uint32_t best[] = {1, 3, 6, 5, 0}; /* of equal ones the lower id */
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(p.top[i].id, best[i]);
        assert_true(fabs((double)p.top[i].logprob - ((double)logits[best[i]] - log(total))) <
                    1e-6);
    }
    sample_logprobs(logits, N, 0, 0, &p);
    assert_int_equal(p.n_top, 0);
    sample_logprobs(logits, N, 0, SAMPLE_MAX_LOGPROBS, &p);
    assert_int_equal(p.n_top, N);
    for (uint32_t i = 1; i < N; i++)
        assert_true(p.top[i].logprob <= p.top[i - 1].logprob);
}

static void test_broken_logits(void **state)
{
    const struct sampling s = {.temperature = 0, .top_p = 1};
    const float bad[] = {(float)NAN, (float)HUGE_VAL, -(float)HUGE_VAL};
    (void)state;
    for (int i = 0; i < 3; i++) {
        float logits[N] = {0};
        struct k_sample_entry scratch[2 * N];
        struct error e = {0};
        uint32_t id = 77;
        logits[5] = bad[i];
        assert_int_equal(sample_token(&s, NULL, logits, N, 12, scratch, &id, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, "position 12"));
        assert_non_null(strstr(e.msg, "id 5"));
        assert_int_equal(id, 77);
    }
}

static void test_bad_options(void **state)
{
    const struct sampling bad[] = {
        {.temperature = -1, .top_p = 1},
        {.temperature = (float)NAN, .top_p = 1},
        {.temperature = (float)HUGE_VAL, .top_p = 1},
        {.top_p = 0},
        {.top_p = 1.5F},
        {.top_p = (float)NAN},
        {.top_p = 1, .min_p = -0.1F},
        {.top_p = 1, .min_p = 2},
        {.top_p = 1, .top_logprobs = SAMPLE_MAX_LOGPROBS + 2},
        {.top_p = 1, .bias = (const struct logit_bias[]){{3, 1}, {3, 2}}, .n_bias = 2},
        {.top_p = 1, .bias = (const struct logit_bias[]){{3, (float)NAN}}, .n_bias = 1},
        {.top_p = 1, .stop = (const char *const[]){"a", ""}, .n_stop = 2},
    };
    struct error e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(sampling_check(&bad[i], &e), ERR_INVAL);
    assert_int_equal(sampling_check(&(struct sampling){.top_p = 1}, &e), OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_distribution),  cmocka_unit_test(test_filters),
        cmocka_unit_test(test_bias),          cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_broken_logits), cmocka_unit_test(test_bad_options),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
