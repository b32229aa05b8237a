#include "tests/support/golden_model.h"

#include <jansson.h>
#include <math.h>

#include "engine/config.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/test.h"

uint32_t *golden_ids(const char *path, size_t *n)
{
    json_auto_t *j = json_load_file(path, 0, NULL);
    const json_t *list = json_object_get(j, "token_ids");
    if (!json_array_size(list))
        fail_msg("%s: no token_ids", path);
    uint32_t *ids = malloc(json_array_size(list) * sizeof(*ids));
    assert_non_null(ids);
    *n = json_array_size(list);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

struct engine *golden_model(const char *dir, const struct golden_run *run)
{
    struct engine_options o = {.precision = run->precision,
                               .chunk_tokens = run->chunk,
                               .n_threads = 2,
                               .no_weight_digest = true};
    backend_option(&o, run->backend);
    return drive_open(dir, &o);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct fit measure(const float *got, const float *want, size_t rows, size_t width, double same)
{
    struct fit f = {0};
    double *worst = calloc(rows + 1, sizeof(*worst));
    size_t n_differing = 0;
    assert_non_null(worst);
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < width; k++) {
            double d = fabs((double)got[i * width + k] - (double)want[i * width + k]);
            if (!(d <= worst[i])) /* NaN, too */
                worst[i] = isnan(d) ? HUGE_VAL : d;
        }
        n_differing += worst[i] > same;
        f.worst = worst[i] > f.worst ? worst[i] : f.worst;
    }
    qsort(worst, rows, sizeof(*worst), by_value);
    f.median = worst[rows / 2];
    f.differing = (double)n_differing / (double)(rows ? rows : 1);
    free(worst);
    return f;
}

void assert_close(const char *what, const float *got, const float *want, size_t rows,
                  size_t width, double max)
{
    struct fit f = measure(got, want, rows, width, max);
    if (f.worst > max)
        fail_msg("%s: off by %g, at most %g (median %g, %g of %zu rows above)", what, f.worst,
                 max, f.median, f.differing, rows);
}

void assert_mostly(const char *what, const float *got, const float *want, size_t rows,
                   size_t width, double same, double share_differing, double max)
{
    struct fit f = measure(got, want, rows, width, same);
    if (f.differing > share_differing || f.worst > max)
        fail_msg(
            "%s: %g of %zu rows differ by more than %g, at most %g may; worst %g, at most %g",
            what, f.differing, rows, same, share_differing, f.worst, max);
}

/* The next row number of a selection from k on, or -1. */
static int64_t next_row(const int32_t *sel, size_t width, size_t *k)
{
    while (*k < width && sel[*k] < 0)
        ++*k;
    return *k < width ? sel[(*k)++] : -1;
}

size_t count_selections(const int32_t *got, size_t width, const int64_t *want,
                        size_t want_width, size_t n)
{
    size_t differing = 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        bool same = true;
        for (size_t k = 0; k < want_width; k++)
            if (want[i * want_width + k] >= 0)
                same =
                    same && next_row(got + i * width, width, &at) == want[i * want_width + k];
        differing += !(same && next_row(got + i * width, width, &at) < 0);
    }
    return differing;
}

static void *gather_rows(const struct record_tensor *t, const char *name, uint64_t pos0,
                         size_t n)
{
    if (!t)
        fail_msg("%s: never seen", name);
    size_t row = t->width * 4;
    char *out = malloc(n * row + 1);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) {
        const void *p = record_row(t, pos0 + i);
        if (!p)
            fail_msg("%s: no row for position %zu", name, (size_t)pos0 + i);
        memcpy(out + i * row, p, row);
    }
    return out;
}

void *gather(const struct record *r, const char *name, uint32_t layer, uint64_t pos0, size_t n)
{
    return gather_rows(record_find(r, name, layer), name, pos0, n);
}

float *gather_logits(const struct record *r, uint64_t pos0, size_t n)
{
    return gather_rows(&r->logits, "logits", pos0, n);
}

float *read_plane(const struct engine *m, const struct seq *s, uint32_t plane, size_t *n)
{
    struct error e = {0};
    const struct state_layout *l = engine_describe(m)->layout;
    *n = state_rows(&l->planes[plane], seq_position(s));
    float *out = malloc(*n * engine_plane_width(m, plane) * sizeof(*out) + 1);
    assert_non_null(out);
    assert_ok(engine_read_rows(s, plane, 0, *n, out, &e), &e);
    return out;
}
