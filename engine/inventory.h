/* What a checkpoint holds, told from its headers alone: tensors, parameters and bytes by kind,
 * and everything that does not fit its config, by name and with both values.
 *
 * Filled by weights_survey() in the order in which weights_load() goes, so that what is checked
 * here and what is loaded there are one description of the layout. Nothing but headers is read:
 * half a terabyte is surveyed in a fraction of a second. */
#ifndef ENGINE_INVENTORY_H
#define ENGINE_INVENTORY_H

#include "engine/safetensors.h"

enum tensor_kind {
    KIND_DENSE,        /* resident for every token; with embedding and head */
    KIND_EXPERT,       /* routed experts */
    KIND_ENGRAM,       /* Engram tables */
    KIND_DRAFT,        /* draft layers, without their routed experts */
    KIND_DRAFT_EXPERT, /* routed experts of the draft layers */
    KIND_VISION,       /* present and skipped */
    N_TENSOR_KINDS
};

/* "dense", "experts", "engram", "draft", "draft-experts", "vision". */
const char *tensor_kind_name(enum tensor_kind k);
/* Where it lies while the model runs: "memory", "mapped", "skipped". */
const char *tensor_kind_tier(enum tensor_kind k);

/* Parameters are the numbers that a product or a look-up uses: a packed FP4 byte is two, scales
 * are none. Bytes are those of the files, scales included. */
struct inventory_sum {
    uint64_t n_tensors, n_params, n_bytes;
};

enum problem_kind { PROBLEM_MISSING, PROBLEM_UNEXPECTED, PROBLEM_MISMATCH, N_PROBLEM_KINDS };

const char *problem_kind_name(enum problem_kind k);

struct inventory_problem {
    enum problem_kind kind;
    char *text; /* "tensor layers.3.attn.wkv.weight: missing, want F8_E4M3 [512, 5120]" */
};

/* What may be kept in memory in part: its option, the smallest budget, and what holds all of it
 * (of KV rows: one sequence of the longest context). */
struct inventory_tier {
    const char *option; /* "--expert-ram"; static */
    uint64_t min_bytes, all_bytes;
};
#define INVENTORY_MAX_TIERS 4

#define INVENTORY_MAX_PROBLEMS 1000 /* kept; all are counted */

struct inventory {
    struct inventory_sum sum[N_TENSOR_KINDS];
    /* Backbone parameters that take part in one token: of a decoded one, and of one of a
     * prompt, where the layers above the last KV source do not run. */
    uint64_t n_active_decode, n_active_prefill;
    uint64_t n_problems[N_PROBLEM_KINDS];
    struct inventory_problem problems[INVENTORY_MAX_PROBLEMS];
    size_t n_kept;
    size_t n_shards;
    uint64_t n_file_bytes; /* of all shards, headers included */
    uint64_t n_disk_bytes; /* of these, what occupies the disk: less where files have holes */
    struct inventory_tier tiers[INVENTORY_MAX_TIERS];
    size_t n_tiers;
    uint64_t n_resident_bytes; /* memory that the weights take once loaded */
};

/* Reads the config and all headers of a checkpoint folder. OK whatever is wrong with its
 * tensors; errors of config_load() and safetensors_open_dir(). */
NODISCARD enum err inventory_take(struct inventory *v, const char *dir, struct error *e);
void inventory_fini(struct inventory *v);

/* Dense, experts. */
uint64_t inventory_backbone(const struct inventory *v);
uint64_t inventory_drafts(const struct inventory *v);

/* Notes a problem; the text is copied. What there is no memory for is only counted. */
void inventory_add_problem(struct inventory *v, enum problem_kind kind, const char *text);

/* OK without problems. Else the first one, and how many more there are: ERR_NOTFOUND where it
 * is a missing tensor, ERR_FORMAT for the others. */
NODISCARD enum err inventory_check(const struct inventory *v, struct error *e);

/* Whether it can run here: all of it on the disk, the resident part in `memory` bytes (0: not
 * known). ERR_LIMIT names what is needed and what there is, of both. */
NODISCARD enum err inventory_fits(const struct inventory *v, uint64_t memory, struct error *e);

/* Memory that this process could use, in bytes: what is available on the machine and what its
 * control group still allows, the smaller. 0 when neither is known. */
uint64_t inventory_memory(void);
/* The same as these files say it: the kernel's meminfo, and a control group's folder (v2). */
uint64_t inventory_memory_of(const char *meminfo, const char *group);

#endif
