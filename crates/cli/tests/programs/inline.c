/* System calls without the C library, in a directory: what each answers.
 *
 * `inline calls DIRECTORY`   those of numbered.c
 * `inline traps DIRECTORY`   from threads, signal handlers, with signals blocked …
 * `inline forks DIRECTORY`   the same, and from children
 * `inline cost DIRECTORY`    nanoseconds of its core that a call takes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}
#define RAW(number, ...) RAW_(number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(number, a, b, c, d, e, f, ...) \
    raw(SYS_##number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* As the C library's `syscall`. */
static long inline_call(long number, ...) {
    long words[6];
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++) words[at] = va_arg(list, long);
    va_end(list);
    long result = raw(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (result >= 0 || result < -4095) return result;
    errno = -result;
    return -1;
}
#define syscall inline_call
#define main numbered
#include "numbered.c"
#undef main

/* Makes a file by a call of the program's own, writes to it, and tells. */
static void touch(const char *name) {
    errno = 77;
    long fd = RAW(openat, AT_FDCWD, name, O_RDWR | O_CREAT, 0600);
    long wrote = fd < 0 ? fd : RAW(pwrite64, fd, "text", 4, 0);
    long closed = fd < 0 ? fd : RAW(close, fd);
    printf("%s: %s, %ld, %ld, errno %d\n", name, fd < 0 ? strerror(-fd) : "open", wrote, closed, errno);
    fflush(stdout);
}

static void *thread(void *name) {
    touch(name);
    return NULL;
}
static int thread_c11(void *name) {
    touch(name);
    return 0;
}
static void *leaving(void *name) {
    touch(name);
    RAW(exit, 0);
    return NULL;
}

static void *exiting(void *name) {
    touch(name);
    pthread_exit(name);
}
static void *waiting(void *name) {
    touch(name);
    while (pause());
    return NULL;
}

static void threads(void) {
    pthread_t one;
    thrd_t two;
    pthread_create(&one, NULL, thread, "thread");
    pthread_join(one, NULL);
    thrd_create(&two, thread_c11, "C11 thread");
    thrd_join(two, NULL);
    pthread_create(&one, NULL, leaving, "thread that leaves");
    pthread_join(one, NULL);
    void *result;
    pthread_create(&one, NULL, exiting, "thread that exits");
    pthread_join(one, &result);
    printf("%s\n", (char *)result);
    pthread_create(&one, NULL, waiting, "thread that is cancelled");
    pthread_cancel(one);
    pthread_join(one, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
}

static void child(long pid, const char *name) {
    int status;
    if (pid == 0) {
        touch(name);
        RAW(exit_group, 3);
    }
    printf("%s: %s, ", name, pid > 0 ? "begun" : strerror(-pid));
    printf("%d\n", waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : -1);
    fflush(stdout);
}

static void children(void) {
    child(fork(), "fork");
    child(RAW(fork), "raw fork");
    child(RAW(vfork), "raw vfork");
    child(RAW(clone, SIGCHLD, 0, 0, 0, 0), "raw clone");
}

static const char *volatile in_handler;
static volatile int handled;
static void handler(int signal) {
    (void)signal;
    handled++;
    if (in_handler) touch(in_handler);
}

/* An action by a call of the program's own, whose handler returns by one. */
struct action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};
void restore(void);
__asm__("restore: mov $15, %eax\n syscall\n");

static char stack[1 << 20];
static int on_stack;
static void on_own_stack(int signal) {
    char here;
    on_stack = &here >= stack && &here < stack + sizeof stack;
    handler(signal);
}

static void signals(void) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    touch("all signals blocked");
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    touch("all signals blocked in the thread");
    sigprocmask(SIG_SETMASK, &before, NULL);

    unsigned long set = ~0ul, old = 0, now = 0;
    printf("raw mask: %ld\n", RAW(rt_sigprocmask, SIG_BLOCK, &set, &old, 8));
    touch("all signals blocked by number");
    RAW(rt_sigprocmask, SIG_SETMASK, &old, &now, 8);
    printf("blocked: %d, of another length: %ld\n", !!(now & 1ul << (SIGUSR1 - 1)), RAW(rt_sigprocmask, 0, &set, 0, 16));

    struct sigaction action = {.sa_handler = handler, .sa_mask = all};
    in_handler = "handler that blocks all signals";
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    in_handler = "handler of a call of the program's own";
    RAW(tgkill, getpid(), gettid(), SIGUSR1);

    struct action own = {handler, 0x04000000, restore, ~0ul}, was;
    in_handler = "handler that returns by itself";
    printf("raw action: %ld\n", RAW(rt_sigaction, SIGUSR1, &own, 0, 8));
    raise(SIGUSR1);
    RAW(tgkill, getpid(), gettid(), SIGUSR1);
    RAW(rt_sigaction, SIGUSR1, 0, &was, 8);
    printf("raw action: %d\n", was.handler == handler);

    in_handler = "handler on another stack";
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack}, known;
    printf("raw stack: %ld\n", RAW(sigaltstack, &other, 0));
    action.sa_handler = on_own_stack;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaltstack(NULL, &known);
    printf("on it: %d, known: %d\n", on_stack, known.ss_sp == stack);

    in_handler = "handler that ends a wait";
    action.sa_handler = handler;
    action.sa_flags = 0;
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_BLOCK, &all, &before);
    alarm(1);
    sigset_t but = all;
    sigdelset(&but, SIGALRM);
    printf("sigsuspend: %d\n", sigsuspend(&but));
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static sigjmp_buf away;
static void jump(int signal) {
    touch("handler that jumps");
    siglongjmp(away, signal);
}

static void interruptions(void) {
    int pipes[2];
    char byte;
    struct sigaction action = {.sa_handler = handler};
    if (pipe(pipes)) exit(2);
    in_handler = "handler that interrupts";
    sigaction(SIGALRM, &action, NULL);
    alarm(1);
    printf("interrupted: %s\n", strerror(-RAW(read, pipes[0], &byte, 1)));
    action.sa_handler = jump;
    sigaction(SIGALRM, &action, NULL);
    if (!sigsetjmp(away, 1)) {
        alarm(1);
        RAW(read, pipes[0], &byte, 1);
    }
    touch("after a jump");
}

/* SIGSYS is the program's, too. */
static volatile int why;
static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal;
    why = info->si_code;
    if (why == 1) ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void sigsys(void) {
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO}, before;
    struct action was;
    signal(SIGSYS, SIG_IGN);
    raise(SIGSYS);
    sigaction(SIGSYS, &action, &before);
    raise(SIGSYS);
    RAW(rt_sigaction, SIGSYS, 0, &was, 8);
    printf("SIGSYS: %d, %d, %d\n", why, before.sa_handler == SIG_IGN, (void *)was.handler == (void *)trapped);
    touch("own action for SIGSYS");
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioprio_get, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    printf("filter: %d\n", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    printf("filtered: %ld", RAW(ioprio_get, 1, 0));
    printf(", %d\n", why);
    touch("after a filter");
}

static void mapped(void) {
    long fd = RAW(openat, AT_FDCWD, "mapped", O_RDWR | O_CREAT, 0600);
    char text[8] = "";
    RAW(ftruncate, fd, 8192);
    char *map = (char *)RAW(mmap, 0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if ((unsigned long)map > -4096ul) {
        printf("mmap: %s\n", strerror(-(long)map));
        return;
    }
    strcpy(map + 4096, "mapped");
    printf("msync: %ld\n", RAW(msync, map, 8192, MS_SYNC));
    RAW(pread64, fd, text, 6, 4096);
    printf("%s, munmap: %ld\n", text, RAW(munmap, map, 8192));
    printf("close: %ld\n", RAW(close, fd));
}

static void listed(void) {
    char entries[4096], where[4096] = "";
    long fd = RAW(openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY), names = 0, bytes;
    while ((bytes = RAW(getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < bytes; at += *(unsigned short *)(entries + at + 16)) names++;
    printf("%ld names, %ld, closed: %ld\n", names, bytes, RAW(close, fd));
    long len = RAW(getcwd, where, sizeof where);
    printf("where: %d\n", len == (long)strlen(where) + 1 && len > 1);
    printf("short: %s\n", strerror(-RAW(getcwd, where, 1)));
    struct iovec piece = {where, 4};
    fd = RAW(openat, AT_FDCWD, "thread", O_RDONLY);
    printf("pieces: %ld", RAW(preadv, fd, &piece, 1, 0));
    printf(", %ld", RAW(preadv2, fd, &piece, 1, 0, 0, 0));
    printf(", at its position %ld", RAW(preadv2, fd, &piece, 1, -1, -1, 0));
    printf(", advice %ld, %s\n", RAW(fadvise64, fd, 0, 0, 0), strerror(-RAW(fadvise64, fd, 0, 0, 99)));
    printf("access: %ld, %s\n", RAW(faccessat, AT_FDCWD, "thread", R_OK), strerror(-RAW(faccessat, AT_FDCWD, "none", R_OK)));
    printf("mode: %ld\n", RAW(fchmodat, AT_FDCWD, "thread", 0640));
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    struct timespec none = {0, 0};
    printf("ready: %ld\n", RAW(pselect6, fd + 1, &read, 0, 0, &none, 0));
    printf("closed: %ld\n", RAW(close, fd));
}

/* Of this thread's core: other processes may have it, too. */
static long used_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1000000000L + used.tv_nsec;
}
/* The best of 100 rows of so many calls. */
#define COST(name, times, call)                                          \
    do {                                                                 \
        long best = -1, row, begin;                                      \
        for (int at = 0; at < 100; at++) {                               \
            begin = used_ns();                                           \
            for (int of = 0; of < times; of++) call;                     \
            if ((row = used_ns() - begin) < best || best < 0) best = row; \
        }                                                                \
        printf("%s: %.1f\n", name, (double)best / times);                \
    } while (0)

static void cost(void) {
    static char page[4096];
    struct stat found;
    long zero = open("/dev/zero", O_RDONLY);
    int fd = open("cost", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || pwrite(fd, page, 4096, 0) != 4096) exit(2);
    COST("warm", 3000, (void)!pread(fd, page, 4096, 0));
    COST("getppid", 500, getppid());
    COST("getppid, inline", 500, RAW(getppid));
    COST("read of /dev/zero", 500, (void)!read(zero, page, 1));
    COST("read of /dev/zero, inline", 500, RAW(read, zero, page, 1));
    COST("pread 4 KiB", 2000, (void)!pread(fd, page, 4096, 0));
    COST("pread 4 KiB, inline", 500, RAW(pread64, fd, page, 4096, 0));
    COST("fstat", 1000, fstat(fd, &found));
    COST("stat", 1000, stat("cost", &found));
    COST("stat, inline", 500, RAW(newfstatat, AT_FDCWD, "cost", &found, 0));
}

int main(int count, char **words) {
    if (count != 3) return 2;
    if (!strcmp(words[1], "calls")) return numbered(2, words + 1);
    if (chdir(words[2])) return 2;
    if (!strcmp(words[1], "again")) {
        touch("executed");
        RAW(exit_group, 0);
    }
    if (!strcmp(words[1], "cost")) {
        cost();
        return 0;
    }
    touch("first");
    threads();
    if (!strcmp(words[1], "forks")) children();
    signals();
    interruptions();
    mapped();
    listed();
    sigsys();
    char *again[] = {words[0], "again", words[2], NULL};
    extern char **environ;
    fflush(stdout);
    printf("exec: %ld\n", RAW(execve, "/proc/self/exe", again, environ));
    return 1;
}
