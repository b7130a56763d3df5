/* Does to a volume at argv[1] what programs shouldn't, or seldom do; argv[2] says what. The first thing
 * that is not as on Linux ends it with exit code 1 and a line that says what. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            dprintf(complaints, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static int complaints = 2;
static int file;

static int make(const char *name, int flags) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0666);
    CHECK(fd >= 0);
    return fd;
}

static off_t size_of(const char *name) {
    struct stat stat_;
    CHECK(stat(name, &stat_) == 0);
    return stat_.st_size;
}

/* A daemon has closed its standard streams before it opens the volume, and prints. */
static void closed_streams(const char *root) {
    complaints = fcntl(2, F_DUPFD, 20);
    for (int fd = 0; fd < 3; fd++) close(fd);
    CHECK(chdir(root) == 0);
    char text[] = "printed by a program that has no stdout\n";
    for (int fd = 0; fd < 3; fd++) CHECK(write(fd, text, sizeof text) == -1 && errno == EBADF);
    for (int fd = 0; fd < 3; fd++) CHECK(make("standard", 0) == fd);
    CHECK(write(1, "inside", 6) == 6 && size_of("standard") == 6);
}

/* A program that is started from a directory of the volume is not in one of the host. */
static void directory_of_children(const char *root) {
    CHECK(chdir(root) == 0 && mkdir("below", 0777) == 0 && chdir("below") == 0);
    CHECK(system("LD_PRELOAD= /bin/sh -c 'echo text > wrong' 2> /dev/null") != 0);
    CHECK(system("LD_PRELOAD= /bin/rm -f precious") == 0);
    char *outside = getenv("OUTSIDE");
    char command[4096];
    snprintf(command, sizeof command, "pwd > %s/where", outside);
    CHECK(system(command) == 0);
    pid_t child = vfork();
    if (child == 0) {
        /* This is the parent's memory. */
        int failed = chdir("/");
        _exit(failed);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    close(make("right", 0));
    CHECK(chdir(outside) == 0 && size_of("precious") == 8);
    CHECK(access("wrong", F_OK) == -1 && access("right", F_OK) == -1);
    char path[4096];
    snprintf(path, sizeof path, "%s/below/right", root);
    CHECK(access(path, F_OK) == 0);
}

/* A program that closes all numbers doesn't get those of mappings. */
static void numbers_of_mappings(const char *root) {
    char name[4096];
    snprintf(name, sizeof name, "%s/mapped", root);
    file = make(name, 0);
    CHECK(ftruncate(file, 8192) == 0);
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED);
    strcpy(memory, "mapped");
    for (int fd = 3; fd < 1024; fd++)
        if (fd != file) close(fd);
    for (int i = 0; i < 300; i++) CHECK(make("host", 0) >= 0);
    CHECK(pwrite(file, "bytes", 5, 100) == 5 && memcmp(memory + 100, "bytes", 5) == 0);
    CHECK(msync(memory, 8192, MS_SYNC) == 0 && size_of("host") == 0);
    char text[8];
    CHECK(pread(file, text, 7, 0) == 7 && strcmp(text, "mapped") == 0);
}

/* open that has no number left changes nothing. */
static void no_numbers_left(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("kept", 0);
    CHECK(write(file, "data", 4) == 4 && close(file) == 0);
    struct rlimit limit = {64, 64};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (dup(2) >= 0) {}
    CHECK(open("kept", O_WRONLY | O_TRUNC) == -1 && errno == EMFILE);
    CHECK(!fopen("kept", "w") && errno == EMFILE);
    CHECK(open("new", O_WRONLY | O_CREAT | O_EXCL, 0666) == -1 && errno == EMFILE);
    CHECK(size_of("kept") == 4 && access("new", F_OK) == -1 && errno == ENOENT);
}

/* Descriptors have names, too. */
static void names_of_descriptors(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("named", 0);
    char name[64], target[4096] = "", expected[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    int again = open(name, O_WRONLY);
    CHECK(again >= 0 && write(again, "some", 4) == 4 && size_of("named") == 4);
    snprintf(expected, sizeof expected, "%s/named", root);
    CHECK(readlink(name, target, sizeof target - 1) > 0 && strcmp(target, expected) == 0);
    snprintf(name, sizeof name, "/dev/fd/%d", file);
    CHECK(size_of(name) == 4);
    complaints = dup(2);
    CHECK(dup2(file, 1) == 1);
    FILE *stream = fopen("/dev/stdout", "a");
    CHECK(stream && fputs(" more", stream) >= 0 && fclose(stream) == 0 && size_of("named") == 9);
    CHECK(linkat(AT_FDCWD, name, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW) == 0 && size_of("linked") == 9);
}

static void *wait_for_stdin(void *argument) {
    char line[8];
    (void)argument;
    return fgets(line, sizeof line, stdin);
}

/* Another thread waits for input. */
static void exit_with_a_reader(const char *root) {
    pthread_t thread;
    CHECK(chdir(root) == 0);
    FILE *stream = fopen("written", "w");
    CHECK(stream && fputs("at exit", stream) >= 0);
    CHECK(pthread_create(&thread, NULL, wait_for_stdin, NULL) == 0);
    while (ftrylockfile(stdin) == 0) {
        funlockfile(stdin);
        usleep(1000);
    }
    CHECK(puts("reads") >= 0 && fflush(stdout) == 0);
}

/* RWF_APPEND writes at the end, wherever the offset is. */
static void flagged_appends(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("appended", 0);
    CHECK(write(file, "0123456789", 10) == 10);
    char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0), text[16] = "";
    CHECK(memory != MAP_FAILED);
    struct iovec piece = {"AB", 2};
    CHECK(pwritev2(file, &piece, 1, 0, RWF_APPEND) == 2);
    CHECK(pread(file, text, 15, 0) == 12 && strcmp(text, "0123456789AB") == 0);
    CHECK(writev(file, &piece, 1) == 2 && memcmp(memory, "0123456789AB", 12) == 0);
}

static void *write_and_sync(void *argument) {
    const int kind = *(const int *)argument;
    char page[4096] = {1};
    struct dirent **names;
    for (unsigned i = 0;; i++) {
        CHECK(pwrite(file, page, sizeof page, (off_t)(i % 64) * 4096) == sizeof page);
        if (kind == 0) {
            CHECK(i % 8 > 0 || fdatasync(file) == 0);
        } else if (kind == 1) {
            sync();
        } else {
            int count = scandir(".", &names, NULL, alphasort);
            CHECK(count >= 3);
            while (count > 0) free(names[--count]);
            free(names);
        }
    }
}

static void *open_fifo(void *name) {
    open(name, O_RDONLY);
    return NULL;
}

/* A cancelled thread keeps no lock of the volume. Some are cancelled while they open a FIFO of the
 * host. */
static void cancelled_threads(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("cancelled", 0);
    char fifo[] = "/tmp/adit-fifo-XXXXXX";
    CHECK(mkdtemp(fifo) && rmdir(fifo) == 0 && mkfifo(fifo, 0600) == 0);
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, open_fifo, fifo) == 0);
        usleep(2000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(unlink(fifo) == 0);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        void *result;
        int kind = i < 40 ? 0 : i < 60 ? 1 : 2;
        CHECK(pthread_create(&thread, NULL, write_and_sync, &kind) == 0);
        usleep(500 + 100 * (i % 40));
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(write(file, "x", 1) == 1 && fsync(file) == 0);
}

static volatile sig_atomic_t wrote, refused;

static void write_in_handler(int number) {
    int before = errno;
    (void)number;
    if (write(file, "h", 1) == 1)
        wrote = 1;
    else if (errno == EDEADLK)
        refused = 1;
    else
        _exit(3);
    errno = before;
}

/* A handler that writes to the volume while its thread does is refused, and waits for nobody. */
static void handlers(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("handled", O_APPEND);
    signal(SIGALRM, write_in_handler);
    struct itimerval every = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    char text[100] = "";
    for (long i = 0; i < 50000 || (!refused && i < 5000000); i++) CHECK(write(file, text, 100) == 100);
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0 && refused);
}

static void *write_numbered(void *argument) {
    (void)argument;
    for (;;) CHECK(write(file, "x", 1) == 1);
}

/* A log that is replaced is a file at any moment. */
static void replaced_log(const char *root) {
    CHECK(chdir(root) == 0);
    int one = make("one", O_APPEND), two = make("two", O_APPEND);
    file = dup(one);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_numbered, NULL) == 0);
    for (int i = 0; i < 20000; i++) CHECK(dup2(i % 2 ? one : two, file) == file);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
}

/* A warning goes to stderr, which is a file of the volume. */
static void stderr_inside(const char *root) {
    CHECK(chdir(root) == 0);
    complaints = dup(2);
    file = make("mapped", 0);
    CHECK(ftruncate(file, 4096) == 0 && dup2(make("errors", O_APPEND), 2) == 2);
    char *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED && mremap(memory, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK(write(file, "x", 1) == 1 && size_of("errors") > 0);
}

/* A child of vfork closes a file of its parent's; the parent's table is not the child's. */
static void closed_in_vfork(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("parents", 0);
    pid_t child = vfork();
    if (child == 0) {
        int failed = close(file);
        _exit(failed);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(file, "mine", 4) == 4 && close(file) == 0);
    int ends[2];
    CHECK(pipe(ends) == 0 && (ends[0] == file || ends[1] == file));
    CHECK(write(ends[1], "pipe", 4) == 4 && size_of("parents") == 4);
}

/* A file of the host that gets this number is the host's. */
static void next_is_of_the_host(int number) {
    char name[4096], text[8] = "";
    snprintf(name, sizeof name, "%s/host", getenv("OUTSIDE"));
    int host = open(name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    CHECK(host == number && write(host, "host", 4) == 4);
    CHECK(pread(host, text, 8, 0) == 4 && strcmp(text, "host") == 0 && close(host) == 0);
    CHECK(size_of(name) == 4 && size_of("inside") == 6);
}

/* The C library's own allocator, behind that of this program. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static volatile int is_interrupted;
static _Thread_local volatile int is_allocating;

/* While it is asked for, a signal comes in the middle of each call of the allocator. */
static void allocate(void) {
    if (!is_interrupted) return;
    CHECK(!is_allocating);
    is_allocating = 1;
    raise(SIGUSR1);
    is_allocating = 0;
}

void *malloc(size_t size) {
    allocate();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    allocate();
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    allocate();
    return __libc_realloc(memory, size);
}

void free(void *memory) {
    allocate();
    __libc_free(memory);
}

static volatile int handled;

/* Does in a handler what POSIX allows there. */
static void use_names_in_handler(int number) {
    int before = errno;
    (void)number;
    struct stat stat_;
    char text[8] = "", page[4096];
    int made = open("made", O_RDWR | O_CREAT | O_EXCL, 0666);
    struct flock whole = {.l_type = F_WRLCK};
    struct iovec pieces[2] = {{"wri", 3}, {"tten", 4}};
    CHECK(made >= 0 && writev(made, pieces, 2) == 7 && pread(made, text, 7, 0) == 7 && strcmp(text, "written") == 0);
    CHECK(fstat(made, &stat_) == 0 && stat_.st_size == 7 && lseek(made, 3, SEEK_SET) == 3 && read(made, text, 8) == 4);
    CHECK(fcntl(made, F_SETLK, &whole) == 0 && ftruncate(made, 2) == 0 && fchmod(made, 0600) == 0);
    int again = dup(made);
    CHECK(again >= 0 && dup2(made, again) == again && close(again) == 0 && (handled > 0 || fsync(made) == 0) && close(made) == 0);
    CHECK(rename("made", "moved") == 0 && link("moved", "linked") == 0 && symlink("moved", "symbolic") == 0);
    CHECK(readlink("symbolic", page, sizeof page) == 5 && mkdir("below", 0777) == 0 && access("below/../linked", W_OK) == 0);
    CHECK(chdir("below") == 0 && stat("../moved", &stat_) == 0 && chdir("..") == 0 && rmdir("below") == 0);
    CHECK(utimensat(AT_FDCWD, "moved", NULL, 0) == 0 && chmod("moved", 0644) == 0 && size_of("symbolic") == 2);
    CHECK(unlink("moved") == 0 && unlink("linked") == 0 && unlink("symbolic") == 0);
    handled++;
    errno = before;
}

static void *allocate_often(void *argument) {
    is_interrupted = 1;
    for (size_t i = 1; i <= 20; i++) {
        char *memory = malloc(i * 100);
        CHECK(memory && (memory = realloc(memory, i * 200)));
        free(memory);
    }
    is_interrupted = 0;
    return argument;
}

/* A handler that interrupts the program's allocator may use the volume: nothing enters it again. */
static void handlers_in_malloc(const char *root) {
    CHECK(chdir(root) == 0 && access("none", F_OK) == -1);
    CHECK(signal(SIGUSR1, use_names_in_handler) != SIG_ERR);
    allocate_often(NULL);
    CHECK(handled == 60);
    /* Of this thread it is the first call on the volume. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_often, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(handled >= 120);
}

static int is_refused(long result) {
    CHECK(result >= 0 || errno == EDEADLK);
    return result < 0;
}

static void use_or_be_refused(int number) {
    int before = errno;
    (void)number;
    struct stat stat_;
    struct flock whole = {.l_type = F_WRLCK};
    handled++;
    /* The host's files are there in any case. */
    int host = open("/dev/null", O_WRONLY);
    CHECK(host >= 0 && write(host, "x", 1) == 1 && close(host) == 0 && stat("/", &stat_) == 0);
    int is_busy = is_refused(stat(".", &stat_));
    CHECK(is_refused(chdir(".")) == is_busy && is_refused(pwrite(file, "x", 1, 0)) == is_busy);
    int made = open("made", O_RDWR | O_CREAT, 0666);
    CHECK(is_refused(made) == is_busy && (is_busy || (fcntl(made, F_SETLK, &whole) == 0 && close(made) == 0)));
    CHECK(is_refused(fcntl(file, F_SETLK, &whole)) == is_busy);
    if (handled % 50 == 0) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    refused += is_busy;
    errno = before;
}

/* A handler that interrupts any call on the volume waits for nobody. */
static void interrupted_calls(const char *root) {
    CHECK(chdir(root) == 0 && mkdir("below", 0777) == 0);
    file = make("kept", 0);
    struct sigaction action = {.sa_handler = use_or_be_refused, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    struct flock whole = {.l_type = F_WRLCK};
    struct stat stat_;
    char path[4096];
    for (long i = 0; i < 2000 || ((handled < 2000 || !refused) && i < 1000000); i++) {
        int unread, own = open("own", O_RDWR | O_CREAT, 0666);
        CHECK(own >= 0 && write(own, "x", 1) == 1 && ioctl(own, FIONREAD, &unread) == 0);
        CHECK(fcntl(own, F_SETLK, &whole) == 0 && dup2(own, 100) == 100 && close(100) == 0 && close(own) == 0);
        CHECK(stat("own", &stat_) == 0 && chdir("below") == 0 && getcwd(path, sizeof path) && chdir("..") == 0);
        CHECK(rename("own", "moved") == 0 && access("below/../moved", F_OK) == 0 && unlink("moved") == 0);
    }
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0 && handled && refused);
}

static void count_signal(int number) {
    (void)number;
    handled++;
}

static void *unlock_after_signals(void *argument) {
    while (handled < 5) usleep(1000);
    CHECK(flock(file, LOCK_UN) == 0);
    return argument;
}

/* A wait for a lock ends with a signal, or goes on if the handler says so. */
static void interrupted_locks(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("locked", 0);
    int other = open("locked", O_RDWR);
    struct flock whole = {.l_type = F_WRLCK};
    CHECK(flock(file, LOCK_EX) == 0 && fcntl(file, F_OFD_SETLK, &whole) == 0);
    struct sigaction action = {.sa_handler = count_signal};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 20000}, {0, 20000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    CHECK(flock(other, LOCK_SH) == -1 && errno == EINTR && handled > 0);
    CHECK(fcntl(other, F_OFD_SETLKW, &whole) == -1 && errno == EINTR);
    CHECK(fcntl(other, F_SETLKW, &whole) == -1 && errno == EINTR);
    CHECK(lockf(other, F_LOCK, 0) == -1 && errno == EINTR);
    CHECK(flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    /* It has none of the locks for which it waits no more, and not the one that it had before. */
    int third = open("locked", O_RDWR);
    struct flock free = whole;
    CHECK(flock(file, LOCK_SH) == 0 && flock(other, LOCK_SH) == 0);
    CHECK(flock(other, LOCK_EX) == -1 && errno == EINTR && flock(file, LOCK_EX | LOCK_NB) == 0);
    whole.l_type = F_UNLCK;
    CHECK(fcntl(file, F_OFD_SETLK, &whole) == 0);
    whole.l_type = F_WRLCK;
    CHECK(fcntl(third, F_OFD_GETLK, &free) == 0 && free.l_type == F_UNLCK);
    CHECK(flock(third, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK && close(third) == 0);
    // Rust's programs have such a handler of faults, which ends no wait.
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    sigset_t alarms, before;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, &before) == 0);
    handled = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unlock_after_signals, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(flock(other, LOCK_EX) == 0 && handled >= 5 && pthread_join(thread, NULL) == 0);
}

/* Processes that wait for a lock in a server end as the kernel's, and leave nothing behind. */
static void interrupted_children(const char *root) {
    CHECK(chdir(root) == 0);
    file = make("locked", 0);
    struct flock whole = {.l_type = F_WRLCK};
    CHECK(flock(file, LOCK_EX) == 0 && fcntl(file, F_SETLK, &whole) == 0);
    struct sigaction counted = {.sa_handler = count_signal};
    struct itimerval every = {{0, 20000}, {0, 20000}};
    for (int i = 0; i < 8; i++) {
        int is_range = i % 2, ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            int own = open("locked", O_RDWR);
            CHECK(own >= 0 && (i < 4 || sigaction(SIGALRM, &counted, NULL) == 0));
            CHECK(write(ends[1], "x", 1) == 1 && (i < 6 || setitimer(ITIMER_REAL, &every, NULL) == 0));
            int locked = is_range ? fcntl(own, F_SETLKW, &whole) : flock(own, LOCK_EX);
            CHECK(locked == -1 && errno == EINTR && handled > 0);
            _exit(0);
        }
        char byte;
        int status;
        CHECK(child > 0 && read(ends[0], &byte, 1) == 1 && close(ends[0]) == 0 && close(ends[1]) == 0);
        usleep(20000);
        /* The default action; no action at all; a handler, by one signal and by several. */
        CHECK(i >= 4 || kill(child, i < 2 ? SIGTERM : SIGKILL) == 0);
        for (pid_t ended = 0; ended == 0; usleep(1000)) {
            CHECK(i < 4 || i >= 6 || kill(child, SIGALRM) == 0 || errno == ESRCH);
            ended = waitpid(child, &status, WNOHANG);
            CHECK(ended == 0 || ended == child);
        }
        CHECK(i >= 4 ? status == 0 : WIFSIGNALED(status) && WTERMSIG(status) == (i < 2 ? SIGTERM : SIGKILL));
    }
    whole.l_type = F_UNLCK;
    CHECK(flock(file, LOCK_UN) == 0 && fcntl(file, F_SETLK, &whole) == 0);
    whole.l_type = F_WRLCK;
    int other = open("locked", O_RDWR);
    CHECK(flock(other, LOCK_EX) == 0 && fcntl(other, F_OFD_SETLKW, &whole) == 0);
}

static char told[1 << 16];

static void tell(const char *what, const char *base, const char *result) {
    size_t base_len = strlen(base), len = strlen(told);
    const char *behind = strncmp(result, base, base_len) == 0 ? result + base_len : result;
    snprintf(told + len, sizeof told - len, "%s: %s\n", what, behind);
}

/* What paths with `..` lead to. */
static void go_up(const char *base) {
    static const char *const paths[] = {
        "link/../f", "link/../../f", "a/side/../f", "a/side/../a/f", "absolute/../x/f", "absolute/b/../f", "a/../f",
        "./link/./../f", "link/..//f", "a/b/../../x/f", "none/../f", "a/f/../f", "link/../none", "a/b/../b/c/../f",
        "link/../../side/../a/b/f", "dangling/../f", "loop/../f", "link/../", "x/..", "link/../../../x/f",
    };
    char text[4096], name[4096];
    *told = 0;
    CHECK(chdir(base) == 0 && mkdir("a", 0777) == 0 && mkdir("a/b", 0777) == 0 && mkdir("a/b/c", 0777) == 0);
    CHECK(mkdir("x", 0777) == 0 && symlink("a/b/c", "link") == 0 && symlink("../x", "a/side") == 0);
    CHECK(symlink("none", "dangling") == 0 && symlink("loop", "loop") == 0);
    snprintf(text, sizeof text, "%s/a", base);
    CHECK(symlink(text, "absolute") == 0);
    for (const char *const *of = (const char *const[]){"a/f", "a/b/f", "x/f", NULL}; *of; of++) {
        int made = make(*of, 0);
        CHECK(write(made, *of, strlen(*of)) > 0 && close(made) == 0);
    }
    for (size_t i = 0; i < 2 * sizeof paths / sizeof *paths; i++) {
        const char *path = paths[i / 2];
        snprintf(name, sizeof name, "%s%s%s", i % 2 ? base : "", i % 2 ? "/" : "", path);
        errno = 0;
        int fd = open(name, O_RDONLY);
        memset(text, 0, sizeof text);
        CHECK(fd == -1 || read(fd, text, sizeof text) >= 0 || errno == EISDIR);
        tell(path, base, fd == -1 || errno ? strerror(errno) : text);
        close(fd);
        errno = 0;
        tell(path, base, realpath(name, text) ? text : strerror(errno));
        if (chdir(name) == 0) {
            tell(path, base, getcwd(text, sizeof text));
            if (strcmp(text, base) != 0) tell("above", base, chdir("..") == 0 ? getcwd(text, sizeof text) : "none");
            CHECK(chdir(base) == 0);
        }
    }
    /* Of a directory that a symbolic link led to. */
    int linked = open("link", O_RDONLY | O_DIRECTORY), above = openat(linked, "..", O_RDONLY | O_DIRECTORY);
    CHECK(faccessat(linked, "../f", F_OK, 0) == 0 && faccessat(linked, "../../side/f", F_OK, 0) == 0);
    CHECK(fchdir(above) == 0);
    tell("above a descriptor", base, getcwd(text, sizeof text));
    snprintf(name, sizeof name, "/proc/self/fd/%d", above);
    memset(text, 0, sizeof text);
    CHECK(readlink(name, text, sizeof text) > 0);
    tell("its name", base, text);
    snprintf(name, sizeof name, "/proc/self/fd/%d/../b/f", above);
    CHECK(access(name, F_OK) == 0 && chdir(base) == 0);
    CHECK(mkdir("link/../new", 0777) == 0 && rename("link/../new", "link/../../new") == 0 && rmdir("a/new") == 0);
    CHECK(link("link/../f", "link/../../hard") == 0 && unlink("absolute/../a/hard") == 0);
    CHECK(rmdir("link/..") == -1 && errno == ENOTEMPTY && close(above) == 0 && close(linked) == 0);
    /* Out of the base, and into it. */
    const char *name_of_base = strrchr(base, '/') + 1;
    snprintf(name, sizeof name, "%s/link/../../../../%s/x/f", base, name_of_base);
    CHECK(access(name, F_OK) == 0 && chdir("x") == 0);
    snprintf(name, sizeof name, "../../%s/a/side/../../%s/x/f", name_of_base, name_of_base);
    CHECK(access(name, F_OK) == 0 && chdir(base) == 0 && chdir("..") == 0);
    snprintf(name, sizeof name, "./%s/link/../../../../%s/a/f", name_of_base, name_of_base);
    CHECK(access(name, F_OK) == 0);
}

static void paths_upwards(const char *root) {
    char outside[4096], name[8192], on_host[sizeof told];
    CHECK(realpath(getenv("OUTSIDE"), outside) && chdir(outside) == 0 && mkdir("tree", 0777) == 0);
    snprintf(name, sizeof name, "%s/tree", outside);
    go_up(name);
    memcpy(on_host, told, sizeof told);
    go_up(root);
    if (strcmp(told, on_host) != 0) {
        dprintf(complaints, "%s\non the host:\n%s", told, on_host);
        _exit(1);
    }
    /* By the text this is below the root; by the links it isn't, and the other way about. */
    snprintf(name, sizeof name, "%s/x/deep", root);
    CHECK(mkdir(name, 0777) == 0 && chdir(root) == 0 && symlink("x", "a/b/short") == 0 && unlink("a/b/short") == 0);
    CHECK(symlink("../../x", "a/b/short") == 0);
    snprintf(name, sizeof name, "%s/a/b/short/../..%s/precious", root, outside);
    CHECK(size_of(name) == 8);
    snprintf(name, sizeof name, "%s/precious", outside);
    CHECK(symlink(name, "out") == 0 && access("out", F_OK) == -1 && errno == EXDEV);
    snprintf(name, sizeof name, "..%s/precious", outside);
    CHECK(symlink(name, "up") == 0 && access("up", F_OK) == -1 && errno == EXDEV && size_of(name) == 8);
    /* Through the host's own links. */
    CHECK(chdir(outside) == 0 && symlink("/usr", "usr") == 0);
    snprintf(name, sizeof name, "usr/..%s/x/f", root);
    CHECK(size_of(name) == 3);
    snprintf(name, sizeof name, "%s/usr/..%s/x/f", outside, root);
    CHECK(size_of(name) == 3);
    snprintf(name, sizeof name, "%s/tree/..%s/x/f", outside, root);
    CHECK(access(name, F_OK) == -1 && errno == ENOENT);
}

/* Descriptors that are made and closed by their system calls, as libuv closes them. */
static void closed_by_number(const char *root) {
    CHECK(chdir(root) == 0);
    char text[8] = "", name[4096];
    snprintf(name, sizeof name, "%s/inside", root);
    file = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT, 0666);
    CHECK(file >= 0 && syscall(SYS_write, file, "inside", 6L) == 6);
    CHECK(syscall(SYS_pread64, file, text, 8L, 0L) == 6 && strcmp(text, "inside") == 0);
    struct statx stat_;
    CHECK(syscall(SYS_statx, AT_FDCWD, name, 0, STATX_SIZE, &stat_) == 0 && stat_.stx_size == 6);
    int again = syscall(SYS_dup, file), third = syscall(SYS_fcntl, file, F_DUPFD, 0L), other = make("other", 0);
    CHECK(again >= 0 && third >= 0 && other >= 0 && pread(again, text, 8, 0) == 6 && pread(third, text, 8, 0) == 6);
    CHECK(syscall(SYS_dup3, file, other, 0) == other && pread(other, text, 8, 0) == 6 && size_of("other") == 0);
    CHECK(syscall(SYS_close, other) == 0 && syscall(SYS_close, third) == 0 && syscall(SYS_close, again) == 0);
    CHECK(syscall(SYS_close, file) == 0);
    next_is_of_the_host(file);
    CHECK(open("inside", O_RDWR) == file && syscall(SYS_close_range, file, file, 0) == 0);
    next_is_of_the_host(file);
    CHECK(open("inside", O_RDWR) == file && syscall(SYS_close, file) == 0);
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "pipe", 4) == 4 && read(ends[0], text, 8) == 4 && size_of("inside") == 6);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(open("inside", O_RDWR) == file && (other = make("other", 0)) >= 0);
    CHECK(syscall(SYS_copy_file_range, file, NULL, other, NULL, 100L, 0) == 6 && size_of("other") == 6);
    snprintf(name, sizeof name, "%s/host", getenv("OUTSIDE"));
    again = make(name, 0);
    loff_t start = 2;
    CHECK(syscall(SYS_copy_file_range, file, &start, again, NULL, 3L, 0) == -1 && errno == EXDEV);
    CHECK(start == 2 && size_of(name) == 0);
    CHECK(close(again) == 0 && close(other) == 0 && close(file) == 0);
    CHECK(syscall(SYS_close, file) == -1 && errno == EBADF);

    /* And those that nobody hears of who isn't in the C library. */
    void *library = dlopen("libc.so.6", RTLD_NOW);
    long (*past_us)(long, ...) = library ? (long (*)(long, ...))dlsym(library, "syscall") : NULL;
    CHECK(past_us && past_us != (long (*)(long, ...))syscall);
    CHECK(open("inside", O_RDWR) == file && past_us(SYS_close, file) == 0);
    next_is_of_the_host(file);
    CHECK(open("inside", O_RDWR) == file && past_us(SYS_close, file) == 0);
    again = dup(complaints);
    CHECK(again == file && pread(again, text, 8, 0) != 6 && close(again) == 0);
}

/* A child of vfork opens and closes files; they are not its parent's. */
static void opened_in_vfork(const char *root) {
    CHECK(chdir(root) == 0);
    int first = make("inside", 0), second = make("other", 0), status;
    CHECK(write(first, "inside", 6) == 6 && close(first) == 0 && close(second) == 0);
    pid_t child = vfork();
    if (child == 0) {
        char text[8] = "";
        int one = open("inside", O_RDWR), two = dup(one);
        FILE *stream = fopen("inside", "r");
        if (one != first || two != second || !stream || !fgets(text, sizeof text, stream) || fclose(stream) != 0)
            _exit(1);
        if (read(two, text, 8) != 6 || read(one, text, 8) != 0 || close(one) != 0)
            _exit(2);
        one = open("/dev/null", O_RDWR);
        _exit(one == first && read(one, text, 8) == 0 && write(one, "lost", 4) == 4 ? 0 : 3);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    next_is_of_the_host(first);
    int ends[2];
    char text[8];
    CHECK(pipe(ends) == 0 && ends[0] == first && ends[1] == second);
    CHECK(write(ends[1], "pipe", 4) == 4 && read(ends[0], text, 8) == 4 && size_of("inside") == 6);
}

static volatile int is_over;

/* Does what needs a lock of the library's tables, all the time. */
static void *be_busy(void *argument) {
    const int kind = *(const int *)argument;
    struct stat stat_;
    posix_spawn_file_actions_t actions;
    while (!is_over) {
        if (kind == 0) {
            stat("some/../x/./y", &stat_);
        } else if (kind == 1) {
            FILE *stream = fopen("busy", "r");
            CHECK(stream && fclose(stream) == 0);
        } else if (kind == 2) {
            DIR *stream = opendir(".");
            CHECK(stream && closedir(stream) == 0);
        } else if (kind == 3) {
            CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_addclose(&actions, 99) == 0);
            CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
        } else {
            DIR *stream = fdopendir(dup(file));
            CHECK(stream);
            while (readdir(stream)) {}
            rewinddir(stream);
            CHECK(closedir(stream) == 0);
        }
    }
    return NULL;
}

/* A child of fork waits for no thread of its parent. */
static void forks_of_busy_threads(const char *root) {
    CHECK(chdir(root) == 0);
    close(make("busy", 0));
    FILE *stream = fopen("busy", "r");
    CHECK(stream && fileno(stream) >= 0 && (file = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
    for (int kind = 0; kind < 5; kind++) {
        pthread_t threads[2];
        is_over = 0;
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, be_busy, &kind) == 0);
        for (int round = 0; round < 300; round++) {
            pid_t child = fork();
            if (child == 0) {
                posix_spawn_file_actions_t actions;
                alarm(580); /* before the test that runs it takes it for one that hangs */
                posix_spawn_file_actions_init(&actions);
                posix_spawn_file_actions_destroy(&actions);
                DIR *host = opendir("/");
                lseek(file, 0, SEEK_SET);
                _exit(fileno(stdout) == 1 && host && closedir(host) == 0 && chdir("/") == 0 ? 0 : 1);
            }
            int status;
            CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        }
        is_over = 1;
        for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

/* No call moves more than 0x7ffff000 bytes, in however many pieces they are. */
static void long_vectors(const char *root) {
    enum { MIB = 1 << 20, PIECES = 769 };
    static struct iovec pieces[PIECES];
    CHECK(chdir(root) == 0);
    file = make("long", 0);
    CHECK(ftruncate(file, (off_t)PIECES * 4 * MIB) == 0);
    char *memory = malloc(4 * MIB), last[8] = "-------";
    CHECK(memory);
    for (int i = 0; i < PIECES; i++) pieces[i] = (struct iovec){memory, 4 * MIB};
    pieces[PIECES - 1] = (struct iovec){last, sizeof last};
    CHECK(preadv(file, pieces, PIECES, 0) == 0x7ffff000 && strcmp(last, "-------") == 0);
    CHECK(readv(file, pieces, PIECES) == 0x7ffff000 && lseek(file, 0, SEEK_CUR) == 0x7ffff000);
}

/* The mask of a child of vfork is its own. */
static void umask_in_vfork(const char *root) {
    CHECK(chdir(root) == 0);
    umask(022);
    struct stat stat_;
    int status;
    pid_t child = vfork();
    if (child == 0) {
        umask(077);
        int made = open("childs", O_RDWR | O_CREAT, 0666);
        _exit(made >= 0 ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(stat("childs", &stat_) == 0 && (stat_.st_mode & 0777) == 0600);
    CHECK(fstat(make("parents", 0), &stat_) == 0 && (stat_.st_mode & 0777) == 0644);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    static const struct { const char *name; void (*attack)(const char *); } attacks[] = {
        {"closed-streams", closed_streams}, {"directory-of-children", directory_of_children},
        {"numbers-of-mappings", numbers_of_mappings}, {"no-numbers-left", no_numbers_left},
        {"names-of-descriptors", names_of_descriptors}, {"exit-with-a-reader", exit_with_a_reader},
        {"flagged-appends", flagged_appends}, {"cancelled-threads", cancelled_threads},
        {"handlers", handlers}, {"replaced-log", replaced_log}, {"stderr-inside", stderr_inside},
        {"closed-in-vfork", closed_in_vfork}, {"closed-by-number", closed_by_number},
        {"opened-in-vfork", opened_in_vfork}, {"forks-of-busy-threads", forks_of_busy_threads},
        {"long-vectors", long_vectors}, {"umask-in-vfork", umask_in_vfork},
        {"handlers-in-malloc", handlers_in_malloc}, {"interrupted-calls", interrupted_calls},
        {"paths-upwards", paths_upwards}, {"interrupted-locks", interrupted_locks},
        {"interrupted-children", interrupted_children},
    };
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++)
        if (strcmp(attacks[i].name, arguments[2]) == 0) {
            attacks[i].attack(arguments[1]);
            return 0;
        }
    CHECK(!"an attack of that name");
}
