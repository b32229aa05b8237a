/* agentd-evals run RUN: asks a daemon what is not answered yet. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/auto.h"
#include "evals/cli.h"
#include "evals/run.h"

struct verb_options {
    const char *socket, *effort;
    bool thinking, dry_run, quiet;
    int64_t timeout_s;
};

static const struct option run_table[] = {
    {"socket", 0, OPTION_STRING, offsetof(struct verb_options, socket), "PATH",
     .help = "the daemon's (default: as agentctl)"},
    {"thinking", 0, OPTION_FLAG, offsetof(struct verb_options, thinking), "",
     .help = "let the model think before it answers"},
    {"effort", 0, OPTION_STRING, offsetof(struct verb_options, effort), "NAME",
     .help = "reasoning effort, with --thinking"},
    {"sample-timeout", 0, OPTION_INT, offsetof(struct verb_options, timeout_s), "SECONDS", 0,
     1000000, .help = "cancel a sample after this long; it counts as timeout (default: never)"},
    {"dry-run", 0, OPTION_FLAG, offsetof(struct verb_options, dry_run), "",
     .help = "say what is left to do: samples, tokens, bytes, time"},
    {"quiet", 'q', OPTION_FLAG, offsetof(struct verb_options, quiet), "",
     .help = "no progress on stderr"},
};

const struct command evals_run_command = {
    "run",
    "RUN",
    "ask a daemon the samples of a suite's folder; the same command again goes on",
    OPTION_TABLE(run_table),
    OPTION_TABLE_EMPTY,
    1,
    1};

/* V4.1-Flash's planes, bytes a token; its tip (model.md). */
#define STATE_BYTES_A_TOKEN 890

static int dry_run(const char *dir)
{
    struct run_plan p;
    struct error e = {0};
    enum err rc = run_dry(dir, &p, &e);
    if (rc)
        return evals_fail(&evals_run_command, rc, &e);
    const uint64_t left = p.n_samples - p.n_done;
    printf("samples   %llu of %llu left, in %llu contexts\n", (unsigned long long)left,
           (unsigned long long)p.n_samples, (unsigned long long)p.n_contexts);
    printf("tokens    %llu of contexts to prefill, at most %llu to generate\n",
           (unsigned long long)p.prefill_tokens, (unsigned long long)p.decode_tokens);
    printf("bytes     %.1f MB of saved state, at V4.1-Flash's 890 a token\n",
           (double)p.prefill_tokens * STATE_BYTES_A_TOKEN / 1e6);
    if (p.ms_per_sample < 0)
        printf("time      not known before the first sample\n");
    else
        printf("time      %.0f s, at %.0f ms a sample so far\n",
               p.ms_per_sample * (double)left / 1e3, p.ms_per_sample);
    return EVALS_DONE;
}

int evals_wake_fd(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

enum err evals_interrupted(int wake_fd, enum err rc, struct error *e)
{
    struct pollfd wake = {.fd = wake_fd, .events = POLLIN};
    if (!rc || poll(&wake, 1, 0) <= 0)
        return rc;
    return err_set(e, ERR_CANCELLED, "interrupted");
}

int evals_run(int argc, char **argv)
{
    struct verb_options v = {.timeout_s = 0};
    struct options o;
    struct error e = {0};
    int code = evals_parse(&evals_run_command, argc, argv, &v, &o);
    if (code != EVALS_GO_ON)
        return code;
    if (v.dry_run)
        return dry_run(o.args[0]);
    AUTO_FD int wake = evals_wake_fd();
    struct run_counts counts = {0};
    const struct run_options run = {.dir = o.args[0],
                                    .socket = v.socket,
                                    .effort = v.effort,
                                    .thinking = v.thinking,
                                    .timeout_ms = (int)(v.timeout_s * 1000),
                                    .wake_fd = wake,
                                    .is_tty = isatty(2),
                                    .quiet = v.quiet};
    enum err rc = run_suite(&run, &counts, &e);
    if (!rc)
        printf("%llu samples, %llu asked now, every ledger adds up\n",
               (unsigned long long)counts.n, (unsigned long long)counts.n_asked);
    return rc ? evals_fail_files(&evals_run_command, rc, &e) : EVALS_DONE;
}
