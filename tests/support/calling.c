#include "tests/support/calling.h"

#include <jansson.h>
#include <stdlib.h>

#include "tests/support/test.h"

uint32_t calling_byte(const struct calling *c, char byte)
{
    for (uint32_t i = 0; i < tokenizer_size(c->tokenizer); i++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_bytes(c->tokenizer, i, &n);
        if (n == 1 && *bytes == (uint8_t)byte)
            return i;
    }
    fail();
    return 0;
}

static int by_id(const void *a, const void *b)
{
    const struct logit_bias *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

void calling_open(struct calling *c, const char *model, const char *functions)
{
    json_auto_t *list = json_loads(functions, 0, NULL);
    struct error e = {0};
    assert_non_null(list);
    *c = (struct calling){0};
    assert_ok(tokenizer_open(&c->tokenizer, model, &e), &e);
    assert_ok(call_rules_new(&c->rules, list, c->tokenizer, &e), &e);
    c->mark = tokenizer_added(c->tokenizer, "｜DSML｜");
    c->bias[0] = (struct logit_bias){calling_byte(c, '<'), 9};
    c->bias[1] = (struct logit_bias){calling_byte(c, '/'), 6};
    c->bias[2] = (struct logit_bias){c->mark, 12};
    qsort(c->bias, 3, sizeof *c->bias, by_id);
}

void calling_close(struct calling *c)
{
    call_rules_free(c->rules);
    tokenizer_free(c->tokenizer);
}
