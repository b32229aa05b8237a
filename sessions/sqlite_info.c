#include "sessions/sqlite_info.h"

#include <sqlite3.h>

#define MIN_VERSION 3037000 /* STRICT tables */
#define WAL_FIRST 3007000
#define WAL_LAST 3051002

static const char *find_missing(int version)
{
    if (version < MIN_VERSION)
        return "STRICT tables (3.37 or later)";
    if (!sqlite3_compileoption_used("ENABLE_FTS5"))
        return "full-text search (ENABLE_FTS5)";
    if (sqlite3_compileoption_used("OMIT_WAL"))
        return "write-ahead logging (OMIT_WAL)";
    return sqlite3_threadsafe() ? NULL : "use from a thread (THREADSAFE=0)";
}

void sqlite_info(struct sqlite_info *out)
{
    int version = sqlite3_libversion_number();
    *out = (struct sqlite_info){.version = sqlite3_libversion(),
                                .source_id = sqlite3_sourceid(),
                                .missing = find_missing(version),
                                .wal_race = version >= WAL_FIRST && version <= WAL_LAST};
}

const char *sqlite_option(size_t i)
{
    return sqlite3_compileoption_get((int)i);
}
