/* base/json: what is accepted can be written, and is read again as the same value. */
#include <stdlib.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct json_limits limits = {
        .max_bytes = 1 << 16, .max_depth = 32, .allow_nul = true};
    json_auto_t *first = NULL, *second = NULL;
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    if (json_parse((const char *)data, size, &limits, &first, NULL))
        return 0;
    if (json_write(first, JSON_COMPACT, &text, NULL))
        return 0; /* larger than the buffer may be */
    const struct json_limits wider = {.max_bytes = 1 << 20, .max_depth = 32, .allow_nul = true};
    if (json_parse(buf_str(&text), text.len, &wider, &second, NULL) ||
        !json_equal(first, second))
        abort();
    return 0;
}
