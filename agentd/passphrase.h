/* The passphrase of a store's key file, from a file of its own (a systemd credential, say). */
#ifndef AGENTD_PASSPHRASE_H
#define AGENTD_PASSPHRASE_H

#include "base/buf.h"
#include "sessions/keys.h"

/* What one is read into: BUF_INIT(PASSPHRASE_FILE_BYTES), wiped by passphrase_wipe. */
#define PASSPHRASE_FILE_BYTES (KEYS_MAX_PASSPHRASE + 3)

/* The first line of the file, without its end; path NULL: none. out borrows from b. ERR_INVAL:
 * it is empty or too long. */
NODISCARD enum err passphrase_read(const char *path, struct buf *b, struct keys_passphrase *out,
                                   struct error *e);
void passphrase_wipe(struct buf *b);

#endif
