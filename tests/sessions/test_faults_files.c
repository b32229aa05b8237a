/* Every file operation, commit and allocation of every operation of the store fails in turn,
 * until a clean pass: with EIO, with ENOSPC, once, or from then on. Database and packs alike:
 * the database's own reads, writes, syncs and truncations are among the fault points
 * (sessions/vfs.h).
 *
 * What was refused did not happen, and happens when it is tried again; or, where the process
 * ends with the failure, it is there whole or not at all. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fs.h"
#include "tests/support/store_load.h"
#include "tests/support/test.h"

#define STRIDE 29 /* of the points that fail, in make check */

struct trial {
    struct store_fixture f;
    struct load *l, *start; /* start: as it was when the store was closed */
    char copy[80];          /* of the store's folder at that moment */
};

static void copy_file(const char *from, const char *to)
{
    struct error e;
    AUTO(buf) struct buf b = BUF_INIT(1 << 26);
    assert_ok(fs_read_file(from, &b, &e), &e);
    int fd;
    assert_ok(fs_open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600, &fd, &e), &e);
    assert_ok(fs_write(fd, to, b.data, b.len, &e), &e);
    close(fd);
}

/* Folders two deep, plain files. */
static void copy_tree(const char *from, const char *to)
{
    struct error e;
    assert_ok(fs_mkdir_p(to, &e), &e);
    DIR *dir = opendir(from);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));) {
        char a[400], b[400];
        if (d->d_name[0] == '.')
            continue;
        snprintf(a, sizeof a, "%s/%s", from, d->d_name);
        snprintf(b, sizeof b, "%s/%s", to, d->d_name);
        if (d->d_type == DT_DIR)
            copy_tree(a, b);
        else
            copy_file(a, b);
    }
    closedir(dir);
}

/* A store that has everything, closed. */
static void make(struct trial *t, enum layout_shape shape, enum store_encrypt encrypt)
{
    struct error e;
    *t = (struct trial){.l = load_new(40 + (uint64_t)shape, shape)};
    t->start = malloc(sizeof *t->start);
    store_fixture_init_in_memory(&t->f);
    t->f.options.no_direct_io = true;
    t->f.options.pack_bytes = 150000;
    t->f.options.encrypt = encrypt;
    t->f.options.aio = (struct aio_options){.no_ring = true, .n_threads = 1};
    assert_ok(store_fixture_open(&t->f, &e), &e);
    for (int i = 0; i < 60; i++)
        if (!load_step(t->l, &t->f))
            fail_msg("%s", t->l->violation);
    /* Nothing to do would be no test: a call that is open, tokens without state, a free slot.
     */
    static const enum load_kind last[] = {LOAD_REMOVE, LOAD_NEW, LOAD_EXPORT, LOAD_REMOVE};
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++)
        if (!load_run(t->l, &t->f, last[i]))
            fail_msg("%s", t->l->violation);
    for (int i = 0; i < 12; i++)
        if (!load_run(t->l, &t->f, LOAD_APPEND))
            fail_msg("%s", t->l->violation);
    store_close(t->f.st);
    t->f.st = NULL;
    memcpy(t->start, t->l, sizeof *t->start);
    snprintf(t->copy, sizeof t->copy, "%s.copy", t->f.dir);
    copy_tree(t->f.dir, t->copy);
}

static void make_again(struct trial *t, enum load_kind kind)
{
    struct error e;
    remove_tree(t->f.dir);
    copy_tree(t->copy, t->f.dir);
    memcpy(t->l, t->start, sizeof *t->l);
    t->l->random += kind;
    assert_ok(store_fixture_open(&t->f, &e), &e);
}

static void drop(struct trial *t)
{
    store_fixture_fini(&t->f);
    remove_tree(t->copy);
    load_free(t->l);
    free(t->start);
}

static void check(struct trial *t, const char *when, enum load_kind kind, uint64_t n)
{
    struct error e;
    if (!t->f.st)
        assert_ok(store_fixture_open(&t->f, &e), &e);
    if (!load_check(t->l, &t->f))
        fail_msg("%s, point %llu, %s: %s", load_kind_names[kind], (unsigned long long)n, when,
                 t->l->violation);
}

/* One operation with the n-th point failing. *clean: there was no such point. Returns whether
 * the operation was refused. */
static bool run_one(struct trial *t, enum load_kind kind, enum fault_action action, int sys,
                    uint64_t n, bool *clean)
{
    make_again(t, kind);
    t->l->fault = (struct load_fault){.action = action, .sys = sys, .n = n};
    bool ok = load_run(t->l, &t->f, kind);
    *clean = !t->l->fault.fired;
    t->l->fault.n = 0;
    if (*clean && !ok)
        fail_msg("%s without a fault: %s", load_kind_names[kind], t->l->violation);
    if (!ok && n % 2 == 0) {
        /* It ends here, and what the disk has then counts. */
        t->l->op.refused = false;
        store_close(t->f.st);
        t->f.st = NULL;
        check(t, "opened again", kind, n);
    } else {
        check(t, "after it", kind, n);
        t->l->violation[0] = '\0';
        if (!ok && !load_run(t->l, &t->f, kind))
            fail_msg("%s, point %llu, tried again: %s", load_kind_names[kind],
                     (unsigned long long)n, t->l->violation);
        store_fixture_reopen(&t->f);
        check(t, "at last", kind, n);
    }
    store_close(t->f.st);
    t->f.st = NULL;
    return !ok;
}

static void run_all(enum layout_shape shape, enum store_encrypt encrypt,
                    enum fault_action action, int sys)
{
    struct trial t;
    uint64_t n_tried = 0, stride = getenv("AGENTD_SLOW") ? 1 : STRIDE;
    make(&t, shape, encrypt);
    for (enum load_kind kind = 0; kind < LOAD_KINDS; kind++) {
        uint64_t refused = 0;
        /* A restore that meets a fault gives less: test_faults.c. */
        if (kind == LOAD_RESTORE)
            continue;
        bool clean = false;
        for (uint64_t n = 1 + (uint64_t)kind % stride; !clean; n += stride, n_tried++)
            refused += run_one(&t, kind, action, sys, n, &clean);
        if (!refused && stride == 1)
            fail_msg("%s was never refused", load_kind_names[kind]);
    }
    fprintf(stderr, "%llu points failed\n", (unsigned long long)n_tried);
    drop(&t);
}

static void once_with_their_own_errno(void **state)
{
    (void)state;
    run_all(LAYOUT_ODD, STORE_ENCRYPT_OFF, FAULT_FAIL, 0);
}

static void once_with_a_full_disk(void **state)
{
    (void)state;
    run_all(LAYOUT_PAGES, STORE_ENCRYPT_ON, FAULT_FAIL, ENOSPC);
}

static void from_then_on_with_a_dead_disk(void **state)
{
    (void)state;
    run_all(LAYOUT_TIP, STORE_ENCRYPT_OFF, FAULT_FAIL_FROM, EIO);
}

static void vllm_52784_from_then_on_with_a_full_disk(void **state)
{
    (void)state;
    run_all(LAYOUT_ODD, STORE_ENCRYPT_ON, FAULT_FAIL_FROM, ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_with_their_own_errno),
        cmocka_unit_test(once_with_a_full_disk),
        cmocka_unit_test(from_then_on_with_a_dead_disk),
        cmocka_unit_test(vllm_52784_from_then_on_with_a_full_disk),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
