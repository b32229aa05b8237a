/* agentd-tool: runs one tool call in a sandbox. Started by agentd only; see tools/launch.h. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tools/launch.h"
#include "tools/supervisor.h"

/* Whether this was started as launch.h says, and not by hand. */
static bool has_descriptors(void)
{
    for (int fd = 0; fd < LAUNCH_FDS; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            return false;
    return true;
}

int main(void)
{
    struct launch l = {0};
    struct error e = {0};
    if (!has_descriptors()) {
        fprintf(stderr, "agentd-tool: started by agentd only\n");
        return 2;
    }
    /* What the daemon's other threads may have opened meanwhile does not reach a tool. */
    syscall(SYS_close_range, (unsigned)LAUNCH_FDS, ~0U, 0U);
    umask(022);
    if (launch_read(LAUNCH_SPEC_FD, &l, &e)) {
        dprintf(LAUNCH_STATUS_FD, "{\"end\": \"refused\", \"message\": \"unreadable call\"}\n");
        return 1;
    }
    for (int fd = LAUNCH_STATUS_FD; fd <= LAUNCH_SPEC_FD; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    close(LAUNCH_SPEC_FD);
    int rc = supervise(&l);
    launch_fini(&l);
    return rc;
}
