/* base/clock and base/log: fake time, one line per record whatever is in it. */
#include "tests/support/test.h"

#include <pthread.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

static void test_fake_clock(void **state)
{
    (void)state;
    struct fake_clock f;
    fake_clock_init(&f, 1000);
    assert_int_equal(clock_mono_ns(&f.clock), 0);
    fake_clock_advance(&f, 25);
    assert_int_equal(clock_mono_ns(&f.clock), 25000000);
    assert_int_equal(clock_wall_ms(&f.clock), 1025);
    fake_clock_set_wall(&f, 3);
    assert_int_equal(clock_wall_ms(&f.clock), 3);
    assert_int_equal(clock_mono_ns(&f.clock), 25000000);
}

static void test_real_clock(void **state)
{
    (void)state;
    uint64_t a = clock_mono_ns(clock_real()), b = clock_mono_ns(clock_real());
    assert_true(b >= a);
    assert_true(clock_wall_ms(clock_real()) > 1600000000000);
}

static void test_clock_text(void **state)
{
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {951782400007, "2000-02-29T00:00:00.007Z"},
        {253402300799999, "9999-12-31T23:59:59.999Z"},
        {INT64_MAX, "9999-12-31T23:59:59.999Z"},
        {-5, "1970-01-01T00:00:00.000Z"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[CLOCK_TEXT_BYTES];
        clock_text(cases[i].ms, text);
        assert_string_equal(text, cases[i].text);
    }
}

/* A log file in a folder of its own; *path must hold 64 bytes. */
static void open_log(char *path, enum log_level level)
{
    struct error e = {0};
    char dir[] = "/tmp/agentd-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    snprintf(path, 64, "%s/log", dir);
    assert_ok(log_open(path, level, &e), &e);
}

static void close_log(const char *path, struct buf *text)
{
    struct error e = {0};
    log_close();
    assert_ok(fs_read_file(path, text, &e), &e);
    char dir[64];
    snprintf(dir, sizeof dir, "%.*s", (int)(strlen(path) - 4), path);
    unlink(path);
    rmdir(dir);
}

static void test_levels_and_escapes(void **state)
{
    (void)state;
    char path[64];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    open_log(path, LOG_INFO);
    log_debug("not seen");
    log_info("turn end session=%s", "a\nb\tc\x1b[31m\x7f");
    log_error("disk n=%d", 3);
    close_log(path, &text);
    const char *s = buf_str(&text);
    assert_non_null(strstr(s, "Z info  turn end session=a\\nb\\tc\\x1b[31m\\x7f\n"));
    assert_non_null(strstr(s, "Z error disk n=3\n"));
    assert_null(strstr(s, "not seen"));
    assert_int_equal(s[4], '-');
}

static void test_long_record_is_cut(void **state)
{
    (void)state;
    /* Plain, and the worst case: every byte becomes four. */
    static const char fills[] = {'x', '\x01'};
    for (size_t i = 0; i < sizeof fills; i++) {
        char path[64], big[3 * LOG_RECORD_BYTES];
        memset(big, fills[i], sizeof big - 1);
        big[sizeof big - 1] = '\0';
        AUTO(buf) struct buf text = BUF_INIT(1 << 20);
        open_log(path, LOG_INFO);
        log_info("%s", big);
        close_log(path, &text);
        assert_true(text.len > LOG_RECORD_BYTES - 10 && text.len <= LOG_RECORD_BYTES);
        assert_string_equal(buf_str(&text) + text.len - 4, "...\n");
        assert_ptr_equal(strchr(buf_str(&text), '\n'), buf_str(&text) + text.len - 1);
    }
}

#define N_THREADS 4
#define N_RECORDS 200

static void *write_records(void *arg)
{
    for (int i = 0; i < N_RECORDS; i++)
        log_info("thread=%d record=%d end", *(const int *)arg, i);
    return NULL;
}

static void test_threads_write_whole_lines(void **state)
{
    (void)state;
    char path[64];
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    open_log(path, LOG_INFO);
    pthread_t threads[N_THREADS];
    int numbers[N_THREADS];
    for (int t = 0; t < N_THREADS; t++) {
        numbers[t] = t;
        assert_int_equal(pthread_create(&threads[t], NULL, write_records, &numbers[t]), 0);
    }
    for (int t = 0; t < N_THREADS; t++)
        pthread_join(threads[t], NULL);
    close_log(path, &text);
    int next[N_THREADS] = {0};
    char *rest = (char *)text.data, *line;
    while ((line = strsep(&rest, "\n")) && *line) {
        int t, i;
        assert_int_equal(sscanf(line, "%*s info thread=%d record=%d end", &t, &i), 2);
        assert_int_equal(i, next[t]++);
    }
    for (int t = 0; t < N_THREADS; t++)
        assert_int_equal(next[t], N_RECORDS);
}

static void test_errors(void **state)
{
    (void)state;
    struct error e = {0};
    assert_int_equal(log_open("/nonexistent/log", LOG_INFO, &e), ERR_NOTFOUND);
    enum log_level level = LOG_ERROR;
    assert_ok(log_level_parse("debug", &level, &e), &e);
    assert_int_equal(level, LOG_DEBUG);
    assert_int_equal(log_level_parse("loud", &level, &e), ERR_INVAL);
    assert_string_equal(e.msg, "log level \"loud\": want error, warn, info or debug");
    assert_int_equal(level, LOG_DEBUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_clock),
        cmocka_unit_test(test_real_clock),
        cmocka_unit_test(test_clock_text),
        cmocka_unit_test(test_levels_and_escapes),
        cmocka_unit_test(test_long_record_is_cut),
        cmocka_unit_test(test_threads_write_whole_lines),
        cmocka_unit_test(test_errors),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
