#include "tests/support/cuda_emulation.h"

#include "tests/support/cuda_report.h"

#include <sys/mman.h>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __x86_64__
/* swapcontext asks the kernel for the signal mask every time; a warp sum is ten switches for
 * each of its lanes. Saves what a callee must keep, leaves the stack pointer in *from, goes to
 * `to`. */
extern "C" void cuda_emulation_switch(void **from, void *to);
asm(R"(
    .text
    .globl cuda_emulation_switch
    .type cuda_emulation_switch, @function
cuda_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cuda_emulation_switch, . - cuda_emulation_switch
)");

struct context {
    void *sp;
};

static void context_make(context *c, void *stack, size_t bytes, void (*entry)())
{
    void **top = (void **)((uint8_t *)stack + bytes) - 2;
    *top = (void *)entry;
    c->sp = top - 6;
    memset(c->sp, 0, 6 * sizeof(void *));
}

static void context_switch(context *from, context *to)
{
    cuda_emulation_switch(&from->sp, to->sp);
}
#else
typedef ucontext_t context;

static void context_make(context *c, void *stack, size_t bytes, void (*entry)())
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
}

static void context_switch(context *from, context *to)
{
    swapcontext(from, to);
}
#endif

namespace cuda_emulation
{
place here;

namespace
{
const size_t STACK = 256 * 1024;
const unsigned MAX_THREADS = 1024;

enum state { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct fiber {
    struct context context;
    place where;
    enum state state;
    unsigned mask; /* of the exchange it waits in */
    /* What it brought: to exchanges of the whole warp, of which one lane can be at most one
     * ahead of another, in turn; to others, in a third place. */
    uint8_t mine[3][48];
    unsigned turn;
    void *fake_stack; /* ASan's */
};

struct block_run {
    const char *name;
    cuda_emulated_kernel *kernel;
    const std::function<void()> *body;
    fiber *fibers;
    unsigned n_threads, current;
    struct context scheduler;
    void *fake_stack;
    const void *stack;
    size_t stack_bytes;
    std::vector<uint8_t> *shared;
};

block_run *run;
cuda_emulated_kernel seen[128];
unsigned n_seen;
uint64_t n_blocks; /* of all kernels: changes the order of threads */

cuda_emulated_kernel *kernel_named(const char *name)
{
    for (unsigned i = 0; i < n_seen; i++)
        if (!strcmp(seen[i].name, name))
            return &seen[i];
    if (n_seen == sizeof seen / sizeof *seen)
        abort();
    seen[n_seen].name = name;
    return &seen[n_seen++];
}

uint8_t *stacks;
fiber *fibers;

[[noreturn]] void fail(const fiber &f, const char *what)
{
    fprintf(stderr, "cuda emulation: kernel %s, block (%u,%u,%u), thread %u: %s\n", run->name,
            f.where.block.x, f.where.block.y, f.where.block.z, (unsigned)(&f - fibers), what);
    abort();
}

void leave_fiber(fiber *f, bool for_good)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(for_good ? NULL : &f->fake_stack, run->stack,
                                   run->stack_bytes);
#else
    (void)for_good;
#endif
    context_switch(&f->context, &run->scheduler);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->fake_stack, &run->stack, &run->stack_bytes);
#endif
    here = f->where;
}

void fiber_main()
{
    fiber *f = &fibers[run->current];
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &run->stack, &run->stack_bytes);
#endif
    (*run->body)();
    f->state = DONE;
    leave_fiber(f, true);
}

void enter_fiber(unsigned i)
{
    run->current = i;
    here = fibers[i].where;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&run->fake_stack, stacks + i * STACK, STACK);
#endif
    context_switch(&run->scheduler, &fibers[i].context);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(run->fake_stack, NULL, NULL);
#endif
}

/* Lets the lanes of a warp that wait for the same exchange go on together once all of it are
 * there. first: the warp's first thread; n: its threads. */
bool release_exchange(unsigned first, unsigned n)
{
    fiber *warp = &fibers[first];
    unsigned waiting = 0, done = 0, released = 0;
    bool any = false;
    for (unsigned l = 0; l < n; l++) {
        waiting |= warp[l].state == AT_EXCHANGE ? 1u << l : 0;
        done |= warp[l].state == DONE ? 1u << l : 0;
    }
    for (unsigned l = 0; l < n; l++) {
        unsigned mask = warp[l].mask;
        if (!(waiting >> l & 1u) || released >> l & 1u)
            continue;
        if (mask & done)
            fail(warp[l], "waits in a warp exchange for a lane that has exited");
        if (n < 32 && mask >> n)
            fail(warp[l], "names lanes in a warp exchange that the block does not have");
        bool all = (waiting & mask) == mask;
        for (unsigned m = 0; m < n && all; m++)
            all = !(mask >> m & 1u) || warp[m].mask == mask;
        for (unsigned m = 0; m < n && all; m++)
            if (mask >> m & 1u)
                warp[m].state = READY;
        released |= all ? mask : 0;
        any |= all;
    }
    return any;
}

bool release_barrier()
{
    unsigned waiting = 0, done = 0;
    for (unsigned i = 0; i < run->n_threads; i++) {
        waiting += fibers[i].state == AT_BARRIER;
        done += fibers[i].state == DONE;
    }
    if (!waiting)
        return false;
    if (done)
        for (unsigned i = 0; i < run->n_threads; i++)
            if (fibers[i].state == DONE)
                fail(fibers[i], "exited while others wait in __syncthreads");
    if (waiting < run->n_threads)
        return false;
    for (unsigned i = 0; i < run->n_threads; i++)
        fibers[i].state = READY;
    run->kernel->barriers++;
    return true;
}

/* i-th of n (a power of two or not) in the order of this block. */
unsigned in_order(unsigned i, uint64_t block, unsigned n)
{
    switch (block % 3) {
    case 0:
        return i;
    case 1:
        return n - 1 - i;
    default: /* an odd factor permutes a power of two; else rotate */
        return (n & (n - 1)) == 0 ? (i * 37u + 11u) & (n - 1) : (i + n / 2) % n;
    }
}

/* Runs a warp as far as it comes: to a barrier, its end, or an exchange that is not complete.
 */
bool run_warp(unsigned first, unsigned n)
{
    bool moved = false, again = true;
    while (again) {
        for (unsigned i = 0; i < n; i++) {
            unsigned t = first + in_order(i, n_blocks, n);
            if (fibers[t].state == READY) {
                enter_fiber(t);
                moved = true;
            }
        }
        again = release_exchange(first, n);
    }
    return moved;
}

[[noreturn]] void report_stuck()
{
    for (unsigned i = 0; i < run->n_threads; i++)
        if (fibers[i].state != DONE)
            fail(fibers[i], fibers[i].state == AT_BARRIER
                                ? "waits in __syncthreads for ever"
                                : "waits in a warp exchange for ever");
    abort();
}

void run_block(const char *name, dim3 grid, dim3 block, uint3 at, size_t shared_bytes,
               const std::function<void()> &body)
{
    std::vector<uint8_t> shared(shared_bytes, 0xff);
    shared.shrink_to_fit();
    block_run r = {};
    r.name = name, r.kernel = kernel_named(name), r.body = &body, r.fibers = fibers,
    r.shared = &shared;
    r.n_threads = block.x * block.y * block.z;
    run = &r;
    for (unsigned i = 0; i < r.n_threads; i++) {
        fiber *f = &fibers[i];
        f->state = READY;
        f->where = {{i % block.x, i / block.x % block.y, i / block.x / block.y},
                    at,
                    block,
                    grid,
                    i % 32,
                    i / 32};
        f->turn = 0;
        context_make(&f->context, stacks + i * STACK, STACK, fiber_main);
    }
    unsigned n_warps = (r.n_threads + 31) / 32;
    for (bool alive = true; alive;) {
        bool moved = false;
        for (unsigned i = 0; i < n_warps; i++) {
            unsigned first = in_order(i, n_blocks, n_warps) * 32;
            moved |= run_warp(first, r.n_threads - first < 32 ? r.n_threads - first : 32);
        }
        alive = false;
        for (unsigned i = 0; i < r.n_threads && !alive; i++)
            alive = fibers[i].state != DONE;
        if (alive && !release_barrier() && !moved)
            report_stuck();
    }
    run = NULL;
    n_blocks++;
    r.kernel->blocks++;
    r.kernel->threads += r.n_threads;
}
} // namespace

void launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()> &body)
{
    unsigned n = block.x * block.y * block.z;
    if (!n || n > MAX_THREADS || shared_bytes > 227 * 1024 || grid.y > 65535 ||
        grid.z > 65535 || !grid.x || !grid.y || !grid.z) {
        fprintf(stderr,
                "cuda emulation: kernel %s: a launch of %ux%ux%u blocks of %u threads with %zu "
                "bytes of shared memory is refused by a device\n",
                name, grid.x, grid.y, grid.z, n, shared_bytes);
        abort();
    }
    if (!stacks) {
        stacks = (uint8_t *)mmap(NULL, STACK * MAX_THREADS, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED)
            abort();
        fibers = new fiber[MAX_THREADS];
    }
    kernel_named(name)->launches++;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++)
                run_block(name, grid, block, {x, y, z}, shared_bytes, body);
}

void *shared_memory()
{
    return run->shared->data();
}

void block_barrier()
{
    fiber *f = &fibers[run->current];
    f->state = AT_BARRIER;
    leave_fiber(f, false);
}

unsigned meet(unsigned mask, const void *mine, size_t bytes)
{
    fiber *f = &fibers[run->current];
    if (!(mask >> f->where.lane & 1u))
        fail(*f, "is not in the mask of its own warp exchange");
    run->kernel->exchanges++;
    unsigned slot = mask == 0xffffffffu ? f->turn++ % 2 : 2;
    memcpy(f->mine[slot], mine, bytes);
    f->mask = mask, f->state = AT_EXCHANGE;
    leave_fiber(f, false);
    return slot;
}

const void *lane_value(unsigned lane, unsigned slot)
{
    const fiber *f = &fibers[run->current / 32 * 32 + lane];
    if (!(fibers[run->current].mask >> lane & 1u))
        fail(fibers[run->current], "reads a lane that is not in the mask of its exchange");
    return f->mine[slot];
}

/* Eight values of shared memory, 16 bytes aligned to 16. */
void check_matrix_row(const void *row)
{
    size_t at = (size_t)((const uint8_t *)row - run->shared->data());
    if (at % 16 || at + 16 > run->shared->size())
        fail(fibers[run->current], "loads a matrix row that is not 16 aligned bytes of shared "
                                   "memory");
}

void part(unsigned slot)
{
    fiber *f = &fibers[run->current];
    if (slot < 2)
        return;
    f->state = AT_EXCHANGE; /* nobody brings its next value before all have read this one */
    leave_fiber(f, false);
}
} // namespace cuda_emulation

const struct cuda_emulated_kernel *cuda_emulated(unsigned i)
{
    return i < cuda_emulation::n_seen ? &cuda_emulation::seen[i] : NULL;
}

static float f32_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float bf16_to_f32(uint16_t half)
{
    return f32_of((uint32_t)half << 16);
}

static uint32_t bf16_of(float x)
{
    uint32_t u = bits_of(x);
    return x != x ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

uint32_t cuda_emulated_bf16x2_mul(uint32_t a, uint32_t b)
{
    return bf16_of(bf16_to_f32((uint16_t)a) * bf16_to_f32((uint16_t)b)) |
           bf16_of(bf16_to_f32((uint16_t)(a >> 16)) * bf16_to_f32((uint16_t)(b >> 16))) << 16;
}

static inline float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    if ((half & 0x7c00) == 0x7c00)
        return f32_of(sign | 0x7f800000u | (uint32_t)(half & 0x3ff) << 13);
    return f32_of(sign | bits_of(f32_of((uint32_t)(half & 0x7fff) << 13) * 0x1p112f));
}

float cuda_emulated_f16_to_f32(uint16_t half)
{
    return f16_to_f32(half);
}

static uint32_t f16_of(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return 0x7fffu;
    if (u >= 0x47800000u) /* 2^16 */
        return sign | 0x7c00u;
    if (u < 0x38800000u) /* below 2^-14: 0.5 has an ulp of 2^-24, so the sum rounds there */
        return sign | (bits_of(f32_of(u) + 0.5f) - 0x3f000000u);
    u += 0xfffu + (u >> 13 & 1u);
    return sign | (u - (112u << 23)) >> 13;
}

uint32_t cuda_emulated_f16x2(float x, float y)
{
    return f16_of(x) | f16_of(y) << 16;
}

/* What a lane brings to a product: its registers' halves, widened. */
struct fragments {
    float a[4][2], b[2][2];
};

template <float (*widen)(uint16_t)>
static void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    unsigned lane = cuda_emulation::here.lane;
    struct fragments mine;
    for (unsigned r = 0; r < 4; r++)
        mine.a[r][0] = widen((uint16_t)a[r]), mine.a[r][1] = widen((uint16_t)(a[r] >> 16));
    for (unsigned r = 0; r < 2; r++)
        mine.b[r][0] = widen((uint16_t)b[r]), mine.b[r][1] = widen((uint16_t)(b[r] >> 16));
    cuda_emulation::run->kernel->products++;
    float x[2][16], y[2][16]; /* the rows of A and columns of B of this lane's results */
    unsigned slot = cuda_emulation::meet(0xffffffffu, &mine, sizeof mine);
    const cuda_emulation::fiber *warp =
        &cuda_emulation::fibers[cuda_emulation::run->current / 32 * 32];
    /* A: register (k >= 8) * 2 + (row >= 8) of lane row%8*4 + k%8/2, half k%2: the rows lane/4
     * and lane/4 + 8 lie in the same four lanes. */
    for (unsigned q = 0; q < 4; q++) {
        const struct fragments *from =
            (const struct fragments *)warp[lane / 4 * 4 + q].mine[slot];
        for (unsigned r = 0; r < 4; r++)
            memcpy(&x[r % 2][r / 2 * 8 + q * 2], from->a[r], sizeof from->a[r]);
    }
    /* B: register (k >= 8) of lane column*4 + k%8/2, half k%2. */
    for (unsigned c = 0; c < 2; c++)
        for (unsigned q = 0; q < 4; q++) {
            const struct fragments *from =
                (const struct fragments *)warp[(lane % 4 * 2 + c) * 4 + q].mine[slot];
            for (unsigned r = 0; r < 2; r++)
                memcpy(&y[c][r * 8 + q * 2], from->b[r], sizeof from->b[r]);
        }
    cuda_emulation::part(slot);
    for (unsigned i = 0; i < 4; i++) { /* row lane/4 + i/2*8, column lane%4*2 + i%2 */
        float sum = 0;
        for (unsigned k = 0; k < 16; k++)
            sum += x[i / 2][k] * y[i % 2][k];
        d[i] += sum;
    }
}

void cuda_emulated_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma<bf16_to_f32>(d, a, b);
}

void cuda_emulated_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma<f16_to_f32>(d, a, b);
}

void cuda_emulated_ldmatrix(uint32_t r[4], const void *row, bool transposed)
{
    unsigned lane = cuda_emulation::here.lane;
    cuda_emulation::check_matrix_row(row);
    unsigned slot = cuda_emulation::meet(0xffffffffu, &row, sizeof row);
    for (unsigned m = 0; m < 4; m++)
        for (unsigned half = 0; half < 2; half++) {
            unsigned from = lane / 4, at = lane % 4 * 2 + half;
            const uint16_t *p;
            memcpy(&p, cuda_emulation::lane_value(m * 8 + (transposed ? at : from), slot),
                   sizeof p);
            uint32_t value = p[transposed ? from : at];
            r[m] = half ? r[m] | value << 16 : value;
        }
    cuda_emulation::part(slot);
}
