/* What of a draw host and device share as one text (kernels/sample.h). */
#ifndef KERNELS_SAMPLE_RULES_H
#define KERNELS_SAMPLE_RULES_H

#include "kernels/math.h"
#include "kernels/sample.h"

/* Whether only the most likely ids take part, so that they have to be put in order. */
K_FN bool k_sample_is_cut(const struct k_draw *d)
{
    return d->top_k || d->top_p < 1;
}

/* Exponents below it give a probability that is too small for sure: k_exp() and k_log() are
 * that exact. */
K_FN double k_sample_least(double min_p)
{
    return min_p > 0 ? k_log(min_p) - 1e-9 : -746;
}

#endif
