#include "engine/sample.h"

#include <inttypes.h>
#include <math.h>

#include "engine/constrain.h"
#include "kernels/math.h"

static enum err check_lists(const struct sampling *s, struct error *e)
{
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (!isfinite(s->bias[i].value))
            return err_set(e, ERR_INVAL, "bias of id %u: %g", s->bias[i].id,
                           (double)s->bias[i].value);
        if (i && s->bias[i].id <= s->bias[i - 1].id)
            return err_set(e, ERR_INVAL, "bias: id %u behind %u", s->bias[i].id,
                           s->bias[i - 1].id);
    }
    for (uint32_t i = 0; i < s->n_stop; i++)
        if (!s->stop[i][0])
            return err_set(e, ERR_INVAL, "stop string %u is empty", i);
    return OK;
}

enum err sampling_check(const struct sampling *s, struct error *e)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return err_set(e, ERR_INVAL, "temperature %g", (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return err_set(e, ERR_INVAL, "top_p %g, want more than 0, at most 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return err_set(e, ERR_INVAL, "min_p %g, want 0 to 1", (double)s->min_p);
    if (s->top_logprobs > SAMPLE_MAX_LOGPROBS + 1)
        return err_set(e, ERR_INVAL, "top_logprobs %u, at most %u", s->top_logprobs,
                       SAMPLE_MAX_LOGPROBS + 1);
    return check_lists(s, e);
}

struct k_draw sample_draw(const struct sampling *s, const struct constrain_state *calls,
                          uint64_t position)
{
    bool is_greedy = s->rules && calls && constrain_is_greedy(calls);
    return (struct k_draw){.seed = s->seed,
                           .position = position,
                           .temperature = is_greedy ? 0 : s->temperature,
                           .top_p = s->top_p,
                           .min_p = s->min_p,
                           .top_k = s->top_k,
                           .n_bias = s->n_bias};
}

enum err sample_result(const struct k_drawn *drawn, uint64_t position, uint32_t *id,
                       struct error *e)
{
    if (drawn->state == K_DRAWN_BROKEN)
        return err_set(e, ERR_FORMAT, "position %" PRIu64 ": the logit of id %u is %g",
                       position, drawn->id, (double)drawn->logit);
    if (drawn->state != K_DRAWN)
        return err_set(e, ERR_FORMAT,
                       "position %" PRIu64 ": no token of the vocabulary goes on with the call",
                       position);
    *id = drawn->id;
    return OK;
}

static bool filter_allows(const void *filter, uint32_t id)
{
    return constrain_filter_allows(filter, id);
}

enum err sample_token(const struct sampling *s, const struct constrain_state *calls,
                      const float *logits, uint32_t n, uint64_t position,
                      struct k_sample_entry *scratch, uint32_t *id, struct error *e)
{
    struct constrain_filter filter;
    const struct k_draw draw = sample_draw(s, calls, position);
    struct k_sample_row row = {.logits = logits, .n_vocab = n, .draw = &draw, .bias = s->bias};
    if (s->rules && calls) {
        constrain_filter_init(&filter, s->rules, calls);
        row.allows = filter_allows;
        row.arg = &filter;
    }
    struct k_drawn drawn = k_sample_one(&row, scratch);
    return sample_result(&drawn, position, id, e);
}

/* ---- what the model thought of it ---------------------------------------------------------
 */

static double log_sum(const float *logits, uint32_t n)
{
    double largest = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if ((double)logits[i] > largest)
            largest = (double)logits[i];
    for (uint32_t i = 0; i < n; i++)
        sum += k_exp((double)logits[i] - largest);
    return largest + k_log(sum);
}

void sample_logprobs(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                     struct token_logprobs *out)
{
    double all = log_sum(logits, n);
    *out = (struct token_logprobs){.id = id, .logprob = (float)((double)logits[id] - all)};
    for (uint32_t i = 0; i < n && n_top; i++) {
        float p = (float)((double)logits[i] - all);
        uint32_t at = out->n_top;
        if (at == n_top && !(p > out->top[at - 1].logprob))
            continue;
        at -= at == n_top;
        for (; at && p > out->top[at - 1].logprob; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].id = i;
        out->top[at].logprob = p;
        out->n_top += out->n_top < n_top;
    }
}
