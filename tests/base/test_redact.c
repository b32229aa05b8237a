/* What looks like a secret goes, everything else stays byte for byte. */
#include "base/redact.h"
#include "tests/support/test.h"

static void check(const char *in, const char *want, uint64_t n_want)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    uint64_t n = 0;
    struct error e;
    assert_ok(redact_text(in, strlen(in), &out, &n, &e), &e);
    assert_string_equal(buf_str(&out), want);
    assert_int_equal(n, n_want);
}

static void aelix_ai_138_bram_379_secrets_go(void **state)
{
    (void)state;
    check("key AKIAABCDEFGHIJKLMNOP end", "key [redacted] end", 1);
    check("ghp_0123456789abcdefghij0123", "[redacted]", 1);
    check("use sk-0123456789abcdefghijKLMN, please", "use [redacted], please", 1);
    check("Authorization: Bearer abc.def-ghi_jkl=mno", "Authorization: Bearer [redacted]", 1);
    check("eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl!", "[redacted]!", 1);
    check("DB_PASSWORD=hunter22 next", "DB_PASSWORD=[redacted] next", 1);
    check("{\"api_key\": \"abcd1234\", \"n\": 1}", "{\"api_key\": \"[redacted]\", \"n\": 1}",
          1);
    check("{\\\"auth_token\\\": \\\"abcd1234\\\"}", "{\\\"auth_token\\\": \\\"[redacted]\\\"}",
          1);
    check("git clone https://me:s3cr3t@host/x.git",
          "git clone https://me:[redacted]@host/x.git", 1);
    check("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb",
          "a\n[redacted]\nb", 1);
    check("-----BEGIN PRIVATE KEY-----\ncut", "[redacted]", 1);
    check("secret=aaaa1 secret=bbbb2", "secret=[redacted] secret=[redacted]", 2);
}

static void the_rest_stays(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "the password is not here",
        "max_tokens: 1000000",
        "tokens=12345678",
        "sk-short",
        "risk-0123456789abcdefghijKLMN is a word that goes on",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "https://host:8080/path",
        "eyJ is the beginning of something else",
        "Bearer of news",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check(texts[i], texts[i], 0);
}

static void a_full_buffer_is_an_error(void **state)
{
    (void)state;
    AUTO(buf) struct buf out = BUF_INIT(4);
    struct error e;
    assert_int_equal(redact_text("more than four", 14, &out, NULL, &e), ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aelix_ai_138_bram_379_secrets_go),
        cmocka_unit_test(the_rest_stays),
        cmocka_unit_test(a_full_buffer_is_an_error),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
