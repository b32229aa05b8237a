/* agentd key: the key file of a store. Nothing but that file is read or changed, so the daemon
 * may be running: it read the key when it started. */
#include <stdio.h>
#include <string.h>

#include "agentd/passphrase.h"
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/options.h"

struct key_options {
    const char *store, *key_file, *passphrase_file, *new_passphrase_file;
    int64_t passes, memory_mib;
};

#define AT(member) offsetof(struct key_options, member)
static const struct option table[] = {
    {"store", 0, OPTION_STRING, AT(store), "DIR", 0, 0, NULL,
     "as agentd serve --store (default: the XDG state folder)", false},
    {"key-file", 0, OPTION_STRING, AT(key_file), "FILE", 0, 0, NULL,
     "as agentd serve --key-file", false},
    {"passphrase-file", 0, OPTION_STRING, AT(passphrase_file), "FILE", 0, 0, NULL,
     "its first line is the passphrase as it is now", false},
    {"new-passphrase-file", 0, OPTION_STRING, AT(new_passphrase_file), "FILE", 0, 0, NULL,
     "wrap: its first line is the one from now on", false},
    {"passes", 0, OPTION_INT, AT(passes), "N", 1, 64, NULL,
     "wrap: passes of Argon2id (default 3)", false},
    {"memory", 0, OPTION_INT, AT(memory_mib), "MIB", 1, 1024, NULL,
     "wrap: MiB that a guess takes (default 256)", false},
};
const struct command verb_key_command = {
    "key",
    "show|wrap|unwrap",
    "the store's key file: what protects it; a passphrase for it, or another, or none",
    OPTION_TABLE(table),
    OPTION_TABLE_EMPTY,
    1,
    1};

static enum err find_file(const struct key_options *o, char *out, struct error *e)
{
    if (o->key_file)
        return fs_path(out, FS_PATH_BYTES, e, "%s", o->key_file);
    if (o->store)
        return fs_path(out, FS_PATH_BYTES, e, "%s/state/%s", o->store, KEYS_FILE);
    return fs_place_path(FS_STATE, "agentd/" KEYS_FILE, out, FS_PATH_BYTES, e);
}

static enum err show(const char *path, struct error *e)
{
    bool wrapped;
    struct crypto_cost cost;
    enum err rc = keys_is_wrapped(path, &wrapped, &cost, e);
    if (rc)
        return rc;
    AUTO(buf) struct buf out = BUF_INIT(FS_PATH_BYTES + 200);
    if (wrapped)
        rc = buf_printf(&out, e, "%s: under a passphrase (Argon2id, %u passes over %.0f MiB)\n",
                        path, cost.ops, (double)cost.mem_bytes / (1 << 20));
    else
        rc = buf_printf(&out, e, "%s: plain; who has the file has the store\n", path);
    return rc ? rc : verb_text_write(out.data, out.len, e);
}

static enum err rewrap(const char *path, const struct key_options *o, const char *new_file,
                       struct error *e)
{
    struct buf old_line = BUF_INIT(PASSPHRASE_FILE_BYTES);
    struct buf new_line = BUF_INIT(PASSPHRASE_FILE_BYTES);
    struct keys_passphrase old, fresh;
    struct crypto_cost cost = CRYPTO_COST_DEFAULT;
    if (o->passes)
        cost.ops = (uint32_t)o->passes;
    if (o->memory_mib)
        cost.mem_bytes = (uint64_t)o->memory_mib << 20;
    enum err rc = passphrase_read(o->passphrase_file, &old_line, &old, e);
    if (!rc && !(rc = passphrase_read(new_file, &new_line, &fresh, e)))
        rc = keys_rewrap(path, old, fresh, cost, e);
    passphrase_wipe(&old_line);
    passphrase_wipe(&new_line);
    return rc ? rc : show(path, e);
}

static enum err run(const char *what, const struct key_options *o, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = find_file(o, path, e);
    bool wrap = strcmp(what, "wrap") == 0;
    if (rc)
        return rc;
    if (strcmp(what, "show") == 0)
        return show(path, e);
    if (!wrap && strcmp(what, "unwrap") != 0)
        return err_set(e, ERR_INVAL, "\"%s\": want show, wrap or unwrap", what);
    if (wrap && !o->new_passphrase_file)
        return err_set(e, ERR_INVAL, "wrap wants --new-passphrase-file");
    return rewrap(path, o, wrap ? o->new_passphrase_file : NULL, e);
}

int verb_key(int argc, char **argv)
{
    struct key_options o = {0};
    struct options parsed;
    struct error e = {0};
    enum err rc =
        options_parse(&verb_key_command, argc, (const char *const *)argv, &o, &parsed, &e);
    if (!rc && parsed.help) {
        options_usage(&verb_key_command, "agentd", stdout);
        return EXIT_DONE;
    }
    if (!rc)
        rc = run(parsed.args[0], &o, &e);
    return rc ? verb_fail("key", rc, &e) : EXIT_DONE;
}
