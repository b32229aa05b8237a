#include "sessions/witness.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "sessions/le.h"
#include "sessions/schema.h"
#include "sessions/store_internal.h"

#define WORD_BYTES 5

/* Slot n, of the session with this number: commit u64, id, zeros, tag. */
#define SLOT_BYTES 64
#define SLOT_ID 8
#define SLOT_TAG 48
#define SLOTS_AT 4096
#define MAX_SLOTS (1ll << 24) /* sessions behind it are not named */

/* Words of one length: one replaces the other in a single write. */
static const char says_open[] = "open\n", says_lost[] = "lost\n";

static enum err say(int lock_fd, const char *word, struct error *e)
{
    enum err rc = fs_pwrite(lock_fd, "lock file", word, WORD_BYTES, 0, e);
    return rc ? rc : fs_sync(lock_fd, "lock file", e);
}

enum err witness_read(int lock_fd, const char *db_path, bool *wal_lost, struct error *e)
{
    char word[WORD_BYTES + 1] = "", wal[FS_PATH_BYTES];
    size_t n;
    struct stat sb;
    enum err rc = fs_pread_some(lock_fd, "lock file", word, WORD_BYTES, 0, &n, e);
    if (rc || (rc = fs_path(wal, sizeof wal, e, "%s-wal", db_path)))
        return rc;
    *wal_lost = strcmp(word, says_lost) == 0;
    if (*wal_lost || strcmp(word, says_open) != 0 || stat(wal, &sb) == 0 || errno != ENOENT)
        return OK;
    *wal_lost = true;
    return say(lock_fd, says_lost, e);
}

enum err witness_open(int lock_fd, const char *db_path, struct error *e)
{
    char folder[FS_PATH_BYTES];
    const char *slash = strrchr(db_path, '/');
    enum err rc =
        fs_path(folder, sizeof folder, e, "%.*s",
                slash ? (int)(slash - db_path) + (slash == db_path) : 1, slash ? db_path : ".");
    /* The name of the -wal first: this must not outlive it in a power cut. */
    if (!rc)
        rc = fs_sync_dir(folder, e);
    if (!rc)
        rc = fs_pwrite(lock_fd, "lock file", says_open, WORD_BYTES, 0, e);
    if (!rc)
        rc = fs_truncate(lock_fd, "lock file", WORD_BYTES, e);
    return rc ? rc : fs_sync(lock_fd, "lock file", e);
}

enum err witness_close(int lock_fd, struct error *e)
{
    enum err rc = fs_truncate(lock_fd, "lock file", 0, e);
    return rc ? rc : fs_sync(lock_fd, "lock file", e);
}

/* ---- slots ------------------------------------------------------------------------------- */

static void slot_tag(const struct store *st, int64_t num, const uint8_t slot[SLOT_BYTES],
                     uint8_t tag[HASH_TAG_BYTES])
{
    struct hash h;
    uint8_t n[8];
    le_put64(n, (uint64_t)num);
    hash_init(&h, st->db.row_key, HASH_TAG_BYTES);
    hash_field(&h, "witness", 7);
    hash_add(&h, n, sizeof n);
    hash_field(&h, slot, SLOT_TAG);
    hash_final(&h, tag);
}

static void take_slot(struct store *st, int64_t num, const uint8_t slot[SLOT_BYTES],
                      uint64_t known, uint64_t *newest)
{
    uint8_t tag[HASH_TAG_BYTES];
    uint64_t commit = le_take64(slot);
    if (commit <= known)
        return;
    slot_tag(st, num, slot, tag);
    if (memcmp(tag, slot + SLOT_TAG, sizeof tag) != 0)
        return; /* torn, or of another store */
    store_note_lost(st, (const char *)slot + SLOT_ID);
    if (commit > *newest)
        *newest = commit;
}

/* Of a file that is mostly holes. */
static enum err take_slots(struct store *st, uint64_t known, uint64_t *newest, struct error *e)
{
    uint8_t page[SLOTS_AT];
    off_t at = SLOTS_AT;
    size_t n = sizeof page;
    while (n == sizeof page && (at = lseek(st->lock_fd, at, SEEK_DATA)) >= 0) {
        at -= at % (off_t)sizeof page;
        enum err rc =
            fs_pread_some(st->lock_fd, "lock file", page, sizeof page, (uint64_t)at, &n, e);
        if (rc)
            return rc;
        for (size_t i = 0; i + SLOT_BYTES <= n; i += SLOT_BYTES)
            take_slot(st, (at - SLOTS_AT + (off_t)i) / SLOT_BYTES, page + i, known, newest);
        at += (off_t)sizeof page;
    }
    return OK;
}

static void began(void *user)
{
    ((struct store *)user)->witness.n_noted = 0;
}

static enum err ends(void *user, struct error *e)
{
    struct store *st = user;
    uint64_t commit = st->witness.commit + 1;
    if (!st->witness.n_noted)
        return OK;
    return meta_write(st, "commit", &commit, sizeof commit, e);
}

/* The commit is durable, whatever becomes of this. */
static void ended(void *user)
{
    struct store *st = user;
    struct witness *w = &st->witness;
    if (!w->n_noted)
        return;
    w->commit++;
    for (size_t i = 0; i < w->n_noted; i++) {
        int64_t num = w->noted[i].num;
        uint8_t slot[SLOT_BYTES] = {0};
        if (num < 0 || num >= MAX_SLOTS)
            continue;
        le_put64(slot, w->commit);
        memcpy(slot + SLOT_ID, w->noted[i].id, sizeof w->noted[i].id);
        slot_tag(st, num, slot, slot + SLOT_TAG);
        (void)!fs_pwrite(st->lock_fd, "lock file", slot, sizeof slot,
                         SLOTS_AT + (uint64_t)num * SLOT_BYTES, NULL);
    }
    w->n_noted = 0;
}

static const struct db_watch watch = {.began = began, .ends = ends, .ended = ended};

enum err witness_compare(struct store *st, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc =
        query_init(&q, &st->db, "SELECT " META_COLS ", tag FROM meta WHERE key = 'commit'", e);
    uint64_t known = 0, newest = 0;
    bool row;
    if (rc || (rc = query_step(&q, &row, e)))
        return rc;
    /* Missing: before the first commit. Damaged, it says nothing: then nobody is named, and the
     * numbers begin anew, as the slots do. */
    bool damaged =
        row && (row_check(&q, "meta", NULL) || row_bytes(&q, 1, &known, sizeof known, NULL));
    if (!damaged && (rc = take_slots(st, known, &newest, e)))
        return rc;
    if (newest > known)
        st->seen.tape_commits_lost = newest - known;
    st->witness.commit = newest > known ? newest : known;
    st->db.watch = &watch;
    st->db.watch_user = st;
    return OK;
}

void witness_note(struct store *st, int64_t num, const char *id)
{
    struct witness *w = &st->witness;
    if (!st->db.watch || sqlite3_get_autocommit(st->db.handle))
        return;
    for (size_t i = 0; i < w->n_noted; i++)
        if (w->noted[i].num == num)
            return;
    if (w->n_noted == WITNESS_MAX_NOTED)
        return; /* no transaction changes so many */
    w->noted[w->n_noted].num = num;
    snprintf(w->noted[w->n_noted++].id, sizeof w->noted[0].id, "%s", id);
}
