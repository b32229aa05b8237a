#include "tests/support/golden.h"

#include <jansson.h>

#include "kernels/bits.h"
#include "tests/support/test.h"

struct golden {
    char path[512];
    uint8_t *file;
    const uint8_t *data; /* behind the header */
    size_t data_bytes;
    json_t *header;
    void **owned; /* converted arrays */
    size_t n_owned;
};

struct tensor {
    const char *dtype;
    const uint8_t *data;
    size_t bytes, width;
    struct golden_shape shape;
};

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot open", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long end = ftell(f);
    assert_true(end >= 8);
    rewind(f);
    uint8_t *p = malloc((size_t)end);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)end, f), (size_t)end);
    fclose(f);
    *size = (size_t)end;
    return p;
}

struct golden *golden_open(const char *path)
{
    struct golden *g = calloc(1, sizeof *g);
    assert_non_null(g);
    snprintf(g->path, sizeof g->path, "%s", path);
    size_t size;
    g->file = read_file(path, &size);
    uint64_t header_bytes;
    memcpy(&header_bytes, g->file, 8);
    if (header_bytes > size - 8)
        fail_msg("%s: header of %llu bytes", path, (unsigned long long)header_bytes);
    g->header = json_loadb((const char *)g->file + 8, (size_t)header_bytes, 0, NULL);
    if (!g->header)
        fail_msg("%s: header is no JSON", path);
    g->data = g->file + 8 + header_bytes;
    g->data_bytes = size - 8 - (size_t)header_bytes;
    return g;
}

void golden_close(struct golden *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_owned; i++)
        free(g->owned[i]);
    free(g->owned);
    json_decref(g->header);
    free(g->file);
    free(g);
}

bool golden_has(const struct golden *g, const char *name)
{
    return json_object_get(g->header, name) != NULL;
}

static size_t dtype_width(const char *dtype)
{
    static const struct {
        const char *name;
        size_t width;
    } widths[] = {{"F32", 4}, {"BF16", 2}, {"I64", 8},     {"I32", 4},
                  {"I8", 1},  {"U8", 1},   {"F8_E4M3", 1}, {"F8_E8M0", 1}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (!strcmp(dtype, widths[i].name))
            return widths[i].width;
    return 0;
}

static struct tensor find(struct golden *g, const char *name)
{
    struct tensor t = {0};
    const json_t *o = json_object_get(g->header, name);
    if (!o)
        fail_msg("%s: no tensor %s", g->path, name);
    t.dtype = json_string_value(json_object_get(o, "dtype"));
    const json_t *shape = json_object_get(o, "shape");
    const json_t *offsets = json_object_get(o, "data_offsets");
    t.width = t.dtype ? dtype_width(t.dtype) : 0;
    if (!t.width || json_array_size(shape) > GOLDEN_MAX_DIMS || json_array_size(offsets) != 2)
        fail_msg("%s: %s: header entry not understood", g->path, name);
    t.shape.n_dims = json_array_size(shape);
    t.shape.n = 1;
    for (size_t i = 0; i < t.shape.n_dims; i++) {
        t.shape.dim[i] = (size_t)json_integer_value(json_array_get(shape, i));
        t.shape.n *= t.shape.dim[i];
    }
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    t.bytes = t.shape.n * t.width;
    if (end < begin || end > g->data_bytes || end - begin != t.bytes)
        fail_msg("%s: %s: bytes %zu..%zu do not fit its shape", g->path, name, begin, end);
    t.data = g->data + begin;
    return t;
}

static void *own(struct golden *g, size_t bytes)
{
    g->owned = realloc(g->owned, (g->n_owned + 1) * sizeof *g->owned);
    assert_non_null(g->owned);
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    g->owned[g->n_owned++] = p;
    return p;
}

struct golden_shape golden_shape(struct golden *g, const char *name)
{
    return find(g, name).shape;
}

const float *golden_f32(struct golden *g, const char *name, size_t *n)
{
    struct tensor t = find(g, name);
    float *out = own(g, t.shape.n * sizeof *out);
    if (!strcmp(t.dtype, "F32")) {
        memcpy(out, t.data, t.bytes);
    } else if (!strcmp(t.dtype, "BF16")) {
        for (size_t i = 0; i < t.shape.n; i++) {
            uint16_t b;
            memcpy(&b, t.data + 2 * i, 2);
            out[i] = k_bf16_to_f32(b);
        }
    } else {
        fail_msg("%s: %s is %s, want F32 or BF16", g->path, name, t.dtype);
    }
    if (n)
        *n = t.shape.n;
    return out;
}

const int64_t *golden_i64(struct golden *g, const char *name, size_t *n)
{
    struct tensor t = find(g, name);
    int64_t *out = own(g, t.shape.n * sizeof *out);
    bool is_unsigned = !strcmp(t.dtype, "U8");
    if (!is_unsigned && t.dtype[0] != 'I')
        fail_msg("%s: %s is %s, want an integer", g->path, name, t.dtype);
    for (size_t i = 0; i < t.shape.n; i++) {
        const uint8_t *p = t.data + i * t.width;
        int32_t i32;
        if (t.width == 8)
            memcpy(&out[i], p, 8);
        else if (t.width == 4)
            out[i] = (memcpy(&i32, p, 4), i32);
        else
            out[i] = is_unsigned ? (int64_t)*p : (int64_t)(int8_t)*p;
    }
    if (n)
        *n = t.shape.n;
    return out;
}

const uint8_t *golden_bytes(struct golden *g, const char *name, size_t *n)
{
    struct tensor t = find(g, name);
    uint8_t *out = own(g, t.bytes);
    memcpy(out, t.data, t.bytes);
    if (n)
        *n = t.bytes;
    return out;
}
