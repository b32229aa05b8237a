#include "tests/support/state_fixture.h"

#include "tests/support/test.h"

static void add_plane(struct state_layout *l, const char *name, enum plane_kind kind,
                      uint32_t row_bytes, uint32_t ratio)
{
    struct plane_spec *p = &l->planes[l->n_planes++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->kind = kind;
    p->row_bytes = row_bytes;
    p->ratio = ratio;
}

static enum layout_shape in_place_of_odd = LAYOUT_ODD;

void state_layout_replace(enum layout_shape odd)
{
    in_place_of_odd = odd;
}

void state_layout_make(struct state_layout *l, enum layout_shape shape)
{
    static const uint64_t tip_bytes[] = {[LAYOUT_ODD] = 5003,
                                         [LAYOUT_PAGES] = 5003,
                                         [LAYOUT_TIP] = 40000,
                                         [LAYOUT_SMALL] = 211,
                                         [LAYOUT_SMALL_TIP] = 211};
    if (shape == LAYOUT_ODD)
        shape = in_place_of_odd;
    memset(l, 0, sizeof *l);
    memset(l->fingerprint, 0x40 + (int)shape, sizeof l->fingerprint);
    snprintf(l->numerics, sizeof l->numerics, "ref/1");
    l->window = 4;
    l->replay_tokens = 10;
    l->tip_bytes = tip_bytes[shape];
    if (shape == LAYOUT_TIP || shape == LAYOUT_SMALL_TIP)
        return;
    if (shape == LAYOUT_SMALL) {
        add_plane(l, "L0.kv", PLANE_MAIN, 7, 2);
        add_plane(l, "L0.index", PLANE_INDEX, 3, 1);
        return;
    }
    if (shape == LAYOUT_PAGES) {
        add_plane(l, "L0.kv", PLANE_MAIN, 1024, 1);
        add_plane(l, "L0.index", PLANE_INDEX, 512, 2);
        add_plane(l, "L1.kv", PLANE_MAIN, 2560, 2);
        return;
    }
    add_plane(l, "L0.kv", PLANE_MAIN, 72, 2);
    add_plane(l, "L0.index", PLANE_INDEX, 17, 2);
    add_plane(l, "L1.kv", PLANE_MAIN, 1300, 1);
    add_plane(l, "L1.index", PLANE_INDEX, 3, 1);
    add_plane(l, "L2.kv", PLANE_MAIN, 9, 4);
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static void fill(uint8_t *dst, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0)
            seed = mix(seed, i);
        dst[i] = (uint8_t)(seed >> (8 * (i % 8)));
    }
}

static void allocate(struct state_image *s, const struct state_layout *l, uint64_t n_tokens)
{
    *s = (struct state_image){.l = l, .n_tokens = n_tokens};
    s->regions.n_tokens = n_tokens;
    for (uint32_t p = 0; p < l->n_planes; p++) {
        uint64_t bytes = state_rows(&l->planes[p], n_tokens) * l->planes[p].row_bytes;
        size_t room = ((size_t)bytes / 4096 + 1) * 4096;
        s->regions.plane[p] = aligned_alloc(4096, room);
        memset(s->regions.plane[p], 0xee, room);
    }
    s->tip = malloc((size_t)l->tip_bytes + 1);
    memset(s->tip, 0xee, (size_t)l->tip_bytes + 1);
}

void state_image_blank(struct state_image *s, const struct state_layout *l, uint64_t n_tokens)
{
    allocate(s, l, n_tokens);
}

void state_image_make(struct state_image *s, const struct state_layout *l, const uint32_t *ids,
                      uint64_t n_tokens)
{
    allocate(s, l, n_tokens);
    uint64_t h = 1;
    for (uint64_t t = 0; t < n_tokens; t++) {
        h = mix(h, ids[t]);
        for (uint32_t p = 0; p < l->n_planes; p++) {
            const struct plane_spec *spec = &l->planes[p];
            if ((t + 1) % spec->ratio)
                continue;
            uint8_t *row = (uint8_t *)s->regions.plane[p] + t / spec->ratio * spec->row_bytes;
            fill(row, spec->row_bytes, mix(h, p));
        }
    }
    fill(s->tip, (size_t)l->tip_bytes, mix(h, 999));
}

void state_image_fini(struct state_image *s)
{
    for (uint32_t p = 0; s->l && p < s->l->n_planes; p++)
        free(s->regions.plane[p]);
    free(s->tip);
    memset(s, 0, sizeof *s);
}

void state_image_equal(const struct state_image *a, const struct state_image *b, uint64_t n)
{
    for (uint32_t p = 0; p < a->l->n_planes; p++) {
        size_t bytes = (size_t)(state_rows(&a->l->planes[p], n) * a->l->planes[p].row_bytes);
        if (bytes)
            assert_memory_equal(a->regions.plane[p], b->regions.plane[p], bytes);
    }
}

enum err state_save(struct store *st, const char *session, const struct state_layout *l,
                    uint64_t from, uint64_t to, bool with_tip, struct head_receipt *r,
                    struct error *e)
{
    AUTO(tape) struct tape t = {0};
    AUTO(state_image) struct state_image image = {0};
    assert_ok(tape_load(st, session, &t, e), e);
    assert_true(to <= t.view.n_ids);
    state_image_make(&image, l, t.ids, to);
    struct head_save s = {.session = session, .layout = l, .from = from, .to = to};
    for (uint32_t p = 0; p < l->n_planes; p++)
        s.plane[p] = (uint8_t *)image.regions.plane[p] +
                     from / l->planes[p].ratio * l->planes[p].row_bytes;
    s.tip = with_tip ? image.tip : NULL;
    for (size_t i = 0; i < t.view.n_segments; i++) {
        const struct segment *g = &t.segments[i];
        if (g->kind == SEGMENT_INPUT && g->start < to && to < g->start + g->len)
            s.inside_segment = true;
    }
    memset(s.digest, (int)(to & 0xff), sizeof s.digest);
    s.digest_rows = to;
    return head_save(st, &s, r, e);
}

enum err state_restore(struct store *st, const char *session, const struct state_layout *l,
                       uint64_t position, enum head_want want, struct head_plan *plan_out,
                       struct head_restored *out, struct error *e)
{
    struct head_plan *plan;
    enum err rc = head_find(st, session, l, position, want, &plan, e);
    if (rc)
        return rc;
    if (plan_out) {
        *plan_out = *plan;
        plan_out->chain = NULL;
    }
    AUTO(tape) struct tape t = {0};
    AUTO(state_image) struct state_image want_image = {0}, got = {0};
    state_image_blank(&got, l, plan->n_tokens);
    struct head_restore h = {.session = session,
                             .layout = l,
                             .plan = plan,
                             .dst = &got.regions,
                             .tip = plan->has_tip ? got.tip : NULL};
    rc = head_restore(st, &h, out, e);
    if (!rc) {
        assert_true(out->n_tokens <= plan->n_tokens);
        assert_ok(tape_load(st, session, &t, e), e);
        state_image_make(&want_image, l, t.ids, out->n_tokens);
        state_image_equal(&want_image, &got, out->n_tokens);
        if (out->has_tip) {
            assert_memory_equal(want_image.tip, got.tip, (size_t)l->tip_bytes);
            assert_int_equal(got.tip[l->tip_bytes], 0xee);
        }
    }
    head_plan_free(plan);
    return rc;
}

static int set_up(void **state, void (*init)(struct store_fixture *f))
{
    struct error e;
    struct state_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    init(&w->f);
    assert_ok(store_fixture_open(&w->f, &e), &e);
    state_layout_make(&w->l, LAYOUT_ODD);
    *state = w;
    return 0;
}

static void init_anywhere(struct store_fixture *f)
{
    store_fixture_init(f, false);
}

int state_world_setup(void **state)
{
    return set_up(state, init_anywhere);
}

int state_world_setup_in_memory(void **state)
{
    return set_up(state, store_fixture_init_in_memory);
}

int state_world_teardown(void **state)
{
    struct state_world *w = *state;
    store_fixture_fini(&w->f);
    free(w);
    return 0;
}
