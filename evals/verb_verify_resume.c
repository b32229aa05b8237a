/* agentd-evals verify-resume: every arm of evals/fidelity.h on a checkpoint, and its report. */
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "evals/arm.h"
#include "evals/cli.h"
#include "evals/fidelity.h"
#include "evals/report.h"

#define MAX_LENGTHS 16
#define MAX_LIST 32

struct verb_options {
    const char *model, *out, *lengths, *positions, *arms, *isa, *work, *suite;
    int64_t cycles, kills, probes, continuation, threads, seed;
    int precision, backend;
    bool json, quiet;
};

static const char *const precisions[] = {"fast", "fp32kvq", "math", "official", NULL};
static const char *const backends[] = {"cpu", "ref", "cuda", NULL};

#define AT(member) offsetof(struct verb_options, member)
static const struct option verify_table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "model folder", .required = true},
    {"out", 'o', OPTION_STRING, AT(out), "DIR",
     .help = "folder for verify-resume.json and report.html"},
    {"lengths", 'l', OPTION_STRING, AT(lengths), "N,N,...",
     .help = "tokens before the forced continuation, such as 4K,16K (default: 4K)"},
    {"positions", 0, OPTION_STRING, AT(positions), "P,P,...",
     .help = "where to resume (default: borders of 128, window, block, result, thinking)"},
    {"arms", 0, OPTION_STRING, AT(arms), "LETTERS",
     .help = "of cSPXDBFKI; c is C' (default: all)"},
    {"cycles", 0, OPTION_INT, AT(cycles), "N", 0, 512,
     .help = "stops and resumes along one session (default: 100)"},
    {"kills", 0, OPTION_INT, AT(kills), "N", 0, 1000,
     .help = "of the daemon, each in the middle of a turn (default: 3)"},
    {"probes", 0, OPTION_INT, AT(probes), "N", 0, 64,
     .help = "questions at each depth and distance, and of four turns each; 0: none "
             "(default: 2)"},
    {"continuation", 0, OPTION_INT, AT(continuation), "N", 128, 65536,
     .help = "forced tokens behind the resume (default: 4096)"},
    {"precision", 0, OPTION_ENUM, AT(precision), "MODE", .choices = precisions,
     .help = "where values are rounded; the daemon's arms are in mode fast"},
    {"backend", 0, OPTION_ENUM, AT(backend), "NAME", .choices = backends,
     .help = "where it is computed"},
    {"isa", 0, OPTION_STRING, AT(isa), "NAME",
     .help = "of backend cpu: avx512bf16, avx512, avx2, portable"},
    {"threads", 0, OPTION_INT, AT(threads), "N", 0, 256, .help = "default: all cores"},
    {"seed", 0, OPTION_INT, AT(seed), "N", 0, UINT32_MAX, .help = "of the text (default: 1)"},
    {"suite", 0, OPTION_STRING, AT(suite), "DIR",
     .help = "X, D and B on a suite's samples, each asked in a fork, and nothing else; on one "
             "thread"},
    {"work", 0, OPTION_STRING, AT(work), "DIR",
     .help = "where daemons keep their stores meanwhile (default: TMPDIR)"},
    {"json", 0, OPTION_FLAG, AT(json), "", .help = "print the results"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), "", .help = "no progress on stderr"},
};
#undef AT

const struct command evals_verify_resume_command = {
    "verify-resume",
    "",
    "resumed sessions against one that never stopped: equal bits, what it costs",
    OPTION_TABLE(verify_table),
    OPTION_TABLE_EMPTY,
    0,
    0};

struct numbers {
    uint64_t v[MAX_LIST];
    size_t n;
};

static enum err parse_numbers(const char *option, const char *text, struct numbers *out,
                              struct error *e)
{
    for (out->n = 0; *text; text += *text == ',') {
        char word[32];
        const size_t n = strcspn(text, ",");
        if (n >= sizeof word || out->n == MAX_LIST)
            return err_set(e, ERR_INVAL, "%s: want at most %d numbers", option, MAX_LIST);
        memcpy(word, text, n);
        word[n] = 0;
        enum err rc = options_parse_bytes(word, &out->v[out->n++], e);
        if (rc)
            return err_wrap(e, rc, "%s", option);
        text += n;
    }
    return OK;
}

struct watch {
    uint64_t length;
    const char *out; /* folder of the report; NULL: none */
    json_t *results;
};

static void progress(void *user, const char *what)
{
    const struct watch *w = user;
    fprintf(stderr, "verify-resume %llu: %s\n", (unsigned long long)w->length, what);
}

static void progress_of_suite(void *user, const char *context)
{
    (void)user;
    fprintf(stderr, "verify-resume: %s\n", context);
}

/* The report with what is known of a length, should it be cut short. */
static enum err so_far(void *user, json_t *result, struct error *e)
{
    const struct watch *w = user;
    json_t *lengths = json_object_get(w->results, "lengths");
    if (!w->out)
        return OK;
    if (json_array_append(lengths, result))
        return err_set(e, ERR_NOMEM, "no memory for results");
    enum err rc = report_resume(w->out, w->results, e);
    json_array_remove(lengths, json_array_size(lengths) - 1);
    return rc;
}

static void print_checks(const json_t *result)
{
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(result, "checks"), i, c) {
        printf("%-6lld %-2s %-56s %8lld  %7lld rows  %s",
               (long long)json_integer_value(json_object_get(result, "length")),
               json_string_value(json_object_get(c, "arm")),
               json_string_value(json_object_get(c, "what")),
               (long long)json_integer_value(json_object_get(c, "position")),
               (long long)json_integer_value(json_object_get(c, "rows")),
               json_is_true(json_object_get(c, "equal")) ? "equal" : "DIFFERENT");
        const json_int_t replayed = json_integer_value(json_object_get(c, "replayed"));
        if (replayed)
            printf("  (%lld replayed)", (long long)replayed);
        printf("\n");
    }
    json_array_foreach(json_object_get(result, "curve"), i, c)
        printf("%-6lld B  tokens %5lld..%-5lld KL %.3e  max %.3e  top-1 %.3f  top-20 %.3f\n",
               (long long)json_integer_value(json_object_get(result, "length")),
               (long long)json_integer_value(json_object_get(c, "from")),
               (long long)json_integer_value(json_object_get(c, "to")),
               json_number_value(json_object_get(c, "kl")),
               json_number_value(json_object_get(c, "max_diff")),
               json_number_value(json_object_get(c, "top1")),
               json_number_value(json_object_get(c, "top20")));
}

/* Of the answers of an arm: how many are right, and how many are C's. */
static void print_answers(const json_t *result)
{
    static const char *const kinds[] = {"needle", "distance", "turn", "sample"};
    static const char *const arms[] = {"X", "D", "B"};
    size_t i;
    json_t *p;
    for (size_t k = 0; k < 12; k++) {
        unsigned n = 0, right = 0, same = 0, action = 0, c_right = 0;
        json_array_foreach(json_object_get(result, "answers"), i, p) {
            const json_t *a = json_object_get(json_object_get(p, "arms"), arms[k % 3]);
            if (!a || strcmp(json_string_value(json_object_get(p, "kind")), kinds[k / 3]) != 0)
                continue;
            n++;
            c_right += json_is_true(json_object_get(p, "right"));
            right += json_is_true(json_object_get(a, "right"));
            same += json_is_true(json_object_get(a, "same_ids"));
            action += json_is_true(json_object_get(a, "same_action"));
        }
        if (n)
            printf("%-6lld %s  %-8s %3u answers: the same ids %u, the same action %u; right "
                   "%u, of C %u\n",
                   (long long)json_integer_value(json_object_get(result, "length")),
                   arms[k % 3], kinds[k / 3], n, same, action, right, c_right);
    }
}

/* Of a suite's cell. */
static void print_accuracy(const json_t *result)
{
    const char *arm;
    json_t *a;
    json_object_foreach(json_object_get(result, "accuracy"), arm, a)
        printf(
            "%-6lld %s  right %lld of %lld = %.3f (95 %%: %.3f to %.3f), %s, %lld contexts\n",
            (long long)json_integer_value(json_object_get(result, "length")), arm,
            (long long)json_integer_value(json_object_get(a, "right")),
            (long long)json_integer_value(json_object_get(a, "n")),
            json_number_value(json_object_get(a, "mean")),
            json_number_value(json_object_get(a, "low")),
            json_number_value(json_object_get(a, "high")),
            json_string_value(json_object_get(result, "cell")),
            (long long)json_integer_value(json_object_get(result, "n_contexts")));
}

static struct engine_options engine_of(const struct verb_options *v)
{
    return (struct engine_options){.precision = (enum precision)v->precision,
                                   .backend = backends[v->backend],
                                   .isa = v->isa,
                                   .n_threads = v->suite ? 1 : (uint32_t)v->threads,
                                   .digests = true,
                                   .no_weight_digest = true};
}

static enum err note_fingerprint(const struct verb_options *v, json_t *results, struct error *e)
{
    const struct engine_options engine = engine_of(v);
    char fingerprint[ARM_FINGERPRINT_CHARS];
    enum err rc = arm_fingerprint(v->model, &engine, fingerprint, e);
    if (!rc && json_object_set_new(results, "fingerprint", json_string(fingerprint)))
        rc = err_set(e, ERR_NOMEM, "no memory for results");
    return rc;
}

static enum err run_suite_cells(const struct verb_options *v, int wake_fd, json_t *results,
                                bool *equal, struct error *e)
{
    struct watch watch = {0, v->out, results};
    const struct fidelity_options o = {.model = v->model,
                                       .engine = engine_of(v),
                                       .wake_fd = wake_fd,
                                       .arms = v->arms ? v->arms : "XDB",
                                       .progress = v->quiet ? NULL : progress_of_suite,
                                       .so_far = so_far,
                                       .user = &watch};
    json_t *cells = json_object_get(results, "lengths"), *cell;
    size_t i;
    enum err rc = fidelity_suite(&o, v->suite, cells, equal, e);
    json_array_foreach(cells, i, cell) {
        if (rc || v->json)
            break;
        print_checks(cell);
        print_answers(cell);
        print_accuracy(cell);
    }
    return rc || !v->out ? rc : report_resume(v->out, results, e);
}

static enum err run_all(const struct verb_options *v, const struct numbers *lengths,
                        const struct numbers *positions, int wake_fd, json_t *results,
                        bool *equal, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < lengths->n && !rc; i++) {
        struct watch watch = {lengths->v[i], v->out, results};
        json_t *result = NULL;
        bool same = false;
        const struct fidelity_options o = {.model = v->model,
                                           .engine = engine_of(v),
                                           .length = watch.length,
                                           .continuation = (uint64_t)v->continuation,
                                           .n_cycles = (uint32_t)v->cycles,
                                           .n_kills = (uint32_t)v->kills,
                                           .n_probes = (uint32_t)v->probes,
                                           .wake_fd = wake_fd,
                                           .seed = (uint64_t)v->seed,
                                           .arms = v->arms ? v->arms : FIDELITY_ARMS,
                                           .work = v->work,
                                           .positions = positions->v,
                                           .n_positions = positions->n,
                                           .progress = v->quiet ? NULL : progress,
                                           .so_far = so_far,
                                           .user = &watch};
        rc = fidelity_run(&o, &result, &same, e);
        if (rc)
            break;
        *equal = *equal && same;
        if (!v->json) {
            print_checks(result);
            print_answers(result);
        }
        fflush(stdout);
        if (json_array_append_new(json_object_get(results, "lengths"), result))
            rc = err_set(e, ERR_NOMEM, "no memory for results");
        if (!rc && v->out)
            rc = report_resume(v->out, results, e);
    }
    return rc;
}

static enum err check_suite_options(const struct verb_options *v, struct error *e)
{
    if (v->lengths || v->positions)
        return err_set(e, ERR_INVAL,
                       "--suite has its own lengths, and positions at their ends");
    if (v->threads > 1)
        return err_set(e, ERR_INVAL, "--suite forks the process: want --threads 1");
    if (v->arms && strspn(v->arms, "XDB") != strlen(v->arms))
        return err_set(e, ERR_INVAL, "--arms %s: with --suite want letters of XDB", v->arms);
    return OK;
}

int evals_verify_resume(int argc, char **argv)
{
    struct verb_options v = {
        .cycles = 100, .kills = 3, .probes = 2, .continuation = 4096, .seed = 1};
    struct options o;
    struct error e = {0};
    struct numbers lengths = {.n = 0}, positions = {.n = 0};
    bool equal = true;
    int code = evals_parse(&evals_verify_resume_command, argc, argv, &v, &o);
    if (code != EVALS_GO_ON)
        return code;
    AUTO_FD int wake = evals_wake_fd();
    json_auto_t *results =
        json_pack("{s:i, s:s, s:[]}", "format", 1, "model", v.model, "lengths");
    enum err rc = results
                      ? parse_numbers("--lengths", v.lengths ? v.lengths : "4K", &lengths, &e)
                      : err_set(&e, ERR_NOMEM, "no memory for results");
    if (!rc && v.positions)
        rc = parse_numbers("--positions", v.positions, &positions, &e);
    if (!rc && v.arms && strspn(v.arms, FIDELITY_ARMS) != strlen(v.arms))
        rc = err_set(&e, ERR_INVAL, "--arms %s: want letters of %s", v.arms, FIDELITY_ARMS);
    if (!rc && v.suite)
        rc = check_suite_options(&v, &e);
    if (!rc)
        rc = note_fingerprint(&v, results, &e);
    if (!rc)
        rc = v.suite ? run_suite_cells(&v, wake, results, &equal, &e)
                     : run_all(&v, &lengths, &positions, wake, results, &equal, &e);
    if ((rc = evals_interrupted(wake, rc, &e)))
        return v.suite ? evals_fail_files(&evals_verify_resume_command, rc, &e)
                       : evals_fail(&evals_verify_resume_command, rc, &e);
    if (v.json)
        json_dumpf(results, stdout, JSON_INDENT(1));
    if (!equal)
        fprintf(stderr, "agentd-evals verify-resume: what must be equal is not\n");
    return equal ? EVALS_DONE : EVALS_CORRUPT;
}
