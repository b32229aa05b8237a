/* agentd serve: start-up in order, one run of the loop, teardown in reverse.
 *
 *     log -> control socket (is a daemon there already?) -> store (lock, scan) -> model ->
 *     tools -> threads -> loop -> turns that were cut go on -> READY */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/bus_error.h"
#include "agentd/client.h"
#include "agentd/daemon.h"
#include "agentd/engine_thread.h"
#include "agentd/listen.h"
#include "agentd/loop.h"
#include "agentd/model_options.h"
#include "agentd/opening.h"
#include "agentd/passphrase.h"
#include "agentd/settings.h"
#include "agentd/store_thread.h"
#include "agentd/turn.h"
#include "agentd/verbs.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/options.h"
#include "sessions/store.h"
#include "tools/rules.h"
#include "tools/tools.h"

#define LOCK_NAP_MS 20
#define LOCK_PATIENCE_MS 2000
#define DEFAULT_RESIDENT 8
#define DEFAULT_SAVE_EVERY 16384 /* store.md, "Blocks, tails, tips, packs" */

/* In the order of enum store_encrypt. */
static const char *const encrypt_names[] = {"as-is", "off", "on", NULL};
static const char *const levels[] = {"error", "warn", "info", "debug", NULL};

struct serve_options {
    struct model_options model;
    const char *socket, *store, *log, *key_file, *passphrase_file;
    int log_level, encrypt;
    int64_t context, resident, save_every, block_tokens;
    uint64_t kv_quota;
    bool no_direct_io, http_fetch;
};

#define AT(member) offsetof(struct serve_options, member)
static const struct option table[] = {
    MODEL_OPTIONS(struct serve_options, model),
    {"socket", 0, OPTION_STRING, AT(socket), "PATH", 0, 0, NULL,
     "control socket (default: AGENTD_SOCKET, else agentd/agentd.sock in XDG_RUNTIME_DIR)",
     false},
    {"store", 0, OPTION_STRING, AT(store), "DIR", 0, 0, NULL,
     "database, packs and keys in DIR (default: agentd/ in the XDG folders)", false},
    {"context", 0, OPTION_INT, AT(context), "N", 512, 1 << 30, NULL,
     "most tokens of a session, if fewer than the model takes; before that it is summarised",
     false},
    {"resident", 0, OPTION_INT, AT(resident), "N", 1, 4096, NULL,
     "sessions kept in memory; the others are on SSD (default 8)", false},
    {"save-every", 0, OPTION_INT, AT(save_every), "N", 1, 1 << 20, NULL,
     "tokens of a long segment between two state commits (default 16384)", false},
    {"kv-quota", 0, OPTION_BYTES, AT(kv_quota), "BYTES", 0, 0, NULL,
     "room for packs, such as 200G; above 90 % the least valuable state goes, down to 80 % "
     "(default: no limit)",
     false},
    {"block-tokens", 0, OPTION_INT, AT(block_tokens), "N", 0, 1 << 20, NULL,
     "tokens of a block, for a new store (default 2048)", false},
    {"encrypt", 0, OPTION_ENUM, AT(encrypt), "HOW", 0, 0, encrypt_names,
     "encrypt saved model state from now on, or do not; the database is never encrypted "
     "(default as-is: as this store was told last, a new one off)",
     false},
    {"key-file", 0, OPTION_STRING, AT(key_file), "FILE", 0, 0, NULL,
     "master key, made for a new store (default: master.key in the XDG state folder)", false},
    {"passphrase-file", 0, OPTION_STRING, AT(passphrase_file), "FILE", 0, 0, NULL,
     "its first line is the passphrase of the key file (see agentd key)", false},
    {"buffered", 0, OPTION_FLAG, AT(no_direct_io), NULL, 0, 0, NULL, "no O_DIRECT for packs",
     false},
    {"http-fetch", 0, OPTION_FLAG, AT(http_fetch), NULL, 0, 0, NULL,
     "sessions may have the tool http_fetch", false},
    {"log", 0, OPTION_STRING, AT(log), "FILE", 0, 0, NULL, "log file (default: stderr)", false},
    {"log-level", 0, OPTION_ENUM, AT(log_level), "LEVEL", 0, 0, levels,
     "records up to this one", false},
};
const struct command verb_serve_command = {
    "serve", "", "the daemon", OPTION_TABLE(table), OPTION_TABLE_EMPTY, 0, 0};

/* Everything that is opened, in the order of opening. */
struct service {
    struct settings settings; /* options borrows from it */
    struct serve_options options;
    struct listen listen;
    struct store *store;
    struct engine *engine;
    struct tools *tools;
    struct rules *rules;
    struct model_args args;
    struct loop *loop;
    struct daemon daemon;
    uv_loop_t uv;
    char db[FS_PATH_BYTES], packs[FS_PATH_BYTES], state[FS_PATH_BYTES], spill[FS_PATH_BYTES];
    char digests[FS_PATH_BYTES];
    char socket[CLIENT_PATH_BYTES], socket_dir[CLIENT_PATH_BYTES];
};

static enum err find_paths(struct service *s, struct error *e)
{
    const char *dir = s->options.store;
    enum err rc = client_socket_path(s->options.socket, s->socket, e);

    if (rc)
        return rc;
    if (dir) {
        if ((rc = fs_mkdir_p(dir, e)))
            return rc;
        char *real = realpath(dir, NULL); /* tools are given absolute paths */
        if (!real)
            return err_set(e, ERR_NOTFOUND, "store %s", dir);
        if (!(rc = fs_path(s->db, sizeof(s->db), e, "%s/agentd.db", real)) &&
            !(rc = fs_path(s->packs, sizeof(s->packs), e, "%s/packs", real)) &&
            !(rc = fs_path(s->state, sizeof(s->state), e, "%s/state", real)) &&
            !(rc = fs_path(s->digests, sizeof(s->digests), e, "%s/weights", real)))
            rc = fs_path(s->spill, sizeof(s->spill), e, "%s/spill", real);
        free(real);
        return rc;
    }
    if ((rc = fs_place_path(FS_DATA, "agentd/agentd.db", s->db, sizeof(s->db), e)) ||
        (rc = fs_place_path(FS_CACHE, "agentd/packs", s->packs, sizeof(s->packs), e)) ||
        (rc = fs_place_path(FS_STATE, "agentd", s->state, sizeof(s->state), e)) ||
        (rc = fs_place_path(FS_CACHE, "agentd/weights", s->digests, sizeof(s->digests), e)))
        return rc;
    return fs_place_path(FS_CACHE, "agentd/spill", s->spill, sizeof(s->spill), e);
}

static bool is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* What tools must not see of the control socket: its folder, where that is ours alone, as it is
 * by default; one that somebody chose may hold a workspace, too, and then only the socket.
 * NULL: a relative path, which names nothing to them. */
static const char *socket_to_hide(struct service *s)
{
    if (s->socket[0] != '/')
        return NULL;
    snprintf(s->socket_dir, sizeof(s->socket_dir), "%s", s->socket);
    *strrchr(s->socket_dir, '/') = '\0';
    const char *name = strrchr(s->socket_dir, '/');
    bool is_ours = name && !strcmp(name, "/agentd") && !is_below(s->spill, s->socket_dir);
    return is_ours ? s->socket_dir : s->socket;
}

/* The daemon's own files are hidden from tools; their spilled output is not. */
static enum err open_tools(struct service *s, struct error *e)
{
    /* SQLite keeps recent pages, and so session text, in two files beside the database. */
    char wal[FS_PATH_BYTES], shm[FS_PATH_BYTES];
    const char *const more[] = {socket_to_hide(s), s->options.key_file,
                                s->options.passphrase_file, s->options.model.digest_cache};
    const char *hidden[10] = {s->db, wal, shm, s->packs, s->state};
    for (size_t i = 0, n = 5; i < sizeof(more) / sizeof(*more); i++)
        if (more[i])
            hidden[n++] = more[i];
    const struct tools_config config = {.hidden = hidden, .may_fetch = s->options.http_fetch};
    enum err rc = fs_mkdir_p(s->spill, e);

    if (rc || (rc = fs_path(wal, sizeof(wal), e, "%s-wal", s->db)) ||
        (rc = fs_path(shm, sizeof(shm), e, "%s-shm", s->db)))
        return rc;
    if ((rc = tools_open(&config, &s->tools, e)))
        return rc;
    struct error missing;
    if (tools_ready(s->tools, &missing)) /* sessions without tools need none */
        log_warn("%s: no session can have tools of the daemon", missing.msg);
    return OK;
}

/* A child of a killed daemon that had not reached its exec holds the lock for a moment longer.
 * So a busy store is asked again for a while; the socket has said already that no daemon
 * answers. */
static void warn_of_session(void *user, const char *id)
{
    (void)user;
    log_warn("session %s has lost commits", id);
}

/* Acknowledged, and not there any more: nobody may have to find that out by himself. */
static void warn_of_lost_commits(struct store *st)
{
    struct store_counters c;

    store_count(st, &c);
    if (c.wal_lost)
        log_warn(
            "store: the database was not closed and its -wal is gone: what was acknowledged "
            "since the last checkpoint is lost");
    if (c.tape_commits_lost)
        log_warn("store: %llu commits that were acknowledged are not in the database",
                 (unsigned long long)c.tape_commits_lost);
    if (c.commits_lost)
        log_warn("store: the database is older than its packs by %llu state commits",
                 (unsigned long long)c.commits_lost);
    store_lost_sessions(st, warn_of_session, NULL);
}

static enum err open_store(struct service *s, const struct store_options *o, struct error *e)
{
    enum err rc;

    for (int ms = 0;; ms += LOCK_NAP_MS) {
        rc = store_open(&s->store, o, e);
        if (rc != ERR_BUSY || ms >= LOCK_PATIENCE_MS)
            return rc ? err_wrap(e, rc, "store") : OK;
        uv_sleep(LOCK_NAP_MS);
    }
}

static enum err open_store_with(struct service *s, struct keys_passphrase pass, struct error *e)
{
    const struct store_options so = {.db_path = s->db,
                                     .packs_dir = s->packs,
                                     .state_dir = s->state,
                                     .key_path = s->options.key_file,
                                     .passphrase = pass,
                                     .encrypt = (enum store_encrypt)s->options.encrypt,
                                     .block_tokens = (uint32_t)s->options.block_tokens,
                                     .quota_bytes = s->options.kv_quota,
                                     .no_direct_io = s->options.no_direct_io};
    return open_store(s, &so, e);
}

static enum err open_model(struct service *s, struct error *e)
{
    struct model_options *o = &s->options.model;
    struct opening opening;
    opening_init(&opening, clock_real());
    o->watch = &opening.watch;
    o->spill_dir = s->packs; /* the disk that is meant for rows */
    if (!o->digest_cache)
        o->digest_cache = s->digests;
    enum err rc = model_open(o, &s->engine, e);
    o->watch = NULL;
    return rc;
}

static enum err open_all(struct service *s, struct error *e)
{
    struct buf line = BUF_INIT(PASSPHRASE_FILE_BYTES);
    struct keys_passphrase pass;
    enum err rc = listen_open(&s->listen, s->socket, e);

    if (!rc)
        rc = passphrase_read(s->options.passphrase_file, &line, &pass, e);
    if (!rc)
        rc = open_store_with(s, pass, e);
    passphrase_wipe(&line);
    if (rc)
        return rc;
    warn_of_lost_commits(s->store);
    if ((rc = open_model(s, e)))
        return err_wrap(e, rc, "model");
    return open_tools(s, e);
}

static enum err start_daemon(struct service *s, struct error *e)
{
    struct daemon *d = &s->daemon;
    const struct engine_listener listener = {d, turn_on_engine};
    enum err rc;

    model_args(&s->options.model, &s->args);
    *d = (struct daemon){.loop = &s->uv,
                         .clock = clock_real(),
                         .model = engine_describe(s->engine),
                         .tiers = s->engine,
                         .tools = s->tools,
                         .rules = s->rules,
                         .spill_dir = s->spill,
                         .model_args = s->args.argv,
                         .max_resident = (uint32_t)s->options.resident,
                         .save_every = (uint64_t)s->options.save_every};
    d->context = d->model->max_tokens;
    if (s->options.context && (uint64_t)s->options.context < d->context)
        d->context = (uint64_t)s->options.context;
    ulid_init(&d->ulids, d->clock);
    d->started_ns = daemon_now_ns(d);
    if ((rc = chat_ids_find(&d->chat, d->model->tokenizer, e)) ||
        (rc = store_thread_new(s->store, &d->store, e)) ||
        (rc = engine_thread_new(s->engine, &listener, &d->engine, e)))
        return rc;
    return loop_new(d, s->listen.fd, &s->loop, e);
}

static void close_all(struct service *s)
{
    struct daemon *d = &s->daemon;

    engine_thread_free(d->engine);
    d->engine = NULL;
    store_thread_free(d->store);
    d->store = NULL;
    loop_free(s->loop);
    tools_close(s->tools);
    rules_free(s->rules);
    engine_free(s->engine);
    store_close(s->store);
    listen_close(&s->listen);
}

static enum err serve(struct service *s, struct error *e)
{
    enum err rc;

    if ((rc = find_paths(s, e)) || (rc = open_all(s, e)) || (rc = start_daemon(s, e)))
        return rc;
    turns_recover(&s->daemon);
    log_info("serving at %s model=%s", s->listen.path, s->daemon.model->name);
    if (listen_notify("READY=1", e))
        log_warn("%s", e->msg);
    loop_run(s->loop);
    if (listen_notify("STOPPING=1", e))
        log_warn("%s", e->msg);
    return OK;
}

int verb_serve(int argc, char **argv)
{
    struct service *s = calloc(1, sizeof(*s));
    static const char *const sections[] = {"serve", NULL};
    struct options parsed = {0};
    struct error e = {0};

    if (!s)
        return EXIT_FAILED;
    s->listen = (struct listen)LISTEN_INIT;
    s->options = (struct serve_options){.model.draft_confidence = MODEL_DRAFT_CONFIDENCE,
                                        .log_level = LOG_INFO,
                                        .resident = DEFAULT_RESIDENT,
                                        .save_every = DEFAULT_SAVE_EVERY};
    enum err rc = settings_load(&s->settings, &e);
    if (!rc)
        rc = settings_argv(&s->settings, &verb_serve_command, sections, true, argc, argv, &e);
    if (!rc)
        rc = options_parse(&verb_serve_command, s->settings.argc,
                           (const char *const *)(void *)s->settings.argv, &s->options, &parsed,
                           &e);
    if (!rc)
        rc = settings_rules(&s->settings, &s->rules, &e);
    if (rc || parsed.help) {
        if (rc)
            fprintf(stderr, "agentd serve: %s\n", e.msg);
        else
            options_usage(&verb_serve_command, "agentd", stdout);
        rules_free(s->rules);
        settings_fini(&s->settings);
        free(s);
        return rc ? EXIT_USAGE : EXIT_DONE;
    }
    signal(SIGPIPE, SIG_IGN);
    bus_error_report();
    uv_loop_init(&s->uv);
    if (!(rc = log_open(s->options.log, (enum log_level)s->options.log_level, &e)) &&
        !(rc = fault_arm_env(&e)))
        rc = serve(s, &e);
    if (rc)
        log_error("%s", e.msg);
    close_all(s);
    uv_loop_close(&s->uv);
    int code = rc ? verb_fail("serve", rc, &e) : EXIT_DONE;
    log_close();
    settings_fini(&s->settings);
    free(s);
    return code;
}
