/* make_store DIR: a store as this build writes it, with something in every table. The golden
 * stores of older versions are made with it (scripts/store-golden.sh). */
#include <stdio.h>

#include "tests/support/store_sample.h"
#include "tests/support/test.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: make_store DIR\n"), 2;
    char db[512];
    struct fake_clock clock;
    struct store_sample s;
    struct store *st;
    struct error e;
    fake_clock_init(&clock, 1700000000000);
    snprintf(db, sizeof db, "%s/agentd.db", argv[1]);
    struct store_options o = {.db_path = db,
                              .packs_dir = argv[1],
                              .state_dir = argv[1],
                              .block_tokens = 16,
                              .namespace = "golden",
                              .clock = &clock.clock};
    if (store_open(&st, &o, &e))
        return fprintf(stderr, "make_store: %s\n", e.msg), 1;
    store_sample_make(st, &s);
    store_close(st);
    return 0;
}
