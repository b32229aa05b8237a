/* Everything that the sample store serves, read through the same calls as a daemon reads it, as
 * text: for tests that damage a store and hold what is served then to the truth. */
#ifndef TESTS_SUPPORT_STORE_TRANSCRIPT_H
#define TESTS_SUPPORT_STORE_TRANSCRIPT_H

#include "tests/support/store_sample.h"

struct transcript_part {
    char text[4096];
    bool flagged; /* refused, or shortened and said so: not all of it may be there */
};

enum {
    TRANSCRIPT_INFO,
    TRANSCRIPT_TAPE,
    TRANSCRIPT_EVENTS,
    TRANSCRIPT_ITEMS,
    TRANSCRIPT_CALLS,
    TRANSCRIPT_TURNS,
    TRANSCRIPT_UNFINISHED,
    TRANSCRIPT_PARTS
};

struct transcript {
    struct transcript_part list;                       /* names, in the order of the listing */
    struct transcript_part parts[2][TRANSCRIPT_PARTS]; /* of the session and of its fork */
    uint64_t restored[2];                              /* tokens of state; every byte checked */
    bool lost[2];                                      /* said to have lost commits */
    bool loss_told;                                    /* any was, or the -wal to be gone */
    bool refused;                                      /* the store did not open */
    enum err rc;                                       /* and why */
    struct error e;
};

/* Opens the store, reads, closes it. */
void transcript_read(struct store_fixture *f, const struct store_sample *s,
                     struct transcript *out);

/* Whether all of session s (0 or 1) is as it was there, and nothing flagged anew. */
bool transcript_same(const struct transcript *a, const struct transcript *b, int s);

/* The test fails unless everything in `got` is as it was, or says that it is not and shows no
 * more than the beginning. `what` names the damage. True: some of it was refused or flagged. */
bool transcript_compare(const struct transcript *want, const struct transcript *got,
                        const char *what);

#endif
