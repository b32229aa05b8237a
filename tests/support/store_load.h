/* A random load on a store, drawn from a seed, with a model of what the store must hold.
 *
 * Model and draw live in memory that is shared with forked children: a child applies the load
 * and dies somewhere; the next one opens the store and compares. Before each operation the
 * model notes what it leads to, so that afterwards either state, and no other, is right for an
 * operation that was cut. Nothing here asserts: a process that finds the store wrong leaves the
 * reason in `violation`. */
#ifndef TESTS_SUPPORT_STORE_LOAD_H
#define TESTS_SUPPORT_STORE_LOAD_H

#include "base/fault.h"
#include "base/hash.h"
#include "tests/support/state_fixture.h"

#define LOAD_SESSIONS 8
#define LOAD_TOKENS 600
#define LOAD_EVENTS 64

enum load_kind {
    LOAD_NEW,
    LOAD_APPEND,
    LOAD_FINISH_CALL,
    LOAD_SAVE,
    LOAD_RESTORE,
    LOAD_FORK,
    LOAD_REWIND,
    LOAD_COMPACT,
    LOAD_REMOVE,
    LOAD_GC,
    LOAD_PURGE,
    LOAD_EVICT,
    LOAD_EXPORT,
    LOAD_IMPORT,
    LOAD_REOPEN,
    LOAD_KINDS
};
extern const char *const load_kind_names[LOAD_KINDS];

struct load_session {
    bool exists;
    char name[16];
    uint64_t n_tokens, n_events;
    uint64_t n_old; /* events from before a compaction: their tokens are another session's */
    uint64_t n_calls, n_open_calls; /* LOAD_ANY: whatever is found */
    uint64_t saved;                 /* state position; LOAD_ANY */
    bool has_tip;                   /* and a tip exactly there */
    bool may_be_gone; /* evicted: the position is known, the state may not be there */
    uint32_t ids[LOAD_TOKENS];
    uint64_t at[LOAD_EVENTS]; /* position of each event */
};
#define LOAD_ANY UINT64_MAX

/* A fault for the store's part of the next operation (base/fault.h). */
struct load_fault {
    enum fault_action action;
    int sys;    /* errno, 0: each point's own */
    uint64_t n; /* 0: none */
    bool fired; /* set by the operation: there was such a point */
};

/* An operation that has begun, and what the sessions it touches are after it. */
struct load_op {
    bool begun;
    bool refused; /* and the store has said so: then it did not happen */
    enum load_kind kind;
    size_t n;
    size_t slot[2];
    struct load_session after[2];
};

struct load {
    uint64_t random;
    uint32_t n_names;
    struct state_layout layout;
    struct load_session sessions[LOAD_SESSIONS], exported;
    bool has_export;
    uint8_t export_hash[HASH_BYTES];
    struct load_op op;
    struct load_fault fault;
    uint64_t n_done[LOAD_KINDS], n_cut[LOAD_KINDS]; /* operations; those cut by a crash */
    uint64_t n_went_through;                        /* of the cut ones */
    bool with_quota; /* any save may evict the state of the others */
    bool loud;       /* a line for each operation, to stderr */
    char violation[400];
};

/* Shared memory; load_free unmaps it. */
struct load *load_new(uint64_t seed, enum layout_shape shape);
void load_free(struct load *l);
uint64_t load_draw(struct load *l, uint64_t below);

/* One operation on f->st. False: it failed (op.refused), or what it gave is wrong. */
bool load_step(struct load *l, struct store_fixture *f);
/* One of this kind, if there is a session and room for it. */
bool load_run(struct load *l, struct store_fixture *f, enum load_kind kind);
/* Compares an open store with the model, whatever was cut before; restores the state of every
 * session and compares it byte by byte. False: the store is wrong. */
bool load_check(struct load *l, struct store_fixture *f);

#endif
