#include "tools/seccomp.h"

#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#define ARCH 0U
#endif

#define X32_BIT 0x40000000U
#define MAX_FILTER 256

/* Asm-generic numbers, the same on every architecture, that older headers do not have. */
enum {
    NR_IO_URING_SETUP = 425,
    NR_IO_URING_ENTER = 426,
    NR_IO_URING_REGISTER = 427,
    NR_OPEN_TREE = 428,
    NR_MOVE_MOUNT = 429,
    NR_FSOPEN = 430,
    NR_FSCONFIG = 431,
    NR_FSMOUNT = 432,
    NR_FSPICK = 433,
    NR_CLONE3 = 435,
    NR_PIDFD_GETFD = 438,
    NR_MOUNT_SETATTR = 442,
    NR_OPEN_TREE_ATTR = 467
};

static const uint32_t denied[] = {
    /* mounts and namespaces */
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    NR_OPEN_TREE,
    NR_MOVE_MOUNT,
    NR_FSOPEN,
    NR_FSCONFIG,
    NR_FSMOUNT,
    NR_FSPICK,
    NR_MOUNT_SETATTR,
    NR_OPEN_TREE_ATTR,
    /* the kernel itself */
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_syslog,
    SYS_quotactl,
    SYS_userfaultfd,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
#endif
    /* files by handle go around path rules */
    SYS_open_by_handle_at,
    /* clocks and names of the whole machine */
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    /* keyrings belong to the user, not to the tool */
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
};

static const uint32_t denied_tracing[] = {SYS_ptrace, SYS_process_vm_readv,
                                          SYS_process_vm_writev, NR_PIDFD_GETFD};

static const uint32_t not_there[] = {NR_CLONE3, NR_IO_URING_SETUP, NR_IO_URING_ENTER,
                                     NR_IO_URING_REGISTER};

struct filter {
    struct sock_filter code[MAX_FILTER];
    unsigned short n;
};

static void emit(struct filter *f, struct sock_filter one)
{
    assert(f->n < MAX_FILTER);
    f->code[f->n++] = one;
}

static void load(struct filter *f, size_t offset)
{
    emit(f, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void answer(struct filter *f, uint32_t action)
{
    emit(f, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

#define REFUSE (SECCOMP_RET_ERRNO | EPERM)
#define NOT_THERE (SECCOMP_RET_ERRNO | ENOSYS)

/* The low half of system call argument i (both architectures are little endian). */
static size_t arg(int i)
{
    return offsetof(struct seccomp_data, args) + 8U * (size_t)i;
}

static void answer_if(struct filter *f, uint16_t test, uint32_t k, uint32_t action)
{
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | test | BPF_K, k, 0, 1));
    answer(f, action);
}

static void answer_list(struct filter *f, const uint32_t *list, size_t n, uint32_t action)
{
    for (size_t i = 0; i < n; i++)
        answer_if(f, BPF_JEQ, list[i], action);
}

/* Opens a block that only system call `nr` enters; close_block() makes the others jump over it.
 */
static unsigned short open_block(struct filter *f, uint32_t nr)
{
    emit(f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 0));
    return (unsigned short)(f->n - 1);
}

static void close_block(struct filter *f, unsigned short at)
{
    answer(f, SECCOMP_RET_ALLOW);
    f->code[at].jf = (uint8_t)(f->n - at - 1);
}

static void add_socket(struct filter *f, const struct seccomp_rules *rules)
{
    unsigned short block = open_block(f, SYS_socket);
    load(f, arg(0));
    if (rules->allow_unix)
        answer_if(f, BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    if (rules->allow_inet) {
        answer_if(f, BPF_JEQ, AF_INET, SECCOMP_RET_ALLOW);
        answer_if(f, BPF_JEQ, AF_INET6, SECCOMP_RET_ALLOW);
        answer_if(f, BPF_JEQ, AF_NETLINK, SECCOMP_RET_ALLOW);
    }
    answer(f, REFUSE);
    close_block(f, block);
}

static void add_clone(struct filter *f)
{
    const uint32_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    unsigned short block = open_block(f, SYS_clone);
    load(f, arg(0));
    answer_if(f, BPF_JSET, namespaces, REFUSE);
    close_block(f, block);
}

static void add_ioctl(struct filter *f)
{
    unsigned short block = open_block(f, SYS_ioctl);
    load(f, arg(1));
    answer_if(f, BPF_JEQ, TIOCSTI, REFUSE);
    answer_if(f, BPF_JEQ, TIOCLINUX, REFUSE);
    close_block(f, block);
}

enum err seccomp_restrict(const struct seccomp_rules *rules, struct error *e)
{
    if (ARCH == 0U)
        return err_set(e, ERR_UNSUPPORTED, "seccomp: no filter for this architecture");
    struct filter f = {.n = 0};
    load(&f, offsetof(struct seccomp_data, arch));
    emit(&f, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
    answer(&f, NOT_THERE);
    load(&f, offsetof(struct seccomp_data, nr));
    answer_if(&f, BPF_JGE, X32_BIT, NOT_THERE);
    answer_list(&f, denied, sizeof denied / sizeof denied[0], REFUSE);
    answer_list(&f, not_there, sizeof not_there / sizeof not_there[0], NOT_THERE);
    if (!rules->allow_ptrace)
        answer_list(&f, denied_tracing, sizeof denied_tracing / sizeof denied_tracing[0],
                    REFUSE);
    add_socket(&f, rules);
    add_clone(&f);
    add_ioctl(&f);
    answer(&f, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {f.n, f.code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
        return err_sys(e, errno, "seccomp: filter");
    return OK;
}
