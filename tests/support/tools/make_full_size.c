/* make_full_size DIR: the release's checkpoint at full size, as files that are all holes. For
 * `agentd load` by hand. */
#include <stdio.h>

#include "tests/support/full_size.h"

int main(int argc, char **argv)
{
    struct error e = {0};
    if (argc != 2 || argv[1][0] == '-') { /* no option makes a folder of half a terabyte */
        fprintf(stderr, "usage: %s DIR\n", argv[0]);
        return 2;
    }
    struct full_size_options o = {.out = argv[1]};
    if (full_size_make(&o, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    return 0;
}
