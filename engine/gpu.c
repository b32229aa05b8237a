#include "engine/gpu.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda.h"

enum err gpu_describe(const char *library, int device, struct gpu *out, struct error *e)
{
    struct kernels k = {0};
    struct k_device d;
    enum err rc = kernels_cuda(&k, library, device, e);
    if (rc)
        return rc;
    if (!(rc = k.describe(&k, &d, e))) {
        *out = (struct gpu){.total_bytes = d.total_bytes,
                            .free_bytes = d.free_bytes,
                            .records = k.record != NULL};
        snprintf(out->name, sizeof(out->name), "%s", d.name);
        snprintf(out->driver, sizeof(out->driver), "%s", d.driver);
        snprintf(out->numerics, sizeof(out->numerics), "%s", k.numerics);
    }
    kernels_fini(&k);
    return rc;
}

uint64_t placement_experts(uint64_t left, uint64_t all)
{
    return left / 2 < all ? left / 2 : all;
}

static uint64_t all_of(const struct inventory *v, const char *option)
{
    for (size_t i = 0; i < v->n_tiers; i++)
        if (!strcmp(v->tiers[i].option, option))
            return v->tiers[i].all_bytes;
    return 0;
}

size_t placement_list(const struct inventory *v, uint64_t free_bytes, struct placement *list)
{
    uint64_t dense = v->n_resident_bytes, all = all_of(v, "--expert-ram");
    uint64_t left = free_bytes > dense ? free_bytes - dense : 0;
    uint64_t experts = placement_experts(left, all), tables = v->sum[KIND_ENGRAM].n_bytes;
    uint64_t kv = all_of(v, "--kv-resident");
    size_t n = 0;
    list[n++] = (struct placement){"dense weights", "device", "every token reads them",
                                   dense < free_bytes ? dense : free_bytes, dense};
    list[n++] = (struct placement){
        "routed experts", "device",
        experts < all ? "a cache: a token chooses few, read from the disk when it has"
                      : "all of them fit",
        experts, all};
    if (tables)
        list[n++] = (struct placement){
            "Engram tables", "mapped",
            "a token looks up few rows: these are copied to the device with its ids, and stay "
            "there as far as --engram-device allows",
            0, tables};
    list[n++] = (struct placement){
        "state of sequences", "device",
        "windows, index keys and main KV rows; the main rows of the longest context are these",
        kv < left - experts ? kv : left - experts, kv};
    return n;
}

bool placement_graphs(const struct placement *list, size_t n, const char **why)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].what, "routed experts") && list[i].n_bytes < list[i].of_bytes) {
            *why = "experts are a cache, and which ones a router chooses is read back";
            return false;
        }
    *why = "all experts are in the device; with --kv-resident steps go call by call";
    return true;
}
