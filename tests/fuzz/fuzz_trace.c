/* evals/trace: a trace in either form. What is taken is written and read again without a
 * change, and no step of it has more prefix than its session has tokens. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "evals/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_prefixes(const struct trace *t)
{
    uint64_t n_steps = 0;
    for (uint32_t k = 0; k < t->n_sessions; k++) {
        const struct trace_step *s = &t->steps[t->sessions[k].step];
        n_steps += t->sessions[k].n_steps;
        for (uint32_t i = 1; i < t->sessions[k].n_steps; i++)
            check(s[i].prefix_len <=
                  (uint64_t)s[i - 1].prefix_len + s[i - 1].input_len + s[i - 1].output_len);
    }
    check(n_steps == t->n_steps);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const enum trace_form form = size && data[0] == '{' ? TRACE_MOONCAKE : TRACE_TRACELAB;
    struct trace t = TRACE_INIT(form), again = TRACE_INIT(form);
    struct error e = {0};
    struct trace_summary summary;
    if (trace_parse(&t, form, (const char *)data, size, "input", &e)) {
        check(e.msg[0] && !t.n_steps && !t.steps);
        return 0;
    }
    check_prefixes(&t);
    AUTO(buf) struct buf text = BUF_INIT((size_t)64 << 20);
    AUTO(buf) struct buf twice = BUF_INIT((size_t)64 << 20);
    check(trace_write(&t, &text, &e) == OK);
    check(trace_parse(&again, form, buf_str(&text), text.len, "again", &e) == OK);
    check(trace_write(&again, &twice, &e) == OK);
    check(text.len == twice.len && !memcmp(buf_str(&text), buf_str(&twice), text.len));
    check(again.n_steps == t.n_steps && again.n_blocks == t.n_blocks);
    check((trace_summarise(&t, &summary, &e) == OK) == (t.n_steps > 0));
    struct trace_sweep sweep = trace_sweep_timeout(&t, 1000);
    check(sweep.hit_rate >= 0 && sweep.hit_rate <= 1 && sweep.amplification >= 1);
    trace_fini(&t);
    trace_fini(&again);
    return 0;
}
