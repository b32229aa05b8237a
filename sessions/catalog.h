/* The catalog: which extents there are, how they hang together, and which of them a head means.
 *
 * A head points to its newest block and tail. A block has a parent block; a tail has the tail
 * before it, or else the block it is behind. So a chain is read backwards from (block, tail,
 * position), and a fork or rewind is another (block, tail, position): how much of each extent
 * counts follows from where the next one begins.
 *
 * Rows are checked against their tags when read. A row that is missing, damaged or set aside
 * ends a chain there; what is before it still counts. */
#ifndef SESSIONS_CATALOG_H
#define SESSIONS_CATALOG_H

#include "base/state.h"
#include "sessions/pack.h"

/* What blocks, tails and tips have in common. */
struct extent_row {
    int64_t id, layout;
    uint8_t digest[HASH_BYTES]; /* of the rows; a tip: of its open segment */
    char numerics[STATE_CLASS_BYTES];
    uint32_t lineage;
    struct pack_place place;
    uint64_t commit;
    bool damaged; /* set aside: never used again */
};

struct block_row {
    struct extent_row x;
    int64_t parent; /* block before it, 0: none */
    uint64_t depth; /* blocks before it: it begins at depth * block_tokens */
    uint8_t key[HASH_BYTES];
    uint64_t used_ms;
};

struct tail_row {
    struct extent_row x;
    int64_t block; /* last block before its tokens, 0: none */
    int64_t prev;  /* tail before it, 0: the block */
    uint64_t first, last;
};

struct tip_row {
    struct extent_row x;
    uint8_t key[HASH_BYTES];
    uint64_t position;
    bool inside;
    int64_t block, tail; /* the chain it stands behind */
    uint64_t digest_rows;
};

struct head_row {
    int64_t session;
    uint64_t generation; /* 1, 2, ...; kept in slot generation % 2 */
    int64_t layout;
    uint64_t position;        /* tokens that were saved; the chain covers less after eviction */
    int64_t block, tail, tip; /* what is there of them; 0: none */
    char numerics[STATE_CLASS_BYTES];
    uint32_t lineage;
    uint64_t commit;
};

/* Layout of this namespace with this fingerprint: its id and root. *id 0 when it is not known.
 * ERR_CONFLICT: known with other planes. */
NODISCARD enum err layout_find(struct store *st, const struct state_layout *l, int64_t *id,
                               uint8_t root[HASH_BYTES], struct error *e);
NODISCARD enum err layout_next_id(struct store *st, int64_t *out, struct error *e);
NODISCARD enum err layout_add(struct store *st, int64_t id,
                              const uint8_t fingerprint[STATE_KEY_BYTES], const uint8_t *spec,
                              size_t n_spec, const uint8_t root[HASH_BYTES], struct error *e);

/* Next free id of "blocks", "tails" or "tips". */
enum catalog_table { CATALOG_BLOCKS, CATALOG_TAILS, CATALOG_TIPS };
NODISCARD enum err catalog_next_id(struct store *st, enum catalog_table t, int64_t *out,
                                   struct error *e);

/* ERR_NOTFOUND: no such row; ERR_CORRUPT: its tag does not match. */
NODISCARD enum err block_read(struct store *st, int64_t id, struct block_row *out,
                              struct error *e);
NODISCARD enum err tail_read(struct store *st, int64_t id, struct tail_row *out,
                             struct error *e);
NODISCARD enum err tip_read(struct store *st, int64_t id, struct tip_row *out, struct error *e);
NODISCARD enum err block_write(struct store *st, const struct block_row *r, struct error *e);
NODISCARD enum err tail_write(struct store *st, const struct tail_row *r, struct error *e);
NODISCARD enum err tip_write(struct store *st, const struct tip_row *r, struct error *e);

/* Usable blocks with this key, in a layout; at most cap, exact ones and those of the given
 * numerics class first. */
NODISCARD enum err block_find(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                              const char *numerics, struct block_row *out, size_t cap,
                              size_t *n, struct error *e);
/* The block with this key and digest, usable or set aside. */
NODISCARD enum err block_find_same(struct store *st, int64_t layout,
                                   const uint8_t key[HASH_BYTES],
                                   const uint8_t digest[HASH_BYTES], struct block_row *out,
                                   bool *found, struct error *e);
/* The best usable tip with this key. */
NODISCARD enum err tip_find(struct store *st, int64_t layout, const uint8_t key[HASH_BYTES],
                            const char *numerics, struct tip_row *out, bool *found,
                            struct error *e);

/* Newest (age 0) or previous (age 1) head of a session. A damaged row counts as absent. */
NODISCARD enum err head_row_read(struct store *st, int64_t session, int age,
                                 struct head_row *out, bool *found, struct error *e);
NODISCARD enum err head_row_write(struct store *st, const struct head_row *r, struct error *e);
/* A readable head that means this extent: its newest block, tail or tip. */
NODISCARD enum err head_row_naming(struct store *st, enum catalog_table t, int64_t id,
                                   struct head_row *out, bool *found, struct error *e);
/* Writes r as the newest head of its session, in place of the older of the two; and lets go of
 * what only that one used: *dropped (at most cap) lists the places to punch after the commit.
 * In a transaction. r->generation is set here. */
NODISCARD enum err head_row_push(struct store *st, struct head_row *r,
                                 struct pack_place *dropped, size_t cap, size_t *n,
                                 struct error *e);

/* ---- chains ------------------------------------------------------------------------------ */

enum piece_kind { PIECE_BLOCK, PIECE_TAIL };

/* One extent of a chain. It holds tokens [first, last); those of [first, used) count. */
struct chain_piece {
    enum piece_kind kind;
    struct extent_row x;
    uint8_t key[HASH_BYTES]; /* of a block */
    uint64_t first, last, used;
    int64_t block; /* of a tail: the block it is behind */
};

/* Tokens [0, position) of some session's state, oldest piece first. */
struct head_chain {
    int64_t layout;
    struct chain_piece *pieces;
    size_t n_pieces;
    uint64_t position;  /* covered without a gap from 0 */
    struct tip_row tip; /* x.id 0: none */
};
void head_chain_fini(struct head_chain *c);

/* Pieces behind (block, tail) that cover [0, position). Where a row is missing, damaged or set
 * aside the chain ends before it: out->position is then smaller. */
NODISCARD enum err chain_load(struct store *st, int64_t layout, int64_t block, int64_t tail,
                              uint64_t position, struct head_chain *out, struct error *e);
/* Cuts to the first `position` tokens; the tip goes unless it is exactly there. */
void chain_cut(struct head_chain *c, uint64_t position);
/* (block, tail) that mean this chain. */
void chain_ends(const struct head_chain *c, int64_t *block, int64_t *tail);
/* Most replays behind any piece, and their numerics class ("" if there are several). */
uint32_t chain_lineage(const struct head_chain *c);
void chain_numerics(const struct head_chain *c, char out[STATE_CLASS_BYTES]);

/* Marks the extent of a piece, or a tip, as set aside; counted. A transaction of its own. */
NODISCARD enum err catalog_set_aside(struct store *st, enum catalog_table t, int64_t id,
                                     struct error *e);

#endif
