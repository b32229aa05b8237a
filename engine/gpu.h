/* What the cuda backend would compute on, and where a checkpoint would go on it: for reports,
 * without opening a model. */
#ifndef ENGINE_GPU_H
#define ENGINE_GPU_H

#include "engine/inventory.h"

struct gpu {
    char name[64];     /* "NVIDIA H200" */
    char driver[64];   /* "CUDA 13.0, built with 13.0" */
    char numerics[32]; /* class of its results: "cuda-sm90/1" */
    uint64_t total_bytes, free_bytes;
    bool records; /* decode steps can be repeated as CUDA graphs */
};

/* library and device as in struct engine_options. Errors of kernels_cuda(), which say what is
 * missing: library, driver or device. */
NODISCARD enum err gpu_describe(const char *library, int device, struct gpu *out,
                                struct error *e);

/* One kind of what a model needs, and the memory it is in. */
struct placement {
    const char *what, *where, *why; /* static */
    uint64_t n_bytes;               /* there */
    uint64_t of_bytes;              /* of so many; the rest is read from the disk when needed */
};
#define PLACEMENT_MAX 6

/* Fills list [PLACEMENT_MAX] for a device with this much free memory, the division that
 * engine_open_model() makes without budgets; returns how many. */
size_t placement_list(const struct inventory *v, uint64_t free_bytes, struct placement *list);

/* Whether decode steps are repeated as CUDA graphs with this division, and no budget for KV
 * rows; *why says what it rests on. */
bool placement_graphs(const struct placement *list, size_t n, const char **why);

/* Bytes for a cache of routed experts where nobody said how many: what is left beside the
 * resident weights, in halves, for sequences and buffers need the other. */
uint64_t placement_experts(uint64_t left, uint64_t all);

#endif
