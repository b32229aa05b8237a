/* The SQLite library that this process runs with, for doctor. */
#ifndef SESSIONS_SQLITE_INFO_H
#define SESSIONS_SQLITE_INFO_H

#include <stdbool.h>
#include <stddef.h>

struct sqlite_info {
    const char *version;   /* "3.40.1" */
    const char *source_id; /* check-in and date */
    const char *missing;   /* what a store needs and it lacks; NULL: nothing */
    bool wal_race; /* 3.7.0 to 3.51.2: two connections that checkpoint and commit at once
                      can corrupt a database. A store has only one */
};
void sqlite_info(struct sqlite_info *out);

/* The i-th option it was compiled with; NULL: there are no more. */
const char *sqlite_option(size_t i);

#endif
