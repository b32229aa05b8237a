#include "tools/landlock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"

/* The kernel's interface, written out: the headers of older distributions stop at ABI 2.
 * Source: Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h of Linux.
 */
#define FS_EXECUTE (1ULL << 0)
#define FS_WRITE_FILE (1ULL << 1)
#define FS_READ_FILE (1ULL << 2)
#define FS_READ_DIR (1ULL << 3)
#define FS_REMOVE_DIR (1ULL << 4)
#define FS_REMOVE_FILE (1ULL << 5)
#define FS_MAKE_CHAR (1ULL << 6)
#define FS_MAKE_DIR (1ULL << 7)
#define FS_MAKE_REG (1ULL << 8)
#define FS_MAKE_SOCK (1ULL << 9)
#define FS_MAKE_FIFO (1ULL << 10)
#define FS_MAKE_BLOCK (1ULL << 11)
#define FS_MAKE_SYM (1ULL << 12)
#define FS_REFER (1ULL << 13)     /* ABI 2 */
#define FS_TRUNCATE (1ULL << 14)  /* ABI 3 */
#define FS_IOCTL_DEV (1ULL << 15) /* ABI 5 */
#define NET_BIND_TCP (1ULL << 0)  /* ABI 4 */
#define NET_CONNECT_TCP (1ULL << 1)
#define SCOPE_ABSTRACT_UNIX (1ULL << 0) /* ABI 6 */
#define SCOPE_SIGNAL (1ULL << 1)
#define RULE_PATH_BENEATH 1
#define CREATE_VERSION 1U

#define READ (FS_EXECUTE | FS_READ_FILE | FS_READ_DIR)
#define WRITE                                                                                  \
    (FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG |              \
     FS_MAKE_SOCK | FS_MAKE_FIFO | FS_MAKE_SYM | FS_REFER | FS_TRUNCATE)
#define FILE_ONLY (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)

struct ruleset_attr {
    uint64_t handled_fs, handled_net, scoped;
};

struct path_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

struct ruleset {
    int fd;
    uint64_t handled;
};

int landlock_abi(void)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_VERSION);
    return abi > 0 ? (int)abi : 0;
}

/* Everything that the ABI can restrict is: what no rule allows is denied. */
static uint64_t handled_fs(int abi)
{
    uint64_t all = READ | WRITE | FS_MAKE_CHAR | FS_MAKE_BLOCK | FS_IOCTL_DEV;
    if (abi < 2)
        all &= ~FS_REFER;
    if (abi < 3)
        all &= ~FS_TRUNCATE;
    if (abi < 5)
        all &= ~FS_IOCTL_DEV;
    return all;
}

static size_t attr_bytes(int abi)
{
    if (abi < 4)
        return sizeof(uint64_t);
    return abi < 6 ? 2 * sizeof(uint64_t) : 3 * sizeof(uint64_t);
}

static enum err add_fd(const struct ruleset *r, int fd, uint64_t access, const char *path,
                       struct error *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_sys(e, errno, "landlock: %s", path);
    if (!S_ISDIR(st.st_mode))
        access &= FILE_ONLY;
    struct path_attr attr = {access & r->handled, fd};
    if (attr.allowed == 0)
        return OK;
    if (syscall(SYS_landlock_add_rule, r->fd, RULE_PATH_BENEATH, &attr, 0) != 0)
        return err_sys(e, errno, "landlock: rule for %s", path);
    return OK;
}

/* Allows `access` at and below a path. A path that is not there needs no rule. */
static enum err add_path(const struct ruleset *r, const char *path, uint64_t access,
                         struct error *e)
{
    AUTO_FD int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR
                   ? OK
                   : err_sys(e, errno, "landlock: %s", path);
    return add_fd(r, fd, access, path, e);
}

/* ---- /etc, when file modes do not bind us: root, or CAP_DAC_OVERRIDE ---- */

#define ETC_MAX_DEPTH 8

/* Allows an entry if everybody may read it, folders entry by entry; symbolic links need no
 * rule. */
static enum err add_world_readable(const struct ruleset *r, int parent, const char *name,
                                   int depth, struct error *e)
{
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return OK;
    mode_t need = S_ISDIR(st.st_mode) ? 05 : 04;
    if ((st.st_mode & need) != need || !(S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        return OK;
    AUTO_FD int fd = openat(parent, name, O_CLOEXEC | O_NOFOLLOW | O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return OK;
    if (S_ISREG(st.st_mode))
        return add_fd(r, fd, READ, name, e);
    if (depth == ETC_MAX_DEPTH)
        return OK;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir)
        return err_sys(e, errno, "landlock: list /etc/.../%s", name);
    enum err rc = OK;
    for (struct dirent *d; !rc && (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            rc = add_world_readable(r, fd, d->d_name, depth + 1, e);
    closedir(dir);
    return rc;
}

static enum err add_etc(const struct ruleset *r, bool strict, struct error *e)
{
    if (!strict)
        return add_path(r, "/etc", READ, e);
    enum err rc = add_path(r, "/etc", FS_READ_DIR, e);
    return rc ? rc : add_world_readable(r, AT_FDCWD, "/etc", 0, e);
}

/* ---- the rules ---- */

static enum err add_system(const struct ruleset *r, const struct landlock_rules *rules,
                           struct error *e)
{
    static const char *const folders[] = {"/usr",   "/bin",   "/sbin",   "/lib",
                                          "/lib32", "/lib64", "/libx32", "/opt",
                                          "/nix",   "/proc",  "/sys"};
    static const char *const devices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                          "/dev/random", "/dev/urandom", "/dev/tty",
                                          "/dev/ptmx",   "/dev/pts"};
    static const char *const resolver[] = {"/run/systemd/resolve", "/run/resolvconf",
                                           "/run/NetworkManager"};
    enum err rc = OK;
    for (size_t i = 0; !rc && i < sizeof folders / sizeof folders[0]; i++)
        rc = add_path(r, folders[i], READ, e);
    for (size_t i = 0; !rc && i < sizeof devices / sizeof devices[0]; i++)
        rc = add_path(r, devices[i],
                      FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV,
                      e);
    if (!rc)
        rc = add_path(r, "/dev", FS_READ_DIR, e);
    for (size_t i = 0; !rc && rules->resolver && i < sizeof resolver / sizeof resolver[0]; i++)
        rc = add_path(r, resolver[i], READ, e);
    if (!rc && rules->writable_shm)
        rc = add_path(r, "/dev/shm", READ | WRITE, e);
    return rc ? rc : add_etc(r, rules->strict_etc, e);
}

static enum err add_all(const struct ruleset *r, const struct launch *l,
                        const struct landlock_rules *rules, struct error *e)
{
    enum err rc = add_system(r, rules, e);
    uint64_t write = l->mode == TOOL_MODE_WORKSPACE_WRITE ? WRITE : 0;
    if (!rc)
        rc = add_path(r, l->workspace, READ | write, e);
    if (!rc && rules->scratch)
        rc = add_path(r, rules->scratch, READ | WRITE, e);
    if (!rc && l->spill_folder)
        rc = add_path(r, l->spill_folder, READ, e);
    for (size_t i = 0; !rc && i < json_array_size(l->read_paths); i++)
        rc = add_path(r, json_string_value(json_array_get(l->read_paths, i)), READ, e);
    return rc;
}

enum err landlock_restrict(const struct launch *l, const struct landlock_rules *rules,
                           struct error *e)
{
    int abi = landlock_abi();
    if (abi == 0)
        return err_set(e, ERR_UNSUPPORTED, "landlock: this kernel has none");
    struct ruleset_attr attr = {
        .handled_fs = handled_fs(abi),
        .handled_net = abi >= 4 && rules->deny_tcp ? NET_BIND_TCP | NET_CONNECT_TCP : 0,
        .scoped = abi >= 6 ? SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL : 0};
    AUTO_FD int fd = (int)syscall(SYS_landlock_create_ruleset, &attr, attr_bytes(abi), 0);
    if (fd < 0)
        return err_sys(e, errno, "landlock: ruleset");
    struct ruleset r = {fd, attr.handled_fs};
    enum err rc = add_all(&r, l, rules, e);
    if (rc)
        return rc;
    if (syscall(SYS_landlock_restrict_self, fd, 0) != 0)
        return err_sys(e, errno, "landlock: restrict");
    return OK;
}
