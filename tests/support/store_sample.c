#include "tests/support/store_sample.h"

#include "tests/support/test.h"

void store_sample_make(struct store *st, struct store_sample *s)
{
    struct error e;
    struct session_new n = {.name = "parent", .cwd = "/home/me", .config = "{\"seed\":1}"};
    state_layout_make(&s->l, LAYOUT_ODD);
    assert_ok(session_new(st, &n, s->id, &e), &e);
    uint32_t ids[SAMPLE_TOKENS];
    for (uint32_t i = 0; i < SAMPLE_TOKENS; i++)
        ids[i] = i + 500;
    struct tape_segment seg = {.seg = {0, 40, SEGMENT_INPUT, PREFILL_CED},
                               .has_digest = true,
                               .digest = {9},
                               .n_rows = 40};
    struct replay_mark mark = {40, 32};
    struct tape_event ev[2] = {{.type = "item",
                                .item = "i1",
                                .kind = "user",
                                .turn = "t1",
                                .json = "{\"text\":\"" SAMPLE_TEXT "\"}",
                                .position = TAPE_END},
                               {.type = "state", .bytes = "raw", .n_bytes = 3}};
    struct tape_call call = {.id = "c1",
                             .turn = "t1",
                             .item = "i2",
                             .name = "run",
                             .arguments = "{\"x\":1}",
                             .status = CALL_DONE,
                             .result = "out",
                             .n_result = 3,
                             .spill = "/spill",
                             .spill_bytes = 77};
    struct tape_turn turn = {.id = "t1",
                             .client_message = "m1",
                             .params = "{\"p\":1}",
                             .state = "tool",
                             .reason = "why",
                             .ledger = "{\"l\":1}"};
    struct tape_commit c = {.session = s->id,
                            .ids = ids,
                            .n_ids = 40,
                            .segments = &seg,
                            .n_segments = 1,
                            .marks = &mark,
                            .n_marks = 1,
                            .events = ev,
                            .n_events = 2,
                            .calls = &call,
                            .n_calls = 1,
                            .turn = &turn,
                            .state = "tool",
                            .reason = "because"};
    assert_ok(tape_commit(st, &c, NULL, &e), &e);
    assert_ok(state_save(st, s->id, &s->l, 0, 20, true, NULL, &e), &e);
    assert_ok(state_save(st, s->id, &s->l, 20, 40, true, NULL, &e), &e);
    struct session_fork k = {.parent = s->id, .name = "child"};
    assert_ok(session_fork(st, &k, s->fork, &e), &e);
    assert_ok(
        fixture_append(st, s->fork, 900, SAMPLE_FORK_TOKENS - SAMPLE_TOKENS, SEGMENT_INPUT, &e),
        &e);
}
