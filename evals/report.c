#include "evals/report.h"

#include "base/fs.h"
#include "base/json.h"

#define MAX_REPORT_BYTES ((size_t)64 << 20)

enum err report_write(const char *dir, const char *name, const json_t *results,
                      report_page_fn *page, struct error *e)
{
    char path[FS_PATH_BYTES];
    AUTO(buf) struct buf text = BUF_INIT(MAX_REPORT_BYTES);
    enum err rc = fs_mkdir_p(dir, e);
    if (!rc)
        rc = json_write(results, JSON_INDENT(1), &text, e);
    if (!rc)
        rc = buf_add_byte(&text, '\n', e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/%s", dir, name);
    if (!rc)
        rc = fs_write_atomic(path, text.data, text.len, 0644, e);
    buf_clear(&text);
    if (!rc)
        rc = page(&text, results, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/report.html", dir);
    return rc ? rc : fs_write_atomic(path, text.data, text.len, 0644, e);
}
