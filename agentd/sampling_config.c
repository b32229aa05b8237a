#include "agentd/sampling_config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define DEFAULT_TEMPERATURE 1.0 /* model card */
#define DEFAULT_TOP_P 0.95
#define MAX_BIAS 100.0

static int by_id(const void *a, const void *b)
{
    const struct logit_bias *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* A key of logitBias: a token id, written in one way only. */
static enum err read_id(const char *key, uint32_t *id, struct error *e)
{
    size_t n = strspn(key, "0123456789");
    char *end = NULL;

    errno = 0;
    unsigned long v = strtoul(key, &end, 10);
    if (!n || key[n] || (key[0] == '0' && n > 1) || errno || v > UINT32_MAX - 1)
        return err_set(e, ERR_INVAL, "\"logitBias\": \"%.40s\" is no token id", key);
    *id = (uint32_t)v;
    return OK;
}

static enum err read_bias(const json_t *o, struct logit_bias **out, uint32_t *n_out,
                          struct error *e)
{
    json_t *map = NULL, *value;
    const char *key;
    uint32_t n = 0;
    enum err rc = json_opt_obj(o, "logitBias", &map, e);

    if (rc || !map)
        return rc;
    if (json_object_size(map) > SAMPLING_MAX_BIASES)
        return err_set(e, ERR_INVAL, "\"logitBias\": %zu entries, at most %d",
                       json_object_size(map), SAMPLING_MAX_BIASES);
    struct logit_bias *list = calloc(json_object_size(map) + 1, sizeof(*list));
    if (!list)
        return err_set(e, ERR_NOMEM, "logitBias");
    json_object_foreach(map, key, value) {
        double v = json_number_value(value);
        if (!rc && (!json_is_number(value) || !(fabs(v) <= MAX_BIAS)))
            rc = err_set(e, ERR_INVAL, "\"logitBias\".\"%.20s\": want a number of -100 to 100",
                         key);
        if (!rc && !(rc = read_id(key, &list[n].id, e)))
            list[n++].value = (float)v;
    }
    if (rc) {
        free(list);
        return rc;
    }
    qsort(list, n, sizeof(*list), by_id);
    *out = list;
    *n_out = n;
    return OK;
}

static enum err read_stops(const json_t *o, const char **out, uint32_t *n_out, struct error *e)
{
    json_t *list = NULL;
    enum err rc = json_opt_arr(o, "stop", &list, e);

    if (rc)
        return rc;
    if (json_array_size(list) > SAMPLING_MAX_STOPS)
        return err_set(e, ERR_INVAL, "\"stop\": %zu strings, at most %d", json_array_size(list),
                       SAMPLING_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        size_t n = json_string_length(s);
        if (!json_is_string(s) || !n || n > SAMPLING_MAX_STOP_BYTES ||
            strlen(json_string_value(s)) != n)
            return err_set(e, ERR_INVAL, "\"stop\"[%zu]: want a string of 1 to %d bytes", i,
                           SAMPLING_MAX_STOP_BYTES);
        out[i] = json_string_value(s);
    }
    *n_out = (uint32_t)json_array_size(list);
    return OK;
}

/* Every field, from params or from what is stored. */
static enum err read_all(struct sampling_config *c, const json_t *o, uint64_t draw,
                         struct error *e)
{
    int64_t seed = (int64_t)(draw >> 1), top_k = 0, top_logprobs = -1;
    double temperature = DEFAULT_TEMPERATURE, top_p = DEFAULT_TOP_P, min_p = 0;
    enum err rc;

    if ((rc = json_opt_int(o, "seed", 0, INT64_MAX, &seed, e)) ||
        (rc = json_opt_num(o, "temperature", 0, 100, &temperature, e)) ||
        (rc = json_opt_num(o, "topP", 1e-6, 1, &top_p, e)) ||
        (rc = json_opt_int(o, "topK", 0, 1 << 24, &top_k, e)) ||
        (rc = json_opt_num(o, "minP", 0, 1, &min_p, e)) ||
        (rc = json_opt_int(o, "topLogprobs", 0, SAMPLE_MAX_LOGPROBS, &top_logprobs, e)) ||
        (rc = read_stops(o, c->stop, &c->n_stop, e)))
        return rc;
    c->seed = (uint64_t)seed;
    c->temperature = (float)temperature;
    c->top_p = (float)top_p;
    c->top_k = (uint32_t)top_k;
    c->min_p = (float)min_p;
    c->top_logprobs = (uint32_t)(top_logprobs + 1);
    return read_bias(o, &c->bias, &c->n_bias, e);
}

/* A field as it was given, or the value that it has without. */
static void store(json_t *stored, const json_t *params, const char *field, json_t *otherwise)
{
    json_t *given = json_object_get(params, field);

    json_object_set(stored, field, given && !json_is_null(given) ? given : otherwise);
    json_decref(otherwise);
}

enum err sampling_config_read(const json_t *params, uint64_t draw, uint32_t vocab_size,
                              json_t *stored, struct error *e)
{
    struct sampling_config c = {0};
    enum err rc = read_all(&c, params, draw, e);

    if (!rc && c.n_bias && c.bias[c.n_bias - 1].id >= vocab_size)
        rc = err_set(e, ERR_INVAL, "\"logitBias\": token id %u, the model has %u",
                     c.bias[c.n_bias - 1].id, vocab_size);
    if (!rc) {
        store(stored, params, "seed", json_integer((json_int_t)c.seed));
        store(stored, params, "temperature", json_real(DEFAULT_TEMPERATURE));
        store(stored, params, "topP", json_real(DEFAULT_TOP_P));
        store(stored, params, "topK", json_integer(0));
        store(stored, params, "minP", json_real(0));
        store(stored, params, "stop", json_array());
        store(stored, params, "logitBias", json_object());
        if (c.top_logprobs)
            json_object_set_new(stored, "topLogprobs", json_integer(c.top_logprobs - 1));
    }
    sampling_config_fini(&c);
    return rc;
}

enum err sampling_config_load(struct sampling_config *c, const json_t *stored, struct error *e)
{
    static const char *const always[] = {"seed", "temperature", "topP"};

    for (size_t i = 0; i < sizeof(always) / sizeof(*always); i++)
        if (!json_object_get(stored, always[i]))
            return err_set(e, ERR_CORRUPT, "\"%s\": missing", always[i]);
    return read_all(c, stored, 0, e);
}

void sampling_config_fini(struct sampling_config *c)
{
    free(c->bias);
    c->bias = NULL;
}

struct sampling sampling_config_options(const struct sampling_config *c)
{
    return (struct sampling){.seed = c->seed,
                             .temperature = c->temperature,
                             .top_p = c->top_p,
                             .top_k = c->top_k,
                             .min_p = c->min_p,
                             .bias = c->bias,
                             .n_bias = c->n_bias,
                             .stop = c->stop,
                             .n_stop = c->n_stop,
                             .top_logprobs = c->top_logprobs};
}
