/* A file that only grows, one record a line, each durable before the call returns:
 *
 *   {"crc": "8 hex digits", "record": {...}}
 *
 * The CRC-32C is that of the record's bytes. A process killed while it appends leaves a last
 * line that is torn: opening drops it. A bad line with anything behind it was not torn but
 * damaged: ERR_CORRUPT. One process at a time has a journal open. */
#ifndef EVALS_JOURNAL_H
#define EVALS_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define JOURNAL_MAX_RECORD_BYTES ((size_t)64 << 20)

struct journal {
    int fd; /* -1: not open */
    char *path;
    uint64_t n_records;
    bool dropped; /* a torn tail was there */
};

#define JOURNAL_INIT                                                                           \
    {                                                                                          \
        .fd = -1                                                                               \
    }

/* Called for each record in order; borrowed. An error ends the opening and is passed on. */
typedef enum err journal_record_fn(void *user, const json_t *record, struct error *e);

/* Opens or makes the file, hands out what is in it and drops a torn tail. ERR_BUSY: another
 * process has it; ERR_CORRUPT with the line. */
NODISCARD enum err journal_open(struct journal *j, const char *path, journal_record_fn *fn,
                                void *user, struct error *e);
/* The same without a lock and without changing the file: what is acknowledged now. */
NODISCARD enum err journal_read(const char *path, journal_record_fn *fn, void *user,
                                struct error *e);
/* Durable when it returns OK; after an error the journal takes no more. Takes record. */
NODISCARD enum err journal_append(struct journal *j, json_t *take_record, struct error *e);
void journal_fini(struct journal *j);

/* CRC-32C (Castagnoli, reflected 0x82f63b78) of n bytes. */
uint32_t journal_crc(const void *data, size_t n);

#endif
