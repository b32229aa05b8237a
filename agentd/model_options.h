/* The options that say which model is served: shared by `agentd serve` and by the process that
 * verifies a tape, so that both open the same. */
#ifndef AGENTD_MODEL_OPTIONS_H
#define AGENTD_MODEL_OPTIONS_H

#include "base/options.h"
#include "engine/engine.h"

struct model_options {
    const char *model;      /* folder; NULL only with a script */
    const char *engine;     /* "script:FILE"; NULL: the checkpoint itself */
    int backend, precision; /* indices of the tables in model_options.c */
    const char *isa;
    const char *cuda_library; /* NULL: where kernels/cuda.h looks */
    int64_t device;           /* of backend cuda */
    const char *digest_cache; /* folder; NULL: nothing is remembered */
    bool verify_weights;
    const char *spill_dir;            /* no option of its own; NULL: the engine's default */
    const struct engine_watch *watch; /* nor this; NULL: nobody */
    int64_t threads, chunk, draft;
    double draft_confidence;
    uint64_t expert_ram, engram_ram, engram_device, kv_resident; /* budgets in bytes; 0: none */
};

/* Entries for a command's option table; `base` is the offset of the struct model_options. */
extern const char *const model_backends[], *const model_precisions[];
#define MODEL_OPTIONS(type, member)                                                            \
    {"model",        'm',  OPTION_STRING, offsetof(type, member.model), "DIR", 0, 0, NULL,     \
     "model folder", false},                                                                   \
        {"engine",                                                                             \
         0,                                                                                    \
         OPTION_STRING,                                                                        \
         offsetof(type, member.engine),                                                        \
         "script:FILE",                                                                        \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "a script in the place of the model, for tests",                                      \
         false},                                                                               \
        {"backend", 0, OPTION_ENUM,    offsetof(type, member.backend), "NAME",                 \
         0,         0, model_backends, "where the model computes",     false},                 \
        {"precision",      0,    OPTION_ENUM, offsetof(type, member.precision),                \
         "MODE",           0,    0,           model_precisions,                                \
         "precision mode", false},                                                             \
        {"isa",                                                                                \
         0,                                                                                    \
         OPTION_STRING,                                                                        \
         offsetof(type, member.isa),                                                           \
         "NAME",                                                                               \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "instruction set of the cpu backend (default: the best here)",                        \
         false},                                                                               \
        {"device",                                                                             \
         0,                                                                                    \
         OPTION_INT,                                                                           \
         offsetof(type, member.device),                                                        \
         "N",                                                                                  \
         0,                                                                                    \
         1023,                                                                                 \
         NULL,                                                                                 \
         "GPU of the cuda backend (default: 0, the first)",                                    \
         false},                                                                               \
        {"cuda-library",                                                                       \
         0,                                                                                    \
         OPTION_STRING,                                                                        \
         offsetof(type, member.cuda_library),                                                  \
         "FILE",                                                                               \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "library of the cuda backend (default: libagentd-cuda.so beside agentd, in "          \
         "../lib/agentd, or where the dynamic linker looks)",                                  \
         false},                                                                               \
        {"threads",                                                                            \
         0,                                                                                    \
         OPTION_INT,                                                                           \
         offsetof(type, member.threads),                                                       \
         "N",                                                                                  \
         0,                                                                                    \
         256,                                                                                  \
         NULL,                                                                                 \
         "threads of the model (default: all cores)",                                          \
         false},                                                                               \
        {"chunk",                                                                              \
         0,                                                                                    \
         OPTION_INT,                                                                           \
         offsetof(type, member.chunk),                                                         \
         "N",                                                                                  \
         0,                                                                                    \
         1 << 20,                                                                              \
         NULL,                                                                                 \
         "most tokens of one step (default: 2048); 256 while a sequence generates",            \
         false},                                                                               \
        {"digest-cache",                                                                       \
         0,                                                                                    \
         OPTION_STRING,                                                                        \
         offsetof(type, member.digest_cache),                                                  \
         "DIR",                                                                                \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "digests of weights, so that they are hashed once (default: agentd/weights in the "   \
         "XDG cache folder, weights in --store)",                                              \
         false},                                                                               \
        {"verify-weights",                                                                     \
         0,                                                                                    \
         OPTION_FLAG,                                                                          \
         offsetof(type, member.verify_weights),                                                \
         NULL,                                                                                 \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "hash all weights, whatever digests are remembered",                                  \
         false},                                                                               \
        {"expert-ram",                                                                         \
         0,                                                                                    \
         OPTION_BYTES,                                                                         \
         offsetof(type, member.expert_ram),                                                    \
         "BYTES",                                                                              \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "memory for routed experts, read when chosen (default: 0, mapped)",                   \
         false},                                                                               \
        {"engram-ram",                                                                         \
         0,                                                                                    \
         OPTION_BYTES,                                                                         \
         offsetof(type, member.engram_ram),                                                    \
         "BYTES",                                                                              \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "memory for rows of Engram tables (default: 0, mapped)",                              \
         false},                                                                               \
        {"engram-device",                                                                      \
         0,                                                                                    \
         OPTION_BYTES,                                                                         \
         offsetof(type, member.engram_device),                                                 \
         "BYTES",                                                                              \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "memory of a GPU for rows of Engram tables (default: 0, copied when looked up)",      \
         false},                                                                               \
        {"kv-resident",                                                                        \
         0,                                                                                    \
         OPTION_BYTES,                                                                         \
         offsetof(type, member.kv_resident),                                                   \
         "BYTES",                                                                              \
         0,                                                                                    \
         0,                                                                                    \
         NULL,                                                                                 \
         "memory for main KV rows, the others are spilled (default: 0, all in memory)",        \
         false},                                                                               \
        {"draft",                                                                              \
         0,                                                                                    \
         OPTION_INT,                                                                           \
         offsetof(type, member.draft),                                                         \
         "N",                                                                                  \
         0,                                                                                    \
         15,                                                                                   \
         NULL,                                                                                 \
         "tokens that the draft layers guess ahead (default: 0, off)",                         \
         false},                                                                               \
    {                                                                                          \
        "draft-confidence", 0, OPTION_FLOAT, offsetof(type, member.draft_confidence), "P", 0,  \
            1, NULL, "guesses less likely to be right are not checked (default: 0.5)", false   \
    }

/* The default of draft_confidence: more often wrong than right is not worth a row of the pass.
 */
#define MODEL_DRAFT_CONFIDENCE 0.5

/* ERR_INVAL: neither or a malformed engine; errors of engine_open_model and _script. Digests of
 * logits are on. */
NODISCARD enum err model_open(const struct model_options *o, struct engine **out,
                              struct error *e);

#define MODEL_ARGS 36
/* The command line that gives the same options, NULL at its end; weights that were verified
 * are not verified again. Numbers are written to
 * `scratch`; the rest is borrowed from o. */
struct model_args {
    const char *argv[MODEL_ARGS];
    char device[24], threads[24], chunk[24], draft[24], draft_confidence[24], expert_ram[24],
        engram_ram[24], engram_device[24], kv_resident[24];
};
void model_args(const struct model_options *o, struct model_args *out);

#endif
