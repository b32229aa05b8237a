/* A search for whatever bytes: an answer, or that there is no word in it; never an error of the
 * index, and hits are UTF-8 without the secret that the item holds. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sessions/search.h"
#include "tests/support/store_fixture.h"

#define SECRET "AKIAIOSFODNN7EXAMPLE"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct store_fixture world;

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

static void begin_world(void)
{
    static const char json[] = "{\"item\":{\"id\":\"i\",\"text\":\"The nightly import failed: "
                               "key " SECRET " of Jos\xc3\xa9 had expired (exit 3)\"}}";
    if (world.st)
        return;
    snprintf(world.dir, sizeof world.dir, "/tmp/agentd-fuzz-XXXXXX");
    need(mkdtemp(world.dir) != NULL);
    snprintf(world.db, sizeof world.db, "%s/agentd.db", world.dir);
    world.options = (struct store_options){
        .db_path = world.db, .packs_dir = world.dir, .state_dir = world.dir};
    need(store_open(&world.st, &world.options, NULL) == OK);
    atexit(end_world);
    char id[SESSION_ID_CAP];
    struct session_new s = {.name = "s"};
    struct tape_event ev = {.type = "item", .item = "i", .kind = "user", .json = json};
    struct tape_commit c = {.session = id, .events = &ev, .n_events = 1};
    need(session_new(world.st, &s, id, NULL) == OK);
    need(tape_commit(world.st, &c, NULL, NULL) == OK);
}

static bool see_hit(void *user, const struct search_hit *h)
{
    json_t *text = json_string(h->snippet);
    (void)user;
    need(text != NULL && !strstr(h->snippet, SECRET));
    json_decref(text);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[4096];
    bool more;
    if (size >= sizeof text)
        return 0;
    begin_world();
    memcpy(text, data, size);
    text[size] = '\0';
    struct search_query q = {.text = text};
    enum err rc = search_run(world.st, &q, see_hit, NULL, &more, NULL);
    need(rc == OK || rc == ERR_INVAL);
    return 0;
}
