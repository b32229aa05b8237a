/* A store in a folder of its own, for tests: made, reopened, removed. */
#ifndef TESTS_SUPPORT_STORE_FIXTURE_H
#define TESTS_SUPPORT_STORE_FIXTURE_H

#include "base/clock.h"
#include "sessions/head.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"

struct store_fixture {
    char dir[64];
    char db[128], packs[128], state[128];
    struct store_options options; /* block_tokens 16; change before store_fixture_open */
    struct fake_clock clock;
    struct store *st;
};

/* Makes the folder; opens nothing. In memory where there is such a place (a commit then costs
 * no fsync of a disk), unless on_disk or AGENTD_SLOW asks for one that takes O_DIRECT. */
void store_fixture_init(struct store_fixture *f, bool on_disk);
/* In memory also when slow: for tests that bring a disk of their own. */
void store_fixture_init_in_memory(struct store_fixture *f);
/* Closes the store, removes the folder. */
void store_fixture_fini(struct store_fixture *f);
enum err store_fixture_open(struct store_fixture *f, struct error *e);
/* Closes and opens again; the test fails if that fails. */
void store_fixture_reopen(struct store_fixture *f);
/* Removes what lies below a folder, and the folder. */
void remove_tree(const char *path);

/* A session with this name; the test fails if it cannot be made. */
void fixture_session(struct store_fixture *f, const char *name, char id[SESSION_ID_CAP]);
/* Appends n ids first, first + 1, ... as one closed segment at the tape's end. */
enum err fixture_append(struct store *st, const char *id, uint32_t first, uint64_t n,
                        enum segment_kind kind, struct error *e);
uint64_t fixture_length(struct store *st, const char *id);

#endif
