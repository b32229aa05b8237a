/* Made-up model state: what a row or a tip holds follows from the tokens before it, so that
 * every byte that comes back can be checked, and sessions with the same tokens have the same
 * state. */
#ifndef TESTS_SUPPORT_STATE_FIXTURE_H
#define TESTS_SUPPORT_STATE_FIXTURE_H

#include "base/state.h"
#include "sessions/head.h"
#include "tests/support/store_fixture.h"

enum layout_shape {
    LAYOUT_ODD,      /* five planes of uneven rows, ratios 1 and 2; nothing fits a page */
    LAYOUT_PAGES,    /* with blocks of 16 every region is whole pages */
    LAYOUT_TIP,      /* no planes at all */
    LAYOUT_SMALL,    /* two planes of a few bytes and a small tip: for each byte of a store */
    LAYOUT_SMALL_TIP /* such a tip alone */
};
void state_layout_make(struct state_layout *l, enum layout_shape shape);

/* A model whose state is a fixed-size recurrence is a model like any other: runs a group of
 * tests twice, the second time with LAYOUT_TIP wherever LAYOUT_ODD is asked for. For main(). */
#define run_with_both_shapes(tests)                                                            \
    __extension__({                                                                            \
        state_layout_replace(LAYOUT_TIP);                                                      \
        int failed_ = cmocka_run_group_tests(tests, NULL, NULL);                               \
        state_layout_replace(LAYOUT_ODD);                                                      \
        failed_ + cmocka_run_group_tests(tests, NULL, NULL);                                   \
    })
/* What LAYOUT_ODD stands for from now on. */
void state_layout_replace(enum layout_shape odd);

/* Rows of all planes for n tokens, made from their ids; and the tip behind them. */
struct state_image {
    const struct state_layout *l;
    uint64_t n_tokens;
    struct state_regions regions; /* page-aligned, one allocation each */
    uint8_t *tip;
};
void state_image_make(struct state_image *s, const struct state_layout *l, const uint32_t *ids,
                      uint64_t n_tokens);
/* The same room, filled with 0xee. */
void state_image_blank(struct state_image *s, const struct state_layout *l, uint64_t n_tokens);
void state_image_fini(struct state_image *s);
/* The test fails unless the rows of the first n tokens are equal. */
void state_image_equal(const struct state_image *a, const struct state_image *b, uint64_t n);

/* head_save of [from, to) of the session's tape, with rows and tip made from its ids. */
enum err state_save(struct store *st, const char *session, const struct state_layout *l,
                    uint64_t from, uint64_t to, bool with_tip, struct head_receipt *r,
                    struct error *e);

/* head_find and head_restore; checks every byte that came back, and that nothing else claims to
 * have. plan_out (may be NULL) gets the plan's plain figures. */
enum err state_restore(struct store *st, const char *session, const struct state_layout *l,
                       uint64_t position, enum head_want want, struct head_plan *plan_out,
                       struct head_restored *out, struct error *e);

/* A store and a layout, for cmocka: *state is a struct state_world with LAYOUT_ODD. */
struct state_world {
    struct store_fixture f;
    struct state_layout l;
};
int state_world_setup(void **state);
/* In memory also when slow. */
int state_world_setup_in_memory(void **state);
int state_world_teardown(void **state);

#endif
