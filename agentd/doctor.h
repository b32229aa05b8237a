/* What this machine has for agentd, as lines of ok, warn or fail.
 *
 * A line has a name, a status and a text that says what was found and, unless it is ok, what
 * that means. warn: it works, slower or with less protection. fail: agentd, or a part of it,
 * would refuse. Nothing is changed but a file that is written to measure reads, and removed. */
#ifndef AGENTD_DOCTOR_H
#define AGENTD_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fs.h"

enum doctor_status { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor {
    json_t *lines; /* [{name, status, text, figures...}] */
    unsigned n[3]; /* lines by status */
};

/* Adds a line. figures: an object whose fields go into the line for machines; taken, may be
 * NULL. */
void doctor_line(struct doctor *d, enum doctor_status status, const char *name, json_t *figures,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The places that a daemon of this user would use. */
struct doctor_places {
    char db[FS_PATH_BYTES], packs[FS_PATH_BYTES], spill[FS_PATH_BYTES];
    const char *socket;       /* NULL: the default */
    const char *model;        /* NULL: none to look at */
    bool wants_gpu;           /* `serve` is told to compute on one */
    const char *cuda_library; /* NULL: where it is looked for */
    int device;
    uint64_t speed_bytes; /* written and read back to measure; 0: not measured */
};

/* doctor_disk.c: file systems of database and packs, O_DIRECT, io_uring, memlock, speed. */
void doctor_disk(struct doctor *d, const struct doctor_places *p);
/* doctor.c: the rest. */
void doctor_libraries(struct doctor *d);
void doctor_machine(struct doctor *d);
void doctor_gpu(struct doctor *d, const struct doctor_places *p);
void doctor_sandbox(struct doctor *d, const struct doctor_places *p);
void doctor_model(struct doctor *d, const struct doctor_places *p);
void doctor_socket(struct doctor *d, const struct doctor_places *p);

#endif
