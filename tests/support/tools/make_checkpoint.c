/* make_checkpoint CONFIG OUTDIR [--seed N] [--tokenizer FILE]: a random checkpoint in the
 * official layout. Run from the top of the tree (the tokenizer is that of golden/a_tiny) or
 * name one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/checkpoint.h"

static int usage(void)
{
    fprintf(stderr, "usage: make_checkpoint CONFIG OUTDIR [--seed N] [--tokenizer FILE]\n");
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argv[1][0] == '-')
        return usage();
    struct checkpoint_options o = {
        .config = argv[1], .out = argv[2], .tokenizer = CHECKPOINT_TOKENIZER, .seed = 1};
    for (int i = 3; i < argc; i += 2) {
        char *end = NULL;
        if (i + 1 == argc)
            return usage();
        if (!strcmp(argv[i], "--seed"))
            o.seed = strtoull(argv[i + 1], &end, 10);
        else if (!strcmp(argv[i], "--tokenizer"))
            o.tokenizer = argv[i + 1];
        else
            return usage();
        if (end && (*end || end == argv[i + 1]))
            return usage();
    }
    struct error e = {0};
    if (checkpoint_make(&o, &e)) {
        fprintf(stderr, "make_checkpoint: %s\n", e.msg);
        return 1;
    }
    return 0;
}
