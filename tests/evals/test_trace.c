/* Readers, writers, filler, figures and the synthetic generator of traces. */
#include "tests/support/test.h"

#include <math.h>

#include "base/buf.h"
#include "evals/trace.h"

#define HEADER                                                                                 \
    "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"

static void parse_ok(struct trace *t, enum trace_form form, const char *text)
{
    struct error e = {0};
    assert_ok(trace_parse(t, form, text, strlen(text), "text", &e), &e);
}

static void mooncake_there_and_back(void **state)
{
    (void)state;
    static const char text[] =
        "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5, \"hash_ids\": [3]}\n"
        "{\"timestamp\": 27482, \"input_length\": 1025, \"output_length\": 0, \"hash_ids\": "
        "[0, "
        "14, 99999999]}\n"
        "{\"timestamp\": 27482, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n";
    struct trace t;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    parse_ok(&t, TRACE_MOONCAKE, text);
    assert_int_equal(t.n_sessions, 3);
    assert_int_equal(t.n_blocks, 4);
    assert_int_equal(t.sessions[1].arrival_ms, 27482);
    assert_int_equal(t.steps[1].n_blocks, 3);
    assert_int_equal(t.blocks[t.steps[1].block + 2], 99999999);
    assert_ok(trace_write(&t, &out, &e), &e);
    assert_string_equal(buf_str(&out), text);
    trace_fini(&t);
}

static void tracelab_there_and_back(void **state)
{
    (void)state;
    static const char text[] = HEADER "0,0,0,0,512,64,100\n0,0,1,576,128,64,0\n"
                                      "9,200,0,30,400,48,80\n9,200,1,100,7,1,0\n";
    struct trace t;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    parse_ok(&t, TRACE_TRACELAB, text);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.n_steps, 4);
    assert_int_equal(t.sessions[1].id, 9);
    assert_int_equal(t.sessions[1].step, 2);
    assert_int_equal(t.steps[3].prefix_len, 100); /* a step back */
    assert_ok(trace_write(&t, &out, &e), &e);
    assert_string_equal(buf_str(&out), text);
    trace_fini(&t);
}

static void columns_in_any_order_and_without_arrival(void **state)
{
    (void)state;
    struct trace t;
    struct error e = {0};
    AUTO(buf) struct buf out = BUF_INIT(1 << 16);
    parse_ok(&t, TRACE_TRACELAB,
             "round_idx,note,session_id,prefix_len,output_len,input_len,tool_wait_after_ms\r\n"
             "0,some text,7,12461,124,5875,182\r\n");
    assert_int_equal(t.sessions[0].arrival_ms, -1);
    assert_int_equal(t.steps[0].input_len, 5875);
    assert_ok(trace_write(&t, &out, &e), &e);
    assert_string_equal(
        buf_str(&out),
        "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "7,0,12461,5875,124,182\n");
    trace_fini(&t);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        enum trace_form form;
        const char *text, *message;
    } cases[] = {
        {TRACE_MOONCAKE, "{\"timestamp\": 0}\n", "text:1: \"input_length\""},
        {TRACE_MOONCAKE, "[]\n", "text:1: want an object"},
        {TRACE_MOONCAKE,
         "{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}",
         "1 for 513 tokens, want 2"},
        {TRACE_MOONCAKE,
         "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [-1]}",
         "\"hash_ids\"[0]"},
        {TRACE_MOONCAKE,
         "\n{\"timestamp\": 0, \"input_length\": 4294967296, \"output_length\": 1, "
         "\"hash_ids\": []}",
         "text:2: \"input_length\""},
        {TRACE_TRACELAB, "session_id,round_idx\n", "no column prefix_len"},
        {TRACE_TRACELAB, "session_id,session_id\n", "session_id stands there twice"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5,5\n", "text:2: 6 fields, want 7"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5,5,1,1\n", "8 fields, want 7"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,-5,5,1\n", "input_len: want 0.."},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5x,5,1\n", "input_len: want 0.."},
        {TRACE_TRACELAB, HEADER "0,0,0,0,,5,1\n", "input_len: want 0.."},
        {TRACE_TRACELAB, HEADER "0,0,0,0,99999999999999999999999,5,1\n", "input_len"},
        {TRACE_TRACELAB, HEADER "0,0,1,0,5,5,1\n", "round 1 of session 0 does not go on"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5,5,1\n0,0,2,0,5,5,1\n", "text:3: round 2"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5,5,1\n0,0,1,11,5,5,1\n", "prefix_len: 11 is more"},
        {TRACE_TRACELAB, HEADER "0,0,0,0,5,5,1\n1,0,0,0,5,5,1\n0,0,0,0,5,5,1\n",
         "session 0 begins twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace t = TRACE_INIT(cases[i].form);
        struct error e = {0};
        assert_int_equal(
            trace_parse(&t, cases[i].form, cases[i].text, strlen(cases[i].text), "text", &e),
            ERR_FORMAT);
        if (!strstr(e.msg, cases[i].message))
            fail_msg("case %zu: \"%s\", want \"%s\"", i, e.msg, cases[i].message);
        assert_null(t.steps);
    }
}

/* ---- filler -------------------------------------------------------------------------------
 */

static void filler_is_the_same_from_anywhere(void **state)
{
    (void)state;
    uint32_t all[2000], part[300];
    uint32_t seen[16] = {0};
    trace_filler(trace_block_stream(5), 0, 100, 16, all, 2000);
    for (size_t i = 0; i < 2000; i++) {
        assert_in_range(all[i], 100, 115);
        seen[all[i] - 100]++;
    }
    for (size_t i = 0; i < 16; i++)
        assert_in_range(seen[i], 60, 190); /* 125 on average */
    trace_filler(trace_block_stream(5), 777, 100, 16, part, 300);
    assert_memory_equal(part, all + 777, sizeof part);
    trace_filler(trace_block_stream(6), 0, 100, 16, part, 300);
    assert_memory_not_equal(part, all, sizeof part);
    /* These must never change: recorded results depend on them. */
    static const uint32_t fixed[] = {55703, 40544, 87890, 80934};
    trace_filler(trace_round_stream(1, 2), 3, 0, 100000, part, 4);
    assert_memory_equal(part, fixed, sizeof fixed);
    assert_true(trace_round_stream(1, 0) != trace_prefix_stream(1));
    assert_true(trace_round_stream(0, 1) != trace_round_stream(1, 0));
    assert_true(trace_block_stream(1) != trace_prefix_stream(1));
}

/* ---- figures ------------------------------------------------------------------------------
 */

static void sweep_of_a_small_trace(void **state)
{
    (void)state;
    struct trace t;
    parse_ok(&t, TRACE_TRACELAB,
             HEADER "0,0,0,0,100,10,50\n0,0,1,110,20,10,5000\n0,0,2,140,20,10,0\n");
    struct trace_sweep s = trace_sweep_timeout(&t, 50); /* the second wait is too long */
    assert_true(fabs(s.hit_rate - 0.5) < 1e-12);
    assert_true(fabs(s.amplification - (40 + 140) / 40.0) < 1e-12);
    s = trace_sweep_timeout(&t, 49);
    assert_true(s.hit_rate <= 0 && fabs(s.amplification - (40 + 250) / 40.0) < 1e-12);
    s = trace_sweep_timeout(&t, -1);
    assert_true(s.hit_rate >= 1 && s.amplification <= 1);
    trace_fini(&t);
}

static void synthetic_sessions_have_the_published_shape(void **state)
{
    (void)state;
    struct trace t;
    struct trace_summary s;
    struct error e = {0};
    assert_ok(trace_synthesise(&t, 300, 1, &e), &e);
    assert_ok(trace_summarise(&t, &s, &e), &e);
    assert_true(fabs(s.prefix_p50 / 119000 - 1) < 0.1);
    assert_true(fabs(s.input_p50 / 875 - 1) < 0.05);
    assert_true(fabs(s.output_p50 / 214 - 1) < 0.05);
    assert_true(s.prefix_share > 0.957 && s.prefix_share < 1);
    /* Published: 85.4, 94 and 98.6 % of hits, amplification 18.9, 7.4 and 1.8. */
    const struct trace_sweep minute = trace_sweep_timeout(&t, 60000),
                             five = trace_sweep_timeout(&t, 300000),
                             hour = trace_sweep_timeout(&t, 3600000);
    assert_true(fabs(minute.hit_rate - 0.854) < 0.01 && fabs(five.hit_rate - 0.94) < 0.01 &&
                fabs(hour.hit_rate - 0.986) < 0.005);
    assert_true(minute.amplification > 14 && minute.amplification < 20);
    assert_true(five.amplification > 6 && five.amplification < 9);
    assert_true(hour.amplification > 1.5 && hour.amplification < 3);
    /* It is a trace like any other. */
    AUTO(buf) struct buf text = BUF_INIT(1 << 24);
    struct trace again;
    assert_ok(trace_write(&t, &text, &e), &e);
    assert_ok(trace_parse(&again, TRACE_TRACELAB, buf_str(&text), text.len, "text", &e), &e);
    assert_int_equal(again.n_steps, t.n_steps);
    assert_memory_equal(again.steps, t.steps, t.n_steps * sizeof *t.steps);
    trace_fini(&again);
    trace_fini(&t);
    assert_ok(trace_synthesise(&again, 1, 2, &e), &e);
    trace_fini(&again);
}

/* ---- published traces ---------------------------------------------------------------------
 */

static void check_file(const char *path, uint32_t n_sessions, uint32_t n_steps)
{
    struct trace t, again;
    struct error e = {0};
    AUTO(buf) struct buf text = BUF_INIT(1 << 26);
    assert_ok(trace_load(&t, path, &e), &e);
    assert_int_equal(t.n_sessions, n_sessions);
    assert_int_equal(t.n_steps, n_steps);
    assert_ok(trace_write(&t, &text, &e), &e);
    assert_ok(trace_parse(&again, t.form, buf_str(&text), text.len, "text", &e), &e);
    assert_int_equal(again.n_blocks, t.n_blocks);
    assert_int_equal(again.n_steps, t.n_steps);
    trace_fini(&again);
    trace_fini(&t);
}

/* Where the published files are: AGENTD_TRACES=DIR. */
static void published_traces(void **state)
{
    (void)state;
    const char *dir = getenv("AGENTD_TRACES");
    char path[512];
    if (!dir)
        skip();
    snprintf(path, sizeof path, "%s/mooncake_conversation.jsonl", dir);
    check_file(path, 12031, 12031);
    snprintf(path, sizeof path, "%s/mooncake_synthetic.jsonl", dir);
    check_file(path, 3993, 3993);
    snprintf(path, sizeof path, "%s/tracelab_multi_session_example.csv", dir);
    check_file(path, 3, 8);
    snprintf(path, sizeof path, "%s/tracelab_session_workload_example.csv", dir);
    check_file(path, 1, 11);
    snprintf(path, sizeof path, "%s/tracelab_multi_session_large.csv", dir);
    check_file(path, 48, 303);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mooncake_there_and_back),
        cmocka_unit_test(tracelab_there_and_back),
        cmocka_unit_test(columns_in_any_order_and_without_arrival),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(filler_is_the_same_from_anywhere),
        cmocka_unit_test(sweep_of_a_small_trace),
        cmocka_unit_test(synthetic_sessions_have_the_published_shape),
        cmocka_unit_test(published_traces),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
