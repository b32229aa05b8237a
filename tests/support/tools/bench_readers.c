/* bench_readers: what one reader that stopped reading costs the others.
 *
 * Eight clients read a session whose turns write 3,000 tokens each, as deltas and events; the
 * time is that from the first prompt until all eight have the last turn's end. Rounds with and
 * without a ninth client that attached and never reads alternate; of each kind the fastest
 * counts, which is what other work on the machine disturbs least. One JSON line on stdout; exit
 * code 1 if the cost is 5 % or more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/bench.h"

#define N_READERS 8
#define N_TURNS 8
#define N_ROUNDS 9
#define MOST_COST 0.05
#define TEXT_BYTES 3000

struct reader {
    struct client *client;
    int n_ends; /* turns whose end was read */
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct reader *r = user;
    const char *state = json_string_value(json_object_get(params, "state"));

    if (!strcmp(method, "session/event") && state && !strcmp(state, "idle"))
        r->n_ends++;
}

static char *make_script(void)
{
    size_t cap = (size_t)N_TURNS * (TEXT_BYTES + 100), n = 0;
    char *out = malloc(cap);

    if (!out)
        bench_fail("no memory");
    for (int i = 0; i < N_TURNS; i++) {
        n += (size_t)snprintf(out + n, cap - n, "{\"text\":\"</think>");
        for (int k = 0; k < TEXT_BYTES; k++)
            out[n++] = (char)(k % 7 == 6 ? ' ' : 'a' + k % 26);
        n += (size_t)snprintf(out + n, cap - n, "\"}\n");
    }
    return out;
}

/* Attached, with little room in the socket, and never read from. */
static int attach_stalled(const struct bench_daemon *d, const char *id)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    char line[256];

    memcpy(a.sun_path, d->socket, strlen(d->socket) + 1);
    int n = snprintf(line, sizeof(line),
                     "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/attach\",\"params\":{"
                     "\"id\":\"%s\",\"fromSeq\":0}}\n",
                     id);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) ||
        connect(fd, (const struct sockaddr *)&a, sizeof(a)) || write(fd, line, (size_t)n) != n)
        bench_fail("a reader that stalls cannot be made");
    return fd;
}

static double run_round(const struct bench_daemon *d, bool stalled)
{
    struct reader readers[N_READERS] = {0};
    struct error e;
    char id[27];
    int fd = -1, turns = 0, done = 0;

    for (int i = 0; i < N_READERS; i++)
        readers[i].client = bench_connect(d, on_notify, &readers[i]);
    bench_session(d, readers[0].client, json_pack("{s:[]}", "tools"), id);
    for (int i = 0; i < N_READERS; i++)
        json_decref(
            bench_call(readers[i].client, "session/attach", json_pack("{s:s}", "id", id)));
    if (stalled)
        fd = attach_stalled(d, id);
    uint64_t from = bench_now_ns();
    while (done < N_READERS) {
        if (readers[0].n_ends == turns && turns < N_TURNS) {
            turns++;
            json_decref(bench_call(readers[0].client, "session/prompt",
                                   json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content",
                                             "type", "text", "text", "go on")));
        }
        done = 0;
        for (int i = 0; i < N_READERS; i++) {
            enum err rc = client_poll(readers[i].client, 0, &e);
            if (rc && rc != ERR_TIMEOUT)
                bench_fail("%s", e.msg);
            done += readers[i].n_ends == N_TURNS;
        }
    }
    double ms = (double)(bench_now_ns() - from) / 1e6;
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < N_READERS; i++)
        client_free(readers[i].client);
    return ms;
}

int main(void)
{
    struct bench_daemon d;
    double best[2] = {0, 0};
    char *script = make_script();

    bench_start(&d, NULL, script);
    free(script);
    (void)run_round(&d, false); /* to warm up */
    for (int i = 0; i < 2 * N_ROUNDS; i++) {
        double ms = run_round(&d, i % 2);
        if (!best[i % 2] || ms < best[i % 2])
            best[i % 2] = ms;
    }
    bench_stop(&d);
    double cost = best[1] / best[0] - 1;
    printf("{\"bench\": \"stalled_reader\", \"readers\": %d, \"turns\": %d, \"rounds\": %d, "
           "\"alone_ms\": %.1f, \"with_stalled_ms\": %.1f, \"cost\": %.4f, \"limit\": %.2f, "
           "\"ok\": %s}\n",
           N_READERS, N_TURNS, N_ROUNDS, best[0], best[1], cost, MOST_COST,
           cost < MOST_COST ? "true" : "false");
    return cost < MOST_COST ? 0 : 1;
}
