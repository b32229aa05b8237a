/* engine/digest_cache: what is taken is what would be written; what was written is read back
 * under its own key, and no longer once it is shorter or any byte of it is another one. */
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "engine/digest_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TENSORS 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO(buf) struct buf file = BUF_INIT(1 << 16);
    uint8_t digests[MAX_TENSORS * HASH_BYTES], out[sizeof digests];
    struct digest_key key = {.n_tensors = 0};
    size_t n = size < sizeof key.file ? size : sizeof key.file;
    if (n)
        memcpy(&key.file, data, n);
    key.n_tensors = (uint32_t)(size / HASH_BYTES);
    if (key.n_tensors > MAX_TENSORS)
        key.n_tensors = MAX_TENSORS;
    if (key.n_tensors)
        memcpy(digests, data, key.n_tensors * HASH_BYTES);

    bool is_taken = digest_cache_parse(data, size, &key, out, NULL) == OK;
    if (digest_cache_format(&key, is_taken ? out : digests, &file, NULL))
        return 0; /* no memory */
    if (is_taken && (file.len != size || memcmp(file.data, data, size) != 0))
        abort();
    if (is_taken)
        memcpy(digests, out, key.n_tensors * HASH_BYTES);
    if (digest_cache_parse(file.data, file.len, &key, out, NULL) ||
        memcmp(out, digests, key.n_tensors * HASH_BYTES) != 0)
        abort();
    size_t at = size ? data[size - 1] * 37u % file.len : 0;
    file.data[at] ^= (uint8_t)(size ? data[0] | 1 : 1);
    if (digest_cache_parse(file.data, file.len, &key, out, NULL) != ERR_CORRUPT)
        abort();
    if (digest_cache_parse(file.data, at, &key, out, NULL) == OK)
        abort();
    return 0;
}
