/* Importing a bundle: whatever the bytes are, it is refused as what it is and nothing is left
 * behind; or it is taken, and then its own export is taken, too, and says the same. The first
 * byte says how much is put right around the rest, because no mutation gets past a checksum:
 *
 *     0  nothing: a whole file
 *     1  an archive, to be compressed
 *     2  session.json, items.jsonl, tape.u32 and a blob with a 0 between, to be hashed and
 *        packed
 *     3  the same with a part of model state in the place of the blob; 64 @ in session.json
 *        stand for its hash, and what it is a part of is trusted */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "sessions/bundle.h"
#include "sessions/store_internal.h"
#include "tests/support/bundle_fixture.h"
#include "tests/support/store_fixture.h"

#define MAX_BYTES (1u << 18)
#define N_MEMBERS 4
#define KV_MARK "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct store_fixture world;
static char file[128], again[128];

/* The leak checker does not look into the memory that a store's keys are kept in. */
extern void __lsan_register_root_region(const void *p, size_t n) __attribute__((weak));

static void need(bool cond)
{
    if (!cond)
        abort();
}

static void end_world(void)
{
    store_close(world.st);
    remove_tree(world.dir);
}

/* One store for all inputs: each leaves it as it was. */
static void begin_world(void)
{
    if (world.st)
        return;
    snprintf(world.dir, sizeof world.dir, "/tmp/agentd-fuzz-XXXXXX");
    need(mkdtemp(world.dir) != NULL);
    snprintf(world.db, sizeof world.db, "%s/agentd.db", world.dir);
    snprintf(file, sizeof file, "%s/in.bundle", world.dir);
    snprintf(again, sizeof again, "%s/out.bundle", world.dir);
    world.options = (struct store_options){
        .db_path = world.db, .packs_dir = world.dir, .state_dir = world.dir, .block_tokens = 2};
    need(store_open(&world.st, &world.options, NULL) == OK);
    if (__lsan_register_root_region)
        __lsan_register_root_region(world.st, sizeof *world.st);
    atexit(end_world);
}

static struct state_layout layout = {
    .fingerprint = {1},
    .numerics = "fuzz/1",
    .n_planes = 2,
    .planes = {{"a", PLANE_INDEX, 3, 2}, {"b", PLANE_MAIN, 5, 1}},
    .tip_bytes = 26, /* as many as the rows of 4 tokens: one member can be both */
    .window = 1,
};

/* m[3] as a part of state, and its hash where session.json has its mark. */
static void name_kv(struct bundle_member *m, char name[100], struct buf *session)
{
    char blob[100];
    const char *at = m[0].bytes, *mark;
    size_t left = m[0].n;
    bundle_blob_name(m[3].bytes, m[3].n, blob);
    snprintf(name, 100, "kv/%s", blob + strlen("blobs/"));
    while ((mark = memmem(at, left, KV_MARK, strlen(KV_MARK)))) {
        need(buf_add(session, at, (size_t)(mark - at), NULL) == OK);
        need(buf_add_str(session, name + strlen("kv/"), NULL) == OK);
        left -= (size_t)(mark - at) + strlen(KV_MARK);
        at = mark + strlen(KV_MARK);
    }
    need(buf_add(session, at, left, NULL) == OK);
    m[0].bytes = session->data;
    m[0].n = session->len;
}

static void write_members(const uint8_t *data, size_t size, bool kv)
{
    AUTO(buf) struct buf session = BUF_INIT(2 * MAX_BYTES);
    struct bundle_member m[N_MEMBERS] = {
        {"session.json", "", 0}, {"items.jsonl", "", 0}, {"tape.u32", "", 0}, {"", "", 0}};
    char name[100];
    size_t n = 0;
    for (; n < N_MEMBERS && size; n++) {
        const uint8_t *zero = n < N_MEMBERS - 1 ? memchr(data, 0, size) : NULL;
        size_t len = zero ? (size_t)(zero - data) : size;
        m[n].bytes = data;
        m[n].n = len;
        size -= len + (zero != NULL);
        data += len + (zero != NULL);
    }
    if (kv)
        name_kv(m, name, &session);
    else
        bundle_blob_name(m[3].bytes, m[3].n, name);
    m[3].name = name;
    bundle_write_members(file, m, n < N_MEMBERS ? 3 : N_MEMBERS);
}

static bool count_one(void *user, const struct session_info *s)
{
    (void)s;
    ++*(unsigned *)user;
    return true;
}

static unsigned n_sessions(void)
{
    unsigned n = 0;
    need(session_list(world.st, count_one, &n, NULL) == OK);
    return n;
}

static void export_and_import(const struct bundle_imported *first)
{
    struct bundle_export x = {.session = first->id, .path = again, .layout = &layout};
    struct bundle_import m = {.path = again, .cwd = "/", .layout = &layout};
    struct bundle_imported second;
    need(bundle_export(world.st, &x, NULL, NULL) == OK);
    need(bundle_import(world.st, &m, &second, NULL) == OK);
    need(second.tokens == first->tokens && second.events == first->events &&
         second.turns == first->turns && second.calls == first->calls &&
         /* State of the same tokens may be there from an input before. */
         second.kv_tokens >= first->kv_tokens);
    need(session_delete(world.st, second.id, NULL) == OK);
    need(session_delete(world.st, first->id, NULL) == OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bundle_imported in;
    struct error e = {0};
    if (size == 0 || size > MAX_BYTES)
        return 0;
    begin_world();
    if (data[0] == 1)
        bundle_write_frame(file, data + 1, size - 1);
    else if (data[0] == 2 || data[0] == 3)
        write_members(data + 1, size - 1, data[0] == 3);
    else
        need(fs_write_atomic(file, data + 1, size - 1, 0600, NULL) == OK);
    struct bundle_import m = {
        .path = file, .cwd = "/", .layout = &layout, .trust_kv = data[0] == 3};
    enum err rc = bundle_import(world.st, &m, &in, &e);
    need(rc == OK || (rc == ERR_FORMAT && e.msg[0]));
    if (!rc)
        export_and_import(&in);
    need(n_sessions() == 0);
    return 0;
}
