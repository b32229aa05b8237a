/* Made-up model state of real geometry, for measuring the store without a model.
 *
 * Every byte follows from its place, so that what comes back is compared with what it has to
 * be, and nothing of the size of a million tokens has to be kept beside it. */
#ifndef AGENTD_BENCH_STATE_H
#define AGENTD_BENCH_STATE_H

#include "base/state.h"

enum bench_geometry {
    BENCH_V41_FLASH, /* 890 bytes of planes a token, a tip of 2.94 MB (model.md) */
    BENCH_SMALL      /* 27 bytes a token, a tip of 20 kB: for tests of the bench itself */
};
extern const char *const bench_geometry_names[]; /* NULL ends; for options */

/* Planes, bytes of rows and tip of a geometry. */
void bench_layout(enum bench_geometry g, struct state_layout *out);

/* Token ids [from, from + n). */
void bench_ids(uint64_t from, uint64_t n, uint32_t *out);
/* Rows [first, first + n) of a plane. */
void bench_rows(const struct state_layout *l, uint32_t plane, uint64_t first, uint64_t n,
                void *out);
/* The tip at a position. */
void bench_tip(const struct state_layout *l, uint64_t position, void *out);

/* Room for the planes of n_tokens, page-aligned and touched; and for a tip. */
struct bench_room {
    struct state_regions regions;
    size_t bytes[STATE_MAX_PLANES];
    void *tip;
    size_t tip_bytes;
};
/* ERR_NOMEM. */
NODISCARD enum err bench_room_new(struct bench_room *r, const struct state_layout *l,
                                  uint64_t n_tokens, struct error *e);
void bench_room_fini(struct bench_room *r);
/* Fills the room with the rows of tokens [from, to) and the tip at `to`. */
void bench_room_fill(struct bench_room *r, const struct state_layout *l, uint64_t from,
                     uint64_t to);
/* ERR_CORRUPT names the plane and row whose bytes are not those of tokens [0, n_tokens). */
NODISCARD enum err bench_room_check(const struct bench_room *r, const struct state_layout *l,
                                    uint64_t n_tokens, struct error *e);

#endif
