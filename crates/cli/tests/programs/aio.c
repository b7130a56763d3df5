/* Asynchronous IO of a program that knows nothing of Adit: libaio (opened by name, or its system
 * calls) and POSIX aio, on files below one directory (the volume's) and in another (the host's).
 * What it demands is what Linux does: a test runs it on the host's own file system, too.
 *
 *     aio VOLUME HOST library|calls        tests
 *     aio VOLUME HOST ring                 asks for an io_uring
 *     aio VOLUME HOST undisturbed          waits beside requests of an io_uring that end
 *     aio VOLUME HOST writes               writes blocks until it is killed, and tells each that is done
 */
#define _GNU_SOURCE
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: %s (errno %s)\n", __LINE__, #condition, strerror(errno));             \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

typedef struct iocb iocb;
typedef struct io_event event;

/* The calls, with negative error numbers as libaio's. */
static int (*setup)(int, aio_context_t *);
static int (*destroy)(aio_context_t);
static int (*submit)(aio_context_t, long, iocb **);
static int (*cancel)(aio_context_t, iocb *, event *);
static int (*get)(aio_context_t, long, long, event *, struct timespec *);

static int raw_setup(int n, aio_context_t *c) { long r = syscall(SYS_io_setup, n, c); return r < 0 ? -errno : (int)r; }
static int raw_destroy(aio_context_t c) { long r = syscall(SYS_io_destroy, c); return r < 0 ? -errno : (int)r; }
static int raw_submit(aio_context_t c, long n, iocb **l) { long r = syscall(SYS_io_submit, c, n, l); return r < 0 ? -errno : (int)r; }
static int raw_cancel(aio_context_t c, iocb *i, event *e) { long r = syscall(SYS_io_cancel, c, i, e); return r < 0 ? -errno : (int)r; }
static int raw_get(aio_context_t c, long min, long max, event *e, struct timespec *t) {
    long r = syscall(SYS_io_getevents, c, min, max, e, t);
    return r < 0 ? -errno : (int)r;
}

#define BLOCK 4096
#define DEPTH 128
static char *blocks; /* DEPTH of them, aligned */

static iocb request(int opcode, int fd, void *buffer, size_t len, long long offset) {
    iocb made = {0};
    made.aio_lio_opcode = opcode, made.aio_fildes = fd, made.aio_buf = (uintptr_t)buffer;
    made.aio_nbytes = len, made.aio_offset = offset;
    return made;
}

/* Submits one and waits for its result. */
static long one(aio_context_t context, iocb made) {
    iocb *list[] = {&made};
    event done;
    made.aio_data = 77;
    int count = submit(context, 1, list);
    if (count < 0) return count;
    CHECK(get(context, 1, 1, &done, NULL) == 1 && done.data == 77 && done.obj == (uintptr_t)&made);
    return done.res;
}

static void errors(aio_context_t context) {
    aio_context_t other = 0, used = 1;
    CHECK(setup(0, &other) == -EINVAL && setup(1, &used) == -EINVAL && setup(1, NULL) == -EFAULT);
    CHECK(destroy(12345) == -EINVAL);
    int fd = open("errors", O_RDWR | O_CREAT | O_TRUNC, 0600), reader = open("errors", O_RDONLY);
    int path = open("errors", O_PATH), directory = open(".", O_RDONLY);
    CHECK(fd >= 0 && reader >= 0 && path >= 0 && directory >= 0 && write(fd, "0123456789", 10) == 10);
    iocb good = request(IOCB_CMD_PREAD, fd, blocks, 4, 0), bad = good, *list[] = {&good, &bad};
    event done[2];
    struct timespec now = {0, 0}, moment = {0, 1000000};
    CHECK(submit(12345, 1, list) == -EINVAL && submit(context, -1, list) == -EINVAL);
    CHECK(submit(context, 0, list) == 0);
    /* libaio looks into a context, so only the kernel can be asked about one that is none. */
    CHECK(get != raw_get || get(12345, 0, 1, done, &now) == -EINVAL);
    CHECK(get(context, 2, 1, done, &moment) == -EINVAL && get(context, -1, 1, done, &moment) == -EINVAL);
    CHECK(get(context, 0, 2, done, &now) == 0 && get(context, 1, 2, done, &moment) == 0);
    bad.aio_fildes = 9999;
    CHECK(submit(context, 1, list + 1) == -EBADF);
    /* Those before the bad one are submitted. */
    CHECK(submit(context, 2, list) == 1 && get(context, 1, 2, done, NULL) == 1 && done[0].res == 4);
    CHECK(cancel(context, &good, done) == -EINVAL);
    CHECK(one(context, request(99, fd, blocks, 4, 0)) == -EINVAL);
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, -1, 0)) == -EINVAL);
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, 4, -1)) == -EINVAL);
    CHECK(one(context, request(IOCB_CMD_PWRITE, reader, blocks, 4, 0)) == -EBADF);
    CHECK(one(context, request(IOCB_CMD_PREAD, path, blocks, 4, 0)) == -EBADF);
    CHECK(one(context, request(IOCB_CMD_FSYNC, fd, NULL, 4, 0)) == -EINVAL);
    bad = request(IOCB_CMD_PREAD, fd, blocks, 4, 0), bad.aio_reserved2 = 1;
    CHECK(one(context, bad) == -EINVAL);
    bad = request(IOCB_CMD_PREAD, fd, blocks, 4, 0), bad.aio_rw_flags = 1 << 20;
    CHECK(one(context, bad) == -EOPNOTSUPP);
    bad = request(IOCB_CMD_PREAD, fd, blocks, 4, 0), bad.aio_flags = IOCB_FLAG_RESFD, bad.aio_resfd = 9999;
    CHECK(one(context, bad) == -EBADF);
    bad.aio_resfd = fd;
    CHECK(one(context, bad) == -EINVAL);
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, 4, 8)) == 2 && memcmp(blocks, "89", 2) == 0);
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, 4, 100)) == 0);
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, 0, 0)) == 0);
    CHECK(close(fd) == 0 && close(reader) == 0 && close(path) == 0 && close(directory) == 0);
}

static unsigned char mark(int block, int round) { return (unsigned char)(block * 7 + round * 31 + 1); }

/* All blocks at once, in pieces of so many, with direct and cached IO. */
static void depth(aio_context_t context, int flags, int piece) {
    static iocb made[DEPTH];
    static event done[DEPTH];
    iocb *list[DEPTH];
    int fd = open("depth", O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    CHECK(fd >= 0);
    for (int round = 0; round < 4; round++) {
        for (int reads = 0; reads < 2; reads++) {
            int seen = 0;
            for (int i = 0; i < DEPTH; i++) {
                memset(blocks + i * BLOCK, reads ? 0 : mark(i, round), BLOCK);
                int opcode = reads ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
                made[i] = request(opcode, fd, blocks + i * BLOCK, BLOCK, (long long)i * BLOCK);
                made[i].aio_data = i, list[i] = &made[i];
            }
            for (int i = 0; i < DEPTH; i += piece) CHECK(submit(context, piece, list + i) == piece);
            while (seen < DEPTH) {
                int count = get(context, 1, DEPTH, done, NULL);
                CHECK(count >= 1);
                for (int i = 0; i < count; i++) {
                    CHECK(done[i].res == BLOCK && done[i].obj == (uintptr_t)&made[done[i].data]);
                    CHECK(made[done[i].data].aio_nbytes == BLOCK);
                    made[done[i].data].aio_nbytes = 0; /* once */
                }
                seen += count;
            }
            for (int i = 0; reads && i < DEPTH; i++)
                CHECK(blocks[i * BLOCK] == (char)mark(i, round) && blocks[i * BLOCK + BLOCK - 1] == (char)mark(i, round));
        }
        CHECK(one(context, request(round % 2 ? IOCB_CMD_FSYNC : IOCB_CMD_FDSYNC, fd, NULL, 0, 0)) == 0);
    }
    CHECK(close(fd) == 0);
}

static void vectors(aio_context_t context) {
    int fd = open("vectors", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char a[3] = "abc", b[4] = "defg", back[7];
    struct iovec out[] = {{a, 3}, {NULL, 0}, {b, 4}}, in[] = {{back, 5}, {back + 5, 2}};
    iocb made = request(IOCB_CMD_PWRITEV, fd, out, 3, 10);
    made.aio_rw_flags = RWF_DSYNC;
    CHECK(one(context, made) == 7);
    CHECK(one(context, request(IOCB_CMD_PREADV, fd, in, 2, 10)) == 7 && memcmp(back, "abcdefg", 7) == 0);
    made = request(IOCB_CMD_PWRITE, fd, "end", 3, 0);
    made.aio_rw_flags = RWF_APPEND;
    CHECK(one(context, made) == 3 && lseek(fd, 0, SEEK_END) == 20);
    CHECK(one(context, request(IOCB_CMD_PWRITEV, fd, out, 5000, 0)) == -EINVAL);
    CHECK(close(fd) == 0);
}

static void closed_while_under_way(aio_context_t context) {
    int fd = open("closed", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    iocb made[8], *list[8];
    event done[8];
    memset(blocks, 'c', BLOCK);
    for (int i = 0; i < 8; i++) made[i] = request(IOCB_CMD_PWRITE, fd, blocks, BLOCK, i * BLOCK), list[i] = &made[i];
    CHECK(submit(context, 8, list) == 8 && close(fd) == 0 && get(context, 8, 8, done, NULL) == 8);
    for (int i = 0; i < 8; i++) CHECK(done[i].res == BLOCK);
    fd = open("closed", O_RDONLY);
    CHECK(lseek(fd, 0, SEEK_END) == 8 * BLOCK && close(fd) == 0);
}

static void eventfds(aio_context_t context) {
    int fd = open("eventfd", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600), bell = eventfd(0, EFD_NONBLOCK);
    int poller = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN}, got;
    CHECK(fd >= 0 && bell >= 0 && epoll_ctl(poller, EPOLL_CTL_ADD, bell, &wanted) == 0);
    for (int round = 0; round < 50; round++) {
        iocb made[4], *list[4];
        event done[4];
        struct timespec now = {0, 0};
        for (int i = 0; i < 4; i++) {
            made[i] = request(round % 2 ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, fd, blocks + i * BLOCK, BLOCK, i * BLOCK);
            made[i].aio_flags = IOCB_FLAG_RESFD, made[i].aio_resfd = bell, list[i] = &made[i];
        }
        CHECK(submit(context, 4, list) == 4);
        for (uint64_t seen = 0, more; seen < 4; seen += more) {
            int ready;
            while ((ready = epoll_wait(poller, &got, 1, -1)) < 0 && errno == EINTR) {}
            CHECK(ready == 1 && read(bell, &more, 8) == 8);
        }
        CHECK(get(context, 4, 4, done, &now) == 4);
    }
    CHECK(close(fd) == 0 && close(bell) == 0 && close(poller) == 0);
}

static aio_context_t shared;
static void *wait_for_one(void *result) {
    event done;
    int count = get(shared, 1, 1, &done, NULL);
    *(long *)result = count == 1 ? (long)done.data : count;
    return NULL;
}

static void mixed(aio_context_t context, const char *host) {
    char name[512];
    snprintf(name, sizeof name, "%s/mixed", host);
    int ours = open("mixed", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    int theirs = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600), ends[2];
    CHECK(ours >= 0 && theirs >= 0 && pipe(ends) == 0);
    iocb made[DEPTH], *list[DEPTH];
    event done[DEPTH];
    for (int reads = 0; reads < 2; reads++) {
        for (int i = 0; i < DEPTH; i++) {
            int opcode = reads ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
            memset(blocks + i * BLOCK, reads ? 0 : mark(i, 9), BLOCK);
            made[i] = request(opcode, i % 3 ? ours : theirs, blocks + i * BLOCK, BLOCK, (long long)i * BLOCK);
            made[i].aio_data = i, list[i] = &made[i];
        }
        CHECK(submit(context, DEPTH, list) == DEPTH);
        int seen = 0;
        while (seen < DEPTH) {
            int count = get(context, 5 < DEPTH - seen ? 5 : DEPTH - seen, DEPTH, done, NULL);
            CHECK(count >= 1);
            for (int i = 0; i < count; i++) CHECK(done[i].res == BLOCK);
            seen += count;
        }
        for (int i = 0; reads && i < DEPTH; i++) CHECK(blocks[i * BLOCK] == (char)mark(i, 9));
    }
    /* One that the kernel keeps for long, and a thread that waits for whichever comes first. */
    iocb polls = request(IOCB_CMD_POLL, ends[0], (void *)POLLIN, 0, 0), *first = &polls;
    polls.aio_data = 1000;
    CHECK(submit(context, 1, &first) == 1);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        long result = 0;
        shared = context;
        CHECK(pthread_create(&thread, NULL, wait_for_one, &result) == 0);
        if (i % 2) usleep(3000);
        made[0] = request(i % 4 < 2 ? IOCB_CMD_PWRITE : IOCB_CMD_FDSYNC, ours, NULL, 0, 0);
        if (i % 4 < 2) made[0].aio_buf = (uintptr_t)blocks, made[0].aio_nbytes = BLOCK;
        made[0].aio_data = i + 1;
        CHECK(submit(context, 1, list) == 1 && pthread_join(thread, NULL) == 0 && result == i + 1);
    }
    struct timespec moment = {0, 2000000};
    CHECK(get(context, 1, 1, done, &moment) == 0);
    CHECK(write(ends[1], "x", 1) == 1 && get(context, 1, 1, done, NULL) == 1 && done[0].data == 1000);
    CHECK(close(ours) == 0 && close(theirs) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void ignore(int number) { (void)number; }
static void interrupted(aio_context_t context) {
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART}, before;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    event done;
    int ends[2];
    CHECK(sigaction(SIGALRM, &action, &before) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    CHECK(get(context, 1, 1, &done, NULL) == -EINTR);
    CHECK(pipe(ends) == 0);
    iocb polls = request(IOCB_CMD_POLL, ends[0], (void *)POLLIN, 0, 0), *list = &polls;
    CHECK(submit(context, 1, &list) == 1 && get(context, 1, 1, &done, NULL) == -EINTR);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0);
    CHECK(write(ends[1], "x", 1) == 1 && get(context, 1, 1, &done, NULL) == 1);
    close(ends[0]), close(ends[1]);
}

/* A system call that the preloaded library doesn't see. */
static long unseen(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

/* Requests of an io_uring that end after 20, 40, and 60 ms: the kernel completes them in this
 * thread, as it does those of an embedded volume. */
static void soon_completed(void) {
    static struct __kernel_timespec after[3];
    struct io_uring_params params = {0};
    int ring = unseen(__NR_io_uring_setup, 4, (long)&params, 0, 0);
    CHECK(ring >= 0);
    size_t len = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    char *queue = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    len = params.sq_entries * sizeof(struct io_uring_sqe);
    struct io_uring_sqe *entries = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(queue != MAP_FAILED && entries != MAP_FAILED);
    for (unsigned i = 0; i < 3; i++) {
        after[i].tv_nsec = (i + 1) * 20000000;
        entries[i] = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uintptr_t)&after[i], .len = 1};
        ((unsigned *)(queue + params.sq_off.array))[i] = i;
    }
    __atomic_store_n((unsigned *)(queue + params.sq_off.tail), 3, __ATOMIC_RELEASE);
    CHECK(unseen(__NR_io_uring_enter, ring, 3, 0, 0) == 3);
}

/* No such request ends a wait, with and without a timeout; a handler does (`interrupted`). */
static void undisturbed(aio_context_t context) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    iocb polls = request(IOCB_CMD_POLL, ends[0], (void *)POLLIN, 0, 0), *list = &polls;
    event done;
    struct timespec moment = {0, 100000000};
    for (int waits = 0; waits < 2; waits++) {
        soon_completed();
        CHECK(get(context, 1, 1, &done, &moment) == 0);
        if (waits == 0) CHECK(submit(context, 1, &list) == 1);
    }
    interrupted(context);
    pid_t child = fork();
    if (child == 0) usleep(100000), _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    soon_completed();
    CHECK(get(context, 1, 1, &done, NULL) == 1 && waitpid(child, NULL, 0) == child);
}

static void ended(void) {
    pthread_t thread;
    long result = 0;
    shared = 0;
    CHECK(setup(4, &shared) == 0 && pthread_create(&thread, NULL, wait_for_one, &result) == 0);
    usleep(20000);
    CHECK(destroy(shared) == 0 && pthread_join(thread, NULL) == 0 && result == -EINVAL);
    CHECK(destroy(shared) == -EINVAL);
    /* With requests under way: it waits for them. */
    int fd = open("ended", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    iocb made[16], *list[16];
    shared = 0;
    memset(blocks, 'e', BLOCK);
    for (int i = 0; i < 16; i++) made[i] = request(IOCB_CMD_PWRITE, fd, blocks, BLOCK, i * BLOCK), list[i] = &made[i];
    CHECK(setup(16, &shared) == 0 && submit(shared, 16, list) == 16 && destroy(shared) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == 16 * BLOCK && close(fd) == 0);
}

static void children(aio_context_t context) {
    int fd = open("children", O_RDWR | O_CREAT, 0600), status;
    pid_t child = fork();
    if (child == 0) {
        iocb made = request(IOCB_CMD_PREAD, fd, blocks, 1, 0), *list = &made;
        _exit(submit(context, 1, &list) == -EINVAL ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && close(fd) == 0);
}

#define SUBMITTERS 4
#define EACH 400
static int shared_fd;
static void *submits(void *argument) {
    static iocb made[SUBMITTERS][EACH];
    for (int i = 0; i < EACH; i++) {
        iocb *next = &made[(intptr_t)argument][i];
        *next = request(i % 2 ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, shared_fd, blocks + (intptr_t)argument * BLOCK, BLOCK, i * BLOCK);
        int count;
        while ((count = submit(shared, 1, &next)) == -EAGAIN) usleep(100);
        CHECK(count == 1);
    }
    return NULL;
}

static void many_threads(void) {
    pthread_t threads[SUBMITTERS];
    event done[64];
    shared = 0, shared_fd = open("threads", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    CHECK(setup(32, &shared) == 0 && ftruncate(shared_fd, EACH * BLOCK) == 0);
    for (intptr_t i = 0; i < SUBMITTERS; i++) CHECK(pthread_create(&threads[i], NULL, submits, (void *)i) == 0);
    for (int seen = 0, count; seen < SUBMITTERS * EACH; seen += count) {
        CHECK((count = get(shared, 1, 64, done, NULL)) >= 1);
        for (int i = 0; i < count; i++) CHECK(done[i].res == BLOCK);
    }
    for (int i = 0; i < SUBMITTERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(destroy(shared) == 0 && close(shared_fd) == 0);
}

static void mapped(aio_context_t context) {
    int fd = open("maps", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    iocb made[32], *list[32];
    event done[32];
    memset(blocks, 'm', BLOCK);
    CHECK(ftruncate(fd, 32 * BLOCK) == 0);
    for (int i = 0; i < 32; i++) made[i] = request(IOCB_CMD_PWRITE, fd, blocks, BLOCK, i * BLOCK), list[i] = &made[i];
    CHECK(submit(context, 32, list) == 32);
    char *map = mmap(NULL, 32 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && get(context, 32, 32, done, NULL) == 32);
    for (int i = 0; i < 32; i++) CHECK(map[i * BLOCK] == 'm');
    map[5] = 'n';
    CHECK(one(context, request(IOCB_CMD_PREAD, fd, blocks, BLOCK, 0)) == BLOCK && blocks[5] == 'n');
    CHECK(munmap(map, 32 * BLOCK) == 0 && close(fd) == 0);
}

/* ---------------------------------------------------------------- POSIX aio */

static volatile sig_atomic_t signals, signal_value, signal_code;
static void count_signal(int number, siginfo_t *information, void *context) {
    (void)number, (void)context;
    signal_value = information->si_value.sival_int, signal_code = information->si_code, signals++;
}
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int notices;
static void count_notice(union sigval value) {
    pthread_mutex_lock(&lock);
    notices += value.sival_int;
    pthread_cond_broadcast(&told);
    pthread_mutex_unlock(&lock);
}

static struct aiocb posix_request(int fd, void *buffer, size_t len, off_t offset) {
    struct aiocb made;
    memset(&made, 0, sizeof made);
    made.aio_fildes = fd, made.aio_buf = buffer, made.aio_nbytes = len, made.aio_offset = offset;
    made.aio_sigevent.sigev_notify = SIGEV_NONE;
    return made;
}

static ssize_t result_of(struct aiocb *made) {
    const struct aiocb *list[] = {NULL, made};
    while (aio_error(made) == EINPROGRESS) CHECK(aio_suspend(list, 2, NULL) == 0 || errno == EINTR);
    int error = aio_error(made);
    ssize_t count = aio_return(made);
    return error ? -error : count;
}

static void posix(const char *host, int flags) {
    char name[512];
    snprintf(name, sizeof name, "%s/posix", host);
    int fd = open("posix", O_RDWR | O_CREAT | O_TRUNC | flags, 0600), theirs = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int reader = open("posix", O_RDONLY);
    CHECK(fd >= 0 && theirs >= 0 && reader >= 0);
    struct aiocb made[32], *list[32];
    for (int i = 0; i < 16; i++) {
        memset(blocks + i * BLOCK, mark(i, 3), BLOCK);
        made[i] = posix_request(fd, blocks + i * BLOCK, BLOCK, i * BLOCK);
        CHECK(aio_write(&made[i]) == 0);
    }
    made[16] = posix_request(fd, NULL, 0, 0);
    CHECK(aio_fsync(O_SYNC, &made[16]) == 0 && aio_fsync(77, &made[17]) == -1 && errno == EINVAL);
    CHECK(result_of(&made[16]) == 0);
    for (int i = 0; i < 16; i++) CHECK(result_of(&made[i]) == BLOCK);
    CHECK(aio_cancel(fd, NULL) == AIO_ALLDONE && aio_cancel(fd, &made[0]) == AIO_ALLDONE);
    CHECK(aio_cancel(9999, NULL) == -1 && errno == EBADF);
    memset(blocks, 0, DEPTH * BLOCK);
    made[0] = posix_request(fd, blocks, BLOCK, 15 * BLOCK);
    CHECK(aio_read(&made[0]) == 0 && result_of(&made[0]) == BLOCK && blocks[0] == (char)mark(15, 3));
    made[0] = posix_request(fd, blocks, BLOCK, 16 * BLOCK);
    CHECK(aio_read(&made[0]) == 0 && result_of(&made[0]) == 0);
    made[0] = posix_request(reader, blocks, BLOCK, 0);
    CHECK(aio_write(&made[0]) == 0 && result_of(&made[0]) == -EBADF);
    made[0] = posix_request(fd, blocks, BLOCK, -1);
    CHECK((aio_read(&made[0]) == 0 && result_of(&made[0]) == -EINVAL) || errno == EINVAL);
    made[0] = posix_request(fd, blocks, BLOCK, 0), made[0].aio_reqprio = -1;
    CHECK(aio_read(&made[0]) == -1 && errno == EINVAL);

    /* A signal, and a thread. */
    struct sigaction action = {.sa_sigaction = count_signal, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    signals = 0;
    made[0] = posix_request(fd, blocks, BLOCK, 0);
    made[0].aio_sigevent.sigev_notify = SIGEV_SIGNAL, made[0].aio_sigevent.sigev_signo = SIGUSR1;
    made[0].aio_sigevent.sigev_value.sival_int = 42;
    CHECK(aio_read(&made[0]) == 0);
    while (signals == 0) usleep(100);
    CHECK(signal_value == 42 && signal_code == SI_ASYNCIO && result_of(&made[0]) == BLOCK);
    notices = 0;
    for (int i = 0; i < 8; i++) {
        made[i] = posix_request(fd, blocks + i * BLOCK, BLOCK, i * BLOCK);
        made[i].aio_sigevent.sigev_notify = SIGEV_THREAD, made[i].aio_sigevent.sigev_notify_function = count_notice;
        made[i].aio_sigevent.sigev_value.sival_int = 1;
        CHECK(aio_read(&made[i]) == 0);
    }
    pthread_mutex_lock(&lock);
    while (notices < 8) pthread_cond_wait(&told, &lock);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 8; i++) CHECK(result_of(&made[i]) == BLOCK);

    /* Lists, of both files. */
    for (int reads = 0; reads < 2; reads++) {
        for (int waits = 0; waits < 2; waits++) {
            for (int i = 0; i < 32; i++) {
                memset(blocks + i * BLOCK, reads ? 0 : mark(i, waits), BLOCK);
                made[i] = posix_request(i % 2 ? fd : theirs, blocks + i * BLOCK, BLOCK, i * BLOCK);
                made[i].aio_lio_opcode = i == 20 ? LIO_NOP : reads ? LIO_READ : LIO_WRITE, list[i] = i == 10 ? NULL : &made[i];
            }
            struct sigevent all = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = count_notice, .sigev_value.sival_int = 100};
            notices = 0;
            CHECK(lio_listio(waits ? LIO_WAIT : LIO_NOWAIT, list, 32, waits ? NULL : &all) == 0);
            if (!waits) {
                pthread_mutex_lock(&lock);
                while (notices < 100) pthread_cond_wait(&told, &lock);
                pthread_mutex_unlock(&lock);
            }
            for (int i = 0; i < 32; i++) {
                if (i == 10 || i == 20) continue;
                CHECK(aio_error(&made[i]) == 0 && aio_return(&made[i]) == BLOCK);
                CHECK(!reads || blocks[i * BLOCK] == (char)mark(i, 1));
            }
        }
    }
    made[0] = posix_request(reader, blocks, BLOCK, 0), made[0].aio_lio_opcode = LIO_WRITE, list[0] = &made[0];
    CHECK(lio_listio(LIO_WAIT, list, 1, NULL) == -1 && errno == EIO && result_of(&made[0]) == -EBADF);

    /* Waiting for either of both. */
    made[0] = posix_request(fd, blocks, BLOCK, 0), made[1] = posix_request(theirs, blocks + BLOCK, BLOCK, BLOCK);
    CHECK(aio_read(&made[0]) == 0 && aio_read(&made[1]) == 0);
    for (int i = 0; i < 2; i++) CHECK(result_of(&made[i]) == BLOCK);
    CHECK(close(fd) == 0 && close(theirs) == 0 && close(reader) == 0);
}

static void writes(void) {
    int fd = open("written", O_RDWR | O_CREAT | O_DIRECT, 0600);
    aio_context_t context = 0;
    iocb made[16], *free_list[16];
    int free_count = 16;
    CHECK(fd >= 0 && setup(16, &context) == 0);
    for (int i = 0; i < 16; i++) free_list[i] = &made[i];
    for (int next = 0;; next++) {
        event done[16];
        iocb *taken = free_list[--free_count];
        char *block = blocks + (taken - made) * BLOCK;
        memset(block, 0, BLOCK), snprintf(block, BLOCK, "block %d", next);
        *taken = request(IOCB_CMD_PWRITE, fd, block, BLOCK, (long long)next % 4000 * BLOCK);
        taken->aio_data = next;
        CHECK(submit(context, 1, &taken) == 1);
        int count = get(context, free_count == 0, 16, done, NULL);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            char line[16];
            int len = snprintf(line, sizeof line, "%d\n", (int)done[i].data);
            CHECK(done[i].res == BLOCK && write(1, line, len) == len);
            free_list[free_count++] = (iocb *)(uintptr_t)done[i].obj;
        }
    }
}

int main(int count, char **arguments) {
    CHECK(count == 4 && chdir(arguments[1]) == 0 && posix_memalign((void **)&blocks, BLOCK, DEPTH * BLOCK) == 0);
    memset(blocks, 0, DEPTH * BLOCK);
    setup = raw_setup, destroy = raw_destroy, submit = raw_submit, cancel = raw_cancel, get = raw_get;
    if (strcmp(arguments[3], "writes") == 0) writes();
    if (strcmp(arguments[3], "undisturbed") == 0) {
        aio_context_t context = 0;
        CHECK(setup(4, &context) == 0);
        undisturbed(context);
        CHECK(destroy(context) == 0);
        puts("undisturbed");
        return 0;
    }
    if (strcmp(arguments[3], "ring") == 0) {
        /* Of the preloaded library; liburing need not be there. */
        int (*start)(unsigned, void *, unsigned);
        *(void **)&start = dlsym(RTLD_DEFAULT, "io_uring_queue_init");
        CHECK(start != NULL && start(8, blocks, 0) == -ENOSYS && start(8, blocks, 0) == -ENOSYS);
        puts("ENOSYS");
        return 0;
    }
    if (strcmp(arguments[3], "library") == 0) {
        void *library = dlopen("libaio.so.1", RTLD_NOW);
        CHECK(library != NULL);
        *(void **)&setup = dlsym(library, "io_setup"), *(void **)&destroy = dlsym(library, "io_destroy");
        *(void **)&submit = dlsym(library, "io_submit"), *(void **)&cancel = dlsym(library, "io_cancel");
        *(void **)&get = dlsym(library, "io_getevents");
        CHECK(setup && destroy && submit && cancel && get);
    }
    aio_context_t context = 0;
    CHECK(setup(DEPTH, &context) == 0);
    errors(context);
    depth(context, O_DIRECT, 1);
    depth(context, O_DIRECT, 32);
    depth(context, O_DIRECT, DEPTH);
    depth(context, 0, 16);
    vectors(context);
    closed_while_under_way(context);
    eventfds(context);
    mixed(context, arguments[2]);
    interrupted(context);
    ended();
    children(context);
    many_threads();
    mapped(context);
    posix(arguments[2], 0);
    posix(arguments[2], O_DIRECT);
    CHECK(destroy(context) == 0);
    /* Under way at the end of the process. */
    context = 0;
    int fd = open("at-exit", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    static iocb left[DEPTH];
    iocb *list[DEPTH];
    memset(blocks, 'x', BLOCK);
    for (int i = 0; i < DEPTH; i++) left[i] = request(IOCB_CMD_PWRITE, fd, blocks, BLOCK, i * BLOCK), list[i] = &left[i];
    CHECK(setup(DEPTH, &context) == 0 && submit(context, DEPTH, list) == DEPTH);
    puts("as on Linux");
    return 0;
}
