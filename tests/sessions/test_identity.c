/* Keys: every field counts, no field can stand for another, and they never change by
 * themselves. */
#include "sessions/identity.h"

#include "base/encode.h"
#include "tests/support/state_fixture.h"
#include "tests/support/test.h"

static const uint8_t key[HASH_KEY_BYTES] = {1, 2, 3};

static void root_of(const struct state_layout *l, uint32_t block, uint8_t out[HASH_BYTES])
{
    identity_root(key, l, block, out);
}

static void sglang_33268_10969_every_field_of_a_layout_counts(void **state)
{
    (void)state;
    struct state_layout l, m;
    uint8_t a[HASH_BYTES], b[HASH_BYTES];
    state_layout_make(&l, LAYOUT_ODD);
    root_of(&l, 2048, a);
    for (int i = 0; i < 9; i++) {
        uint32_t block = 2048;
        bool of_planes = i != 0 && i != 5 && i != 7;
        if (of_planes && !l.n_planes)
            continue;
        m = l;
        switch (i) {
        case 0:
            m.fingerprint[31] ^= 1;
            break;
        case 1:
            m.planes[0].name[1] = '9';
            break;
        case 2:
            m.planes[0].row_bytes++;
            break;
        case 3:
            m.planes[0].ratio = 4;
            break;
        case 4:
            m.planes[0].kind = PLANE_INDEX;
            break;
        case 5:
            m.tip_bytes++;
            break;
        case 6:
            m.n_planes--;
            break;
        case 7:
            block = 1024;
            break;
        default:
            m.planes[0] = l.planes[1];
            m.planes[1] = l.planes[0];
            break;
        }
        root_of(&m, block, b);
        assert_memory_not_equal(a, b, sizeof a);
    }
    /* What does not change rows is not in it. */
    m = l;
    snprintf(m.numerics, sizeof m.numerics, "cuda-sm90/7");
    m.window = 99;
    m.replay_tokens = 1;
    root_of(&m, 2048, b);
    assert_memory_equal(a, b, sizeof a);
    uint8_t other[HASH_KEY_BYTES] = {1, 2, 4};
    identity_root(other, &l, 2048, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void vllm_44701_domains_do_not_mix(void **state)
{
    (void)state;
    uint32_t ids[4] = {1, 2, 3, 4};
    uint8_t parent[HASH_BYTES] = {7}, shape[HASH_BYTES] = {0};
    uint8_t block[HASH_BYTES], tip[HASH_BYTES], other[HASH_BYTES];
    identity_block(key, parent, ids, 4, block);
    identity_tip(key, parent, ids, 4, shape, tip);
    assert_memory_not_equal(block, tip, sizeof block);
    identity_block(key, parent, ids, 3, other);
    assert_memory_not_equal(block, other, sizeof block);
    ids[3] ^= 1u << 31;
    identity_block(key, parent, ids, 4, other);
    assert_memory_not_equal(block, other, sizeof block);
    ids[3] ^= 1u << 31;
    parent[31] = 1;
    identity_block(key, parent, ids, 4, other);
    assert_memory_not_equal(block, other, sizeof block);
}

static void a_chain_is_its_blocks(void **state)
{
    (void)state;
    uint32_t ids[40];
    uint8_t root[HASH_BYTES] = {5}, a[HASH_BYTES], b[HASH_BYTES];
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = i;
    identity_chain(key, root, ids, 40, 16, a);
    identity_block(key, root, ids, 16, b);
    identity_block(key, b, ids + 16, 16, b);
    assert_memory_equal(a, b, sizeof a);
    identity_chain(key, root, ids, 15, 16, a);
    assert_memory_equal(a, root, sizeof a);
}

static void shape_of(const struct segment *s, size_t n, const struct replay_mark *m,
                     size_t n_marks, uint64_t position, bool *inside, uint8_t out[HASH_BYTES])
{
    struct tape_view v = {NULL, 100, s, n, m, n_marks};
    identity_shape(key, &v, position, inside, out);
}

static void shapes_follow_the_tape(void **state)
{
    (void)state;
    struct segment s[3] = {{0, 30, SEGMENT_INPUT, PREFILL_CED},
                           {30, 20, SEGMENT_GENERATED, PREFILL_CED},
                           {50, 50, SEGMENT_INPUT, PREFILL_FULL}};
    struct replay_mark m = {40, 20};
    uint8_t a[HASH_BYTES], b[HASH_BYTES];
    bool inside;
    shape_of(s, 3, NULL, 0, 50, &inside, a);
    assert_false(inside);
    shape_of(s, 2, NULL, 0, 50, &inside, b); /* what comes behind does not count */
    assert_memory_equal(a, b, sizeof a);
    shape_of(s, 3, &m, 1, 50, &inside, b);
    assert_memory_not_equal(a, b, sizeof a);
    shape_of(s, 3, &m, 1, 39, &inside, b);
    shape_of(s, 3, NULL, 0, 39, &inside, a);
    assert_memory_equal(a, b, sizeof a);
    /* Inside an input segment is not behind one that ends there. */
    shape_of(s, 3, NULL, 0, 60, &inside, a);
    assert_true(inside);
    s[2].len = 10;
    shape_of(s, 3, NULL, 0, 60, &inside, b);
    assert_false(inside);
    assert_memory_not_equal(a, b, sizeof a);
    /* A generated run is the same wherever it is cut, and has no prefill mode. */
    shape_of(s, 2, NULL, 0, 40, &inside, a);
    assert_false(inside);
    s[1].len = 10;
    s[1].mode = PREFILL_FULL;
    shape_of(s, 2, NULL, 0, 40, &inside, b);
    assert_memory_equal(a, b, sizeof a);
    s[0].mode = PREFILL_FULL;
    shape_of(s, 2, NULL, 0, 40, &inside, b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* A new build finds what an old one stored: these values are part of the format. Computed from
 * the description in identity.h with Python's hashlib.blake2b. */
static void keys_are_what_they_were(void **state)
{
    static const char *const with_planes[] = {
        "ac11fd4376f87bc3f399b38d4ae6aa42c22c75d564885bdbd1189857fe2c43eb",
        "edbcb59f6021d7b0236e081297eaef1b74c1db179b0dd3a1703833f5de6edde9",
        "58cd279848ae8181186dc033b1e99eec094c95baa3e18777511455c14d3e6c3c"};
    static const char *const tip_alone[] = {
        "5aebc5aecea725b68058ae2af00c268e3296c9aede3170e8323d5104387811d0",
        "c5cfcc997b1f9053b48c9dad93db7224ffbf3bef1014a93262f8a7d909677ac4",
        "a0df00f19746584693eff8df32bc85f26348f9f5a912ef15da866c86a6fd6aa0"};
    (void)state;
    struct state_layout l;
    uint32_t ids[16];
    uint8_t k[HASH_BYTES], shape[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    for (uint32_t i = 0; i < 16; i++)
        ids[i] = i * 1000;
    struct segment s = {0, 20, SEGMENT_INPUT, PREFILL_CED};
    state_layout_make(&l, LAYOUT_ODD);
    const char *const *want = l.n_planes ? with_planes : tip_alone;
    root_of(&l, 16, k);
    hex_encode(k, sizeof k, hex);
    assert_string_equal(hex, want[0]);
    identity_block(key, k, ids, 16, k);
    hex_encode(k, sizeof k, hex);
    assert_string_equal(hex, want[1]);
    shape_of(&s, 1, NULL, 0, 20, NULL, shape);
    identity_tip(key, k, ids, 4, shape, k);
    hex_encode(k, sizeof k, hex);
    assert_string_equal(hex, want[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sglang_33268_10969_every_field_of_a_layout_counts),
        cmocka_unit_test(vllm_44701_domains_do_not_mix),
        cmocka_unit_test(a_chain_is_its_blocks),
        cmocka_unit_test(shapes_follow_the_tape),
        cmocka_unit_test(keys_are_what_they_were),
    };
    return !!run_with_both_shapes(tests);
}
