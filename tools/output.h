/* The output of one run: a bounded head and tail in memory, the whole in a spill file when it
 * does not fit. Bytes are taken as they come and never changed. Owned by the run. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Byte i lies at kept[i] while i < head, behind that in a ring. So the first `cap` bytes lie in
 * order, and of more the first `head` and the last `cap - head` are there. */
struct output {
    uint8_t *kept;
    uint64_t head, cap;
    uint64_t total;   /* bytes taken */
    uint64_t max;     /* no more are taken */
    char *spill_path; /* where the whole goes; NULL: nowhere */
    int spill_fd;
    bool is_spilled; /* the file was made */
    int spill_error; /* errno of what went wrong with it, 0 */
};

/* Keeps `cap` bytes (at least 256) of at most `max`; spill_path is copied and may be NULL. The
 * file is created when it is first needed, never over an existing one. ERR_NOMEM. */
NODISCARD enum err output_init(struct output *o, uint64_t cap, uint64_t max,
                               const char *spill_path, struct error *e);
void output_fini(struct output *o);

/* Takes n bytes; false when that would be more than the maximum (what fits is taken). */
bool output_add(struct output *o, const uint8_t *data, size_t n);

/* Appends to `fresh` the bytes from `before` on that surely belong to the head of the text: all
 * but the last few, which a cut at a character might still take back. A full buffer gets none.
 */
void output_fresh(const struct output *o, uint64_t before, struct buf *fresh);

/* Appends what is kept of the bytes from `from` on, with a line in place of what is not; a full
 * buffer gets the beginning. Returns where to go on: the end, or before a character of UTF-8
 * that is not complete yet (unless `all`). */
uint64_t output_since(const struct output *o, uint64_t from, bool all, struct buf *out);

/* Whether some of it is not in the text. */
bool output_is_cut(const struct output *o);
/* Appends the text: all of it, or head, a line that says what is left out and where the whole
 * is, tail; cut at characters where it is UTF-8. Errors of buf_add. */
NODISCARD enum err output_text(const struct output *o, struct buf *out, struct error *e);
/* Moves out the path of a file that has everything, NULL when there is none. */
char *output_take_spill(struct output *o);

#endif
