#include "agentd/ledger.h"

#include <stddef.h>

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"prompt_tokens", offsetof(struct ledger, prompt_tokens)},
    {"resident", offsetof(struct ledger, resident)},
    {"restored", offsetof(struct ledger, restored)},
    {"recomputed", offsetof(struct ledger, recomputed)},
    {"relost", offsetof(struct ledger, relost)},
    {"prefilled", offsetof(struct ledger, prefilled)},
    {"ahead", offsetof(struct ledger, ahead)},
    {"decoded", offsetof(struct ledger, decoded)},
    {"reasoning", offsetof(struct ledger, reasoning)},
    {"drafts_proposed", offsetof(struct ledger, drafts_proposed)},
    {"drafts_accepted", offsetof(struct ledger, drafts_accepted)},
    {"drafts_cut", offsetof(struct ledger, drafts_cut)},
    {"drafts_failed", offsetof(struct ledger, drafts_failed)},
    {"replayed", offsetof(struct ledger, replayed)},
    {"bytes_read", offsetof(struct ledger, bytes_read)},
    {"bytes_written", offsetof(struct ledger, bytes_written)},
    {"steps", offsetof(struct ledger, steps)},
};

static const char *const stage_names[LEDGER_STAGES] = {
    "queue", "store_read", "import", "replay", "prefill", "first_decode", "decode", "tool",
};

#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))
#define NS_PER_MS 1e6

static uint64_t *field(struct ledger *l, size_t i)
{
    return (uint64_t *)(void *)((char *)l + fields[i].offset);
}

static uint64_t value(const struct ledger *l, size_t i)
{
    return *(const uint64_t *)(const void *)((const char *)l + fields[i].offset);
}

bool ledger_is_balanced(const struct ledger *l)
{
    return l->prompt_tokens ==
           l->resident + l->restored + l->recomputed + l->relost + l->prefilled;
}

void ledger_add(struct ledger *sum, const struct ledger *l)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        *field(sum, i) += value(l, i);
    for (size_t i = 0; i < LEDGER_STAGES; i++)
        sum->ns[i] += l->ns[i];
}

json_t *ledger_json(const struct ledger *l)
{
    json_t *j = json_object(), *ms = json_object();

    for (size_t i = 0; i < N_FIELDS; i++)
        json_object_set_new(j, fields[i].name, json_integer((json_int_t)value(l, i)));
    for (size_t i = 0; i < LEDGER_STAGES; i++)
        json_object_set_new(ms, stage_names[i], json_real((double)l->ns[i] / NS_PER_MS));
    json_object_set_new(j, "ms", ms);
    return j;
}

void ledger_from_json(struct ledger *l, const json_t *j)
{
    const json_t *ms = json_object_get(j, "ms");

    for (size_t i = 0; i < N_FIELDS; i++)
        *field(l, i) = (uint64_t)json_integer_value(json_object_get(j, fields[i].name));
    for (size_t i = 0; i < LEDGER_STAGES; i++)
        l->ns[i] =
            (uint64_t)(json_number_value(json_object_get(ms, stage_names[i])) * NS_PER_MS);
}

json_t *resume_json(const struct resume_record *r)
{
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:{s:f, s:f, s:f, s:f, s:f, s:f}}",
        "mode", resume_mode_name(r->mode), "tape", (json_int_t)r->tape, "restored",
        (json_int_t)r->restored, "recomputed", (json_int_t)r->recomputed, "relost",
        (json_int_t)r->relost, "replayed", (json_int_t)r->replayed, "late", (json_int_t)r->late,
        "bytes_read", (json_int_t)r->bytes_read, "extents_damaged",
        (json_int_t)r->extents_damaged, "same_numerics", r->same_numerics, "ms", "find",
        (double)r->find_ns / NS_PER_MS, "read", (double)r->read_ns / NS_PER_MS, "index",
        (double)r->index_ns / NS_PER_MS, "import", (double)r->import_ns / NS_PER_MS, "replay",
        (double)r->replay_ns / NS_PER_MS, "recompute", (double)r->recompute_ns / NS_PER_MS);
}
