#include "tests/support/build_folder.h"

#include <limits.h>
#include <stdlib.h>

int build_folder_use(void)
{
    const char *build = getenv("AGENTD_BUILD");
    char absolute[PATH_MAX];
    if (!realpath(build ? build : "build", absolute))
        return -1;
    return setenv("AGENTD_LIBEXEC", absolute, 1);
}
