/* engine/kv_spill: a page comes back as it was written; a damaged page, or one under another
 * seal, is an error; places are used again, one at a time, and late pages have none. */
#include "base/aio.h"
#include "base/fs.h"
#include "engine/kv_spill.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define ROWS 1000u /* bytes of a page's rows: with the tag, less than a page of the disk */
#define N 70u      /* more than a batch */

struct fixture {
    char dir[TEMPDIR_BYTES];
    struct kv_spill s;
    uint8_t rows[N][ROWS];
    struct kv_page pages[N];
};

static void setup(struct fixture *f)
{
    struct error e = {0};
    tempdir_make(f->dir);
    assert_ok(kv_spill_init(&f->s, f->dir, kv_spill_page_bytes(ROWS), &e), &e);
    for (size_t i = 0; i < N; i++)
        memset(f->rows[i], (int)i + 1, ROWS);
    assert_ok(kv_spill_write(&f->s, f->rows[0], ROWS, N, f->pages, &e), &e);
}

static void teardown(struct fixture *f)
{
    kv_spill_fini(&f->s);
    tempdir_remove(f->dir);
}

/* Reads the page, changes byte `at` of it by `by`, and opens it under the seal. */
static enum err open_page(struct fixture *f, const struct kv_page *p, uint64_t seal, size_t at,
                          uint8_t by)
{
    struct error e = {0};
    uint8_t *page = f->s.batch;
    assert_ok(fs_pread(f->s.fd, "spill", page, f->s.page_bytes,
                       p->at * (uint64_t)f->s.page_bytes, &e),
              &e);
    page[at] ^= by;
    return kv_spill_open(&f->s, seal, page, ROWS);
}

static void test_round_trip(void **state)
{
    static struct fixture f;
    (void)state;
    setup(&f);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(open_page(&f, &f.pages[i], f.pages[i].seal, 0, 0), OK);
        assert_memory_equal(f.s.batch, f.rows[i], ROWS);
    }
    const struct kv_page *p = &f.pages[3];
    assert_int_equal(open_page(&f, p, p->seal, ROWS - 1, 1), ERR_CORRUPT);
    assert_int_equal(open_page(&f, p, p->seal, f.s.page_bytes - 1, 1), ERR_CORRUPT);
    assert_int_equal(open_page(&f, p, p->seal + 1, 0, 0), ERR_CORRUPT);
    assert_int_equal(open_page(&f, &f.pages[4], p->seal, 0, 0), ERR_CORRUPT);
    teardown(&f);
}

static void test_places(void **state)
{
    static struct fixture f;
    struct kv_page late[2] = {{.at = KV_PAGE_LATE}, {.at = KV_PAGE_LATE}}, again[3];
    struct error e = {0};
    (void)state;
    setup(&f);
    kv_spill_drop(&f.s, late, 2);
    kv_spill_drop(&f.s, f.pages + 8, 2);
    assert_ok(kv_spill_write(&f.s, f.rows[0], ROWS, 3, again, &e), &e);
    assert_int_equal(again[0].at + again[1].at, f.pages[8].at + f.pages[9].at);
    assert_int_not_equal(again[0].at, again[1].at);
    assert_int_equal(again[2].at, N); /* no place is left: the file grows */
    for (size_t i = 0; i < 3; i++) {
        assert_true(again[i].seal >= N); /* none is used twice */
        assert_int_equal(open_page(&f, &again[i], again[i].seal, 0, 0), OK);
        assert_memory_equal(f.s.batch, f.rows[i], ROWS);
    }
    assert_int_equal(open_page(&f, &f.pages[8], f.pages[8].seal, 0, 0), ERR_CORRUPT);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_places),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
