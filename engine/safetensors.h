/* Read-only access to a checkpoint's tensors: one or many .safetensors files, mapped.
 *
 * A file is: u64 LE header length, that many bytes of JSON ({name: {dtype, shape,
 * data_offsets}}), then the data. The bytes are a stranger's: every count is capped, names are
 * unique, sizes must match shape and dtype, and the ranges must tile the data exactly (no
 * overlap, no hole, nothing behind), so that no later reader has to check again. A folder with
 * model.safetensors.index.json is opened through its weight_map; one with a single
 * model.safetensors needs no index.
 *
 * Everything handed out is borrowed from the struct and constant until safetensors_free().
 * After opening any thread may read. A file that shrinks while it is mapped is a SIGBUS, as
 * with every mapping, and one that is written to changes what is read: whoever computes looks
 * with safetensors_unchanged() before and after. */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fs.h"

#define TENSOR_MAX_DIMS 8
#define SAFETENSORS_MAX_HEADER (64u << 20)
#define SAFETENSORS_MAX_INDEX (256u << 20)
#define SAFETENSORS_MAX_TENSORS (1u << 20)
#define SAFETENSORS_MAX_SHARDS 4096
/* Marks of a header's or an index's JSON (base/json.h): a tensor of four dimensions has 14, an
 * entry of an index 2. What is parsed takes some hundred MB at most, however mean it is. */
#define SAFETENSORS_MAX_MARKS 2800000u
#define SAFETENSORS_MAX_DEPTH 64

enum dtype {
    DTYPE_BF16,
    DTYPE_F32,
    DTYPE_E4M3, /* F8_E4M3 */
    DTYPE_E8M0, /* F8_E8M0 */
    DTYPE_I8,   /* packed FP4 in this checkpoint */
    DTYPE_U8,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_F16,
    DTYPE_F64,
    N_DTYPES
};

const char *dtype_name(enum dtype t); /* as in the header: "F8_E4M3" */
size_t dtype_bytes(enum dtype t);

struct tensor {
    const char *name;
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[TENSOR_MAX_DIMS];
    const uint8_t *data; /* not necessarily aligned for its dtype */
    uint64_t n_bytes;
    uint32_t shard;
};

struct safetensors;

/* Opens dir/model.safetensors.index.json and its shards, or dir/model.safetensors alone.
 * Errors: ERR_NOTFOUND (naming the file), ERR_IO, ERR_FORMAT (file, tensor and both values),
 * ERR_UNSUPPORTED (dtype), ERR_LIMIT (a cap), ERR_NOMEM. */
NODISCARD enum err safetensors_open_dir(struct safetensors **out, const char *dir,
                                        struct error *e);
/* One file by path. */
NODISCARD enum err safetensors_open_file(struct safetensors **out, const char *path,
                                         struct error *e);
void safetensors_free(struct safetensors *s);

/* NULL if there is no such tensor. */
const struct tensor *safetensors_find(const struct safetensors *s, const char *name);
/* All tensors, sorted by name. */
const struct tensor *safetensors_list(const struct safetensors *s, size_t *n);

/* Whole files, for digests: size and mapping of shard i, in name order. */
size_t safetensors_n_shards(const struct safetensors *s);
const uint8_t *safetensors_shard(const struct safetensors *s, size_t i, uint64_t *n_bytes);
/* Bytes of it that occupy the disk: fewer than its size where the file has holes. */
uint64_t safetensors_shard_on_disk(const struct safetensors *s, size_t i);
const char *safetensors_shard_name(const struct safetensors *s, size_t i);
/* Bytes before its data: the header with its length. */
uint64_t safetensors_shard_header(const struct safetensors *s, size_t i);
/* The file and its state when it was mapped; all zero without a file. */
const struct fs_identity *safetensors_shard_identity(const struct safetensors *s, size_t i);

/* Looks again at the file behind fd, which is shard i opened once more: ERR_CONFLICT names it
 * when it is another one by now, or was changed since it was mapped. */
NODISCARD enum err safetensors_shard_unchanged(const struct safetensors *s, size_t i, int fd,
                                               struct error *e);

/* Looks again at every shard through the descriptor it was mapped from: ERR_CONFLICT names the
 * first one that was written to since, and tells by what. One that lost its last name is still
 * what is mapped: a checkpoint may be replaced or deleted under who has it open. A system call
 * for each shard: any thread, as often as a pass through the layers. */
NODISCARD enum err safetensors_unchanged(const struct safetensors *s, struct error *e);

/* Parses one file image that stays in place as long as the result lives (tests, fuzzing). */
NODISCARD enum err safetensors_parse(struct safetensors **out, const uint8_t *bytes, uint64_t n,
                                     struct error *e);

#endif
