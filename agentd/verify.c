#include "agentd/verify.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <uv.h>

#include "agentd/daemon.h"
#include "agentd/model_options.h"
#include "agentd/store_thread.h"
#include "agentd/tape_file.h"
#include "base/spawn.h"

#define MAX_OUTPUT ((size_t)64 << 10)

struct verify {
    struct job job;
    struct request *request; /* NULL once it is answered */
    struct live *session;    /* pinned */
    char id[SESSION_ID_CAP];
    int tape_fd; /* memfd with the tape */
    struct spawn child;
    uv_pipe_t out; /* its stdout and stderr; the end of the stream is the end of the process */
    char chunk[4096];
    struct buf output;
};

static void verify_free(struct verify *v)
{
    struct live *s = v->session;

    if (v->tape_fd >= 0)
        close(v->tape_fd);
    spawn_fini(&v->child);
    buf_fini(&v->output);
    free(v);
    live_unpin(s);
}

static void fail(struct verify *v, enum err rc, const struct error *e)
{
    if (v->request)
        request_fail(v->request, rc, e);
    v->request = NULL;
}

/* ---- the process ------------------------------------------------------------------ */

static void answer(struct verify *v)
{
    json_t *result = json_loads(buf_str(&v->output), JSON_DISABLE_EOF_CHECK, NULL);
    struct error e;

    if (json_is_object(result)) {
        request_reply(v->request, result);
        v->request = NULL;
        return;
    }
    json_decref(result);
    err_set(&e, ERR_IO, "verification failed: %.200s",
            v->output.len ? buf_str(&v->output) : "the process ended without a word");
    fail(v, ERR_IO, &e);
}

static void on_closed(uv_handle_t *h)
{
    verify_free(h->data);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *b)
{
    struct verify *v = h->data;

    (void)hint;
    *b = uv_buf_init(v->chunk, sizeof(v->chunk));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct verify *v = s->data;

    if (n > 0 && buf_add(&v->output, b->base, (size_t)n, NULL) == OK)
        return;
    if (n == 0)
        return;
    if (v->request) {
        v->request->cancel = NULL;
        answer(v);
    }
    uv_close((uv_handle_t *)&v->out, on_closed);
}

/* The client let go: the process is killed, and the end of its output ends the rest. */
static void let_go(struct request *r)
{
    struct verify *v = r->waits_in;

    v->request = NULL;
    r->cancel = NULL;
    (void)!spawn_signal(&v->child, 9, NULL);
}

static enum err start(struct verify *v, struct error *e)
{
    struct daemon *d = v->session->daemon;
    const char *argv[MODEL_ARGS + 3] = {"agentd", "verify-tape"};
    AUTO_FD int to_read = -1;
    AUTO_FD int to_write = -1;
    int fds[2];

    for (size_t i = 0; d->model_args[i]; i++)
        argv[i + 2] = d->model_args[i];
    if (pipe2(fds, O_CLOEXEC))
        return err_set(e, ERR_IO, "pipe");
    to_read = fds[0];
    to_write = fds[1];
    const struct spawn_fd map[] = {{to_write, 1}, {to_write, 2}, {v->tape_fd, 3}};
    const struct spawn_options o = {
        .argv = argv, .fds = map, .n_fds = 3, .die_with_parent = true};
    enum err rc = spawn_start(&o, &v->child, e);
    if (rc)
        return rc;
    if (uv_pipe_open(&v->out, to_read))
        return err_set(e, ERR_IO, "pipe");
    (void)TAKE_FD(to_read); /* the handle's now */
    if (uv_read_start((uv_stream_t *)&v->out, on_alloc, on_read))
        return err_set(e, ERR_IO, "pipe");
    return OK;
}

/* ---- the tape --------------------------------------------------------------------- */

static void load_run(struct job *j, void *ctx)
{
    struct verify *v = (struct verify *)j;
    AUTO(tape) struct tape t = {0};

    if ((j->rc = tape_load(ctx, v->id, &t, &j->error)))
        return;
    if (t.damaged)
        j->rc = err_set(&j->error, ERR_CORRUPT, "the tape of session %s is damaged", v->id);
    else if ((v->tape_fd = memfd_create("tape", MFD_CLOEXEC)) < 0)
        j->rc = err_set(&j->error, ERR_IO, "memfd");
    else if (!(j->rc = tape_file_write(v->tape_fd, &t, &j->error)) &&
             lseek(v->tape_fd, 0, SEEK_SET) != 0)
        j->rc = err_set(&j->error, ERR_IO, "memfd");
}

static void load_done(struct job *j)
{
    struct verify *v = (struct verify *)j;
    struct error e;
    enum err rc = j->rc;

    if (rc) {
        fail(v, rc, &j->error);
        verify_free(v);
        return;
    }
    uv_pipe_init(v->session->daemon->loop, &v->out, 0);
    v->out.data = v;
    v->request->waits_in = v;
    v->request->cancel = let_go;
    if ((rc = start(v, &e))) {
        v->request->cancel = NULL;
        fail(v, rc, &e);
        uv_close((uv_handle_t *)&v->out, on_closed);
    }
}

void verify_begin(struct request *r, struct live *s)
{
    struct error e;

    if (s->turn) {
        err_set(&e, ERR_BUSY, "session %s is %s", s->name, live_state_name(s->state));
        request_fail(r, ERR_BUSY, &e);
        return;
    }
    struct verify *v = calloc(1, sizeof(*v));
    if (!v) {
        request_fail(r, err_set(&e, ERR_NOMEM, "verify"), &e);
        return;
    }
    v->job = (struct job){.run = load_run, .done = load_done};
    v->request = r;
    v->session = s;
    v->tape_fd = -1;
    v->child = (struct spawn)SPAWN_INIT;
    buf_init(&v->output, MAX_OUTPUT);
    memcpy(v->id, s->id, sizeof(v->id));
    live_pin(s);
    store_thread_submit(s->daemon->store, &v->job);
}
