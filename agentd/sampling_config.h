/* How a session's tokens are drawn: the part of session/new that the sampler is about.
 *
 *     seed, temperature, topP, topK, minP
 *     stop          up to 16 strings; the answer ends in front of the first that appears in it
 *     logitBias     {"ID": -100..100, ...}, up to 1024
 *     topLogprobs   0..20: items of the answer and of reasoning say how likely their tokens
 * were
 *
 * Loaded once and then constant. */
#ifndef AGENTD_SAMPLING_CONFIG_H
#define AGENTD_SAMPLING_CONFIG_H

#include <jansson.h>

#include "engine/engine.h"

#define SAMPLING_MAX_STOPS 16
#define SAMPLING_MAX_STOP_BYTES 256
#define SAMPLING_MAX_BIASES 1024

struct sampling_config {
    uint64_t seed;
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint32_t top_logprobs;                /* + 1; 0: off */
    const char *stop[SAMPLING_MAX_STOPS]; /* of the JSON that it was loaded from */
    uint32_t n_stop;
    struct logit_bias *bias; /* ascending ids */
    uint32_t n_bias;
};

/* Reads params of session/new and sets all fields, defaults filled in, in `stored`. ERR_INVAL
 * names the field. `draw` becomes the seed if none is given; ids are below vocab_size. */
NODISCARD enum err sampling_config_read(const json_t *params, uint64_t draw,
                                        uint32_t vocab_size, json_t *stored, struct error *e);
/* From what _read has set (or an older build, which knew less). The strings stay those of
 * `stored`, which has to live as long. */
NODISCARD enum err sampling_config_load(struct sampling_config *c, const json_t *stored,
                                        struct error *e);
void sampling_config_fini(struct sampling_config *c);

/* As the engine wants it; what it points to belongs to c. */
struct sampling sampling_config_options(const struct sampling_config *c);

#endif
