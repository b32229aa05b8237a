/* What the store costs: `agentd bench store`, from verb_bench.c.
 *
 * All through the store's own code, in a folder that is made for the run and removed after it.
 * What it is measured against is measured in the same run on the same files, in turns, so that
 * what else the machine does meets both; pairs are compared one by one, and the medians count.
 */
#ifndef AGENTD_BENCH_STORE_H
#define AGENTD_BENCH_STORE_H

#include "agentd/bench_state.h"
#include "base/clock.h"
#include "base/fs.h"

struct store;

#define BENCH_MAX_PAIRS 99
#define BENCH_MAX_LINES 4

struct bench_options {
    enum bench_geometry geometry;
    uint64_t n_tokens;
    uint32_t block_tokens; /* 0: the store's default */
    bool encrypt;
    uint32_t n_pairs;
    uint32_t n_appends; /* 0: restore; else so many appends to a session of n_tokens */
    uint64_t step;      /* tokens of one */
    const char *dir;    /* exists */
};

/* The store of a run, and what it is filled from. */
struct bench {
    const struct bench_options *o;
    struct state_layout layout;
    char dir[FS_PATH_BYTES], db[FS_PATH_BYTES], packs[FS_PATH_BYTES], state[FS_PATH_BYTES];
    char session[32];
    struct store *store;
    const struct clock *clock;
};

/* A new folder below o->dir, a store in it, a session without tokens. ERR_LIMIT: not enough
 * free space for what the run is going to write. */
NODISCARD enum err bench_begin(struct bench *b, const struct bench_options *o, struct error *e);
/* Closes the store and removes the folder. */
void bench_end(struct bench *b);
/* Closes and opens the store again. */
NODISCARD enum err bench_reopen(struct bench *b, struct error *e);
/* Puts n tokens on the tape as one input segment and saves their state. ERR_CANCELLED: somebody
 * wants the process to end (the signal is left pending). */
struct head_receipt;
NODISCARD enum err bench_append(struct bench *b, struct bench_room *room, uint64_t from,
                                uint64_t n, struct head_receipt *r, struct error *e);

/* A figure and the limit it is held to. */
struct bench_line {
    const char *name;
    double value, limit;
    bool at_least; /* else: at most */
};
bool bench_line_met(const struct bench_line *l);

/* One direction of a cipher over memory, GB/s: on one core and on all. */
struct bench_ceiling {
    double one, all;
};

struct bench_pair {
    double raw_bps, restore_bps, ceiling_bps; /* bytes a second; ceiling of all cores */
    double find_ms, first_ms, whole_ms;       /* first and whole from the beginning of find */
};

struct bench_restore {
    uint64_t bytes;  /* that a restore reads */
    uint64_t stored; /* in all packs, holes apart */
    uint32_t n_packs, n_cores;
    double write_bps, open_ms;
    bool direct;
    const char *backend;
    struct bench_ceiling tag, seal;
    struct bench_pair pairs[BENCH_MAX_PAIRS], median;
    double ratio, first_of_whole; /* medians of the pairs' */
    struct bench_line lines[BENCH_MAX_LINES];
    size_t n_lines;
};
/* Writes o->n_tokens, then pairs of (raw read, find and restore), cold; checks every byte of
 * the last. */
NODISCARD enum err bench_restore(struct bench *b, struct bench_restore *out, struct error *e);

struct bench_appends {
    uint64_t n_tokens;                         /* at the end */
    double row_bytes;                          /* of planes in one append */
    double tail_bytes, block_bytes, tip_bytes; /* written by one, means */
    double tail_most;                          /* of one append */
    double ms_median, ms_most;
    double live_bytes; /* on disk after gc, without tips, a token */
    struct bench_line lines[BENCH_MAX_LINES];
    size_t n_lines;
};
NODISCARD enum err bench_appends(struct bench *b, struct bench_appends *out, struct error *e);

/* Medians are over copies; v is sorted. */
double bench_median(double *v, size_t n);

#endif
