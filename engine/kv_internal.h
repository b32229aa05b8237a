/* What the files of struct kv know of each other: kv.c (shape, memory, rings), kv_cold.c (main
 * rows that are no longer in memory), kv_import.c (rows on their way in). */
#ifndef ENGINE_KV_INTERNAL_H
#define ENGINE_KV_INTERNAL_H

#include "engine/kv.h"

struct kernels *kv_kernels(const struct kv *kv);

/* Bytes of a plane with the rows of n_tokens, whole pages of memory. */
size_t kv_plane_bytes(const struct kv *kv, uint32_t plane, uint64_t n_tokens);

/* Whether a plane is memory for its tail alone: where memory that is not touched costs nothing
 * there is no need to, and a device maps too much at once for that. */
bool kv_is_tail(const struct kv *kv, uint32_t plane);
/* Bytes of that memory. */
size_t kv_tail_bytes(const struct kv *kv, uint32_t plane);

/* Where byte `at` of a plane is, which is not cold. */
uint8_t *kv_place(const struct kv *kv, uint32_t plane, size_t at);

/* No import is under way any more: nothing is copied from where its rows landed. One set of
 * that memory stays for the next import. */
void kv_import_end(struct kv *kv);

/* Gives its pages back and closes the fetch; kv is on its way out. */
void kv_cold_fini(struct kv *kv);

#endif
