#include "tools/launch.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"

static json_t *copy_list(const json_t *list)
{
    return list ? json_deep_copy(list) : json_array();
}

enum err launch_write(const struct launch *l, int *fd, struct error *e)
{
    json_t *spec = json_pack(
        "{s:s, s:O, s:s, s:s?, s:s?, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "tool", l->tool,
        "arguments", l->arguments, "workspace", l->workspace, "spill_folder", l->spill_folder,
        "cwd", l->cwd, "mode", tool_mode_name(l->mode), "max_processes",
        (json_int_t)l->max_processes, "max_file_bytes", (json_int_t)l->max_file_bytes, "hidden",
        copy_list(l->hidden), "read_paths", copy_list(l->read_paths), "without",
        copy_list(l->without), "fetch_networks", copy_list(l->fetch_networks));
    if (!spec)
        return err_set(e, ERR_NOMEM, "launcher: cannot write down the call");
    AUTO_FD int mem = memfd_create("agentd-tool", MFD_CLOEXEC);
    int rc = mem < 0 ? -1 : json_dumpfd(spec, mem, JSON_COMPACT);
    int saved = errno;
    json_decref(spec);
    if (rc != 0 || lseek(mem, 0, SEEK_SET) != 0)
        return err_sys(e, saved, "launcher: memory file");
    *fd = TAKE_FD(mem);
    return OK;
}

enum err launch_read(int fd, struct launch *out, struct error *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size > LAUNCH_MAX_SPEC_BYTES)
        return err_set(e, ERR_FORMAT, "launcher: no call on descriptor %d", fd);
    json_error_t why;
    struct launch l = {0};
    l.spec = json_loadfd(fd, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!l.spec)
        return err_set(e, ERR_FORMAT, "launcher: %s", why.text);
    const char *mode = NULL;
    const json_t *spill = NULL, *cwd = NULL; /* null or a string */
    json_int_t processes = 0, file_bytes = 0;
    int bad = json_unpack_ex(
        l.spec, &why, 0, "{s:s, s:o, s:s, s:o, s:o, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "tool",
        &l.tool, "arguments", &l.arguments, "workspace", &l.workspace, "spill_folder", &spill,
        "cwd", &cwd, "mode", &mode, "max_processes", &processes, "max_file_bytes", &file_bytes,
        "hidden", &l.hidden, "read_paths", &l.read_paths, "without", &l.without,
        "fetch_networks", &l.fetch_networks);
    enum err rc = bad ? err_set(e, ERR_FORMAT, "launcher: %s", why.text)
                      : tool_mode_parse(mode, &l.mode, e);
    if (rc) {
        launch_fini(&l);
        return rc;
    }
    l.spill_folder = json_string_value(spill);
    l.cwd = json_string_value(cwd);
    l.max_processes = (uint32_t)processes;
    l.max_file_bytes = (uint64_t)file_bytes;
    *out = l;
    return OK;
}

void launch_fini(struct launch *l)
{
    json_decref(l->spec);
    *l = (struct launch){0};
}

bool launch_is_without(const struct launch *l, const char *layer)
{
    for (size_t i = 0; i < json_array_size(l->without); i++) {
        const char *name = json_string_value(json_array_get(l->without, i));
        if (name && !strcmp(name, layer))
            return true;
    }
    return false;
}

bool launch_executes(const struct launch *l)
{
    return !strcmp(l->tool, "run") || !strcmp(l->tool, LAUNCH_PROBE);
}

bool launch_fetches(const struct launch *l)
{
    return !strcmp(l->tool, "http_fetch");
}

bool path_is_inside(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    if (strncmp(path, folder, n) != 0)
        return false;
    return n == 1 || path[n] == '/' || path[n] == '\0';
}
