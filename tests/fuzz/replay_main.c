/* The main() of a fuzz target without libFuzzer: replays tests/fuzz/corpus/NAME through
 * fuzz_NAME and reports as one test in TAP. Each input is named on stderr before it runs, so
 * that the last line of a crash says which it was. A missing or empty corpus is a failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

#define MAX_INPUT_BYTES ((size_t)16 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

/* A copy of exactly the right size: reading past it is seen by ASan. */
static void run_one(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        abort();
    if (size)
        memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int is_file(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static enum err replay(const char *corpus, int *n_out, struct error *e)
{
    struct dirent **names;
    int n = scandir(corpus, &names, is_file, alphasort);
    if (n <= 0)
        return err_set(e, ERR_NOTFOUND, "%s: no inputs", corpus);
    enum err rc = OK;
    for (int i = 0; i < n; i++) {
        char path[FS_PATH_BYTES];
        AUTO(buf) struct buf input = BUF_INIT(MAX_INPUT_BYTES);
        if (!rc)
            rc = fs_path(path, sizeof path, e, "%s/%s", corpus, names[i]->d_name);
        if (!rc)
            rc = fs_read_file(path, &input, e);
        if (!rc) {
            fprintf(stderr, "%s\n", path);
            run_one(input.data, input.len);
        }
        free(names[i]);
    }
    free(names);
    *n_out = n;
    return rc;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    char corpus[FS_PATH_BYTES];
    struct error e = {0};
    int n = 0;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    run_one(NULL, 0);
    enum err rc = ERR_INVAL;
    if (strncmp(name, "fuzz_", 5) == 0)
        rc = fs_path(corpus, sizeof corpus, &e, "tests/fuzz/corpus/%s", name + 5);
    if (!rc)
        rc = replay(corpus, &n, &e);
    if (rc)
        printf("1..1\nnot ok 1 - %s: %s\n", name, e.msg);
    else
        printf("1..1\nok 1 - %s: %d inputs\n", name, n);
    return rc != OK;
}
