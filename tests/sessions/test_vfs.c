/* The VFS under a database: its files are private, locked against everybody else, and every
 * failure of the file system comes out with its errno. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "sessions/db.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

struct vfs_test {
    char dir[TEMPDIR_BYTES], path[96];
    struct db db;
};

static int setup(void **state)
{
    static struct vfs_test t;
    struct error e;
    tempdir_make(t.dir);
    snprintf(t.path, sizeof t.path, "%s/a.db", t.dir);
    assert_ok(db_open(&t.db, t.path, &e), &e);
    assert_ok(db_exec(&t.db, "CREATE TABLE t(x); INSERT INTO t VALUES(1)", &e), &e);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    struct vfs_test *t = *state;
    fault_disarm();
    db_close(&t->db);
    tempdir_remove(t->dir);
    return 0;
}

static int64_t count(struct vfs_test *t)
{
    struct error e;
    bool row;
    AUTO(query) struct query q = {0};
    assert_ok(query_init(&q, &t->db, "SELECT count(*) FROM t", &e), &e);
    assert_ok(query_step(&q, &row, &e), &e);
    return row_int(&q, 0);
}

static void files_are_private(void **state)
{
    struct vfs_test *t = *state;
    static const char *const suffixes[] = {"", "-wal"};
    for (size_t i = 0; i < 2; i++) {
        char path[128];
        struct stat sb;
        snprintf(path, sizeof path, "%s%s", t->path, suffixes[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
        assert_true(sb.st_size > 0);
    }
}

/* Another connection of this kind, and SQLite's own, in another process too. */
static void vllm_16016_nobody_else_gets_in(void **state)
{
    struct vfs_test *t = *state;
    struct error e;
    struct db other;
    assert_int_equal(db_open(&other, t->path, &e), ERR_BUSY);
    pid_t pid = fork();
    if (pid == 0) {
        sqlite3 *h = NULL;
        int rc = sqlite3_open_v2(t->path, &h, SQLITE_OPEN_READWRITE, "unix");
        if (!rc)
            rc = sqlite3_exec(h, "SELECT * FROM t", NULL, NULL, NULL);
        _exit(rc & 0xff);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), SQLITE_BUSY);
    assert_int_equal(count(t), 1);
}

/* Each file operation of a commit fails in turn, with one errno and the other. */
static void failures_keep_their_errno(void **state)
{
    struct vfs_test *t = *state;
    static const int errnos[] = {EIO, ENOSPC};
    for (size_t i = 0; i < 2; i++) {
        uint64_t n = 1, n_failed = 0;
        for (bool clean = false; !clean; n++) {
            struct error e;
            int64_t before = count(t);
            fault_use_errno(errnos[i]);
            fault_arm(FAULT_FAIL, "fs.write", n);
            enum err rc =
                db_exec(&t->db, "INSERT INTO t SELECT randomblob(5000) FROM t LIMIT 3", &e);
            clean = !fault_disarm();
            if (rc) {
                assert_int_equal(rc, errnos[i] == EIO ? ERR_IO : ERR_LIMIT);
                if (rc == ERR_IO)
                    assert_int_equal(e.sys, EIO);
                n_failed++;
                assert_int_equal(count(t), before);
            }
        }
        assert_true(n_failed >= 2);
    }
}

/* What was committed before a file was lost under the database stays readable in it; new
 * transactions do not start (db.c). */
static void a_replaced_file_is_noticed(void **state)
{
    struct vfs_test *t = *state;
    struct error e;
    char aside[128];
    struct txn x;
    assert_ok(txn_begin(&x, &t->db, &e), &e);
    txn_fini(&x);
    snprintf(aside, sizeof aside, "%s.aside", t->path);
    assert_int_equal(rename(t->path, aside), 0);
    assert_int_equal(txn_begin(&x, &t->db, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "removed or replaced"));
    assert_int_equal(rename(aside, t->path), 0);
    assert_ok(txn_begin(&x, &t->db, &e), &e);
    txn_fini(&x);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(files_are_private),
        T(vllm_16016_nobody_else_gets_in),
        T(failures_keep_their_errno),
        T(a_replaced_file_is_noticed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
