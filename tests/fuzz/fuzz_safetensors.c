/* engine/safetensors: whatever the header says, a tensor that is handed out lies in the file,
 * has the size of its shape, overlaps no other, and is found by its name. */
#include <stdlib.h>
#include <string.h>

#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct safetensors *s, const uint8_t *data, size_t size)
{
    size_t n = 0;
    uint64_t total = 0;
    const struct tensor *t = safetensors_list(s, &n);
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = dtype_bytes(t[i].dtype);
        for (uint32_t k = 0; k < t[i].n_dims; k++)
            bytes *= t[i].shape[k];
        if (t[i].data < data || t[i].n_bytes != bytes ||
            t[i].n_bytes > (size_t)(data + size - t[i].data))
            abort();
        if (safetensors_find(s, t[i].name) != &t[i])
            abort();
        total += bytes;
    }
    if (total > size) /* more than there is: two overlap */
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *s = NULL;
    if (safetensors_parse(&s, data, size, NULL) == OK)
        check(s, data, size);
    safetensors_free(s);
    return 0;
}
