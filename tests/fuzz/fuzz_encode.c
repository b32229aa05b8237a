/* base/encode: text that decodes is exactly what its bytes encode to. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_base64(const char *text, size_t size)
{
    uint8_t bytes[256];
    char again[BASE64_CHARS(sizeof bytes)];
    size_t n;
    if (base64_decode(text, size, bytes, sizeof bytes, &n, NULL))
        return;
    base64_encode(bytes, n, again);
    if (strlen(again) != size || memcmp(again, text, size) != 0)
        abort();
}

static void check_hex(const char *text, size_t size)
{
    uint8_t bytes[256];
    char again[HEX_CHARS(sizeof bytes)];
    if (size / 2 > sizeof bytes || hex_decode(text, size, bytes, size / 2, NULL))
        return;
    hex_encode(bytes, size / 2, again);
    for (size_t i = 0; i < size; i++)
        if (again[i] != tolower((unsigned char)text[i]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_base64((const char *)data, size);
    check_hex((const char *)data, size);
    return 0;
}
