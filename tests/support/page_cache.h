/* A disk that loses what was not synced: a model of the page cache under the files of a test.
 *
 * Test programs are linked with the calls that change files wrapped (Makefile: WRAPPED_FILES),
 * and the product's own code, the database's VFS included, makes all of its changes through
 * them. After page_cache_start() the files below a root are really written, and what a power
 * cut could leave in their place is kept beside: for every 4 KiB page what it held at the last
 * sync of its file and after writes since then; the size at the last sync; for every name that
 * was made, renamed or removed since the last sync of its folder, the way back.
 *
 * page_cache_crash() puts the files into a state that such a cut may leave, drawn from the
 * seed: any subset of the unsynced pages (none and all, too), some of them torn at a multiple
 * of 512 bytes between two of their states; sizes old, new or between; where a file was
 * truncated, what it held before or what it held after that; names lost from the last change
 * back to any earlier one. Then the process is gone: it is for children that a test has forked.
 * Nothing is assumed beyond what POSIX promises but that a truncation is all or nothing, which
 * SQLite counts on; a file's data does not make its name durable.
 *
 * Calls of several threads are taken one by one. Reads are not touched: a process sees what it
 * wrote. io_uring goes around the wrapped calls: give the store no ring (store_options.aio). */
#ifndef TESTS_SUPPORT_PAGE_CACHE_H
#define TESTS_SUPPORT_PAGE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* ROOT.held: where files that lost their names are kept; the caller removes it at last. */
#define PAGE_CACHE_HELD ".held"
#define PAGE_CACHE_EXIT 77 /* exit status of a process that "lost power" */

/* Syncs that this disk acknowledges and does not do: with one of them a sound test must fail.
 */
enum page_cache_lie {
    LIE_PACK_DATA = 1 << 0, /* fdatasync of *.pack */
    LIE_WAL_DATA = 1 << 1,  /* of *-wal */
    LIE_DB_DATA = 1 << 2,   /* of *.db */
    LIE_FOLDER = 1 << 3,    /* fsync of a folder */
    LIE_OTHER_DATA = 1 << 4 /* fdatasync of any other file */
};

struct page_cache_options {
    const char *root;  /* folder; must be there, and not be renamed */
    uint64_t seed;     /* of what survives */
    uint64_t crash_at; /* number of the change or sync at which the power goes; 0: at none */
    unsigned lies;     /* enum page_cache_lie */
};

/* Once per process. */
void page_cache_start(const struct page_cache_options *o);
/* Changes and syncs so far. */
uint64_t page_cache_ops(void);
_Noreturn void page_cache_crash(void);

#endif
