/* What tests/base/test_spawn.c starts: reports what it was given, or behaves as told.
 *   report      one line a fact: descriptors, signals, folder, group, arguments, environment
 *   sleep       until killed
 *   parent      starts `sleep` with die_with_parent, prints its pid, then waits to be killed */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/spawn.h"

static void report_fds(void)
{
    char link[64], target[64];
    for (int fd = 0; fd < 2000; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = '\0';
        printf("fd %d %s\n", fd, strcmp(target, "/dev/null") == 0 ? target : "open");
    }
}

static void report_signals(void)
{
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction action;
        if (sigismember(&mask, sig) == 1)
            printf("blocked %d\n", sig);
        /* These three a sanitizer handles itself, from the start of the program on. */
        bool crash = sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE;
        if (!crash && sigaction(sig, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            printf("handled %d\n", sig);
    }
}

static int report(int argc, char **argv)
{
    char cwd[512];
    report_fds();
    report_signals();
    printf("cwd %s\n", getcwd(cwd, sizeof cwd) ? cwd : "?");
    printf("leader %d\n", getpgrp() == getpid());
    for (int i = 0; i < argc; i++)
        printf("arg %s\n", argv[i]);
    const char *value = getenv("SPAWN_PROBE");
    printf("env %s\n", value ? value : "none");
    return 7;
}

static int parent(void)
{
    const char *const argv[] = {"spawn_probe", "sleep", NULL};
    struct spawn_options o = {.argv = argv, .die_with_parent = true};
    struct spawn child;
    struct error e = {0};
    if (spawn_start(&o, &child, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    printf("%d\n", (int)child.pid);
    fflush(stdout);
    pause();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "report") == 0)
        return report(argc, argv);
    if (argc == 2 && strcmp(argv[1], "parent") == 0)
        return parent();
    pause();
    return 0;
}
