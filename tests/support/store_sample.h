/* A small store with something in every table, for tests that look at each row of it. */
#ifndef TESTS_SUPPORT_STORE_SAMPLE_H
#define TESTS_SUPPORT_STORE_SAMPLE_H

#include "tests/support/state_fixture.h"

#define SAMPLE_TOKENS 40        /* of the parent: ids 500, 501, ... */
#define SAMPLE_FORK_TOKENS 52   /* of the fork: 12 more, ids 900, ... */
#define SAMPLE_FORK_RESTORED 20 /* behind the mark at 40 it wants another tip there */
#define SAMPLE_TEXT "hello"     /* of the only item */

struct store_sample {
    struct state_layout l;                         /* LAYOUT_ODD; state saved at 20 and 40 */
    char id[SESSION_ID_CAP], fork[SESSION_ID_CAP]; /* named "parent" and "child" */
};

/* Fills a new store; the test fails if that fails. */
void store_sample_make(struct store *st, struct store_sample *s);

#endif
