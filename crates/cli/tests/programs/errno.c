/* Calls every function that libadit_preload.so has, in a directory of the volume, and ends with an
 * error if one that succeeded changed errno.
 *
 * `errno all DIRECTORY`       all of them, in a loop; prints the name of each
 * `errno database DIRECTORY`  opens a database as LMDB does, beside other processes that do so
 *
 * The functions are looked up by name: each is called under all of its names.
 */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <threads.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;
static int bad, is_first, is_served;
static int before;

static void *function(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        printf("%s: no library has it\n", name);
        exit(1);
    }
    return found;
}

/* The next name of a list. */
static const char *next(const char **list) {
    static char name[64];
    *list += strspn(*list, " ");
    size_t len = strcspn(*list, " ");
    memcpy(name, *list, len);
    name[len] = 0;
    *list += len;
    return len ? name : NULL;
}

static void judge(const char *name, const char *call, int good, int after) {
    if (is_first) printf("name %s\n", name);
    if (!good) printf("%s: %s failed: %s\n", name, call, strerror(after));
    else if (after != before) printf("%s: %s leaves errno %d (%s)\n", name, call, after, strerror(after));
    bad |= !good || after != before;
}

/* Does a call, f of this type, under all its names. Its result is r. */
#define EACH(names, type, call, is_good)                       \
    do {                                                       \
        const char *names_ = names, *name_;                    \
        while ((name_ = next(&names_))) {                      \
            __typeof__(type) *f = function(name_);             \
            errno = before;                                    \
            __auto_type r = call;                              \
            int after = errno;                                 \
            (void)r;                                           \
            judge(name_, #call, is_good, after);               \
        }                                                      \
    } while (0)
/* The same, of functions that return 0. */
#define ZERO(names, type, call) EACH(names, type, call, r == 0)
/* The same, for a user who may not call them. */
#define DENIED(names, type, call) \
    ZERO(names, type, (call) == -1 && errno == EPERM ? (errno = before, 0) : -1)
/* Prepares a call. */
#define NEED(what)                                                                    \
    do {                                                                              \
        if (!(what)) {                                                                \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno));            \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

typedef int by_path(const char *);

static void opening(void) {
    EACH("open open64 __open __open64", int(const char *, int, ...), f("f", O_RDWR | O_CREAT, 0644), r >= 0 && !close(r));
    EACH("__open_2 __open64_2", int(const char *, int), f("f", O_RDWR), r >= 0 && !close(r));
    EACH("openat openat64", int(int, const char *, int, ...), f(AT_FDCWD, "f", O_RDWR), r >= 0 && !close(r));
    EACH("__openat_2 __openat64_2", int(int, const char *, int), f(AT_FDCWD, "f", O_RDWR), r >= 0 && !close(r));
    EACH("creat creat64", int(const char *, int), f("created", 0600), r >= 0 && !close(r));
    char made[64];
#define TEMPLATE (strcpy(made, "temporary-XXXXXXyy"))
#define PLAIN (strcpy(made, "temporary-XXXXXX"))
#define IS_MADE (r >= 0 && !close(r) && !unlink(made))
    EACH("mkstemp mkstemp64", int(char *), f(PLAIN), IS_MADE);
    EACH("mkostemp mkostemp64", int(char *, int), f(PLAIN, O_CLOEXEC), IS_MADE);
    EACH("mkstemps mkstemps64", int(char *, int), f(TEMPLATE, 2), IS_MADE);
    EACH("mkostemps mkostemps64", int(char *, int, int), f(TEMPLATE, 2, O_CLOEXEC), IS_MADE);
    EACH("mkdtemp", char *(char *), f(PLAIN), r && !rmdir(made));
    EACH("mktemp", char *(char *), f(PLAIN), *r && access(made, F_OK) == -1);
    EACH("tempnam", char *(const char *, const char *), f(".", "x"), r && !strncmp(r, "./x", 3));
    EACH("umask", mode_t(mode_t), f(022), 1);
}

/* Who the process is: as it is. */
static void users(void) {
    gid_t groups[64];
    int count = getgroups(64, groups);
    uid_t uid = geteuid();
    gid_t gid = getegid();
    ZERO("setuid seteuid", int(uid_t), f(uid));
    ZERO("setgid setegid", int(gid_t), f(gid));
    ZERO("setreuid", int(uid_t, uid_t), f(-1, uid));
    ZERO("setregid", int(gid_t, gid_t), f(-1, gid));
    ZERO("setresuid", int(uid_t, uid_t, uid_t), f(-1, uid, -1));
    ZERO("setresgid", int(gid_t, gid_t, gid_t), f(-1, gid, -1));
    EACH("setfsuid", int(uid_t), f(uid), r == (int)uid);
    EACH("setfsgid", int(gid_t), f(gid), r == (int)gid);
    if (uid == 0) {
        ZERO("setgroups", int(size_t, const gid_t *), f(count, groups));
        ZERO("initgroups", int(const char *, gid_t), f("root", gid));
    } else {
        DENIED("setgroups", int(size_t, const gid_t *), f(count, groups));
        DENIED("initgroups", int(const char *, gid_t), f("root", gid));
    }
    setgroups(count, groups);
}

static void content(void) {
    char text[64] = "text";
    struct iovec pieces[2] = {{text, 4}, {text + 4, 4}};
    int fd, to, pipes[2];
    off_t at = 0;
    NEED((fd = open("f", O_RDWR)) >= 0 && (to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0 && !pipe(pipes));
    EACH("write __write", ssize_t(int, const void *, size_t), f(fd, text, 64), r == 64);
    EACH("pwrite pwrite64 __pwrite64", ssize_t(int, const void *, size_t, off_t), f(fd, text, 64, 64), r == 64);
    EACH("writev", ssize_t(int, const struct iovec *, int), f(fd, pieces, 2), r == 8);
    EACH("pwritev pwritev64", ssize_t(int, const struct iovec *, int, off_t), f(fd, pieces, 2, 0), r == 8);
    EACH("pwritev2 pwritev64v2", ssize_t(int, const struct iovec *, int, off_t, int), f(fd, pieces, 2, 0, RWF_DSYNC), r == 8);
    EACH("lseek lseek64 __lseek", off_t(int, off_t, int), f(fd, 0, SEEK_SET), r == 0);
    EACH("read __read", ssize_t(int, void *, size_t), f(fd, text, 8), r == 8);
    EACH("__read_chk", ssize_t(int, void *, size_t, size_t), f(fd, text, 8, 64), r == 8);
    EACH("pread pread64 __pread64", ssize_t(int, void *, size_t, off_t), f(fd, text, 8, 0), r == 8);
    EACH("pread", ssize_t(int, void *, size_t, off_t), f(fd, text, 8, 1 << 30), r == 0);
    EACH("__pread_chk __pread64_chk", ssize_t(int, void *, size_t, off_t, size_t), f(fd, text, 8, 0, 64), r == 8);
    EACH("readv", ssize_t(int, const struct iovec *, int), f(fd, pieces, 2), r >= 0);
    EACH("preadv preadv64", ssize_t(int, const struct iovec *, int, off_t), f(fd, pieces, 2, 0), r == 8);
    EACH("preadv2 preadv64v2", ssize_t(int, const struct iovec *, int, off_t, int), f(fd, pieces, 2, 0, 0), r == 8);
    ZERO("fsync fdatasync syncfs", int(int), f(fd));
    ZERO("sync_file_range", int(int, off_t, off_t, unsigned), f(fd, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    EACH("sync", void(void), (f(), 0), r == 0);
    ZERO("ftruncate ftruncate64", int(int, off_t), f(fd, 8192));
    ZERO("truncate truncate64", int(const char *, off_t), f("f", 16384));
    ZERO("fallocate fallocate64", int(int, int, off_t, off_t), f(fd, 0, 0, 65536));
    ZERO("posix_fallocate posix_fallocate64", int(int, off_t, off_t), f(fd, 0, 65536));
    EACH("posix_fallocate", int(int, off_t, off_t), f(fd, 0, 0), r == EINVAL);
    ZERO("posix_fadvise posix_fadvise64", int(int, off_t, off_t, int), f(fd, 0, 0, POSIX_FADV_WILLNEED));
    ZERO("readahead", ssize_t(int, off_t, size_t), f(fd, 0, 4096));
    EACH("copy_file_range", ssize_t(int, off_t *, int, off_t *, size_t, unsigned), (at = 0, f(fd, &at, to, NULL, 4096, 0)), r == 4096);
    EACH("sendfile sendfile64", ssize_t(int, int, off_t *, size_t), (at = 0, f(to, fd, &at, 4096)), r == 4096);
    NEED(write(pipes[1], text, 8) == 8);
    EACH("splice", ssize_t(int, off_t *, int, off_t *, size_t, unsigned), f(pipes[0], NULL, to, NULL, 8, 0), r == 8);
    EACH("splice", ssize_t(int, off_t *, int, off_t *, size_t, unsigned), (at = 0, f(fd, &at, pipes[1], NULL, 8, 0)), r == 8);
    NEED(!close(fd) && !close(to) && !close(pipes[0]) && !close(pipes[1]));
}

static void mapping(void) {
    int fd;
    char *memory = NULL;
    NEED((fd = open("f", O_RDWR)) >= 0 && !ftruncate(fd, 1 << 16));
    EACH("mmap mmap64", void *(void *, size_t, int, int, int, off_t), f(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0), r != MAP_FAILED && !munmap(r, 8192));
    EACH("mmap mmap64", void *(void *, size_t, int, int, int, off_t), (memory = f(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)), r != MAP_FAILED && !munmap(r, 4096));
    memory[4096]++;
    ZERO("msync", int(void *, size_t, int), f(memory + 4096, 4096, MS_SYNC));
    ZERO("madvise", int(void *, size_t, int), f(memory + 4096, 4096, MADV_RANDOM));
    ZERO("munmap", int(void *, size_t), f(memory + 4096, 4096));
    NEED((memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
    EACH("mremap", void *(void *, size_t, size_t, int, ...), f(memory, 4096, 8192, MREMAP_MAYMOVE), r != MAP_FAILED && !munmap(r, 8192));
    NEED(!close(fd));
}

static void numbers(void) {
    int fd, value = 0, other;
    NEED((fd = open("f", O_RDWR)) >= 0);
    EACH("dup", int(int), f(fd), r >= 0 && !close(r));
    EACH("dup2 __dup2", int(int, int), f(fd, 200), r == 200);
    EACH("dup3", int(int, int, int), f(fd, 200, O_CLOEXEC), r == 200);
    NEED((other = open("/dev/null", O_RDONLY)) >= 0);
    EACH("dup2 __dup2", int(int, int), f(other, 200), r == 200);
    NEED(!close(other));
    EACH("close", int(int), f(dup(fd)), r == 0);
    EACH("close_range", int(unsigned, unsigned, int), f(200, 210, 0), r == 0);
    EACH("closefrom", void(int), (f(210), 0), r == 0);
    EACH("fcntl fcntl64 __fcntl", int(int, int, ...), f(fd, F_GETFL), r >= 0);
    EACH("isatty", int(int), (f(fd), errno == ENOTTY) ? (errno = before, 1) : 0, r == 1);
    EACH("ttyname", char *(int), (f(fd), errno == ENOTTY) ? (errno = before, "") : NULL, r != NULL);
    EACH("tcgetpgrp", pid_t(int), (f(fd), errno == ENOTTY) ? (errno = before, 0) : -1, r == 0);
    EACH("tcgetattr", int(int, void *), (f(fd, NULL), errno == ENOTTY) ? (errno = before, 0) : -1, r == 0);
    char terminal[64];
    EACH("ttyname_r", int(int, char *, size_t), f(fd, terminal, sizeof terminal), r == ENOTTY);
    EACH("fcntl", int(int, int, ...), f(fd, F_SETFL, O_RDWR | O_NONBLOCK), r == 0);
    EACH("fcntl", int(int, int, ...), f(fd, F_DUPFD_CLOEXEC, 3), r >= 3 && !close(r));
    EACH("ioctl", int(int, unsigned long, ...), f(fd, FIONREAD, &value), r == 0);
    NEED(!close(fd));
}

static void names(void) {
    char text[64];
    ZERO("symlink", int(const char *, const char *), f("f", "link"));
    EACH("readlink", ssize_t(const char *, char *, size_t), f("link", text, 64), r == 1);
    EACH("__readlink_chk", ssize_t(const char *, char *, size_t, size_t), f("link", text, 64, 64), r == 1);
    EACH("readlinkat", ssize_t(int, const char *, char *, size_t), f(AT_FDCWD, "link", text, 64), r == 1);
    EACH("__readlinkat_chk", ssize_t(int, const char *, char *, size_t, size_t), f(AT_FDCWD, "link", text, 64, 64), r == 1);
    ZERO("unlink", by_path, f("link"));
    ZERO("symlinkat", int(const char *, int, const char *), f("f", AT_FDCWD, "link"));
    ZERO("unlinkat", int(int, const char *, int), f(AT_FDCWD, "link", 0));
    ZERO("link", int(const char *, const char *), f("f", "second"));
    ZERO("rename", int(const char *, const char *), f("second", "third"));
    ZERO("renameat", int(int, const char *, int, const char *), f(AT_FDCWD, "third", AT_FDCWD, "second"));
    ZERO("renameat2", int(int, const char *, int, const char *, unsigned), f(AT_FDCWD, "second", AT_FDCWD, "third", RENAME_NOREPLACE));
    ZERO("remove", by_path, f("third"));
    ZERO("linkat", int(int, const char *, int, const char *, int), f(AT_FDCWD, "f", AT_FDCWD, "second", 0));
    NEED(!unlink("second"));
    ZERO("mkdir", int(const char *, mode_t), f("d", 0755));
    ZERO("rmdir", by_path, f("d"));
    ZERO("mkdirat", int(int, const char *, mode_t), f(AT_FDCWD, "d", 0755));
    ZERO("remove", by_path, f("d"));
    ZERO("mkfifo", int(const char *, mode_t), f("pipe", 0600));
    NEED(!unlink("pipe"));
    ZERO("mkfifoat", int(int, const char *, mode_t), f(AT_FDCWD, "pipe", 0600));
    NEED(!unlink("pipe"));
    ZERO("mknod", int(const char *, mode_t, dev_t), f("node", S_IFREG | 0600, 0));
    NEED(!unlink("node"));
    ZERO("mknodat", int(int, const char *, mode_t, dev_t), f(AT_FDCWD, "node", S_IFREG | 0600, 0));
    NEED(!unlink("node"));
}

static void attributes(void) {
    int fd;
    char text[64];
    struct stat stat;
    struct statx extended;
    struct statfs space;
    struct statvfs volume;
    struct timespec times[2] = {{1, 2}, {3, 4}};
    struct timeval short_times[2] = {{1, 2}, {3, 4}};
    struct utimbuf seconds = {1, 2};
    NEED((fd = open("f", O_RDWR)) >= 0 && !symlink("f", "link"));
    ZERO("stat stat64 lstat lstat64", int(const char *, struct stat *), f("f", &stat));
    ZERO("fstat fstat64", int(int, struct stat *), f(fd, &stat));
    ZERO("fstatat fstatat64", int(int, const char *, struct stat *, int), f(AT_FDCWD, "f", &stat, 0));
    ZERO("__xstat __xstat64 __lxstat __lxstat64", int(int, const char *, struct stat *), f(1, "f", &stat));
    ZERO("__fxstat __fxstat64", int(int, int, struct stat *), f(1, fd, &stat));
    ZERO("__fxstatat __fxstatat64", int(int, int, const char *, struct stat *, int), f(1, AT_FDCWD, "f", &stat, 0));
    ZERO("statx", int(int, const char *, int, unsigned, struct statx *), f(AT_FDCWD, "f", 0, STATX_BASIC_STATS, &extended));
    ZERO("access eaccess euidaccess", int(const char *, int), f("f", R_OK));
    ZERO("faccessat", int(int, const char *, int, int), f(AT_FDCWD, "f", R_OK, 0));
    ZERO("chmod", int(const char *, mode_t), f("f", 0644));
    ZERO("lchmod", int(const char *, mode_t), f("f", 0644));
    ZERO("fchmod", int(int, mode_t), f(fd, 0644));
    ZERO("fchmodat", int(int, const char *, mode_t, int), f(AT_FDCWD, "f", 0644, 0));
    ZERO("chown lchown", int(const char *, uid_t, gid_t), f("f", -1, -1));
    ZERO("fchown", int(int, uid_t, gid_t), f(fd, -1, -1));
    ZERO("fchownat", int(int, const char *, uid_t, gid_t, int), f(AT_FDCWD, "f", -1, -1, 0));
    ZERO("utime", int(const char *, const struct utimbuf *), f("f", &seconds));
    ZERO("utimes lutimes", int(const char *, const struct timeval *), f("f", short_times));
    ZERO("futimes", int(int, const struct timeval *), f(fd, short_times));
    ZERO("futimesat", int(int, const char *, const struct timeval *), f(AT_FDCWD, "f", short_times));
    ZERO("futimens", int(int, const struct timespec *), f(fd, times));
    ZERO("utimensat", int(int, const char *, const struct timespec *, int), f(AT_FDCWD, "f", times, 0));
    EACH("pathconf", long(const char *, int), f("f", _PC_NAME_MAX), r == 255);
    EACH("pathconf", long(const char *, int), f("f", _PC_SYNC_IO), r == -1);
    EACH("fpathconf", long(int, int), f(fd, _PC_ASYNC_IO), r == 1);
    EACH("ftok", int(const char *, int), f("f", 1), r != -1);
    ZERO("statfs statfs64", int(const char *, struct statfs *), f("f", &space));
    ZERO("fstatfs fstatfs64", int(int, struct statfs *), f(fd, &space));
    ZERO("statvfs statvfs64", int(const char *, struct statvfs *), f("f", &volume));
    ZERO("fstatvfs fstatvfs64", int(int, struct statvfs *), f(fd, &volume));
    ZERO("setxattr lsetxattr", int(const char *, const char *, const void *, size_t, int), f("f", "user.a", "1", 1, 0));
    ZERO("fsetxattr", int(int, const char *, const void *, size_t, int), f(fd, "user.b", "1", 1, 0));
    EACH("getxattr lgetxattr", ssize_t(const char *, const char *, void *, size_t), f("f", "user.a", text, 64), r == 1);
    EACH("fgetxattr", ssize_t(int, const char *, void *, size_t), f(fd, "user.a", text, 64), r == 1);
    EACH("listxattr llistxattr", ssize_t(const char *, char *, size_t), f("f", text, 64), r > 0);
    EACH("flistxattr", ssize_t(int, char *, size_t), f(fd, text, 64), r > 0);
    ZERO("removexattr", int(const char *, const char *), f("f", "user.a"));
    ZERO("fremovexattr", int(int, const char *), f(fd, "user.b"));
    NEED(!setxattr("f", "user.a", "1", 1, 0));
    ZERO("lremovexattr", int(const char *, const char *), f("f", "user.a"));
    NEED(!close(fd) && !unlink("link"));
}

static int visit(const char *path, const struct stat *stat, int kind) { return path && stat ? 0 * kind : 1; }
static int visit_at(const char *path, const struct stat *stat, int kind, struct FTW *at) { return at ? visit(path, stat, kind) : 1; }

static void directories(const char *directory) {
    DIR *stream = NULL;
    struct dirent entry, *found, **list;
    char text[PATH_MAX];
    int fd;
    glob_t names;
    NEED((fd = open(directory, O_RDONLY | O_DIRECTORY)) >= 0);
    EACH("opendir", DIR *(const char *), (stream = f(".")), r != NULL);
    EACH("dirfd", int(DIR *), f(stream), r >= 0);
    EACH("readdir readdir64", struct dirent *(DIR *), f(stream), r != NULL);
    ZERO("readdir_r readdir64_r", int(DIR *, struct dirent *, struct dirent **), f(stream, &entry, &found));
    EACH("telldir", long(DIR *), f(stream), r >= 0);
    EACH("seekdir", void(DIR *, long), (f(stream, 0), 0), r == 0);
    EACH("rewinddir", void(DIR *), (f(stream), 0), r == 0);
    while (readdir(stream)) {}
    EACH("readdir readdir64", struct dirent *(DIR *), f(stream), r == NULL);
    EACH("closedir", int(DIR *), f(stream), r == 0);
    EACH("fdopendir", DIR *(int), f(dup(fd)), r != NULL && !closedir(r));
    EACH("getdents64", ssize_t(int, void *, size_t), (lseek(fd, 0, SEEK_SET), errno = before, f(fd, text, sizeof text)), r > 0);
    EACH("scandir scandir64", int(const char *, struct dirent ***, int (*)(const struct dirent *), int (*)(const struct dirent **, const struct dirent **)), f(".", &list, NULL, alphasort), r > 0);
    EACH("scandirat scandirat64", int(int, const char *, struct dirent ***, int (*)(const struct dirent *), int (*)(const struct dirent **, const struct dirent **)), f(AT_FDCWD, ".", &list, NULL, alphasort), r > 0);
    ZERO("glob glob64", int(const char *, int, int (*)(const char *, int), glob_t *), f("*", 0, NULL, &names));
    ZERO("ftw ftw64", int(const char *, int (*)(const char *, const struct stat *, int), int), f(directory, visit, 4));
    ZERO("nftw nftw64", int(const char *, int (*)(const char *, const struct stat *, int, struct FTW *), int, int), f(directory, visit_at, 4, FTW_CHDIR));
    char *paths[] = {"/dev/null", NULL};
    EACH("fts_open", void *(char *const *, int, void *), f(paths, 0x10, NULL), r != NULL);
    ZERO("chdir", by_path, f(directory));
    ZERO("fchdir", int(int), f(fd));
    EACH("getcwd", char *(char *, size_t), f(text, sizeof text), r != NULL);
    EACH("__getcwd_chk", char *(char *, size_t, size_t), f(text, sizeof text, sizeof text), r != NULL);
    EACH("get_current_dir_name", char *(void), f(), r != NULL);
    EACH("realpath", char *(const char *, char *), f("f", text), r != NULL);
    EACH("__realpath_chk", char *(const char *, char *, size_t), f("f", text, sizeof text), r != NULL);
    EACH("canonicalize_file_name", char *(const char *), f("f"), r != NULL);
    NEED(!close(fd));
}

static void processes(void) {
    posix_spawn_file_actions_t actions;
    char *words[] = {"true", NULL};
    pid_t child;
    int status;
    ZERO("posix_spawn_file_actions_init", int(posix_spawn_file_actions_t *), f(&actions));
    ZERO("posix_spawn_file_actions_adddup2", int(posix_spawn_file_actions_t *, int, int), f(&actions, 1, 9));
    ZERO("posix_spawn_file_actions_addclose", int(posix_spawn_file_actions_t *, int), f(&actions, 9));
    ZERO("posix_spawn", int(pid_t *, const char *, void *, void *, char **, char **), f(&child, "/bin/true", &actions, NULL, words, environ));
    NEED(waitpid(child, &status, 0) == child);
    ZERO("posix_spawnp", int(pid_t *, const char *, void *, void *, char **, char **), f(&child, "true", &actions, NULL, words, environ));
    NEED(waitpid(child, &status, 0) == child);
    posix_spawn_file_actions_t moving;
    NEED(!posix_spawn_file_actions_init(&moving));
    ZERO("posix_spawn_file_actions_addchdir_np", int(posix_spawn_file_actions_t *, const char *), f(&moving, "/"));
    ZERO("posix_spawn_file_actions_addfchdir_np", int(posix_spawn_file_actions_t *, int), f(&moving, 9));
    NEED(!posix_spawn_file_actions_destroy(&moving));
    ZERO("posix_spawn_file_actions_destroy", int(posix_spawn_file_actions_t *), f(&actions));
    ZERO("system", int(const char *), f("true"));
    EACH("popen", FILE *(const char *, const char *), f("true", "r"), r && pclose(r) == 0);
    /* fork itself is the C library's; what it calls of ours is not to be seen. */
    errno = before;
    child = fork();
    int after = errno;
    if (child == 0) _exit(after == before ? 0 : 1);
    judge("fork", "fork()", child > 0, after);
    NEED(waitpid(child, &status, 0) == child);
    judge("fork", "fork() in the child", status == 0, before);
    errno = before;
    child = vfork();
    if (child == 0) _exit(errno == before ? 0 : 1);
    after = errno;
    judge("vfork", "vfork()", child > 0, after);
    NEED(waitpid(child, &status, 0) == child);
    judge("vfork", "vfork() in the child", status == 0, before);
}

/* A stream and a pair of datagram sockets, at paths. */
static void sockets(void) {
    struct sockaddr_un at[3] = {{AF_UNIX, "stream"}, {AF_UNIX, "one"}, {AF_UNIX, "two"}}, from;
    struct sockaddr *to = (void *)&at[2], *told = (void *)&from;
    socklen_t len = sizeof from;
    char byte = 1;
    struct iovec piece = {&byte, 1};
    struct mmsghdr many = {{to, sizeof at[2], &piece, 1, NULL, 0, 0}, 0};
    int fds[3], client, peer;
    for (int i = 0; i < 3; i++) {
        NEED((fds[i] = socket(AF_UNIX, i ? SOCK_DGRAM : SOCK_STREAM, 0)) >= 0);
        ZERO("bind", int(int, const struct sockaddr *, socklen_t), f(fds[i], (void *)&at[i], sizeof at[i]));
    }
    NEED(!listen(fds[0], 5));
#define CONNECTED ({ NEED((client = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0); errno = before; })
#define IS_ACCEPTED (r >= 0 && !close(r) && !close(client))
    CONNECTED;
    ZERO("connect", int(int, const struct sockaddr *, socklen_t), f(client, (void *)&at[0], sizeof at[0]));
    NEED((peer = accept(fds[0], NULL, NULL)) >= 0);
    ZERO("getpeername getsockname", int(int, struct sockaddr *, socklen_t *), (len = sizeof from, f(client, told, &len)));
    NEED(!close(client) && !close(peer));
#define WAITS ({ CONNECTED; NEED(!connect(client, (void *)&at[0], sizeof at[0])); len = sizeof from; errno = before; })
    EACH("accept", int(int, struct sockaddr *, socklen_t *), (WAITS, f(fds[0], told, &len)), IS_ACCEPTED);
    EACH("accept4", int(int, struct sockaddr *, socklen_t *, int), (WAITS, f(fds[0], told, &len, SOCK_CLOEXEC)), IS_ACCEPTED);
    for (int i = 0; i < 2; i++) {
        EACH("sendto", ssize_t(int, const void *, size_t, int, const struct sockaddr *, socklen_t), f(fds[1], &byte, 1, 0, to, sizeof at[2]), r == 1);
    }
    EACH("recvfrom", ssize_t(int, void *, size_t, int, struct sockaddr *, socklen_t *), (len = sizeof from, f(fds[2], &byte, 1, 0, told, &len)), r == 1);
    EACH("__recvfrom_chk", ssize_t(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *), (len = sizeof from, f(fds[2], &byte, 1, 1, 0, told, &len)), r == 1);
    EACH("sendmsg", ssize_t(int, const struct msghdr *, int), f(fds[1], &many.msg_hdr, 0), r == 1);
    EACH("sendmmsg", int(int, struct mmsghdr *, unsigned, int), f(fds[1], &many, 1, 0), r == 1);
    many.msg_hdr.msg_name = &from;
    EACH("recvmsg", ssize_t(int, struct msghdr *, int), f(fds[2], &many.msg_hdr, 0), r == 1);
    many.msg_hdr.msg_namelen = sizeof from;
    EACH("recvmmsg", int(int, struct mmsghdr *, unsigned, int, struct timespec *), f(fds[2], &many, 1, 0, NULL), r == 1);
    for (int i = 0; i < 3; i++) NEED(!close(fds[i]) && !unlink(at[i].sun_path));
}

static void waiting(void) {
    int fd, epoll, pipes[2];
    NEED((fd = open("f", O_RDWR)) >= 0 && !pipe(pipes) && (epoll = epoll_create1(0)) >= 0);
    struct pollfd polled[2] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}};
    struct timespec now = {0, 0};
    struct timeval at_once = {0, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;
#define SET ({ FD_ZERO(&set); FD_SET(fd, &set); FD_SET(pipes[0], &set); })
    EACH("poll __poll", int(struct pollfd *, nfds_t, int), f(polled, 2, 1000), r == 1);
    EACH("__poll_chk", int(struct pollfd *, nfds_t, int, size_t), f(polled, 2, 1000, sizeof polled), r == 1);
    EACH("ppoll", int(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *), f(polled, 2, &now, NULL), r == 1);
    EACH("__ppoll_chk", int(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t), f(polled, 2, &now, NULL, sizeof polled), r == 1);
    EACH("select __select", int(int, fd_set *, fd_set *, fd_set *, struct timeval *), (SET, f(100, &set, NULL, NULL, &at_once)), r == 1);
    EACH("pselect", int(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *), (SET, f(100, &set, NULL, NULL, &now, NULL)), r == 1);
    ZERO("epoll_ctl", int(int, int, int, struct epoll_event *), f(epoll, EPOLL_CTL_ADD, pipes[0], &event));
    NEED(!close(fd) && !close(epoll) && !close(pipes[0]) && !close(pipes[1]));
}

/* As <libaio.h> has them. */
struct request { uint64_t data; uint32_t key; int rw_flags; uint16_t opcode; int16_t priority; uint32_t fd; uint64_t buffer, len, offset, reserved; uint32_t flags, eventfd; };
struct done { uint64_t data, request, result, result2; };
static void called(unsigned long context, struct request *request, long result, long result2) { (void)context, (void)request, (void)result, (void)result2; }

static void asynchronous(void) {
    static char text[4096];
    int fd;
    unsigned long context = 0;
    NEED((fd = open("f", O_RDWR)) >= 0);
    struct request write = {.opcode = 1, .fd = fd, .buffer = (uintptr_t)text, .len = 4096}, *list[] = {&write};
    struct done done;
    struct timespec second = {1, 0};
    write.data = (uintptr_t)called;
    ZERO("io_setup", int(int, unsigned long *), f(8, &context));
    EACH("io_submit", int(unsigned long, long, struct request **), f(context, 1, list), r == 1);
    EACH("io_getevents", int(unsigned long, long, long, struct done *, struct timespec *), f(context, 1, 1, &done, &second), r == 1);
    NEED(((int (*)(unsigned long, long, struct request **))function("io_submit"))(context, 1, list) == 1);
    EACH("io_pgetevents", int(unsigned long, long, long, struct done *, struct timespec *, sigset_t *), f(context, 1, 1, &done, &second, NULL), r == 1);
    NEED(((int (*)(unsigned long, long, struct request **))function("io_submit"))(context, 1, list) == 1);
    EACH("io_queue_run", int(unsigned long), f(context), r == 0);
    EACH("io_queue_wait", int(unsigned long, struct timespec *), f(context, &second), 1);
    EACH("io_cancel", int(unsigned long, struct request *, struct done *), f(context, &write, &done), r == -EINVAL);
    ZERO("io_destroy", int(unsigned long), f(context));
    ZERO("io_queue_init", int(int, unsigned long *), f(8, &context));
    ZERO("io_queue_release", int(unsigned long), f(context));
    EACH("io_uring_queue_init io_uring_queue_init_params", int(unsigned, void *, void *), f(8, text, NULL), r == -ENOSYS);
    EACH("io_uring_queue_init_mem", int(unsigned, void *, void *, void *, size_t), f(8, text, text, text, 8), r == -ENOSYS);
    EACH("io_uring_setup", int(unsigned, void *), f(8, text), r == -ENOSYS);
    EACH("syscall", long(long, ...), f(SYS_pread64, fd, text, 8L, 0L), r == 8);
    EACH("syscall", long(long, ...), f(SYS_getpid), r > 0);
    context = 0;
    EACH("syscall", long(long, ...), f(SYS_io_setup, 8, &context), r == 0);
    EACH("syscall", long(long, ...), f(SYS_io_destroy, context), r == 0);
    EACH("dlopen", void *(const char *, int), f("libaio.so.1", RTLD_NOW), r != NULL);

    struct aiocb block = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 4096}, *blocks[] = {&block};
#define WAIT while (aio_error(&block) == EINPROGRESS) NEED(!aio_suspend((const struct aiocb *const *)blocks, 1, NULL))
#define IS_WRITTEN ({ WAIT; r == 0 && aio_error(&block) == 0; })
    EACH("aio_write aio_write64 aio_read aio_read64", int(struct aiocb *), f(&block), IS_WRITTEN);
    EACH("aio_fsync aio_fsync64", int(int, struct aiocb *), f(O_DSYNC, &block), IS_WRITTEN);
    EACH("aio_suspend aio_suspend64", int(const struct aiocb *const *, int, const struct timespec *), f((const struct aiocb *const *)blocks, 1, NULL), r == 0);
    EACH("aio_cancel aio_cancel64", int(int, struct aiocb *), f(fd, &block), r == AIO_ALLDONE);
    block.aio_lio_opcode = LIO_WRITE;
    EACH("lio_listio lio_listio64", int(int, struct aiocb *const *, int, struct sigevent *), f(LIO_WAIT, blocks, 1, NULL), IS_WRITTEN);
    NEED(!close(fd));
}

static int printed(int (*print)(int, const char *, va_list), int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int len = print(fd, format, arguments);
    va_end(arguments);
    return len;
}
static int printed_checked(int (*print)(int, int, const char *, va_list), int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int len = print(fd, 1, format, arguments);
    va_end(arguments);
    return len;
}

static void streams(void) {
    int fd;
    FILE *stream = NULL;
    NEED((fd = open("printed", O_RDWR | O_CREAT, 0600)) >= 0);
    EACH("dprintf", int(int, const char *, ...), f(fd, "%d", 1), r == 1);
    EACH("__dprintf_chk", int(int, int, const char *, ...), f(fd, 1, "%d", 1), r == 1);
    EACH("vdprintf", int(int, const char *, va_list), printed(f, fd, "%d", 1), r == 1);
    EACH("__vdprintf_chk", int(int, int, const char *, va_list), printed_checked(f, fd, "%d", 1), r == 1);
    EACH("fopen fopen64", FILE *(const char *, const char *), f("printed", "a+"), r && !fclose(r));
    NEED((stream = fopen("printed", "r")) != NULL);
    EACH("freopen freopen64", FILE *(const char *, const char *, FILE *), f("f", "r", stream), r == stream);
    EACH("fileno fileno_unlocked", int(FILE *), f(stream), r >= 0);
    NEED(!fclose(stream));
    EACH("fdopen", FILE *(int, const char *), f(dup(fd), "r+"), r && !fclose(r));
    NEED(!close(fd));
}

/* ------------------------------------------------------------------------ locks */

struct holder { int fd, command, status; };

static struct flock range(int type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
}

/* Unlocks after a while. */
static void *hold(void *argument) {
    struct holder *holder = argument;
    struct flock none = range(F_UNLCK);
    usleep(50000);
    holder->status = holder->command ? fcntl(holder->fd, holder->command, &none) : flock(holder->fd, LOCK_UN);
    return NULL;
}

/* A lock that is waited for: another thread has it on another description. */
static void waiting_locks(void) {
    pthread_t thread;
    struct flock lock = range(F_WRLCK);
    struct holder holder = {.command = 0};
    int fd, pipes[2], status;
    char byte;
    NEED((fd = open("f", O_RDWR)) >= 0 && (holder.fd = open("f", O_RDWR)) >= 0);
    NEED(!flock(holder.fd, LOCK_EX) && !pthread_create(&thread, NULL, hold, &holder));
    ZERO("flock", int(int, int), f(fd, LOCK_EX));
    NEED(!pthread_join(thread, NULL) && holder.status == 0);
    holder.command = F_OFD_SETLK;
    NEED(!fcntl(holder.fd, F_OFD_SETLK, &lock) && !pthread_create(&thread, NULL, hold, &holder));
    ZERO("fcntl", int(int, int, ...), f(fd, F_OFD_SETLKW, &lock));
    NEED(!pthread_join(thread, NULL) && holder.status == 0);
    EACH("pread", ssize_t(int, void *, size_t, off_t), f(fd, &byte, 1, 0), r == 1);
    NEED(!close(fd) && !close(holder.fd));
    if (!is_served) return;
    /* Another process has it. */
    NEED((fd = open("f", O_RDWR)) >= 0 && !pipe(pipes));
    pid_t child = fork();
    if (child == 0) {
        NEED(!fcntl(fd, F_SETLK, &lock) && write(pipes[1], "x", 1) == 1);
        usleep(50000);
        _exit(0);
    }
    NEED(read(pipes[0], &byte, 1) == 1);
    ZERO("fcntl", int(int, int, ...), f(fd, F_SETLKW, &lock));
    NEED(waitpid(child, &status, 0) == child && status == 0);
    EACH("lseek", off_t(int, off_t, int), f(fd, 0, SEEK_END), r >= 0);
    NEED(!close(fd) && !close(pipes[0]) && !close(pipes[1]));
}

static void locks(void) {
    int fd;
    struct flock lock = range(F_WRLCK);
    NEED((fd = open("f", O_RDWR)) >= 0);
    ZERO("flock", int(int, int), f(fd, LOCK_EX));
    ZERO("lockf lockf64", int(int, int, off_t), f(fd, F_TLOCK, 1));
    ZERO("fcntl", int(int, int, ...), f(fd, F_SETLKW, &lock));
    ZERO("fcntl", int(int, int, ...), f(fd, F_GETLK, &lock));
    NEED(!close(fd));
    waiting_locks();
}

/* ------------------------------------------------------------------------ LMDB's beginning */

static void database(void) {
    struct flock lock = range(F_WRLCK), shared = range(F_RDLCK);
    int fd = -1, log = -1;
    char *memory = NULL;
    char meta[4096] = "";
    EACH("open", int(const char *, int, ...), (fd = f("lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644)), r >= 0);
    errno = 0;
    int alone = !fcntl(fd, F_SETLK, &lock);
    if (!alone) NEED(errno == EAGAIN || errno == EACCES);
    if (!alone) ZERO("fcntl", int(int, int, ...), f(fd, F_SETLKW, &shared));
    EACH("lseek", off_t(int, off_t, int), f(fd, 0, SEEK_END), r >= 0);
    if (alone) ZERO("ftruncate", int(int, off_t), f(fd, 8192));
    EACH("mmap", void *(void *, size_t, int, int, int, off_t), (memory = f(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)), r != MAP_FAILED);
    EACH("open", int(const char *, int, ...), (log = f("data", O_RDWR | O_CREAT | O_CLOEXEC, 0644)), r >= 0);
    EACH("pread", ssize_t(int, void *, size_t, off_t), f(log, meta, 4096, 0), r >= 0);
    if (alone) EACH("pwrite", ssize_t(int, const void *, size_t, off_t), f(log, meta, 4096, 0), r == 4096);
    if (alone) ZERO("fcntl", int(int, int, ...), f(fd, F_SETLK, &shared));
    ZERO("fdatasync", int(int), f(log));
    ZERO("munmap", int(void *, size_t), f(memory, 8192));
    ZERO("close", int(int), f(fd));
    ZERO("close", int(int), f(log));
}

static void *begun(void *argument) {
    return argument;
}
static int begun_c11(void *argument) {
    return !!argument;
}
static void caught(int signal) {
    (void)signal;
}

static void threads_and_signals(void) {
    pthread_t one;
    thrd_t two;
    sigset_t none, alarms;
    sigemptyset(&none);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    struct sigaction action = {.sa_handler = caught};
    ZERO("pthread_create", int(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *), f(&one, NULL, begun, NULL));
    NEED(!pthread_join(one, NULL));
    EACH("thrd_create", int(thrd_t *, thrd_start_t, void *), f(&two, begun_c11, NULL), r == thrd_success);
    NEED(thrd_join(two, NULL) == thrd_success);
    ZERO("sigaction", int(int, const struct sigaction *, struct sigaction *), f(SIGALRM, &action, NULL));
    ZERO("sigprocmask pthread_sigmask", int(int, const sigset_t *, sigset_t *), f(SIG_BLOCK, &alarms, NULL));
    NEED(!raise(SIGALRM));
    /* It always fails. */
    ZERO("sigsuspend", int(const sigset_t *), (f(&none), errno != EINTR || (errno = before, 0)));
    NEED(!sigprocmask(SIG_UNBLOCK, &alarms, NULL));
    EACH("signal", sighandler_t(int, sighandler_t), f(SIGALRM, SIG_DFL), r == caught);
}

int main(int count, char **arguments) {
    /* The standard says so. */
    judge("main", "the start", 1, errno);
    NEED(count == 3);
    errno = 0;
    const char *volume = getenv("ADIT_RUN_VOLUME"), *directory = arguments[2];
    is_served = volume && !strncmp(volume, "unix:", 5);
    int is_database = !strcmp(arguments[1], "database");
    for (int round = 0; round < (is_database ? 20 : 4); round++) {
        before = round % 2 ? EXDEV : 0;
        is_first = round == 0 && !is_database;
        ZERO("chdir", by_path, f(directory));
        if (is_database) {
            database();
            continue;
        }
        opening();
        users();
        content();
        mapping();
        numbers();
        names();
        attributes();
        directories(directory);
        processes();
        sockets();
        waiting();
        asynchronous();
        streams();
        locks();
        threads_and_signals();
    }
    if (!bad) puts("errno stays");
    return bad;
}
