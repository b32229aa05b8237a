/* Model state as the rest of the program sees it: planes that grow, and a tip of fixed size.
 *
 * A plane is an array of rows of equal size; one row stands for `ratio` consecutive tokens and
 * never changes once written. After n tokens a plane has n / ratio rows (integer division). The
 * tip is everything else that is needed to go on bit-exactly after n tokens, as one opaque byte
 * string that carries its own version, position and checks. A recurrent model has no planes.
 *
 * engine/ produces and consumes these; sessions/ stores them and never knows what a row means.
 * The structs are plain descriptions: they own nothing and may cross threads by copy. */
#ifndef BASE_STATE_H
#define BASE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define STATE_MAX_PLANES 64
#define STATE_KEY_BYTES 32
#define STATE_CLASS_BYTES 24

enum plane_kind {
    PLANE_INDEX, /* needed before a session can take its first step: restored first */
    PLANE_MAIN   /* rows that are only read where the index selects them */
};

struct plane_spec {
    char name[24]; /* "L2.kv", "L2.index": stable, part of the fingerprint */
    enum plane_kind kind;
    uint32_t row_bytes; /* bytes of one row */
    uint32_t ratio;     /* tokens of one row, at least 1 */
};

/* What one model's state looks like. */
struct state_layout {
    uint8_t fingerprint[STATE_KEY_BYTES]; /* weights, config, token map, planes, tie rule,
                                             precision */
    char numerics[STATE_CLASS_BYTES];     /* numerics class with revision, "cpu-avx512bf16/3" */
    uint32_t n_planes;
    struct plane_spec planes[STATE_MAX_PLANES];
    uint64_t tip_bytes;     /* exact size of a tip, 0 if the model has none */
    uint32_t replay_tokens; /* tokens a deep resume runs again at most: W + (W-1)(L-1) */
    uint32_t window;        /* W */
};

static inline uint64_t state_rows(const struct plane_spec *p, uint64_t n_tokens)
{
    return n_tokens / p->ratio;
}

/* Where a sequence wants its planes: one contiguous region each, page-aligned, big enough for
 * the rows of n_tokens. The memory is the engine's; whoever restores may write it until the
 * import is committed or the sequence is freed. */
struct state_regions {
    uint64_t n_tokens;
    void *plane[STATE_MAX_PLANES];
    /* NULL, or told of bytes of a plane that are in and verified, so that the engine can take
     * them on to where it computes while others are read. Any thread, one at a time; in any
     * order, some twice or not at all. They may not be written afterwards. */
    void (*landed)(void *ctx, const void *at, size_t n_bytes);
    void *ctx;
};

/* Main planes that stay behind: a restore may bring index planes and the tip only, and leave
 * the rows of main planes where they are until they are asked for. `rows` reads the rows
 * [first, first + n) of one plane to dst, whole and verified; it may be called from one thread
 * at a time, any thread, until `close`, and it blocks for the reads. ERR_CORRUPT, ERR_IO: these
 * rows are not to be had (damaged, or given back since): they have to be computed again.
 * ERR_INVAL: not a main plane, or rows past n_tokens. Rows behind n_tokens (those of tails)
 * were restored like index planes. The owner calls close once. */
struct state_fetch {
    void *ctx;
    uint64_t n_tokens; /* rows of the first n_tokens tokens can be asked for */
    enum err (*rows)(void *ctx, uint32_t plane, uint64_t first, uint64_t n, void *dst,
                     struct error *e);
    void (*close)(void *ctx);
};

/* The kinds of tape segment (architecture: "Segments, and what exact means"). */
enum segment_kind { SEGMENT_INPUT, SEGMENT_GENERATED };

enum prefill_mode {
    PREFILL_CED,        /* layers above the last KV source run on the last W tokens only */
    PREFILL_CED_REPORT, /* the last KV source's layer, too */
    PREFILL_FULL        /* every layer, every token */
};

/* One run of tokens appended in one go. `start` and `len` are tape positions in tokens. */
struct segment {
    uint64_t start, len;
    enum segment_kind kind;
    enum prefill_mode mode; /* of an input segment */
};

/* A replay resume: at tape position `at` the windows were rebuilt from `from` on. */
struct replay_mark {
    uint64_t at, from;
};

/* A tape as the engine reads it: borrowed for the call. Segments are in order, without gaps,
 * and cover [0, n_ids) (the last one may be longer than what is there: it is still being
 * written). */
struct tape_view {
    const uint32_t *ids;
    uint64_t n_ids;
    const struct segment *segments;
    size_t n_segments;
    const struct replay_mark *marks;
    size_t n_marks;
};

enum resume_mode { RESUME_EXACT, RESUME_DEEP, RESUME_REPLAY, RESUME_COLD };

/* "ced", "ced-report", "full"; ERR_INVAL names what was given. */
NODISCARD enum err prefill_mode_parse(const char *s, enum prefill_mode *out, struct error *e);
const char *prefill_mode_name(enum prefill_mode mode);
/* "exact", "deep", "replay", "cold". */
NODISCARD enum err resume_mode_parse(const char *s, enum resume_mode *out, struct error *e);
const char *resume_mode_name(enum resume_mode mode);

#endif
