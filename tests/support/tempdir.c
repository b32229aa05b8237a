#include "tests/support/tempdir.h"

#include <ftw.h>
#include <unistd.h>

#include "tests/support/test.h"

void tempdir_make(char dir[TEMPDIR_BYTES])
{
    const char *base = getenv("TMPDIR");
    /* A long TMPDIR would make socket paths in it too long, too. */
    if (!base || base[0] != '/' || strlen(base) > 30)
        base = "/tmp";
    snprintf(dir, TEMPDIR_BYTES, "%s/agentd-test-XXXXXX", base);
    assert_non_null(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

void tempdir_remove(const char *dir)
{
    assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}
