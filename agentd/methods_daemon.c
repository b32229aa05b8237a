/* Methods about the daemon itself. */
#include <string.h>
#include <unistd.h>

#include "agentd/daemon.h"
#include "agentd/live.h"
#include "agentd/methods.h"
#include "agentd/protocol.h"
#include "agentd/saver.h"
#include "agentd/store_thread.h"
#include "agentd/verbs.h"
#include "base/encode.h"
#include "base/json.h"
#include "sessions/store.h"
#include "tools/tools.h"

static json_t *model_json(const struct daemon *d)
{
    const struct engine_info *m = d->model;
    char fingerprint[HEX_CHARS(STATE_KEY_BYTES)];

    hex_encode(m->layout->fingerprint, STATE_KEY_BYTES, fingerprint);
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:b, s:I, s:i}", "name", m->name, "fingerprint",
                     fingerprint, "numerics", m->layout->numerics, "vocabSize",
                     (int)m->vocab_size, "maxTokens", (json_int_t)m->max_tokens, "storable",
                     m->storable, "tipBytes", (json_int_t)m->layout->tip_bytes, "planes",
                     (int)m->layout->n_planes);
}

void method_initialize(struct request *r)
{
    int64_t version = 0;
    struct error e;

    if (json_need_int(r->params, "protocolVersion", 0, INT32_MAX, &version, &e)) {
        request_fail_params(r, &e);
        return;
    }
    if (version != PROTOCOL_VERSION) {
        err_set(&e, ERR_UNSUPPORTED, "protocolVersion %lld is not spoken here, only %d",
                (long long)version, PROTOCOL_VERSION);
        request_fail(r, ERR_UNSUPPORTED, &e);
        return;
    }
    request_reply(
        r, json_pack("{s:i, s:{s:s, s:s}, s:{s:o}, s:{s:I, s:i, s:i, s:I}, s:o, s:I}",
                     "protocolVersion", PROTOCOL_VERSION, "info", "name", "agentd", "version",
                     AGENTD_VERSION, "capabilities", "methods", protocol_methods(), "limits",
                     "lineBytes", (json_int_t)RPC_MAX_LINE, "depth", RPC_MAX_DEPTH, "requests",
                     PEER_MAX_REQUESTS, "contextTokens", (json_int_t)r->daemon->context,
                     "model", model_json(r->daemon), "pid", (json_int_t)getpid()));
}

void method_tool_list(struct request *r)
{
    json_t *functions = NULL;
    struct error e;
    enum err rc = tool_functions(NULL, 0, tools_may_fetch(r->daemon->tools), &functions, &e);

    if (rc)
        request_fail(r, rc, &e);
    else
        request_reply(r, json_pack("{s:o}", "tools", functions));
}

static json_t *tiers_json(const struct engine *m)
{
    struct engine_tier t[ENGINE_MAX_TIERS];
    size_t n = engine_tiers(m, t);
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            list,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "name", t[i].name,
                      "budgetBytes", (json_int_t)t[i].budget_bytes, "minimumBytes",
                      (json_int_t)t[i].minimum_bytes, "residentBytes",
                      (json_int_t)t[i].resident_bytes, "hits", (json_int_t)t[i].hits, "misses",
                      (json_int_t)t[i].misses, "readBytes", (json_int_t)t[i].read_bytes,
                      "stallMs", (double)t[i].stall_ns / 1e6));
    return list;
}

static json_t *graphs_json(const struct engine *m)
{
    struct engine_graphs g;
    engine_graphs(m, &g);
    json_t *j = json_pack("{s:I, s:I, s:I}", "recorded", (json_int_t)g.n_recorded, "replayed",
                          (json_int_t)g.n_replayed, "plain", (json_int_t)g.n_plain);
    if (g.why)
        json_object_set_new(j, "why", json_string(g.why));
    return j;
}

void method_model_status(struct request *r)
{
    json_t *j = model_json(r->daemon);

    json_object_set_new(j, "tiers", tiers_json(r->daemon->tiers));
    json_object_set_new(j, "graphs", graphs_json(r->daemon->tiers));
    request_reply(r, j);
}

/* ---- status ----------------------------------------------------------------------- */

struct status {
    struct job job;
    struct request *request;
    struct store_counters store;
};

static void status_run(struct job *j, void *ctx)
{
    store_count(ctx, &((struct status *)j)->store);
}

static json_t *store_json(const struct store_counters *c)
{
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {
        {"sessions", c->sessions},
        {"sessionsDamaged", c->sessions_damaged},
        {"packs", c->packs},
        {"packBytes", c->pack_bytes},
        {"blocks", c->blocks},
        {"tails", c->tails},
        {"tips", c->tips},
        {"junkFiles", c->junk_files},
        {"packsRefused", c->packs_refused},
        {"rowsDropped", c->rows_dropped},
        {"bytesTruncated", c->bytes_truncated},
        {"extentsAdopted", c->extents_adopted},
        {"extentsDamaged", c->extents_damaged},
        {"rowsDamaged", c->rows_damaged},
        {"chunksRebuilt", c->chunks_rebuilt},
        {"commitsLost", c->commits_lost},
        {"tapeCommitsLost", c->tape_commits_lost},
        {"walLost", c->wal_lost},
        {"packsKilled", c->packs_killed},
    };
    json_t *j = json_object();

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        json_object_set_new(j, figures[i].name, json_integer((json_int_t)figures[i].value));
    return j;
}

static void status_done(struct job *j)
{
    struct status *s = (struct status *)j;
    const struct daemon *d = s->request->daemon;
    int live = 0, resident = 0, running = 0;

    for (const struct live *l = d->sessions; l; l = l->next) {
        live++;
        resident += l->model.seq != NULL;
        running += l->turn != NULL;
    }
    request_reply(s->request,
                  json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:b, s:o, s:o}",
                            "version", AGENTD_VERSION, "pid", (json_int_t)getpid(), "uptimeMs",
                            (json_int_t)((daemon_now_ns(d) - d->started_ns) / 1000000),
                            "connections", (int)d->n_peers, "sessionsLive", live,
                            "sessionsResident", resident, "turns", running, "stateCommits",
                            (int)saver_count(d), "stopping", d->stopping, "model",
                            model_json(d), "store", store_json(&s->store)));
    free(s);
}

void method_daemon_status(struct request *r)
{
    struct status *s = calloc(1, sizeof(*s));
    struct error e;

    if (!s) {
        request_fail(r, err_set(&e, ERR_NOMEM, "daemon/status"), &e);
        return;
    }
    s->job = (struct job){.run = status_run, .done = status_done};
    s->request = r;
    store_thread_submit(r->daemon->store, &s->job);
}

void method_daemon_shutdown(struct request *r)
{
    struct daemon *d = r->daemon;

    request_reply(r, json_object());
    d->stop(d);
}

/* A notification; what is not there any more was answered already. */
void method_cancel_request(struct request *r)
{
    const json_t *id = json_object_get(r->params, "id");
    struct request *target = r->peer && id ? request_find(r->peer, id) : NULL;
    struct error e;

    if (target && target->cancel) {
        target->cancel(target);
        err_set(&e, ERR_CANCELLED, "%s was cancelled by its client", target->method);
        request_fail(target, ERR_CANCELLED, &e);
    }
    request_reply(r, json_object());
}
