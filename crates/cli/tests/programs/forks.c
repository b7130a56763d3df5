/* What forked processes have in common, as on Linux: the first argument is a directory to work in. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
            failures++;                                                                   \
        }                                                                                 \
    } while (0)

/* A child that runs this, and ends with its failures. */
#define CHILD(...)                  \
    ({                              \
        fflush(NULL);               \
        pid_t made = fork();        \
        if (made == 0) {            \
            failures = 0;           \
            __VA_ARGS__;             \
            _exit(failures ? 1 : 0); \
        }                           \
        made;                       \
    })

static void end_of(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int contains(const char *name, const char *expected) {
    char content[4096];
    int fd = open(name, O_RDONLY);
    ssize_t got = read(fd, content, sizeof content);
    close(fd);
    if (got == (ssize_t)strlen(expected) && !memcmp(content, expected, got))
        return 1;
    fprintf(stderr, "%s: %.*s\n", name, got > 0 ? (int)got : 0, content);
    return 0;
}

/* Descriptors that do or keep something, whoever they belong to. */
static int effective(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        long flags = syscall(SYS_fcntl, fd, F_GETFL);
        count += flags >= 0 && !(flags & O_PATH);
    }
    return count;
}

extern char **environ;

static void *spawns(void *ends) {
    char *const arguments[] = {"true", NULL};
    while (!*(volatile int *)ends) {
        pid_t child;
        int error = posix_spawnp(&child, "true", NULL, NULL, arguments, environ);
        CHECK(error == 0);
        if (error == 0)
            end_of(child);
    }
    return NULL;
}

/* Another thread starts programs, which get the file: a child has nothing of that. */
static void beside_programs(void) {
    int fd = open("left", O_RDWR | O_CREAT, 0600), ends = 0, expected[2];
    pthread_t thread;
    CHECK(fd >= 0 && pipe(expected) == 0);
    /* What a child has anyway. */
    int count = 0;
    end_of(CHILD({
        count = effective();
        CHECK(write(expected[1], &count, sizeof count) == sizeof count);
    }));
    CHECK(read(expected[0], &count, sizeof count) == sizeof count);
    CHECK(pthread_create(&thread, NULL, spawns, &ends) == 0);
    for (int judged = 0; judged < 60;) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        pid_t child = CHILD({
            if (effective() != count)
                _exit(1);
        });
        clock_gettime(CLOCK_MONOTONIC, &end);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        /* Adit waits for forks, but not for ever. */
        double took = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
        if (took > 0.1)
            continue;
        judged++;
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    *(volatile int *)&ends = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    close(fd), close(expected[0]), close(expected[1]);
}

static void positions(void) {
    int fd = open("position", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(write(fd, "one ", 4) == 4);
    end_of(CHILD(CHECK(write(fd, "two ", 4) == 4)));
    CHECK(write(fd, "three ", 6) == 6);
    /* Twice, and by a duplicate. */
    int copy = dup(fd);
    end_of(CHILD({
        CHECK(write(copy, "four ", 5) == 5);
        end_of(CHILD(CHECK(write(fd, "five ", 5) == 5)));
    }));
    CHECK(lseek(fd, 0, SEEK_CUR) == 24);
    CHECK(contains("position", "one two three four five "));
    end_of(CHILD(CHECK(lseek(fd, 4, SEEK_SET) == 4)));
    char word[4];
    CHECK(read(copy, word, 4) == 4 && !memcmp(word, "two ", 4));
    close(fd), close(copy);
}

static void lives(void) {
    /* A file without a name, and one that the parent has closed. */
    int fd = open("gone", O_RDWR | O_CREAT, 0600), ready[2];
    CHECK(pwrite(fd, "alive", 5, 0) == 5 && unlink("gone") == 0 && pipe(ready) == 0);
    pid_t child = CHILD({
        char word[5];
        close(ready[1]);
        CHECK(read(ready[0], word, 1) == 0);
        CHECK(pread(fd, word, 5, 0) == 5 && !memcmp(word, "alive", 5));
        CHECK(pwrite(fd, "again", 5, 0) == 5 && fsync(fd) == 0 && close(fd) == 0);
    });
    CHECK(close(fd) == 0);
    close(ready[0]), close(ready[1]);
    end_of(child);
    /* What a child closes is open here. */
    fd = open("kept", O_RDWR | O_CREAT | O_TRUNC, 0600);
    end_of(CHILD(CHECK(close(fd) == 0)));
    CHECK(write(fd, "kept", 4) == 4);
    /* Killed. */
    child = CHILD({
        CHECK(write(fd, "!", 1) == 1);
        raise(SIGKILL);
    });
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(contains("kept", "kept!") && close(fd) == 0);
    /* Nothing is asked for, or only a path. */
    end_of(CHILD({}));
    fd = open("kept", O_RDONLY);
    end_of(CHILD(CHECK(access("kept", R_OK) == 0)));
    close(fd);
}

static void locks(void) {
    int fd = open("locked", O_RDWR | O_CREAT, 0600), other = open("locked", O_RDWR);
    CHECK(flock(fd, LOCK_EX) == 0);
    end_of(CHILD({
        CHECK(flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
        CHECK(flock(fd, LOCK_UN) == 0);
    }));
    /* The description is the child's as well. */
    CHECK(flock(other, LOCK_EX | LOCK_NB) == 0 && close(other) == 0);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    CHECK(fcntl(fd, F_SETLK, &range) == 0);
    pid_t parent = getpid();
    end_of(CHILD({
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        CHECK(fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_pid == parent);
        CHECK(fcntl(fd, F_SETLK, &range) == -1 && (errno == EAGAIN || errno == EACCES));
        CHECK(close(fd) == 0);
    }));
    /* A child that closed it has released nothing of ours. */
    end_of(CHILD({
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        int again = open("locked", O_RDWR);
        CHECK(fcntl(again, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK);
    }));
    close(fd);
}

#define CHILDREN 4
#define LINES 200
static void crowd(void) {
    int appended = open("appended", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    int shared = open("shared", O_RDWR | O_CREAT | O_TRUNC, 0600);
    pid_t children[CHILDREN];
    for (int child = 0; child < CHILDREN; child++)
        children[child] = CHILD({
            for (int line = 0; line < LINES; line++) {
                char text[16];
                snprintf(text, sizeof text, "%d %4d\n", child, line);
                CHECK(write(appended, text, 7) == 7 && write(shared, text, 7) == 7);
            }
        });
    for (int child = 0; child < CHILDREN; child++)
        end_of(children[child]);
    for (int file = 0; file < 2; file++) {
        FILE *lines = fopen(file ? "shared" : "appended", "r");
        int next[CHILDREN] = {0}, child, line;
        while (fscanf(lines, "%d %d\n", &child, &line) == 2)
            CHECK(child >= 0 && child < CHILDREN && line == next[child]++);
        for (child = 0; child < CHILDREN; child++)
            CHECK(next[child] == LINES);
        fclose(lines);
    }
    close(appended), close(shared);
}

static void daemons(void) {
    int fd = open("daemon", O_RDWR | O_CREAT | O_TRUNC, 0600), done[2];
    CHECK(pipe(done) == 0);
    /* Two forks, and all numbers but two are closed. */
    pid_t child = CHILD({
        setsid();
        if (fork() != 0)
            _exit(0);
        for (int other = 3; other < 1024; other++)
            if (other != fd && other != done[1])
                close(other);
        CHECK(write(fd, "I live", 6) == 6 && access("daemon", F_OK) == 0);
        int more = open("more", O_RDWR | O_CREAT, 0600);
        CHECK(more == 3 || more == 4 || more == 5);
    });
    end_of(child);
    char byte;
    close(done[1]);
    CHECK(read(done[0], &byte, 1) == 0);
    close(done[0]);
    CHECK(contains("daemon", "I live") && access("more", F_OK) == 0);
    close(fd);
}

static void directories(const char *root) {
    char where[4096];
    CHECK(mkdir("sub", 0700) == 0);
    end_of(CHILD({
        CHECK(chdir("sub") == 0 && close(open("below", O_CREAT | O_WRONLY, 0600)) == 0);
        CHECK(getcwd(where, sizeof where) && strstr(where, "/sub"));
        end_of(CHILD(CHECK(access("below", F_OK) == 0 && access("../sub/below", F_OK) == 0)));
    }));
    CHECK(getcwd(where, sizeof where) && !strcmp(where, root));
    CHECK(access("sub/below", F_OK) == 0);
}

static void streams(void) {
    FILE *stream = fopen("stream", "w");
    fprintf(stream, "parent\n");
    fflush(stream);
    pid_t child = fork();
    if (child == 0) {
        fprintf(stream, "child\n");
        exit(0); /* writes what the stream holds */
    }
    end_of(child);
    fprintf(stream, "end\n");
    fclose(stream);
    CHECK(contains("stream", "parent\nchild\nend\n"));
}

static void mappings(void) {
    int fd = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(ftruncate(fd, 8192) == 0);
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    strcpy(memory, "parent");
    end_of(CHILD({
        CHECK(!strcmp(memory, "parent"));
        strcpy(memory + 4096, "child");
    }));
    CHECK(!strcmp(memory + 4096, "child") && msync(memory, 8192, MS_SYNC) == 0);
    char word[6];
    CHECK(pread(fd, word, 6, 4096) == 6 && !strcmp(word, "child"));
    CHECK(munmap(memory, 8192) == 0 && close(fd) == 0);
}

static volatile int is_over;
static int together;
static unsigned written;
static void *busy(void *argument) {
    int fd = *(int *)argument;
    for (unsigned i = 0; !is_over; i++) {
        /* Most of the time in the middle of a call that uses the position. */
        for (int times = 0; times < 16; times++)
            written += write(together, "y", 1);
        char page[512];
        memset(page, i, sizeof page);
        CHECK(pwrite(fd, page, sizeof page, 512 * (i % 16)) == sizeof page);
        int other = open("thread", O_RDWR | O_CREAT, 0600);
        CHECK(other >= 0 && close(other) == 0);
    }
    return NULL;
}

/* A thread works while another one forks. */
static void threads(void) {
    int fd = open("busy", O_RDWR | O_CREAT, 0600);
    together = open("together", O_RDWR | O_CREAT, 0600);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, busy, &fd) == 0);
    for (int i = 0; i < 50; i++)
        end_of(CHILD({
            char page[512];
            CHECK(pread(fd, page, sizeof page, 0) >= 0 && write(fd, "x", 1) == 1);
            CHECK(write(together, "x", 1) == 1);
        }));
    is_over = 1;
    pthread_join(thread, NULL);
    CHECK(lseek(fd, 0, SEEK_CUR) == 50 && close(fd) == 0);
    CHECK(lseek(together, 0, SEEK_CUR) == written + 50 && close(together) == 0);
}

extern char **environ;

/* The same program, as `forks write FD TEXT`. */
/* What another thread has open when its process forks, the child can use. */
static volatile int opened = -1;
static void *open_and_close(void *argument) {
    while (!is_over) {
        int fd = open("busy", O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0);
        opened = fd;
        opened = -1;
        close(fd);
    }
    return argument;
}

static void opening_threads(void) {
    pthread_t thread;
    is_over = 0;
    CHECK(pthread_create(&thread, NULL, open_and_close, NULL) == 0);
    for (int round = 0; round < 200; round++)
        end_of(CHILD({
            int fd = opened;
            char byte;
            /* The kernel copies the table of descriptors before the memory: the child may see the
               number of one that it does not have. */
            int is_ours = fd >= 0 && syscall(SYS_fcntl, fd, F_GETFD) >= 0;
            CHECK(!is_ours || pread(fd, &byte, 1, 0) >= 0);
        }));
    is_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A child has none of its parent's requests: it ends while they are under way. */
#define REQUESTS 64
#define REQUEST_BYTES (64 << 10)
static void requests(int is_volume) {
    static struct aiocb all[REQUESTS];
    int fd = open("requests", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *bytes = calloc(REQUESTS, REQUEST_BYTES);
    CHECK(fd >= 0 && bytes);
    for (int round = 0; round < 20; round++) {
        for (int at = 0; at < REQUESTS; at++) {
            all[at] = (struct aiocb){.aio_fildes = fd, .aio_offset = at * REQUEST_BYTES};
            all[at].aio_buf = bytes + at * REQUEST_BYTES;
            all[at].aio_nbytes = REQUEST_BYTES;
            all[at].aio_sigevent.sigev_notify = SIGEV_NONE;
            CHECK((round % 2 ? aio_read : aio_write)(&all[at]) == 0);
        }
        end_of(CHILD({
            /* The C library's own requests don't work in a child whose parent had some. */
            if (is_volume) {
                struct aiocb sync = {.aio_fildes = fd};
                const struct aiocb *list[] = {&sync};
                CHECK(aio_fsync(O_SYNC, &sync) == 0 && aio_suspend(list, 1, NULL) == 0);
                CHECK(aio_return(&sync) == 0);
            }
            exit(failures ? 1 : 0);
        }));
        for (int at = 0; at < REQUESTS; at++) {
            const struct aiocb *list[] = {&all[at]};
            while (aio_error(&all[at]) == EINPROGRESS)
                CHECK(aio_suspend(list, 1, NULL) == 0);
            CHECK(aio_return(&all[at]) == REQUEST_BYTES);
        }
    }
    free(bytes), close(fd);
}

static char *words_of(char *self, int fd, const char *text, char **words) {
    static char number[16];
    snprintf(number, sizeof number, "%d", fd);
    words[0] = self, words[1] = "write", words[2] = number, words[3] = (char *)text, words[4] = NULL;
    return self;
}

static void programs(char *self) {
    char *words[5];
    int fd = open("program", O_RDWR | O_CREAT | O_TRUNC, 0600), status;
    CHECK(write(fd, "here ", 5) == 5);
    end_of(CHILD(execv(words_of(self, fd, "execv ", words), words), failures++));
    end_of(CHILD(execvp(words_of(self, dup(fd), "execvp ", words), words), failures++));
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    end_of(CHILD(execl(self, self, "write", number, "execl ", NULL), failures++));
    end_of(CHILD(execlp(self, self, "write", number, "execlp ", NULL), failures++));
    end_of(CHILD(execle(self, self, "write", number, "execle ", NULL, environ), failures++));
    /* With arguments on the stack. */
    end_of(CHILD({
        execl("/bin/sh", "sh", "-c", "[ $# = 8 ] && printf '%s ' $8 >&$1", "sh", number, "2", "3", "4", "5", "6",
              "7", "many", NULL);
        failures++;
    }));
    /* A child of vfork has numbers of its own. */
    words_of(self, 40, "vfork ", words);
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(fd, 40) == 40 && close(fd) == 0)
            execve(self, words, environ);
        _exit(9);
    }
    end_of(child);
    CHECK(fcntl(40, F_GETFD) == -1);
    /* It may open files, as a shell's redirection does. Its parent has none of them. Often: threads
       that work for the parent must not take the number meanwhile. */
    int next = dup(fd), ends[2];
    close(next);
    for (int round = 0; round < 50; round++) {
        words_of(self, 40, "redirected", words);
        child = vfork();
        if (child == 0) {
            int made = open("redirected", O_WRONLY | O_CREAT | O_TRUNC, 0600);
            if (made == next && write(made, "and ", 4) == 4 && dup2(made, 40) == 40 && close(made) == 0)
                execve(self, words, environ);
            _exit(9);
        }
        end_of(child);
    }
    CHECK(contains("redirected", "and redirected"));
    CHECK(pipe(ends) == 0 && ends[0] == next && write(ends[1], "pipe", 4) == 4);
    CHECK(read(ends[0], number, 4) == 4 && !memcmp(number, "pipe", 4));
    close(ends[0]), close(ends[1]);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 50) == 0);
    CHECK(posix_spawn(&child, words_of(self, 50, "spawned ", words), &actions, NULL, words, environ) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    end_of(child);
    /* What closes on exec is not there; a program that can't be executed changes nothing. */
    int closing = open("program", O_RDWR | O_CLOEXEC);
    child = CHILD(execv(words_of(self, closing, "closed ", words), words));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    end_of(CHILD({
        CHECK(execv("/nowhere", words) == -1 && errno == ENOENT);
        CHECK(write(fd, "not ", 4) == 4);
    }));
    CHECK(write(fd, "end", 3) == 3);
    CHECK(contains("program", "here execv execvp execl execlp execle many vfork spawned not end"));
    /* Without a fork; and what it has not asked for it hands on. */
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    int two = open("two", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    end_of(CHILD({
        char number[16];
        snprintf(number, sizeof number, "%d", two);
        char *through[] = {self, "through", number, NULL};
        execv(self, through);
        failures++;
    }));
    CHECK(contains("two", "through it") && close(two) == 0 && close(fd) == 0);
    /* Standard streams. */
    int told = open("told", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    end_of(CHILD({
        CHECK(dup2(told, 1) == 1 && system("echo by system") == 0);
        FILE *shell = popen("cat", "w");
        CHECK(shell && fputs("by popen\n", shell) >= 0 && pclose(shell) == 0);
        CHECK(!getenv("ADIT_RUN_INHERIT"));
    }));
    CHECK(contains("told", "by system\nby popen\n") && close(told) == 0);
    CHECK(system("echo shell > out; ls out >> out; (cat out; echo end) > copy") == 0);
    CHECK(contains("out", "shell\nout\n") && contains("copy", "shell\nout\nend\n"));
    CHECK(system("tr a-z A-Z < out > upper && sort -r < upper > sorted") == 0);
    CHECK(contains("sorted", "SHELL\nOUT\n"));
}

static int program(int count, char **arguments) {
    if (count == 4 && !strcmp(arguments[1], "write")) {
        int fd = atoi(arguments[2]), len = strlen(arguments[3]);
        return write(fd, arguments[3], len) == len ? 0 : 3;
    }
    if (count == 3 && !strcmp(arguments[1], "through")) {
        char *words[5];
        execv(words_of(arguments[0], atoi(arguments[2]), "through it", words), words);
    }
    return 2;
}

/* The last functions of a program may fork and start others, too. */
static int last = -1;
static void at_the_end(void) {
    end_of(CHILD(CHECK(write(last, "forked ", 7) == 7)));
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    end_of(child);
    CHECK(system("true") == 0 && write(last, "end", 3) == 3 && contains("last", "forked end"));
    if (failures)
        _exit(1);
}

int main(int count, char **arguments) {
    if (count > 2)
        return program(count, arguments);
    if (count != 2 || chdir(arguments[1]) != 0)
        return 2;
    alarm(580); /* before the test that runs it takes it for one that hangs */
    positions();
    lives();
    locks();
    crowd();
    daemons();
    directories(arguments[1]);
    streams();
    mappings();
    threads();
    opening_threads();
    beside_programs();
    requests(!strncmp(arguments[1], "/adit", 5));
    programs(arguments[0]);
    last = open("last", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(last >= 0 && atexit(at_the_end) == 0);
    if (failures == 0)
        puts("as on Linux");
    return failures ? 1 : 0;
}
