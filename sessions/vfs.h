/* The files of a database, as SQLite sees them: every call goes through base/fs, so that its
 * fault points and the tests' page cache meet the database as they meet the packs.
 *
 * Made for one connection that owns its database: the lock is exclusive from the first access
 * on (an open file description lock on the bytes that SQLite's own unix VFS locks, so that
 * other programs find the database busy), and there is no shared memory, which WAL mode does
 * without once locking_mode is EXCLUSIVE. Files are 0600. The name of a new journal is made
 * durable with its first sync, as SQLite expects. Temporary files without a name, time and
 * randomness are those of SQLite's default VFS. */
#ifndef SESSIONS_VFS_H
#define SESSIONS_VFS_H

#include "base/err.h"

#define VFS_NAME "agentd"

/* Makes VFS_NAME known to SQLite; again is fine. */
NODISCARD enum err vfs_register(struct error *e);

/* errno of the last call of this thread that failed. SQLite forgets it when a commit fails. */
int vfs_errno(void);

#endif
