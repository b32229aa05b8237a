/* Draws a token from each row of logits: bias, then temperature, min-p, top-k and top-p, in
 * this order.
 *
 * logits   [n][n_vocab] f32
 * add      [n][n_vocab] f32 or NULL: added to them first, in f32
 * draw     [n] how, by value: a row is drawn by its own
 * bias     ids ascending within a row's part of it; an id that there is not counts for nothing
 * allowed  [n][K_MASK_WORDS(n_vocab)] u32: bit id % 32 of word id / 32. Read where is_masked;
 *          ids that are not allowed have no part in the draw. NULL: no row is masked
 * drawn    [n]
 *
 * In double: l = logit (with what is added) + bias, p = k_exp((l - largest) / temperature), 0
 * where p < min_p (and, without looking, where it would surely be). Temperature 0 takes the
 * largest l; equal ones: lower id. Without top-k and top-p the sum of p runs over ids,
 * ascending; with either over p descending, of equal ones the lower id first: the first top_k
 * (0: all), and of these no more than it takes for their sum to reach top_p times the sum of
 * all. The id drawn is the first whose sum so far is above Philox(seed, position) times the
 * whole. Sums add one after the other: **the same bits on every backend**, and so the same id,
 * whatever else is in the call.
 *
 * A device adds in parallel and comes to the same bits: while a sum stays between two powers of
 * two each term moves it by a whole number of its last place, which depends on the sum at most
 * by whether its last bit is set. Such steps can be put together in any grouping (sample.cu).
 */
#ifndef KERNELS_SAMPLE_H
#define KERNELS_SAMPLE_H

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_SAMPLE_ROWS 16 /* most rows of a call */
#define K_MASK_WORDS(n_vocab) (((size_t)(n_vocab) + 31) / 32)

/* Added to the logit of an id. */
struct logit_bias {
    uint32_t id;
    float value;
};

struct k_draw {
    uint64_t seed, position;
    float temperature;        /* 0: greedy */
    float top_p, min_p;       /* 1, 0: off */
    uint32_t top_k;           /* 0: off */
    uint32_t bias_at, n_bias; /* the row's part of `bias` */
    bool is_masked;
};

enum k_drawn_state {
    K_DRAWN,
    K_DRAWN_BROKEN, /* a logit is NaN or infinite: the first id, and its logit */
    K_DRAWN_NOTHING /* no id is allowed */
};

struct k_drawn {
    uint32_t state; /* enum k_drawn_state */
    uint32_t id;
    float logit;  /* of id, without bias; 0 where there is none */
    double whole; /* the sum of p that the id was drawn from; 0: greedy */
};

struct k_sample {
    const float *logits, *add;
    const struct logit_bias *bias;
    const uint32_t *allowed;
    struct k_drawn *drawn;
    struct k_draw draw[K_SAMPLE_ROWS];
    uint32_t n, n_vocab;
};

/* ---- one row, on the host -------------------------------------------------------------------
 */

/* The same for a row whose ids are allowed by a function, which is asked about few of them: the
 * text that the op is on host backends. */
struct k_sample_row {
    const float *logits, *add; /* [n_vocab]; add NULL: nothing */
    uint32_t n_vocab;
    const struct k_draw *draw;                    /* bias_at and is_masked mean nothing here */
    const struct logit_bias *bias;                /* [draw->n_bias] */
    bool (*allows)(const void *arg, uint32_t id); /* NULL: all of them */
    const void *arg;
};

struct k_sample_entry {
    double p;
    uint32_t id;
};

/* scratch [2][n_vocab] */
struct k_drawn k_sample_one(const struct k_sample_row *row, struct k_sample_entry *scratch);

#ifdef __cplusplus
}
#endif
#endif
