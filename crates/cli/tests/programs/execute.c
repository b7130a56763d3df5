// Executes programs and scripts of a directory in every way, and prints what comes of it. The test
// compares the output in a volume with that on the host's file system.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void die(const char *what) {
    perror(what);
    exit(99);
}

// The program that is executed: says how it was called, and what it finds.
static int say(int argc, char **argv) {
    char exe[4096] = "", name[17] = "", cwd[4096];
    for (int i = 0; i < argc; i++) printf("[%s]", argv[i]);
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) die("readlink");
    prctl(PR_GET_NAME, name);
    // Of a number the kernel says "3", which is no name.
    if (strspn(name, "0123456789") == strlen(name)) strcpy(name, "tool");
    char *real = realpath("/proc/self/exe", NULL);
    printf(" exe=%s %s name=%s cwd=%s next=%d mark=%s\n", exe, real && !strcmp(real, exe) ? "real" : "?",
           name, getcwd(cwd, sizeof cwd), dup(0), getenv("MARK") ? getenv("MARK") : "-");
    return 7;
}

static void put(const char *path, mode_t mode, const char *content) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content)) die(path);
    if (fchmod(fd, mode) || close(fd)) die(path);
}

static void copy(const char *from, const char *to) {
    char bytes[65536];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    ssize_t got;
    if (in < 0 || out < 0) die(from);
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, got) != got) die(to);
    if (close(in) || fchmod(out, 0755) || close(out)) die(to);
}

static void ended(const char *what, int status) {
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

// In a child: what fails is printed, with errno.
#define IN_CHILD(what, ...)                                                                        \
    do {                                                                                           \
        fflush(stdout);                                                                            \
        pid_t child = fork();                                                                      \
        if (child < 0) die("fork");                                                                \
        if (child == 0) {                                                                          \
            __VA_ARGS__;                                                                           \
            printf("%s\n", strerrorname_np(errno));                                                \
            fflush(stdout);                                                                        \
            _exit(126);                                                                            \
        }                                                                                          \
        int status;                                                                                \
        if (waitpid(child, &status, 0) != child) die("waitpid");                                   \
        ended(what, status);                                                                       \
    } while (0)

static char *const ARGUMENTS[] = {"zero", "say", "two words", "", NULL};

static char **marked(void) {
    int count = 0;
    while (environ[count]) count++;
    char **all = calloc(count + 2, sizeof *all);
    memcpy(all, environ, count * sizeof *all);
    all[count] = "MARK=added";
    return all;
}

static void spawned(const char *what, int failed, pid_t child) {
    int status;
    if (failed) {
        printf("%s: %s\n", what, strerrorname_np(failed));
        fflush(stdout);
        return;
    }
    if (waitpid(child, &status, 0) != child) die("waitpid");
    ended(what, status);
}

// In another working directory: that of a path, or of a number.
static void spawned_in(const char *directory, int fd, const char *path) {
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    posix_spawn_file_actions_init(&actions);
    int failed = directory ? posix_spawn_file_actions_addchdir_np(&actions, directory)
                           : posix_spawn_file_actions_addfchdir_np(&actions, fd);
    if (!failed) failed = posix_spawn(&child, path, &actions, NULL, ARGUMENTS, environ);
    posix_spawn_file_actions_destroy(&actions);
    printf("%s in %s, ", path, directory ? directory : "a number");
    spawned("posix_spawn", failed, child);
}

static void ways(const char *top) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tool", top);
    IN_CHILD("execve", execve(path, ARGUMENTS, environ));
    IN_CHILD("execve, another environment", execve(path, ARGUMENTS, marked()));
    IN_CHILD("execve, relative", execve("./tool", ARGUMENTS, environ));
    IN_CHILD("execve, up", execve("sub/.././sub/../tool", ARGUMENTS, environ));
    IN_CHILD("execv", execv("tool", ARGUMENTS));
    IN_CHILD("execl", execl("./tool", "zero", "say", "1", "2", "3", "4", "5", "6", NULL));
    IN_CHILD("execle", execle("./tool", "zero", "say", "1", NULL, marked()));
    IN_CHILD("execlp", execlp("tool", "zero", "say", NULL));
    IN_CHILD("execvp", execvp("tool", ARGUMENTS));
    IN_CHILD("execvp with a slash", execvp("./tool", ARGUMENTS));
    IN_CHILD("execvpe", execvpe("tool", ARGUMENTS, marked()));
    IN_CHILD("fexecve", int fd = open("tool", O_RDONLY | O_CLOEXEC); fexecve(fd, ARGUMENTS, environ));
    IN_CHILD("fexecve, O_PATH", int fd = open("tool", O_PATH | O_CLOEXEC);
             fexecve(fd, ARGUMENTS, environ));
    IN_CHILD("fexecve, no x", int fd = open("plain", O_RDONLY | O_CLOEXEC);
             fexecve(fd, ARGUMENTS, environ));
    IN_CHILD("execveat", int fd = open("sub", O_DIRECTORY | O_CLOEXEC);
             execveat(fd, "../tool", ARGUMENTS, environ, 0));
    IN_CHILD("execveat, empty", int fd = open("tool", O_PATH | O_CLOEXEC);
             execveat(fd, "", ARGUMENTS, environ, AT_EMPTY_PATH));
    IN_CHILD("execveat, not empty", int fd = open("tool", O_PATH | O_CLOEXEC);
             execveat(fd, "", ARGUMENTS, environ, 0));
    IN_CHILD("execveat, no link", execveat(AT_FDCWD, "link", ARGUMENTS, environ, AT_SYMLINK_NOFOLLOW));
    IN_CHILD("execveat, flags", execveat(AT_FDCWD, "tool", ARGUMENTS, environ, 1));
    IN_CHILD("SYS_execve", syscall(SYS_execve, "./tool", ARGUMENTS, environ));
    IN_CHILD("SYS_execveat", int fd = open("tool", O_PATH | O_CLOEXEC);
             syscall(SYS_execveat, fd, "", ARGUMENTS, environ, AT_EMPTY_PATH));
    IN_CHILD("/proc/self/fd", int fd = open("tool", O_RDONLY | O_CLOEXEC);
             snprintf(path, sizeof path, "/proc/self/fd/%d", fd); execve(path, ARGUMENTS, environ));
    pid_t child = 0;
    int failed = posix_spawn(&child, path, NULL, NULL, ARGUMENTS, environ);
    spawned("posix_spawn", failed, child);
    failed = posix_spawn(&child, "./tool", NULL, NULL, ARGUMENTS, marked());
    spawned("posix_spawn, relative", failed, child);
    failed = posix_spawnp(&child, "tool", NULL, NULL, ARGUMENTS, environ);
    spawned("posix_spawnp", failed, child);
    failed = posix_spawnp(&child, "./tool", NULL, NULL, ARGUMENTS, environ);
    spawned("posix_spawnp with a slash", failed, child);
    failed = posix_spawnp(&child, "true", NULL, NULL, ARGUMENTS, environ);
    spawned("posix_spawnp of the host", failed, child);
    snprintf(path, sizeof path, "%s/sub", top);
    spawned_in(path, -1, "../tool");
    spawned_in("sub", -1, "../script");
    spawned_in("sub", -1, "./tool");
    spawned_in("missing", -1, "./tool");
    spawned_in("plain", -1, "./tool");
    spawned_in("/", -1, "bin/pwd");
    spawned_in("/", -1, "./tool");
    int fd = open("sub", O_DIRECTORY | O_CLOEXEC);
    spawned_in(NULL, fd, "../tool");
    close(fd);
    ended("system", system("./tool say system"));
    ended("system, script", system("./script system"));
    fflush(stdout);
    FILE *pipe = popen("tool say popen; ./script popen", "r");
    char line[4096];
    while (pipe && fgets(line, sizeof line, pipe)) printf("popen: %s", line);
    ended("popen", pclose(pipe));
    fflush(stdout);
    // A child of vfork has a working directory of its own.
    child = vfork();
    if (child == 0) {
        if (chdir("sub") == 0) execve("../tool", ARGUMENTS, environ);
        _exit(125);
    }
    spawned("vfork", 0, child);
    child = vfork();
    if (child == 0) _exit(chdir("missing") ? errno : 125);
    spawned("vfork, nowhere", 0, child);
    child = vfork();
    if (child == 0) _exit(chdir("plain") ? errno : 125);
    spawned("vfork, no directory", 0, child);
    child = vfork();
    if (child == 0) {
        if (chdir("/") == 0) execve("./tool", ARGUMENTS, environ);
        _exit(errno == ENOENT ? 124 : 125);
    }
    spawned("vfork, elsewhere", 0, child);
}

static void kinds(void) {
    static const char *const all[] = {
        "tool", "script", "link", "to-script", "plain", "sub", "sub/", "tool/", "tool/x", "missing", "missing/x",
        "pipe", "empty", "text", "short", "argument", "arguments", "spaces", "tabs", "nothing", "blank",
        "no-interpreter", "crlf", "no-newline", "unreachable", "is-directory", "not-executable", "zero",
        "255", "256", "truncated", "long-argument", "n1", "n2", "n5", "n6", "by-tool", "relative", "loop",
        "dangling", "through-env", "of-other", "broken", "half",
    };
    char word[300];
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        const char *path = all[i];
        errno = 0;
        int may = access(path, X_OK);
        printf("%s: access %d %s\n", path, may, may ? strerrorname_np(errno) : "");
        snprintf(word, sizeof word, "./%s", path);
        IN_CHILD("  execve", execve(word, ARGUMENTS, environ));
        IN_CHILD("  execvp", execvp(word, ARGUMENTS));
        pid_t child = 0;
        int failed = posix_spawn(&child, word, NULL, NULL, ARGUMENTS, environ);
        spawned("  posix_spawn", failed, child);
    }
    IN_CHILD("script by its number", int fd = open("script", O_RDONLY); fexecve(fd, ARGUMENTS, environ));
    IN_CHILD("script by a closed number", int fd = open("script", O_RDONLY | O_CLOEXEC);
             fexecve(fd, ARGUMENTS, environ));
    IN_CHILD("no arguments", char *const none[] = {NULL}; execve("./script", none, environ));
    setenv("PATH", "sub:missing:.:/bin", 1);
    IN_CHILD("not executable in PATH first", execvp("tool", ARGUMENTS));
    IN_CHILD("only not executable", execvp("denied", ARGUMENTS));
    IN_CHILD("nowhere in PATH", execvp("nowhere", ARGUMENTS));
    IN_CHILD("text in PATH", execvp("text", ARGUMENTS));
    IN_CHILD("no name", execvp("", ARGUMENTS));
    pid_t child = 0;
    int failed = posix_spawnp(&child, "tool", NULL, NULL, ARGUMENTS, environ);
    spawned("spawned, not executable first", failed, child);
    failed = posix_spawnp(&child, "denied", NULL, NULL, ARGUMENTS, environ);
    spawned("spawned, only not executable", failed, child);
    failed = posix_spawnp(&child, "nowhere", NULL, NULL, ARGUMENTS, environ);
    spawned("spawned, nowhere", failed, child);
    failed = posix_spawnp(&child, "text", NULL, NULL, ARGUMENTS, environ);
    spawned("spawned, text", failed, child);
    setenv("PATH", "", 1);
    IN_CHILD("an empty PATH", execvp("tool", ARGUMENTS));
}

static void make(const char *top) {
    char line[600], name[32];
    mkdir("sub", 0755);
    put("script", 0755, "#!/bin/sh\necho \"script [$0] [$*]\"\nexit 3\n");
    symlink("tool", "link");
    symlink("script", "to-script");
    symlink("loop", "loop");
    symlink("gone", "dangling");
    put("plain", 0644, "#!/bin/sh\n");
    mkfifo("pipe", 0755);
    put("empty", 0755, "");
    put("text", 0755, "echo text $0 $1\n");
    put("short", 0755, "#!/bin/sh");
    put("argument", 0755, "#!/bin/sh -u\necho \"$0 $- $nothing\"\n");
    snprintf(line, sizeof line, "#!%s/tool  one two\t three \t \n", top);
    put("arguments", 0755, line);
    put("spaces", 0755, "#!  \t /bin/sh  \t \necho spaces\n");
    put("tabs", 0755, "#!\t/bin/sh\t-e\necho tabs\nfalse\necho on\n");
    put("nothing", 0755, "#!\necho nothing\n");
    put("blank", 0755, "#!   \t  \n");
    put("no-interpreter", 0755, "#!/none/such\n");
    put("crlf", 0755, "#!/bin/sh\r\necho\r\n");
    put("no-newline", 0755, "#!/bin/echo none");
    snprintf(line, sizeof line, "#!%s/none/such\n", top);
    put("unreachable", 0755, line);
    snprintf(line, sizeof line, "#!%s/sub\n", top);
    put("is-directory", 0755, line);
    snprintf(line, sizeof line, "#!%s/plain\n", top);
    put("not-executable", 0755, line);
    put("through-env", 0755, "#!/usr/bin/env -S sh -u\necho \"env $0\"\n");
    put("of-other", 0755, "#!/bin/cat\nthe text\n");
    put("broken", 0755, "\x7f" "ELF of no kind");
    put("half", 0755, "#");
    put("denied", 0644, "#!/bin/sh\n");
    put("sub/tool", 0644, "#!/bin/sh\n");
    int fd = open("zero", O_WRONLY | O_CREAT, 0755);
    if (write(fd, "#!/bin/echo zero\0more\n", 22) != 22 || close(fd)) die("zero");
    // The kernel looks at the first 256 bytes.
    for (int len = 255; len <= 256; len++) {
        memset(line, ' ', sizeof line);
        memcpy(line, "#!", 2);
        memcpy(line + len - 8, "/bin/sh\n", 8);
        strcpy(line + len, "echo far\n");
        snprintf(name, sizeof name, "%d", len);
        put(name, 0755, line);
    }
    memset(line, '/', sizeof line);
    memcpy(line, "#!", 2);
    strcpy(line + 300, "/bin/sh\n");
    put("truncated", 0755, line);
    memset(line, 'a', sizeof line);
    memcpy(line, "#!/bin/echo ", 12);
    strcpy(line + 400, "\n");
    put("long-argument", 0755, line);
    // Scripts that are read by scripts.
    put("n1", 0755, "#!/bin/sh\necho \"nested [$0] [$*]\"\n");
    for (int i = 2; i <= 6; i++) {
        snprintf(line, sizeof line, "#!%s/n%d level %d\n", top, i - 1, i);
        snprintf(name, sizeof name, "n%d", i);
        put(name, 0755, line);
    }
    snprintf(line, sizeof line, "#!%s/tool\n", top);
    put("by-tool", 0755, line);
    put("relative", 0755, "#!./tool\n");
}

static void *spawn_many(void *unused) {
    for (int i = 0; i < 20; i++) {
        pid_t child;
        int status;
        char *const words[] = {"tool", "quiet", NULL};
        if (posix_spawn(&child, "./tool", NULL, NULL, words, environ)) return "spawn";
        if (waitpid(child, &status, 0) != child || status != 0) return "status";
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "quiet")) return 0;
    if (argc != 3 || strcmp(argv[1], "all")) return say(argc, argv);
    const char *top = argv[2];
    char path[4096];
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", top);
    setenv("PATH", path, 1);
    snprintf(path, sizeof path, "%s/tool", top);
    copy("/proc/self/exe", path);
    if (chdir(top)) die(top);
    make(top);
    ways(top);
    kinds();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, spawn_many, NULL);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        printf("many at once: %s\n", wrong ? (char *)wrong : "done");
    }
    return 0;
}
