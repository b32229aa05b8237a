/* The container of checkpoints: hostile headers, and folders whose index does not fit. */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "engine/config.h"
#include "engine/safetensors.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

/* A file image with this header and n_data zero bytes. */
static size_t image(uint8_t *out, const char *header, size_t n_data)
{
    size_t n = strlen(header);
    memset(out, 0, 8);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, n_data);
    return 8 + n + n_data;
}

static void test_good(void **state)
{
    uint8_t bytes[1024];
    struct safetensors *s = NULL;
    struct error e = {0};
    size_t n = image(bytes,
                     "{\"__metadata__\":{\"x\":\"y\"},"
                     "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                     "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                     "\"e\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                     16);
    (void)state;
    assert_ok(safetensors_parse(&s, bytes, n, &e), &e);
    const struct tensor *b = safetensors_find(s, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, DTYPE_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->n_bytes, 12);
    assert_ptr_equal(b->data, bytes + n - 12);
    assert_null(safetensors_find(s, "__metadata__"));
    assert_null(safetensors_find(s, "c"));
    safetensors_free(s);
}

static void test_hostile(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        enum err code;
        const char *says;
    } CASES[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         12, ERR_FORMAT, "tensor b: overlaps"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
         12, ERR_FORMAT, "tensor b: follows a hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, ERR_FORMAT,
         "1 bytes behind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, ERR_FORMAT,
         "ends at 4, the file has 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
         "4 bytes, its shape wants 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1099511627776,1099511627776],"
         "\"data_offsets\":[0,4]}}",
         4, ERR_FORMAT, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
         "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, ERR_FORMAT,
         "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, ERR_FORMAT,
         "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         ERR_FORMAT, "at most 8"},
        {"{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, ERR_UNSUPPORTED,
         "dtype C64"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "no dtype"},
        {"{\"a\":3}", 0, ERR_FORMAT, "no dtype"},
        {"{\"a\":{},\"a\":{}}", 0, ERR_FORMAT, "duplicate"},
        {"[]", 0, ERR_FORMAT, "no JSON object"},
        {"{\"a\":", 0, ERR_FORMAT, "header"},
        {"", 0, ERR_FORMAT, "header"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        uint8_t bytes[1024];
        struct safetensors *s = NULL;
        struct error e = {0};
        size_t n = image(bytes, CASES[i].header, CASES[i].n_data);
        assert_int_equal(safetensors_parse(&s, bytes, n, &e), CASES[i].code);
        if (!strstr(e.msg, CASES[i].says))
            fail_msg("case %zu: \"%s\", want \"%s\"", i, e.msg, CASES[i].says);
        assert_null(s);
    }
}

static void test_header_length(void **state)
{
    uint8_t bytes[64] = {0};
    struct safetensors *s = NULL;
    struct error e = {0};
    (void)state;
    for (size_t n = 0; n < 8; n++)
        assert_int_equal(safetensors_parse(&s, bytes, n, &e), ERR_FORMAT);
    bytes[0] = 57; /* one more than there is */
    assert_int_equal(safetensors_parse(&s, bytes, sizeof(bytes), &e), ERR_FORMAT);
    memset(bytes, 0xff, 8);
    assert_int_equal(safetensors_parse(&s, bytes, sizeof(bytes), &e), ERR_LIMIT);
}

/* ---- headers that want memory -------------------------------------------------------------
 */

#define MOST_KB                                                                                \
    (600 << 10) /* of a process that opens one, the 64 MiB of the header included              \
                 */

/* Writes n repetitions, at most what fits into size bytes. #######: a number of its own, for
 * keys that differ. Returns the length. */
static size_t repeat(char *out, size_t size, const char *pattern, size_t n)
{
    size_t at = 0, len = strlen(pattern);
    const char *number = strchr(pattern, '#');
    for (size_t i = 0; i < n && at + len <= size; i++, at += len) {
        memcpy(out + at, pattern, len);
        for (size_t k = 0; number && k < 7; k++)
            out[at + (size_t)(number - pattern) + k] = "0123456789abcdef"[i >> 4 * k & 15];
    }
    return at;
}

/* Opens it in a process of its own: its error, and the most memory that it had. */
static enum err open_alone(const uint8_t *bytes, size_t n, long *max_kb)
{
    struct rusage r;
    int status;
    pid_t pid = fork();
    if (!pid) {
        struct safetensors *s = NULL;
        _exit((int)safetensors_parse(&s, bytes, n, NULL));
    }
    assert_int_equal(wait4(pid, &status, 0, &r), pid);
    assert_true(WIFEXITED(status));
    *max_kb = r.ru_maxrss;
    return (enum err)WEXITSTATUS(status);
}

static void test_small_values(void **state)
{
    /* Nothing after the marks is a tensor, so even what is within the limit is refused. */
    static const struct {
        const char *before, *pattern, *after;
        size_t n_marks; /* of the pattern */
    } CASES[] = {
        {"{\"a\":[", "[],", "0]}", 2},
        {"{\"a\":[", "{},", "0]}", 2},
        {"{\"a\":[", "0,", "0]}", 1},
        {"{", "\"#######\":0,", "\"a\":0}", 2},
        {"{\"a\":[", "\"\",", "0]}", 1},
        {"{\"a\":[", "[[[[[[]]]]]],", "0]}", 7},
        {"{", "\"#######\":{\"a\":{}},", "\"a\":0}", 5},
    };
    size_t size = 8 + SAFETENSORS_MAX_HEADER;
    uint8_t *bytes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(bytes != MAP_FAILED);
    for (size_t c = 0; c < sizeof(CASES) / sizeof(*CASES); c++)
        for (int over = 0; over < 2; over++) {
            char *text = (char *)bytes + 8;
            size_t n = SAFETENSORS_MAX_MARKS / CASES[c].n_marks, at;
            long kb = 0;
            memcpy(text, CASES[c].before, at = strlen(CASES[c].before));
            at += repeat(text + at, SAFETENSORS_MAX_HEADER - 32, CASES[c].pattern,
                         over ? 2 * n : n - 4);
            memcpy(text + at, CASES[c].after, strlen(CASES[c].after));
            at += strlen(CASES[c].after);
            for (size_t i = 0; i < 8; i++)
                bytes[i] = (uint8_t)(at >> 8 * i);
            enum err rc = open_alone(bytes, 8 + at, &kb);
            assert_true(over ? rc == ERR_LIMIT : rc != OK);
#ifndef __SANITIZE_ADDRESS__ /* which puts zones around each value */
            if (kb > MOST_KB)
                fail_msg("%zu bytes of %s: %ld KB", at, CASES[c].pattern, kb);
#endif
            if (getenv("AGENTD_VERBOSE"))
                print_message("%9zu bytes of %-22s %6ld KB\n", at, CASES[c].pattern, kb);
        }
    munmap(bytes, size);
}

/* ---- folders ------------------------------------------------------------------------------
 */

static void write_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[512];
    struct error e = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(fs_write_atomic(path, data, n, 0600, &e), &e);
}

static void write_shard(const char *dir, const char *name, const char *tensor)
{
    uint8_t bytes[256];
    char header[160];
    snprintf(header, sizeof(header),
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    write_file(dir, name, bytes, image(bytes, header, 4));
}

static void expect_index(const char *dir, const char *index, enum err code, const char *says)
{
    struct safetensors *s = NULL;
    struct error e = {0};
    write_file(dir, "model.safetensors.index.json", index, strlen(index));
    assert_int_equal(safetensors_open_dir(&s, dir, &e), code);
    if (code && !strstr(e.msg, says))
        fail_msg("\"%s\", want \"%s\"", e.msg, says);
    safetensors_free(s);
}

static void test_index(void **state)
{
    char dir[TEMPDIR_BYTES];
    struct safetensors *s = NULL;
    struct error e = {0};
    (void)state;
    tempdir_make(dir);
    assert_int_equal(safetensors_open_dir(&s, dir, &e), ERR_NOTFOUND);
    write_shard(dir, "one.safetensors", "a");
    write_shard(dir, "two.safetensors", "b");
    write_shard(dir, "twice.safetensors", "a");
    expect_index(dir, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}",
                 OK, "");
    expect_index(dir, "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}",
                 ERR_FORMAT, "c is in the index");
    expect_index(dir, "{\"weight_map\":{\"b\":\"one.safetensors\",\"a\":\"two.safetensors\"}}",
                 ERR_FORMAT, "the index says");
    expect_index(dir, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"gone.safetensors\"}}",
                 ERR_NOTFOUND, "gone.safetensors");
    expect_index(dir,
                 "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"twice.safetensors\"}}",
                 ERR_FORMAT, "in two shards");
    expect_index(dir, "{\"weight_map\":{\"a\":\"../one.safetensors\"}}", ERR_FORMAT,
                 "no plain file");
    expect_index(dir, "{\"weight_map\":{}}", ERR_LIMIT, "0 shards");
    expect_index(dir, "{}", ERR_FORMAT, "no weight_map");
    expect_index(dir, "{", ERR_FORMAT, "index.json");
    tempdir_remove(dir);
}

/* What is no file waits for nobody. */
static void test_no_files(void **state)
{
    static const char *const NAMES[] = {"config.json", "model.safetensors.index.json",
                                        "model.safetensors"};
    char dir[TEMPDIR_BYTES], path[192];
    (void)state;
    alarm(20); /* a hang ends the test */
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++)
        for (int is_folder = 0; is_folder < 2; is_folder++) {
            struct safetensors *s = NULL;
            struct config c;
            struct error e = {0};
            tempdir_make(dir);
            snprintf(path, sizeof(path), "%s/%s", dir, NAMES[i]);
            assert_int_equal(is_folder ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
            assert_int_equal(i ? safetensors_open_dir(&s, dir, &e) : config_load(&c, dir, &e),
                             ERR_FORMAT);
            assert_non_null(strstr(e.msg, NAMES[i]));
            tempdir_remove(dir);
        }
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),          cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_small_values),
        cmocka_unit_test(test_no_files),      cmocka_unit_test(test_index),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
