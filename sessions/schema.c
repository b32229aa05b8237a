#include "sessions/schema.h"

/* STRICT: a column holds what it says, so that a tag read back hashes the same types. */
static const struct schema_table tables[] = {
    {.name = "meta",
     .create = "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL,"
               " tag BLOB NOT NULL) STRICT;"},
    {.name = "namespaces",
     .create = "CREATE TABLE namespaces(id INTEGER PRIMARY KEY, uuid BLOB NOT NULL UNIQUE,"
               " name TEXT NOT NULL UNIQUE, algorithm INTEGER NOT NULL, wrapped BLOB NOT NULL,"
               " created INTEGER NOT NULL, tag BLOB NOT NULL) STRICT;"},
    {.name = "layouts",
     .create = "CREATE TABLE layouts(id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL,"
               " fingerprint BLOB NOT NULL, spec BLOB NOT NULL, root BLOB NOT NULL,"
               " tag BLOB NOT NULL, UNIQUE(namespace, fingerprint)) STRICT;"},
    {.name = "sessions",
     .create =
         "CREATE TABLE sessions(num INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
         " name TEXT NOT NULL UNIQUE, namespace INTEGER NOT NULL, strand INTEGER NOT NULL,"
         " parent TEXT NOT NULL, forked_at INTEGER NOT NULL, origin TEXT NOT NULL,"
         " state TEXT NOT NULL, reason TEXT NOT NULL, damaged INTEGER NOT NULL,"
         " created INTEGER NOT NULL, updated INTEGER NOT NULL, n_turns INTEGER NOT NULL,"
         " n_unfinished INTEGER NOT NULL, n_calls INTEGER NOT NULL, n_open INTEGER NOT NULL,"
         " tag BLOB NOT NULL) STRICT;",
     .indexes = "CREATE INDEX sessions_strand ON sessions(strand);"},
    {.name = "configs",
     .create = "CREATE TABLE configs(session INTEGER PRIMARY KEY, cwd TEXT NOT NULL,"
               " config TEXT NOT NULL, tag BLOB NOT NULL) STRICT;"},
    {.name = "strands",
     .create =
         "CREATE TABLE strands(id INTEGER PRIMARY KEY, parent INTEGER NOT NULL,"
         " parent_pos INTEGER NOT NULL, parent_seq INTEGER NOT NULL, length INTEGER NOT NULL,"
         " last_seq INTEGER NOT NULL, n_marks INTEGER NOT NULL, tag BLOB NOT NULL) STRICT;",
     .indexes = "CREATE INDEX strands_parent ON strands(parent);"},
    {.name = "tape",
     .create = "CREATE TABLE tape(strand INTEGER NOT NULL, chunk INTEGER NOT NULL,"
               " ids BLOB NOT NULL, tag BLOB NOT NULL, PRIMARY KEY(strand, chunk)) STRICT;"},
    {.name = "segments",
     .create =
         "CREATE TABLE segments(strand INTEGER NOT NULL, start INTEGER NOT NULL,"
         " len INTEGER NOT NULL, kind INTEGER NOT NULL, mode INTEGER NOT NULL,"
         " open INTEGER NOT NULL, digest BLOB, n_rows INTEGER NOT NULL, tag BLOB NOT NULL,"
         " PRIMARY KEY(strand, start)) STRICT, WITHOUT ROWID;"},
    {.name = "marks",
     .create = "CREATE TABLE marks(strand INTEGER NOT NULL, at INTEGER NOT NULL,"
               " origin INTEGER NOT NULL, tag BLOB NOT NULL, PRIMARY KEY(strand, at)) STRICT,"
               " WITHOUT ROWID;"},
    {.name = "events",
     .create =
         "CREATE TABLE events(strand INTEGER NOT NULL, seq INTEGER NOT NULL,"
         " t INTEGER NOT NULL, position INTEGER NOT NULL, turn TEXT, type TEXT NOT NULL,"
         " item TEXT, kind TEXT, json TEXT, bytes BLOB, tag BLOB NOT NULL, PRIMARY KEY(strand,"
         " seq)) STRICT;",
     .indexes =
         "CREATE INDEX events_item ON events(strand, item, seq) WHERE item IS NOT NULL;"},
    /* The newest version of each item in a strand, and the words in it (search.h). */
    {.name = "search",
     .create =
         "CREATE VIEW search_source AS SELECT " SEARCH_ID " AS id, item_text(json) AS text"
         " FROM events AS e WHERE item IS NOT NULL AND NOT EXISTS (SELECT 1 FROM events AS n"
         " WHERE n.strand = e.strand AND n.item = e.item AND n.seq > e.seq);"
         "CREATE VIRTUAL TABLE search USING fts5(text, content='search_source',"
         " content_rowid='id', tokenize=\"unicode61 remove_diacritics 2\");",
     .indexes = "CREATE INDEX events_search ON events((" SEARCH_ID "));",
     .fill = "INSERT INTO search(search) VALUES('rebuild');"},
    {.name = "calls",
     .create =
         "CREATE TABLE calls(session INTEGER NOT NULL, id TEXT NOT NULL, ord INTEGER NOT NULL,"
         " turn TEXT NOT NULL, item TEXT, name TEXT NOT NULL, arguments TEXT NOT NULL,"
         " step INTEGER NOT NULL, idx INTEGER NOT NULL, status TEXT NOT NULL,"
         " is_error INTEGER NOT NULL, ingested INTEGER NOT NULL, result BLOB, spill TEXT,"
         " spill_bytes INTEGER NOT NULL, created INTEGER NOT NULL, ended INTEGER NOT NULL,"
         " tag BLOB NOT NULL, PRIMARY KEY(session, id)) STRICT;",
     .indexes = "CREATE INDEX calls_order ON calls(session, ord);"},
    {.name = "turns",
     .create =
         "CREATE TABLE turns(session INTEGER NOT NULL, id TEXT NOT NULL, ord INTEGER NOT NULL,"
         " client_message TEXT, forced_next INTEGER NOT NULL, step INTEGER NOT NULL,"
         " state TEXT NOT NULL, reason TEXT NOT NULL, ledger TEXT NOT NULL,"
         " finished INTEGER NOT NULL, first_seq INTEGER NOT NULL, created INTEGER NOT NULL,"
         " n_calls INTEGER NOT NULL, tag BLOB NOT NULL, PRIMARY KEY(session, id)) STRICT;",
     .indexes = "CREATE UNIQUE INDEX turns_message ON turns(session, client_message)"
                " WHERE client_message IS NOT NULL;"
                "CREATE INDEX turns_order ON turns(session, ord);"
                "CREATE INDEX turns_unfinished ON turns(created, session) WHERE finished = 0;"},
    {.name = "params",
     .create = "CREATE TABLE params(session INTEGER NOT NULL, id TEXT NOT NULL,"
               " params TEXT NOT NULL, tag BLOB NOT NULL, PRIMARY KEY(session, id)) STRICT;"},
    /* Packs, and what stands in them. */
    {.name = "packs",
     .create = "CREATE TABLE packs(id INTEGER PRIMARY KEY, uuid BLOB NOT NULL UNIQUE,"
               " namespace INTEGER NOT NULL, state INTEGER NOT NULL, length INTEGER NOT NULL,"
               " tag BLOB NOT NULL) STRICT;"},
    {.name = "blocks",
     .create = "CREATE TABLE blocks(id INTEGER PRIMARY KEY, layout INTEGER NOT NULL,"
               " parent INTEGER NOT NULL, depth INTEGER NOT NULL, key BLOB NOT NULL,"
               " digest BLOB NOT NULL, numerics TEXT NOT NULL, lineage INTEGER NOT NULL,"
               " pack INTEGER NOT NULL, off INTEGER NOT NULL, pages INTEGER NOT NULL,"
               " commit_no INTEGER NOT NULL, damaged INTEGER NOT NULL, used INTEGER NOT NULL,"
               " tag BLOB NOT NULL) STRICT;",
     .indexes = "CREATE INDEX blocks_key ON blocks(layout, key);"
                "CREATE INDEX blocks_parent ON blocks(parent);"
                "CREATE INDEX blocks_place ON blocks(pack, off);"},
    {.name = "tails",
     .create = "CREATE TABLE tails(id INTEGER PRIMARY KEY, layout INTEGER NOT NULL,"
               " block INTEGER NOT NULL, prev INTEGER NOT NULL, first INTEGER NOT NULL,"
               " last INTEGER NOT NULL, digest BLOB NOT NULL, numerics TEXT NOT NULL,"
               " lineage INTEGER NOT NULL, pack INTEGER NOT NULL, off INTEGER NOT NULL,"
               " pages INTEGER NOT NULL, commit_no INTEGER NOT NULL, damaged INTEGER NOT NULL,"
               " tag BLOB NOT NULL) STRICT;",
     .indexes = "CREATE INDEX tails_block ON tails(block);"
                "CREATE INDEX tails_prev ON tails(prev);"
                "CREATE INDEX tails_place ON tails(pack, off);"},
    {.name = "tips",
     .create =
         "CREATE TABLE tips(id INTEGER PRIMARY KEY, layout INTEGER NOT NULL,"
         " key BLOB NOT NULL, position INTEGER NOT NULL, inside INTEGER NOT NULL,"
         " block INTEGER NOT NULL, tail INTEGER NOT NULL, segment_digest BLOB NOT NULL,"
         " digest_rows INTEGER NOT NULL, numerics TEXT NOT NULL, lineage INTEGER NOT NULL,"
         " pack INTEGER NOT NULL, off INTEGER NOT NULL, pages INTEGER NOT NULL,"
         " commit_no INTEGER NOT NULL, damaged INTEGER NOT NULL, tag BLOB NOT NULL) STRICT;",
     .indexes = "CREATE INDEX tips_key ON tips(layout, key);"
                "CREATE INDEX tips_place ON tips(pack, off);"
                "CREATE INDEX tips_block ON tips(block);"
                "CREATE INDEX tips_tail ON tips(tail);"},
    {.name = "heads",
     .create =
         "CREATE TABLE heads(session INTEGER NOT NULL, slot INTEGER NOT NULL,"
         " generation INTEGER NOT NULL, layout INTEGER NOT NULL, position INTEGER NOT NULL,"
         " block INTEGER NOT NULL, tail INTEGER NOT NULL, tip INTEGER NOT NULL,"
         " numerics TEXT NOT NULL, lineage INTEGER NOT NULL, commit_no INTEGER NOT NULL,"
         " tag BLOB NOT NULL, PRIMARY KEY(session, slot)) STRICT, WITHOUT ROWID;",
     .indexes = "CREATE INDEX heads_tip ON heads(tip);"
                /* Who means an extent is asked for each one that goes. */
                "CREATE INDEX heads_block ON heads(block);"
                "CREATE INDEX heads_tail ON heads(tail);"},
    {.name = "holds",
     .create = "CREATE TABLE holds(session INTEGER PRIMARY KEY, pinned INTEGER NOT NULL,"
               " uses INTEGER NOT NULL, used INTEGER NOT NULL, tag BLOB NOT NULL) STRICT;"},
};

const struct schema_table *schema_tables(size_t *n)
{
    *n = sizeof tables / sizeof tables[0];
    return tables;
}

enum err schema_version(struct db *db, int64_t *out, struct error *e)
{
    AUTO(query) struct query q = {0};
    enum err rc = query_init(
        &q, db,
        "SELECT user_version, EXISTS(SELECT 1 FROM sqlite_schema) FROM pragma_user_version", e);
    bool row = false;
    if (rc || (rc = query_step(&q, &row, e)))
        return rc;
    int64_t version = row ? row_int(&q, 0) : 0;
    if (row && !version && row_int(&q, 1))
        return err_set(e, ERR_CORRUPT, "database: it has tables, but none of a store");
    if (version < 0 || version > SCHEMA_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "database schema is version %lld, this build knows up to %d",
                       (long long)version, SCHEMA_VERSION);
    *out = version;
    return OK;
}

enum err schema_finish(struct db *db, struct error *e)
{
    char sql[64];
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        enum err rc = tables[i].indexes ? db_exec(db, tables[i].indexes, e) : OK;
        if (rc)
            return err_wrap(e, rc, "indexes of %s", tables[i].name);
    }
    snprintf(sql, sizeof sql, "PRAGMA user_version = %d", SCHEMA_VERSION);
    return db_exec(db, sql, e);
}

enum err schema_create(struct db *db, struct error *e)
{
    AUTO(txn) struct txn t = {0};
    enum err rc = txn_begin(&t, db, e);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && !rc; i++)
        rc = db_exec(db, tables[i].create, e);
    if (rc || (rc = schema_finish(db, e)))
        return rc;
    return txn_commit(&t, e);
}
