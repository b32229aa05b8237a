#include "sessions/pin.h"

#include "sessions/forest.h"

static struct store_pin pin_of(const struct head_chain *c)
{
    struct store_pin p = {.tip = c->tip.x.id};
    chain_ends(c, &p.block, &p.tail);
    return p;
}

static bool is_held(const struct store *st, const struct store_pin *p)
{
    return p->until_ns > clock_mono_ns(st->clock);
}

void pin_add(struct store *st, const struct head_chain *c)
{
    struct store_pin p = pin_of(c);
    if (!p.block && !p.tail && !p.tip)
        return;
    p.until_ns = clock_mono_ns(st->clock) + PIN_NS;
    st->pins[st->next_pin++ % STORE_MAX_PINS] = p;
}

void pin_drop(struct store *st, const struct head_chain *c)
{
    struct store_pin p = pin_of(c);
    for (size_t i = 0; i < STORE_MAX_PINS; i++) {
        struct store_pin *q = &st->pins[i];
        if (q->block == p.block && q->tail == p.tail && q->tip == p.tip)
            *q = (struct store_pin){0};
    }
}

void pin_forest(const struct store *st, struct forest *f)
{
    for (size_t i = 0; i < STORE_MAX_PINS; i++) {
        const struct store_pin *p = &st->pins[i];
        if (!is_held(st, p))
            continue;
        if (p->tip)
            forest_pin(f, forest_find(f, CATALOG_TIPS, p->tip));
        if (p->tail)
            forest_pin(f, forest_find(f, CATALOG_TAILS, p->tail));
        if (p->block)
            forest_pin(f, forest_find(f, CATALOG_BLOCKS, p->block));
    }
}

bool pin_holds(const struct store *st, enum catalog_table kind, int64_t id)
{
    for (size_t i = 0; i < STORE_MAX_PINS; i++) {
        const struct store_pin *p = &st->pins[i];
        int64_t end = kind == CATALOG_TIPS    ? p->tip
                      : kind == CATALOG_TAILS ? p->tail
                                              : p->block;
        if (end == id && is_held(st, p))
            return true;
    }
    return false;
}
