#include "evals/prose.h"

#include <assert.h>
#include <ctype.h>

static const char *const nouns[] = {
    "harbour",  "ledger",    "orchard",  "kettle",   "lantern", "bridge",  "ferry",
    "workshop", "garden",    "meadow",   "signal",   "archive", "mill",    "library",
    "market",   "courtyard", "pump",     "stairway", "cellar",  "chimney", "barge",
    "quarry",   "tunnel",    "platform", "window",   "hallway", "canal",   "furnace",
    "carriage", "ladder",    "hillside", "warehouse"};
static const char *const adjectives[] = {
    "quiet", "narrow", "old",    "bright", "crooked", "shallow",  "heavy",   "gentle",
    "empty", "green",  "wooden", "damp",   "steep",   "patient",  "distant", "careful",
    "rusty", "broad",  "early",  "plain",  "hollow",  "northern", "faded",   "sturdy"};
static const char *const people[] = {"gardener",  "carpenter", "clerk",    "pilot",
                                     "baker",     "watchman",  "surveyor", "tailor",
                                     "librarian", "mason",     "sailor",   "teacher"};
static const char *const verbs[] = {"repaired", "measured",  "described", "crossed", "painted",
                                    "admired",  "inspected", "opened",    "cleaned", "sketched",
                                    "visited",  "mentioned", "guarded",   "emptied"};
static const char *const times[] = {
    "before the rain",    "after supper",   "during the long winter", "in the morning",
    "late in the year",   "without a word", "with some reluctance",   "as the wind rose",
    "for the third week", "at low water",   "on the way home",        "by candlelight"};
static const char *const openings[] = {
    "Meanwhile",     "Later on",   "As usual",    "Somewhat later", "To nobody's surprise",
    "In those days", "Once again", "All the same"};

#define PICK(r, list) ((list)[pyrandom_below((r), sizeof(list) / sizeof *(list))])

static enum err thing(struct pyrandom *r, struct buf *out, struct error *e)
{
    const char *adjective = PICK(r, adjectives), *noun = PICK(r, nouns);
    return buf_printf(out, e, "the %s %s", adjective, noun);
}

static enum err person(struct pyrandom *r, struct buf *out, struct error *e)
{
    return buf_printf(out, e, "the %s", PICK(r, people));
}

static enum err word(struct buf *out, const char *space, const char *w, struct error *e)
{
    return buf_printf(out, e, "%s%s", space, w);
}

/* SOMEBODY VERB THING TIME: the clause that every sentence has. */
static enum err clause(struct pyrandom *r, struct buf *out, struct error *e)
{
    enum err rc = person(r, out, e);
    if (!rc)
        rc = word(out, " ", PICK(r, verbs), e);
    if (!rc)
        rc = buf_add_byte(out, ' ', e);
    if (!rc)
        rc = thing(r, out, e);
    return rc ? rc : word(out, " ", PICK(r, times), e);
}

enum err prose_sentence(struct pyrandom *r, struct buf *out, struct error *e)
{
    const size_t start = out->len;
    enum err rc = OK;
    switch (pyrandom_below(r, 4)) {
    case 0: /* a clause with an opening */
        rc = word(out, "", PICK(r, openings), e);
        if (!rc)
            rc = buf_add_str(out, ", ", e);
        if (!rc)
            rc = clause(r, out, e);
        break;
    case 1: /* two clauses */
        rc = clause(r, out, e);
        if (!rc)
            rc = buf_add_str(out, ", while ", e);
        if (!rc)
            rc = clause(r, out, e);
        break;
    case 2: /* where something stood */
        rc = thing(r, out, e);
        if (!rc)
            rc = buf_add_str(out, " stood beside ", e);
        if (!rc)
            rc = thing(r, out, e);
        break;
    default:
        rc = clause(r, out, e);
    }
    if (!rc)
        out->data[start] = (uint8_t)toupper(out->data[start]);
    return rc ? rc : buf_add_byte(out, '.', e);
}

enum err prose_sentences(struct pyrandom *r, uint32_t n, struct buf *out, struct error *e)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        if (i)
            rc = buf_add_byte(out, ' ', e);
        if (!rc)
            rc = prose_sentence(r, out, e);
    }
    return rc;
}

void prose_name(uint32_t i, char out[PROSE_NAME_BYTES])
{
    static const char consonants[] = "bdfgklmnprstvwz", vowels[] = "aeiou";
    assert(i < PROSE_N_NAMES);
    for (int k = 0; k < 6; k += 2, i /= 75) {
        out[k] = consonants[i % 15];
        out[k + 1] = vowels[i / 15 % 5];
    }
    out[0] = (char)toupper(out[0]);
    out[6] = 0;
}
