/* base/hash, base/crypto, base/ulid, base/encode: published vectors, and what must not verify.
 */
#include "tests/support/test.h"

#include "base/auto.h"
#include "base/crypto.h"
#include "base/encode.h"
#include "base/ulid.h"

static void assert_hex(const void *data, size_t n, const char *want)
{
    char text[HEX_CHARS(64)];
    hex_encode(data, n, text);
    assert_string_equal(text, want);
}

/* BLAKE2b-256 of "" and "abc": values of b2sum -l 256. */
static void test_blake2b_vectors(void **state)
{
    (void)state;
    uint8_t out[HASH_BYTES];
    hash_bytes(NULL, "", 0, out);
    assert_hex(out, 32, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
    hash_bytes(NULL, "abc", 3, out);
    assert_hex(out, 32, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

static void test_hash_in_pieces(void **state)
{
    (void)state;
    uint8_t data[1000], key[HASH_KEY_BYTES], whole[HASH_BYTES], pieces[HASH_BYTES];
    crypto_random(data, sizeof data);
    crypto_random(key, sizeof key);
    hash_bytes(key, data, sizeof data, whole);
    for (size_t cut = 0; cut <= sizeof data; cut += 125) {
        struct hash h;
        hash_init(&h, key, HASH_BYTES);
        hash_add(&h, data, cut);
        hash_add(&h, data + cut, sizeof data - cut);
        hash_final(&h, pieces);
        assert_memory_equal(pieces, whole, sizeof whole);
    }
    hash_bytes(NULL, data, sizeof data, pieces);
    assert_memory_not_equal(pieces, whole, sizeof whole);
}

static void hash_two(const char *a, const char *b, size_t n_out, uint8_t *out)
{
    struct hash h;
    hash_init(&h, NULL, n_out);
    hash_field(&h, a, strlen(a));
    hash_field(&h, b, strlen(b));
    hash_final(&h, out);
}

static void test_fields_are_separated(void **state)
{
    (void)state;
    uint8_t x[HASH_BYTES], y[HASH_BYTES], tag[HASH_TAG_BYTES];
    hash_two("ab", "c", HASH_BYTES, x);
    hash_two("a", "bc", HASH_BYTES, y);
    assert_memory_not_equal(x, y, sizeof x);
    hash_two("ab", "c", HASH_TAG_BYTES, tag);
    assert_memory_not_equal(x, tag, sizeof tag);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_u32le(&h, 0x04030201u);
    hash_u64le(&h, 0x0c0b0a0908070605u);
    hash_final(&h, x);
    hash_bytes(NULL, "\1\2\3\4\5\6\7\10\11\12\13\14", 12, y);
    assert_memory_equal(x, y, sizeof x);
}

/* draft-irtf-cfrg-xchacha-03, A.3.1, without its associated data: ciphertext is the same. */
static void test_xchacha_vector(void **state)
{
    (void)state;
    static const char text[] =
        "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        "future, sunscreen would be it.";
    struct crypto_extent x;
    struct error e = {0};
    for (size_t i = 0; i < 32; i++)
        x.key[i] = (uint8_t)(0x80 + i);
    for (size_t i = 0; i < 24; i++)
        x.nonce[i] = (uint8_t)(0x40 + i);
    uint8_t sealed[sizeof text - 1], tag[CRYPTO_TAG_BYTES];
    char back[sizeof text] = "";
    crypto_seal(&x, 0, text, sizeof sealed, sealed, tag);
    assert_hex(sealed, 32, "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb");
    assert_ok(crypto_open(&x, 0, sealed, sizeof sealed, tag, back, &e), &e);
    assert_string_equal(back, text);
}

static struct crypto_extent random_extent(void)
{
    struct crypto_extent x;
    crypto_random(&x, sizeof x);
    return x;
}

/* Every single changed bit, other chunk number, other key and other length is refused. */
static void test_nothing_else_verifies(void **state)
{
    (void)state;
    struct crypto_extent x = random_extent(), other = x;
    struct error e = {0};
    uint8_t data[100], sealed[100], tag[CRYPTO_TAG_BYTES], seal_tag[CRYPTO_TAG_BYTES], out[100];
    crypto_random(data, sizeof data);
    crypto_tag(&x, 5, data, sizeof data, tag);
    crypto_seal(&x, 5, data, sizeof data, sealed, seal_tag);
    assert_ok(crypto_check(&x, 5, data, sizeof data, tag, &e), &e);
    assert_ok(crypto_open(&x, 5, sealed, sizeof sealed, seal_tag, out, &e), &e);
    assert_memory_equal(out, data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(crypto_check(&x, 5, data, sizeof data, tag, &e), ERR_CORRUPT);
        assert_int_equal(crypto_open(&x, 5, sealed, sizeof sealed, seal_tag, out, &e),
                         ERR_CORRUPT);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * sizeof tag; bit++) {
        tag[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(crypto_check(&x, 5, data, sizeof data, tag, &e), ERR_CORRUPT);
        tag[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(crypto_check(&x, 4, data, sizeof data, tag, &e), ERR_CORRUPT);
    assert_string_equal(e.msg, "chunk 4: tag does not match its 100 bytes");
    assert_int_equal(crypto_check(&x, 5, data, sizeof data - 1, tag, &e), ERR_CORRUPT);
    other.key[31] ^= 1;
    assert_int_equal(crypto_check(&other, 5, data, sizeof data, tag, &e), ERR_CORRUPT);
    assert_int_equal(crypto_open(&other, 5, sealed, sizeof sealed, seal_tag, out, &e),
                     ERR_CORRUPT);
}

/* Chunk i of one nonce is chunk 0 of nonce + i, with the carry over all 24 bytes. */
static void test_nonce_is_added(void **state)
{
    (void)state;
    struct crypto_extent x = random_extent(), next;
    memset(x.nonce, 0xff, 10);
    x.nonce[10] = 7;
    next = x;
    memset(next.nonce, 0, 10);
    next.nonce[0] = 4;
    next.nonce[10] = 8;
    uint8_t a[CRYPTO_TAG_BYTES], b[CRYPTO_TAG_BYTES];
    crypto_tag(&x, 5, "abc", 3, a);
    crypto_tag(&next, 0, "abc", 3, b);
    assert_memory_equal(a, b, sizeof a);
}

static void test_seal_in_place_and_empty(void **state)
{
    (void)state;
    struct crypto_extent x = random_extent();
    struct error e = {0};
    uint8_t data[5000], copy[5000], tag[CRYPTO_TAG_BYTES];
    crypto_random(data, sizeof data);
    memcpy(copy, data, sizeof copy);
    crypto_seal(&x, 1, data, sizeof data, data, tag);
    assert_memory_not_equal(data, copy, sizeof data);
    assert_ok(crypto_open(&x, 1, data, sizeof data, tag, data, &e), &e);
    assert_memory_equal(data, copy, sizeof data);
    crypto_tag(&x, 2, "", 0, tag);
    assert_ok(crypto_check(&x, 2, "", 0, tag, &e), &e);
}

static void test_derived_keys(void **state)
{
    (void)state;
    uint8_t key[CRYPTO_KEY_BYTES] = {1}, a[CRYPTO_KEY_BYTES], b[CRYPTO_KEY_BYTES];
    crypto_derive(key, "pack data", "alice", 5, a);
    crypto_derive(key, "pack data", "alice", 5, b);
    assert_true(crypto_equal(a, b, sizeof a));
    crypto_derive(key, "pack data", "bob", 3, b);
    assert_false(crypto_equal(a, b, sizeof a));
    crypto_derive(key, "pack dataa", "lice", 4, b);
    assert_false(crypto_equal(a, b, sizeof a));
    key[0] = 2;
    crypto_derive(key, "pack data", "alice", 5, b);
    assert_false(crypto_equal(a, b, sizeof a));
    crypto_wipe(a, sizeof a);
    assert_int_equal(a[0] | a[31], 0);
}

/* ---- ULIDs ------------------------------------------------------------------------------ */

static void all_ones(void *dst, size_t n)
{
    memset(dst, 0xff, n);
}

static void zeros(void *dst, size_t n)
{
    memset(dst, 0, n);
}

static void test_ulid_text(void **state)
{
    (void)state;
    struct fake_clock f;
    struct ulid_source s;
    char id[ULID_CHARS + 1];
    fake_clock_init(&f, 1469922850259);
    ulid_init(&s, &f.clock);
    s.random = zeros;
    ulid_next(&s, id);
    assert_string_equal(id, "01ARZ3NDEK0000000000000000"); /* the specification's time part */
    assert_int_equal(ulid_ms(id), 1469922850259);
    ulid_next(&s, id);
    assert_string_equal(id, "01ARZ3NDEK0000000000000001");
}

static void test_ulids_increase(void **state)
{
    (void)state;
    struct fake_clock f;
    struct ulid_source s;
    char last[ULID_CHARS + 1] = "", id[ULID_CHARS + 1];
    fake_clock_init(&f, 1700000000000);
    ulid_init(&s, &f.clock);
    for (int i = 0; i < 1000; i++) {
        ulid_next(&s, id);
        assert_true(strcmp(id, last) > 0);
        assert_true(ulid_is_valid(id, strlen(id)));
        memcpy(last, id, sizeof id);
        if (i % 10 == 0)
            fake_clock_advance(&f, 1);
        if (i % 100 == 50)
            fake_clock_set_wall(&f, 1600000000000); /* back by three years */
    }
    /* The random part runs over: the time moves on instead of the order breaking. */
    s.random = all_ones;
    fake_clock_set_wall(&f, 1800000000000);
    ulid_next(&s, last);
    ulid_next(&s, id);
    assert_true(strcmp(id, last) > 0);
    assert_int_equal(ulid_ms(id), 1800000000001);
}

static void test_ulid_validity(void **state)
{
    (void)state;
    assert_true(ulid_is_valid("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", 26));
    static const char *const bad[] = {
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "01ARZ3NDEK000000000000000",
        "01ARZ3NDEK00000000000000000",
        "01arz3ndek0000000000000000",
        "01ARZ3NDEK000000000000000U",
        "01ARZ3NDEK/../0000000000000",
        "",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(ulid_is_valid(bad[i], strlen(bad[i])));
    assert_false(ulid_is_valid("01ARZ3NDEK\0ABCDEFGHJKMNPQR", 26));
}

/* ---- encodings -------------------------------------------------------------------------- */

static void test_hex(void **state)
{
    (void)state;
    struct error e = {0};
    uint8_t out[4] = {9, 9, 9, 9};
    assert_ok(hex_decode("00fFa1", 6, out, 3, &e), &e);
    assert_memory_equal(out, "\x00\xff\xa1\x09", 4);
    assert_int_equal(hex_decode("00f", 3, out, 3, &e), ERR_FORMAT);
    assert_int_equal(hex_decode("00ff", 4, out, 3, &e), ERR_FORMAT);
    assert_int_equal(hex_decode("00fg01", 6, out, 3, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "hexadecimal: character 3 is no digit");
    assert_memory_equal(out, "\x00\xff\xa1\x09", 4);
}

static void test_base64(void **state)
{
    (void)state;
    /* RFC 4648, section 10. */
    static const char *const cases[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}};
    struct error e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[BASE64_CHARS(8)], back[8] = "";
        size_t n;
        base64_encode(cases[i][0], strlen(cases[i][0]), text);
        assert_string_equal(text, cases[i][1]);
        assert_ok(base64_decode(text, strlen(text), back, sizeof back, &n, &e), &e);
        assert_int_equal(n, strlen(cases[i][0]));
        assert_memory_equal(back, cases[i][0], n);
    }
    static const char *const bad[] = {"Z",    "Zg=",  "Zg",   "=g==",     "Z===", "Zm9v=",
                                      "Zm 9", "Zh==", "Zm9=", "Zg==Zg==", "====", "Zm\n9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t out[8];
        size_t n;
        assert_int_equal(base64_decode(bad[i], strlen(bad[i]), out, 8, &n, &e), ERR_FORMAT);
    }
    uint8_t small[2];
    size_t n;
    assert_int_equal(base64_decode("Zm9v", 4, small, 2, &n, &e), ERR_LIMIT);
}

static void test_base64_round_trip(void **state)
{
    (void)state;
    struct error e = {0};
    for (size_t len = 0; len < 200; len++) {
        uint8_t data[200], back[200];
        char text[BASE64_CHARS(200)];
        size_t n;
        crypto_random(data, len);
        base64_encode(data, len, text);
        assert_int_equal(strlen(text) + 1, BASE64_CHARS(len));
        assert_ok(base64_decode(text, strlen(text), back, sizeof back, &n, &e), &e);
        assert_int_equal(n, len);
        assert_memory_equal(back, data, len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blake2b_vectors),
        cmocka_unit_test(test_hash_in_pieces),
        cmocka_unit_test(test_fields_are_separated),
        cmocka_unit_test(test_xchacha_vector),
        cmocka_unit_test(test_nothing_else_verifies),
        cmocka_unit_test(test_nonce_is_added),
        cmocka_unit_test(test_seal_in_place_and_empty),
        cmocka_unit_test(test_derived_keys),
        cmocka_unit_test(test_ulid_text),
        cmocka_unit_test(test_ulids_increase),
        cmocka_unit_test(test_ulid_validity),
        cmocka_unit_test(test_hex),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_base64_round_trip),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
