#include "tools/body.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"

static const struct {
    const char *name;
    int (*main)(const struct body *b);
} bodies[] = {{"edit", body_edit},
              {"grep", body_grep},
              {"http_fetch", body_http_fetch},
              {"list_dir", body_list_dir},
              {"read_file", body_read_file},
              {"run", body_run},
              {"write_file", body_write_file}};

/* Names, patterns and commands become C strings; file contents keep their NULs. */
static const char *const texts[] = {"path", "pattern", "include", "command", "url"};

static const char *with_nul(const struct body *b)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const json_t *v = json_object_get(b->launch->arguments, texts[i]);
        if (json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v))
            return texts[i];
    }
    return NULL;
}

int body_main(const struct body *b)
{
    const char *bad = with_nul(b);
    if (bad)
        return body_fail("%s: holds a NUL byte", bad);
    if (!strcmp(b->launch->tool, LAUNCH_PROBE))
        return 0;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        if (strcmp(bodies[i].name, b->launch->tool) != 0)
            continue;
        int rc = bodies[i].main(b);
        if (fflush(stdout) != 0 || ferror(stdout))
            return 1;
        return rc;
    }
    return body_fail("there is no tool %s", b->launch->tool);
}

int body_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("error: ", stdout);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
    return 1;
}

const char *body_string(const struct body *b, const char *name, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(b->launch->arguments, name));
    return s ? s : otherwise;
}

long long body_integer(const struct body *b, const char *name, long long otherwise)
{
    const json_t *v = json_object_get(b->launch->arguments, name);
    if (json_is_integer(v))
        return json_integer_value(v);
    return json_is_real(v) ? (long long)json_real_value(v) : otherwise;
}

bool body_flag(const struct body *b, const char *name)
{
    return json_is_true(json_object_get(b->launch->arguments, name));
}

/* ---- run ---- */

/* A file that bash reads before the command, which must not see it: it makes the shell say at
 * its end where it is. False: cannot be written; then the folder is not carried over. */
static bool write_prelude(const struct body *b, char path[4200])
{
    snprintf(path, 4200, "%s/.agentd-env", b->notes ? b->notes : "");
    AUTO_FD int fd = b->notes ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    return fd >= 0 &&
           dprintf(fd,
                   "unset BASH_ENV\n"
                   "trap 'command pwd -P >|\"%s/" BODY_CWD_FILE "\" 2>/dev/null' EXIT\n",
                   b->notes) > 0;
}

/* Where an earlier command was, or else the workspace, where this process is already. */
static void enter_cwd(const struct body *b)
{
    const char *cwd = b->launch->cwd;

    if (!cwd || chdir(cwd) == 0)
        return;
    printf("[the working folder %s cannot be entered any more: this runs in the workspace]\n",
           cwd);
    fflush(stdout);
}

int body_run(const struct body *b)
{
    const char *command = body_string(b, "command", "");
    char prelude[4200], env_prelude[4300];
    bool full = b->launch->mode == TOOL_MODE_FULL_ACCESS;
    const char *path = getenv("PATH"), *home = getenv("HOME");
    char env_home[4200], env_tmp[4200], env_path[4200], env_mode[64];
    snprintf(env_home, sizeof env_home, "HOME=%s", full && home ? home : b->tmp);
    snprintf(env_tmp, sizeof env_tmp, "TMPDIR=%s", b->tmp);
    snprintf(env_path, sizeof env_path, "PATH=%s",
             full && path ? path
                          : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    snprintf(env_mode, sizeof env_mode, "AGENTD_SANDBOX=%s", tool_mode_name(b->launch->mode));
    enter_cwd(b);
    snprintf(env_prelude, sizeof env_prelude, "BASH_ENV=%s",
             write_prelude(b, prelude) ? prelude : "/dev/null");
    const char *const env[] = {env_home,          env_tmp,     env_path,    env_mode,
                               "LANG=C.UTF-8",    "TERM=dumb", "PAGER=cat", "GIT_PAGER=cat",
                               "SHELL=/bin/bash", env_prelude, NULL};
    const char *const argv[] = {"bash", "--noprofile", "--norc", "-c", command, NULL};
    execve("/bin/bash", (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)env);
    return body_fail("bash cannot be started: %s", strerror(errno));
}
