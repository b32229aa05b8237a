#include "tests/support/store_fixture.h"

#include <ftw.h>
#include <unistd.h>

#include "tests/support/test.h"

static void init_in(struct store_fixture *f, const char *folder)
{
    memset(f, 0, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "%s/agentd-store-XXXXXX", folder);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->db, sizeof f->db, "%s/data/agentd.db", f->dir);
    snprintf(f->packs, sizeof f->packs, "%s/packs", f->dir);
    snprintf(f->state, sizeof f->state, "%s/state", f->dir);
    fake_clock_init(&f->clock, 1700000000000);
    f->options = (struct store_options){.db_path = f->db,
                                        .packs_dir = f->packs,
                                        .state_dir = f->state,
                                        .block_tokens = 16,
                                        .clock = &f->clock.clock};
}

void store_fixture_init(struct store_fixture *f, bool on_disk)
{
    if (!on_disk && !getenv("AGENTD_SLOW")) {
        store_fixture_init_in_memory(f);
        return;
    }
    init_in(f, "/tmp");
}

void store_fixture_init_in_memory(struct store_fixture *f)
{
    init_in(f, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
}

void store_fixture_fini(struct store_fixture *f)
{
    store_close(f->st);
    f->st = NULL;
    remove_tree(f->dir);
}

enum err store_fixture_open(struct store_fixture *f, struct error *e)
{
    return store_open(&f->st, &f->options, e);
}

void store_fixture_reopen(struct store_fixture *f)
{
    struct error e;
    store_close(f->st);
    f->st = NULL;
    assert_ok(store_fixture_open(f, &e), &e);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void fixture_session(struct store_fixture *f, const char *name, char id[SESSION_ID_CAP])
{
    struct error e;
    struct session_new s = {.name = name, .cwd = "/home/me", .config = "{\"seed\":1}"};
    assert_ok(session_new(f->st, &s, id, &e), &e);
}

uint64_t fixture_length(struct store *st, const char *id)
{
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    assert_ok(session_find(st, id, &s, &e), &e);
    return s.n_tokens;
}

enum err fixture_append(struct store *st, const char *id, uint32_t first, uint64_t n,
                        enum segment_kind kind, struct error *e)
{
    uint32_t *ids = malloc(n * sizeof *ids);
    if (!ids)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (uint64_t i = 0; i < n; i++)
        ids[i] = first + (uint32_t)i;
    struct tape_segment s = {.seg = {fixture_length(st, id), n, kind, PREFILL_CED}};
    struct tape_commit c = {.session = id,
                            .position = s.seg.start,
                            .ids = ids,
                            .n_ids = n,
                            .segments = &s,
                            .n_segments = 1};
    enum err rc = tape_commit(st, &c, NULL, e);
    free(ids);
    return rc;
}
