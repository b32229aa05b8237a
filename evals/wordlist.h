/* Lists of words and lines, and the sorted product of two of them.
 *
 * A list holds its words one behind the other, a newline after each, so that a run of words is
 * a run of lines. Words are bytes; files are UTF-8, and order is that of the bytes, which is
 * the order of the code points. Owned by one thread. */
#ifndef EVALS_WORDLIST_H
#define EVALS_WORDLIST_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define WORDLIST_MAX_BYTES ((size_t)1 << 30)

struct wordlist {
    struct buf text;  /* every word and its newline */
    uint32_t *starts; /* [n + 1] offsets into text */
    uint32_t n, cap;
};

#define WORDLIST_INIT                                                                          \
    {                                                                                          \
        BUF_INIT(WORDLIST_MAX_BYTES), NULL, 0, 0                                               \
    }

void wordlist_fini(struct wordlist *l);
/* Forgets the words, keeps the memory. */
void wordlist_clear(struct wordlist *l);
/* Appends a word. (One that holds a newline stays whole, but is no line.) ERR_LIMIT, ERR_NOMEM.
 */
NODISCARD enum err wordlist_add(struct wordlist *l, const void *word, size_t n,
                                struct error *e);
/* Borrowed until the next change; i < n. The byte behind is a newline. */
const char *wordlist_at(const struct wordlist *l, uint32_t i, size_t *n);
/* Sorts and drops what is there twice. ERR_NOMEM. */
NODISCARD enum err wordlist_sort_unique(struct wordlist *l, struct error *e);

/* Appends the lines of a text file, white space at their ends dropped, empty ones kept, as
 * Python's [line.rstrip() for line in file]: a line ends with LF, CR LF or CR. ERR_FORMAT for
 * bytes that are not UTF-8; errors of fs_read_file. */
NODISCARD enum err wordlist_load_lines(struct wordlist *l, const char *path, struct error *e);
/* Appends the values of one JSON object of strings, in its order. ERR_FORMAT. */
NODISCARD enum err wordlist_load_json(struct wordlist *l, const char *path, struct error *e);

/* Every "FIRST-SECOND" of two lists, sorted, without doubles, as if it were a list.
 *
 * First words of which none is the beginning of another's "FIRST-" need no list: their pairs
 * stand together, in the order of the second. The others are few; theirs are made. */
struct word_group {
    uint32_t first;       /* index into firsts, when there is just one */
    uint64_t start;       /* index of its first pair */
    struct wordlist made; /* empty: a group of one */
};

struct word_pairs {
    struct wordlist firsts, seconds; /* sorted, without doubles */
    struct word_group *groups;
    uint32_t n_groups;
    uint64_t n; /* pairs */
};

/* Takes both lists over, which are empty afterwards. ERR_INVAL when one is empty, ERR_LIMIT
 * past 2^32 - 1 pairs, ERR_NOMEM. */
NODISCARD enum err word_pairs_init(struct word_pairs *p, struct wordlist *take_firsts,
                                   struct wordlist *take_seconds, struct error *e);
void word_pairs_fini(struct word_pairs *p);
/* Appends pair i < n. */
NODISCARD enum err word_pairs_add(const struct word_pairs *p, uint64_t i, struct buf *out,
                                  struct error *e);

#endif
