/* engine/tokenizer: decode(encode(x)) == x for all bytes, and plain text has no added id. The
 * first byte chooses the vocabulary: the golden one, the bytes, or a tokenizer.json that the
 * input is. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tokenizer *t, const uint8_t *data, size_t size, bool special)
{
    AUTO(ids) struct ids ids = IDS_INIT(1 << 22);
    AUTO(buf) struct buf back = BUF_INIT(1 << 22);
    if (special ? tokenizer_encode_special(t, data, size, &ids, NULL)
                : tokenizer_encode(t, data, size, &ids, NULL))
        abort();
    for (size_t i = 0; !special && i < ids.n; i++)
        if (tokenizer_is_added(t, ids.v[i]))
            abort();
    if (tokenizer_decode(t, ids.v, ids.n, &back, NULL))
        abort();
    if (back.len != size || (size && memcmp(back.data, data, size) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *golden, *bytes;
    if (!golden && tokenizer_open(&golden, "tests/golden/e_encoding", NULL))
        abort();
    if (!bytes && tokenizer_new_bytes(&bytes, NULL))
        abort();
    if (!size)
        return 0;
    if (data[0] == '{') {
        struct tokenizer *own = NULL;
        if (!tokenizer_parse(&own, data, size, NULL)) {
            check(own, data, size, false);
            check(own, data, size, true);
        }
        tokenizer_free(own);
        return 0;
    }
    const struct tokenizer *t = data[0] & 1 ? golden : bytes;
    check(t, data + 1, size - 1, false);
    check(t, data + 1, size - 1, true);
    return 0;
}
