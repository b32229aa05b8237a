#include "base/state.h"

#include <string.h>

static const char *const prefill_names[] = {"ced", "ced-report", "full"};
static const char *const resume_names[] = {"exact", "deep", "replay", "cold"};

/* Index of s among n names, or n. */
static size_t find_name(const char *const *names, size_t n, const char *s)
{
    size_t i = 0;
    while (i < n && strcmp(names[i], s) != 0)
        i++;
    return i;
}

enum err prefill_mode_parse(const char *s, enum prefill_mode *out, struct error *e)
{
    size_t n = sizeof prefill_names / sizeof prefill_names[0];
    size_t i = find_name(prefill_names, n, s);
    if (i == n)
        return err_set(e, ERR_INVAL, "prefill mode \"%s\": want ced, ced-report or full", s);
    *out = (enum prefill_mode)i;
    return OK;
}

const char *prefill_mode_name(enum prefill_mode mode)
{
    return prefill_names[mode];
}

enum err resume_mode_parse(const char *s, enum resume_mode *out, struct error *e)
{
    size_t n = sizeof resume_names / sizeof resume_names[0];
    size_t i = find_name(resume_names, n, s);
    if (i == n)
        return err_set(e, ERR_INVAL, "resume mode \"%s\": want exact, deep, replay or cold", s);
    *out = (enum resume_mode)i;
    return OK;
}

const char *resume_mode_name(enum resume_mode mode)
{
    return resume_names[mode];
}
