#include "tools/sandbox.h"

#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "tools/landlock.h"
#include "tools/privileges.h"
#include "tools/seccomp.h"

void sandbox_note(json_t *layers, const char *name, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_object_set_new(layers, name, json_string(text));
}

const char *sandbox_tmp(const struct sandbox_plan *p)
{
    return p->scratch && !p->mounts.private_tmp ? p->scratch : "/tmp";
}

static bool is_sandboxed(const struct launch *l)
{
    return l->mode != TOOL_MODE_FULL_ACCESS;
}

static bool has_landlock(const struct launch *l)
{
    return landlock_abi() > 0 && !launch_is_without(l, "landlock");
}

/* ---- before anything is started ---- */

enum err sandbox_check(const struct launch *l, struct error *e)
{
    if (!is_sandboxed(l))
        return OK;
    if (!strcmp(l->workspace, "/"))
        return err_set(e, ERR_DENIED, "the workspace / cannot be sandboxed");
    for (size_t i = 0; i < json_array_size(l->hidden); i++) {
        const char *hidden = json_string_value(json_array_get(l->hidden, i));
        if (path_is_inside(l->workspace, hidden))
            return err_set(e, ERR_DENIED, "the workspace is inside %s, which tools may not see",
                           hidden);
        if (l->spill_folder && path_is_inside(l->spill_folder, hidden))
            return err_set(e, ERR_DENIED,
                           "the output folder is inside %s, which tools may not see", hidden);
    }
    return OK;
}

/* ---- in the new namespaces ---- */

/* A new network namespace has only a loopback device, and that is down; tests of servers want
 * it. */
static bool raise_loopback(void)
{
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    return fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &r) == 0;
}

static void note_mounts(json_t *layers, const struct mounts *m)
{
    sandbox_note(layers, "mounts", "private; %s%s%s%s",
                 m->read_only ? "read-only outside the workspace" : "not made read-only",
                 m->private_tmp ? "; own /tmp" : "", m->private_shm ? "; own /dev/shm" : "",
                 m->private_proc ? "; own /proc" : "; /proc of the system");
}

enum err sandbox_namespaces(const struct launch *l, struct sandbox_plan *p, json_t *layers,
                            struct error *e)
{
    enum err rc = mounts_apply(l, p->scratch, has_landlock(l), &p->mounts, e);
    if (rc)
        return rc;
    note_mounts(layers, &p->mounts);
    if (!launch_fetches(l))
        sandbox_note(layers, "network", "none: private namespace, loopback %s",
                     raise_loopback() ? "up" : "down");
    sandbox_note(layers, "pid_namespace", "yes");
    sandbox_note(layers, "user_namespace",
                 p->user_namespace ? "yes" : "no (root does without)");
    return OK;
}

/* ---- in the process that becomes the tool ---- */

/* Root that no cgroup limits, or whose chmod nothing stops, becomes a spare user to run
 * commands. If then no path rule is there either, file permissions are what confines it, and it
 * may not keep the capability to ignore them. */
static enum privileges what_to_keep(const struct launch *l, const struct sandbox_plan *p)
{
    if (p->user != 0)
        return PRIVILEGES_NONE;
    if (launch_fetches(l)) /* it reads what strangers send, and needs no file of anybody's */
        return PRIVILEGES_NOBODY;
    if (!launch_executes(l) || (p->cgroup_limit && p->mounts.read_only))
        return PRIVILEGES_FILES;
    return has_landlock(l) || p->mounts.read_only ? PRIVILEGES_SPARE : PRIVILEGES_NOBODY;
}

static enum err limit_processes(const struct launch *l, const struct sandbox_plan *p,
                                json_t *layers, struct error *e)
{
    struct error why;
    if (p->cgroup_limit) {
        sandbox_note(layers, "pids_limit", "cgroup, %u", l->max_processes);
        return OK;
    }
    enum err rc = limits_processes(l->max_processes, p->user == 0 ? 0 : p->user_threads, &why);
    if (rc == OK) {
        sandbox_note(layers, "pids_limit", "RLIMIT_NPROC, %u, tried", l->max_processes);
        return OK;
    }
    sandbox_note(layers, "pids_limit", "none: %s", why.msg);
    if (!is_sandboxed(l) || !launch_executes(l))
        return OK;
    return err_set(e, ERR_DENIED,
                   "sandboxed commands need a limit of processes: no pids cgroup, and %s",
                   why.msg);
}

static enum err apply_landlock(const struct launch *l, const struct sandbox_plan *p,
                               enum privileges kept, json_t *layers, struct error *e)
{
    struct landlock_rules rules = {.scratch = p->mounts.private_tmp ? "/tmp" : p->scratch,
                                   .deny_tcp = !p->namespaces && !launch_fetches(l),
                                   .strict_etc = kept != PRIVILEGES_NONE,
                                   .writable_shm = p->mounts.private_shm,
                                   .resolver = launch_fetches(l)};
    struct error why;
    enum err rc = has_landlock(l) ? landlock_restrict(l, &rules, &why)
                                  : err_set(&why, ERR_UNSUPPORTED, "no Landlock");
    if (rc == OK) {
        sandbox_note(layers, "landlock", "ABI %d", landlock_abi());
        return OK;
    }
    sandbox_note(layers, "landlock", "none: %s", why.msg);
    if (p->mounts.read_only && p->mounts.hidden)
        return OK; /* writes are confined by the mounts */
    if (!launch_executes(l))
        return OK; /* our own code, confined by how it opens files */
    if (kept == PRIVILEGES_NOBODY && rc == ERR_UNSUPPORTED) {
        sandbox_note(layers, "files", "by file permissions only, as a user who owns none");
        return OK;
    }
    return err_set(e, ERR_DENIED, "nothing can confine writes here: %s, and no mount namespace",
                   why.msg);
}

static enum err apply_seccomp(const struct launch *l, const struct sandbox_plan *p,
                              json_t *layers, struct error *e)
{
    bool fetches = launch_fetches(l);
    struct seccomp_rules rules = {.allow_inet = p->namespaces || fetches,
                                  .allow_unix = p->mounts.hidden && !fetches,
                                  .allow_ptrace = has_landlock(l) || p->namespaces};
    struct error why;
    if (seccomp_restrict(&rules, &why)) {
        sandbox_note(layers, "seccomp", "none: %s", why.msg);
        if (!launch_executes(l) && !fetches)
            return OK;
        return err_set(e, ERR_DENIED, "no system call filter: %s", why.msg);
    }
    sandbox_note(layers, "seccomp", "deny list%s%s",
                 rules.allow_inet ? "" : ", no inet sockets",
                 rules.allow_unix ? "" : ", no unix sockets");
    if (fetches)
        sandbox_note(layers, "network", "addresses that http_fetch may ask");
    else if (!rules.allow_inet)
        sandbox_note(layers, "network", "none: refused by seccomp");
    sandbox_note(layers, "control_socket", "%s",
                 rules.allow_unix ? "covered by a mount" : "unix sockets refused by seccomp");
    return OK;
}

/* A hidden path below a readable one cannot be taken out by Landlock: only mounts can. */
static enum err check_hidden(const struct launch *l, const struct sandbox_plan *p,
                             struct error *e)
{
    for (size_t i = 0; !p->mounts.hidden && i < json_array_size(l->hidden); i++) {
        const char *hidden = json_string_value(json_array_get(l->hidden, i));
        bool bad = path_is_inside(hidden, l->workspace);
        for (size_t j = 0; j < json_array_size(l->read_paths); j++)
            bad = bad ||
                  path_is_inside(hidden, json_string_value(json_array_get(l->read_paths, j)));
        if (bad)
            return err_set(e, ERR_DENIED,
                           "%s is inside what the tool may read, and cannot be hidden here",
                           hidden);
    }
    return OK;
}

static enum err restrict_full_access(const struct launch *l, const struct sandbox_plan *p,
                                     json_t *layers, struct error *e)
{
    enum err rc = limit_processes(l, p, layers, e);
    sandbox_note(layers, "landlock", "none: full access");
    sandbox_note(layers, "seccomp", "none: full access");
    sandbox_note(layers, "network", "open");
    sandbox_note(layers, "mounts", "those of the system");
    sandbox_note(layers, "no_new_privs", "no: full access");
    sandbox_note(layers, "control_socket", "refused by the daemon (descendants of tools)");
    return rc;
}

enum err sandbox_restrict(const struct launch *l, const struct sandbox_plan *p, json_t *layers,
                          struct error *e)
{
    enum err rc = limits_apply(l->max_file_bytes, e);
    if (rc)
        return rc;
    sandbox_note(layers, "rlimits", "core 0, file %llu bytes, 1024 descriptors",
                 (unsigned long long)l->max_file_bytes);
    if (!is_sandboxed(l))
        return restrict_full_access(l, p, layers, e);
    enum privileges keep = what_to_keep(l, p);
    bool spare = keep == PRIVILEGES_SPARE || keep == PRIVILEGES_NOBODY;
    if ((rc = check_hidden(l, p, e)))
        return rc;
    if (spare && chown(sandbox_tmp(p), p->spare_uid, p->spare_uid) != 0)
        return err_sys(e, errno, "scratch folder: cannot give it to user %u", p->spare_uid);
    rc = privileges_drop(keep, p->spare_uid, l->mode == TOOL_MODE_WORKSPACE_WRITE, e);
    if (rc)
        return rc;
    sandbox_note(layers, "no_new_privs", "yes");
    sandbox_note(layers, "uid", "%u%s", (unsigned)getuid(),
                 spare ? " (spare user for root)" : "");
    if ((rc = limit_processes(l, p, layers, e)))
        return rc;
    if ((rc = apply_landlock(l, p, keep, layers, e)))
        return rc;
    return apply_seccomp(l, p, layers, e);
}
