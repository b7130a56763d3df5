/* Calls of programs with all that they may be given: flags bit by bit, descriptors of every kind,
 * paths of every kind. Prints a line for each: the call, and its result or the name of its errno.
 *
 * `matrix DIRECTORY FOREIGN`: an empty directory to work in, and an empty one of another file system.
 *
 * It runs on ext4 and on a volume, and a test compares the lines. So they tell neither numbers nor
 * times of a machine. What a case changes is made anew before the next one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>
#include <utime.h>

#define NEED(what)                                                                        \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static const char *root, *foreign;

/* ------------------------------------------------------------------------ what there is */

struct path { const char *name, *text; };
static char long_name[300], longest[PATH_MAX], beyond[PATH_MAX + 200], foreign_file[PATH_MAX], foreign_missing[PATH_MAX];
static char absolute[PATH_MAX], absolute_missing[PATH_MAX], absolute_up[PATH_MAX];

static struct path paths[] = {
    {"f", "f"}, {"\"\"", ""}, {"NULL", NULL}, {"missing", "missing"}, {"missing/x", "missing/x"}, {"f/", "f/"},
    {"f/x", "f/x"}, {"dir", "dir"}, {"dir/", "dir/"}, {"dir/inner", "dir/inner"}, {"empty", "empty"}, {"empty/", "empty/"},
    {".", "."}, {"..", ".."}, {"dir/.", "dir/."}, {"dir/..", "dir/.."}, {"missing/", "missing/"}, {"missing/.", "missing/."},
    {"link", "link"}, {"link/", "link/"}, {"dlink", "dlink"}, {"dlink/", "dlink/"}, {"dangling", "dangling"},
    {"dangling/", "dangling/"}, {"loop", "loop"}, {"loop/x", "loop/x"}, {"LONG", long_name}, {"LONGEST", longest}, {"BEYOND", beyond},
    {"FOREIGN", foreign_file}, {"FOREIGN-missing", foreign_missing}, {"ROOT/f", absolute}, {"ROOT/missing", absolute_missing},
    {"ROOT/dir/../f", absolute_up},
};
#define PATHS (sizeof paths / sizeof *paths)
/* Those for calls that have something else that varies. */
static const int few_paths[] = {0, 1, 3, 7, 18, 22, 29};

enum { READ = 100, WRITE, BOTH, APPEND, DIRECTORY, PATH, PATH_DIRECTORY, PATH_LINK, PIPE, PIPE_END, SOCKET, FOREIGN, TOP, TOP_PATH, CLOSED };
struct descriptor { const char *name; int fd; };
static const struct descriptor descriptors[] = {
    {"read", READ}, {"write", WRITE}, {"both", BOTH}, {"append", APPEND}, {"directory", DIRECTORY}, {"path", PATH},
    {"path-directory", PATH_DIRECTORY}, {"path-link", PATH_LINK}, {"pipe", PIPE}, {"pipe-end", PIPE_END}, {"socket", SOCKET},
    {"foreign", FOREIGN}, {"closed", CLOSED}, {"-1", -1},
};
#define DESCRIPTORS (sizeof descriptors / sizeof *descriptors)
static const struct descriptor starts[] = {
    {"cwd", AT_FDCWD}, {"top", TOP}, {"top-path", TOP_PATH}, {"read", READ}, {"path", PATH}, {"path-link", PATH_LINK},
    {"pipe", PIPE}, {"closed", CLOSED}, {"-1", -1},
};
#define STARTS (sizeof starts / sizeof *starts)

static void put(int fd, int number, int flags) {
    NEED(fd >= 0 && dup3(fd, number, flags) == number && !close(fd));
}

static void make(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(fd >= 0 && !ftruncate(fd, 10000) && pwrite(fd, "content", 7, 0) == 7 && !close(fd));
}

static void empty_directory(const char *name) {
    DIR *stream = opendir(name);
    struct dirent *entry;
    char below[600];
    NEED(stream);
    while ((entry = readdir(stream))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(below, sizeof below, "%s/%s", name, entry->d_name);
        if (entry->d_type == DT_DIR) {
            empty_directory(below);
            NEED(!rmdir(below));
        } else NEED(!unlink(below));
    }
    NEED(!closedir(stream));
}

static int made;

/* Everything anew. */
static void fresh(void) {
    int pair[2];
    made++;
    NEED(!chdir(root));
    empty_directory(".");
    empty_directory(foreign);
    make("f");
    NEED(!mkdir("dir", 0755) && !mkdir("empty", 0755));
    make("dir/inner");
    NEED(!symlink("f", "link") && !symlink("dir", "dlink") && !symlink("nowhere", "dangling") && !symlink("loop", "loop"));
    NEED(!mkfifo("fifo", 0644) && !setxattr("f", "user.a", "1", 1, 0));
    make(foreign_file);
    put(open("f", O_RDONLY), READ, 0);
    put(open("f", O_WRONLY), WRITE, 0);
    put(open("f", O_RDWR), BOTH, 0);
    put(open("f", O_RDWR | O_APPEND), APPEND, 0);
    put(open("dir", O_RDONLY | O_DIRECTORY), DIRECTORY, 0);
    put(open("f", O_PATH), PATH, 0);
    put(open("dir", O_PATH), PATH_DIRECTORY, 0);
    put(open("link", O_PATH | O_NOFOLLOW), PATH_LINK, 0);
    put(open(foreign_file, O_RDWR), FOREIGN, 0);
    put(open(".", O_RDONLY), TOP, 0);
    put(open(".", O_PATH), TOP_PATH, 0);
    NEED(!pipe2(pair, O_NONBLOCK));
    put(pair[0], PIPE, 0);
    put(pair[1], PIPE_END, 0);
    NEED(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    put(pair[0], SOCKET, 0);
    NEED(!close(pair[1]));
    close(CLOSED);
}

/* Positions at the beginning, and no locks. */
static void lighten(void) {
    static const int numbers[] = {READ, WRITE, BOTH, APPEND, DIRECTORY, FOREIGN, PIPE, PIPE_END, SOCKET};
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    for (int at = 0; at < 9; at++) {
        NEED(at >= 6 || !lseek(numbers[at], 0, SEEK_SET));
        NEED(!flock(numbers[at], LOCK_UN));
        NEED(!fcntl(numbers[at], F_SETLK, &all) && !fcntl(numbers[at], F_OFD_SETLK, &all));
    }
}

/* ------------------------------------------------------------------------ cases */

static void answer(const char *text, long result, int error) {
    if (result == -1) printf("%s = %s\n", text, error ? strerrorname_np(error) : "-1");
    else printf("%s = %ld\n", text, result);
}

/* A case: the call, and a format of its arguments. */
#define CASE(call, ...)                              \
    do {                                             \
        char text_[400];                             \
        snprintf(text_, sizeof text_, __VA_ARGS__);  \
        errno = 0;                                   \
        long r_ = (long)(call);                      \
        answer(text_, r_, errno);                    \
    } while (0)
/* The same. What it has done is undone. */
#define CHANGE(call, ...)                            \
    do {                                             \
        char text_[400];                             \
        snprintf(text_, sizeof text_, __VA_ARGS__);  \
        errno = 0;                                   \
        long r_ = (long)(call);                      \
        answer(text_, r_, errno);                    \
        if (r_ != -1) fresh();                       \
    } while (0)
/* The same, of calls that change positions and locks only. */
#define LIGHT(call, ...)                             \
    do {                                             \
        char text_[400];                             \
        snprintf(text_, sizeof text_, __VA_ARGS__);  \
        errno = 0;                                   \
        long r_ = (long)(call);                      \
        answer(text_, r_, errno);                    \
        if (r_ != -1) lighten();                     \
    } while (0)
/* 0 instead of a number of a file, which is closed. */
#define OPENED(call) ({ int fd_ = (call); fd_ < 0 ? -1 : (close(fd_), 0); })
/* 0 instead of an address. */
#define ADDRESS(call) ({ (call) ? 0 : -1; })

#define EACH_PATH for (const struct path *p = paths; p < paths + PATHS; p++)
#define EACH_DESCRIPTOR for (const struct descriptor *d = descriptors; d < descriptors + DESCRIPTORS; d++)
#define EACH_START for (const struct descriptor *s = starts; s < starts + STARTS; s++)
/* Where it begins matters less. */
#define EACH_OTHER for (const struct descriptor *s = starts; s < starts + STARTS; s += 2)
#define EACH_FEW for (size_t few = 0; few < sizeof few_paths / sizeof *few_paths; few++)
#define FEW (paths + few_paths[few])
/* No bit, each bit, all bits. */
#define EACH_BIT(flags) for (unsigned long at_ = 0, flags; at_ < 34 && (flags = at_ == 0 ? 0 : at_ == 33 ? 0xffffffff : 1ul << (at_ - 1), 1); at_++)

/* A call with a directory, a path and flags: all paths without flags, all flags with few paths. */
#define AT(call_, make_case, all)                                                                         \
    do {                                                                                                  \
        EACH_START EACH_PATH { unsigned long flags = 0; const char *path = p->text, *shown = p->name; make_case(call_); } \
        EACH_OTHER EACH_FEW EACH_BIT(flags) { const char *path = FEW->text, *shown = FEW->name; if (flags && (*path || flags >> 31 == 0)) make_case(call_); } \
        EACH_OTHER EACH_FEW { unsigned long flags = all; const char *path = FEW->text, *shown = FEW->name; make_case(call_); } \
    } while (0)
#define LABEL "%s %s %s %#lx"
#define LABELLED(call_) call_, s->name, shown, flags

/* The compiler doesn't warn of these. */
static volatile int minus = -1, too_many = 1025;
static void *volatile nothing;

static struct stat stat_room;
static struct statx statx_room;
static char text_room[PATH_MAX];
static const struct timespec two_times[2] = {{100, 5}, {200, 7}};
static const struct timeval two_short[2] = {{100, 5}, {200, 7}};
static const struct utimbuf two_seconds = {100, 200};

static void paths_at(void) {
#define FSTATAT(call_) CASE(fstatat(s->fd, path, &stat_room, flags), LABEL, LABELLED(call_))
#define STATX(call_) CASE(statx(s->fd, path, flags, STATX_BASIC_STATS, &statx_room), LABEL, LABELLED(call_))
#define FACCESSAT(call_) CASE(faccessat(s->fd, path, R_OK, flags), LABEL, LABELLED(call_))
#define FCHMODAT(call_) CASE(fchmodat(s->fd, path, 0644, flags), LABEL, LABELLED(call_))
#define FCHOWNAT(call_) CASE(fchownat(s->fd, path, 0, 0, flags), LABEL, LABELLED(call_))
#define UTIMENSAT(call_) CASE(utimensat(s->fd, path, two_times, flags), LABEL, LABELLED(call_))
#define LINKAT(call_) CHANGE(linkat(s->fd, path, AT_FDCWD, "new", flags), LABEL, LABELLED(call_))
#define UNLINKAT(call_) CHANGE(unlinkat(s->fd, path, flags), LABEL, LABELLED(call_))
    AT("fstatat", FSTATAT, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH);
    AT("statx", STATX, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE);
    AT("faccessat", FACCESSAT, AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    AT("fchmodat", FCHMODAT, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    AT("fchownat", FCHOWNAT, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    AT("utimensat", UTIMENSAT, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    AT("linkat", LINKAT, AT_SYMLINK_FOLLOW | AT_EMPTY_PATH);
    AT("unlinkat", UNLINKAT, AT_REMOVEDIR | AT_SYMLINK_NOFOLLOW);
    EACH_BIT(mask) {
        CASE(statx(AT_FDCWD, "f", 0, mask, &statx_room), "statx mask %#lx", mask);
        CASE(faccessat(AT_FDCWD, "f", mask, 0), "faccessat mode %#lx", mask);
    }
    EACH_START EACH_PATH {
        CASE(readlinkat(s->fd, p->text, text_room, 100), "readlinkat %s %s", s->name, p->name);
        CASE(futimesat(s->fd, p->text, two_short), "futimesat %s %s", s->name, p->name);
        CHANGE(mkdirat(s->fd, p->text, 0755), "mkdirat %s %s", s->name, p->name);
        CHANGE(mknodat(s->fd, p->text, S_IFREG | 0644, 0), "mknodat %s %s", s->name, p->name);
        CHANGE(mkfifoat(s->fd, p->text, 0644), "mkfifoat %s %s", s->name, p->name);
        CHANGE(symlinkat("to", s->fd, p->text), "symlinkat %s %s", s->name, p->name);
        CHANGE(OPENED(openat(s->fd, p->text, O_RDONLY)), "openat %s %s", s->name, p->name);
        CHANGE(OPENED(openat(s->fd, p->text, O_RDWR | O_CREAT, 0644)), "openat %s %s create", s->name, p->name);
        CHANGE(renameat(s->fd, p->text, AT_FDCWD, "new"), "renameat %s %s", s->name, p->name);
        CHANGE(renameat(AT_FDCWD, "f", s->fd, p->text), "renameat f %s %s", s->name, p->name);
        CHANGE(linkat(AT_FDCWD, "f", s->fd, p->text, 0), "linkat f %s %s", s->name, p->name);
    }
    EACH_FEW EACH_BIT(flags) {
        CHANGE(renameat2(AT_FDCWD, FEW->text, AT_FDCWD, "dir/inner", flags), "renameat2 %s dir/inner %#lx", FEW->name, flags);
        CHANGE(renameat2(AT_FDCWD, FEW->text, AT_FDCWD, "new", flags), "renameat2 %s new %#lx", FEW->name, flags);
        /* Opening for writing doesn't wait for a reader of a pipe here: there is none on the paths. */
        CHANGE(OPENED(open(FEW->text, flags & ~O_ACCMODE, 0644)), "open %s %#lx", FEW->name, flags & ~O_ACCMODE);
        CHANGE(OPENED(open(FEW->text, O_RDWR | (flags & ~O_ACCMODE), 0644)), "open %s %#lx", FEW->name, O_RDWR | (flags & ~O_ACCMODE));
        CHANGE(OPENED(open(FEW->text, O_CREAT | O_WRONLY | (flags & ~O_ACCMODE), 0644)), "open %s %#lx", FEW->name, O_CREAT | O_WRONLY | (flags & ~O_ACCMODE));
        CHANGE(OPENED(open(FEW->text, O_PATH | flags)), "open %s %#lx", FEW->name, O_PATH | flags);
        CHANGE(OPENED(open(FEW->text, O_NOFOLLOW | flags, 0644)), "open %s %#lx", FEW->name, O_NOFOLLOW | flags);
        CHANGE(OPENED(open(FEW->text, O_DIRECTORY | flags, 0644)), "open %s %#lx", FEW->name, O_DIRECTORY | flags);
    }
    EACH_FEW for (int mode = 0; mode < 16; mode++)
        CHANGE(mknod(FEW->text, mode << 12 | 0600, 0), "mknod %s %#o", FEW->name, mode << 12);
}

static int visit(const char *path, const struct stat *stat, int kind, struct FTW *at) { return path && stat && at ? 0 * kind : 5; }
static int visit_plainly(const char *path, const struct stat *stat, int kind) { return path && stat ? 0 * kind : 5; }

/* A template made of a path. */
static char *template(const struct path *path, const char *rest) {
    static char room[2 * PATH_MAX];
    snprintf(room, sizeof room, "%s%s", path->text ? path->text : "", rest);
    return room;
}

static void by_path(void) {
    struct statfs space;
    struct statvfs volume;
    EACH_PATH {
#define BY(call) CASE(call, "%s: %s", #call, p->name)
#define CHANGES(call) CHANGE(call, "%s: %s", #call, p->name)
        const char *volatile path = p->text; /* NULL, which the compiler takes for impossible */
        BY(stat(path, &stat_room));
        BY(lstat(path, &stat_room));
        BY(access(path, F_OK));
        BY(access(path, R_OK | W_OK));
        BY(access(path, X_OK));
        BY(access(path, 8));
        BY(access(path, -1));
        if (path) BY(eaccess(path, R_OK));
        BY(chmod(path, 0644));
        BY(chmod(path, 0170644));
        if (path) BY(lchmod(path, 0644));
        BY(chown(path, 0, 0));
        BY(chown(path, -1, -1));
        BY(lchown(path, 0, 0));
        CHANGES(truncate(path, 10));
        CHANGES(truncate(path, -1));
        CHANGES(unlink(path));
        CHANGES(rmdir(path));
        if (path) CHANGES(remove(path));
        CHANGES(mkdir(path, 0755));
        CHANGES(mkfifo(path, 0644));
        CHANGES(OPENED(creat(path, 0644)));
        CHANGES(symlink("to", path));
        CHANGES(symlink("", path));
        CHANGES(symlink(path, "new"));
        BY(readlink(path, text_room, 0));
        BY(readlink(path, text_room, minus));
        BY(readlink(path, text_room, 100));
        BY(getxattr(path, "user.a", text_room, 100));
        BY(getxattr(path, "user.none", text_room, 100));
        BY(lgetxattr(path, "user.a", NULL, 0));
        BY(listxattr(path, NULL, 0) >= 0 ? 0 : -1);
        BY(llistxattr(path, text_room, 100) >= 0 ? 0 : -1);
        CHANGES(setxattr(path, "user.b", "1", 1, 0));
        CHANGES(lsetxattr(path, "user.b", "1", 1, XATTR_REPLACE));
        CHANGES(removexattr(path, "user.a"));
        CHANGES(lremovexattr(path, "user.a"));
        BY(utime(path, &two_seconds));
        BY(utimes(path, two_short));
        BY(utimes(path, NULL));
        BY(lutimes(path, two_short));
        BY(statfs(path, &space));
        if (path) BY(statvfs(path, &volume));
        if (path) BY(pathconf(path, _PC_NAME_MAX));
        CHANGES(chdir(path));
        if (path) BY(ADDRESS(({ DIR *stream = opendir(path); if (stream) closedir(stream); stream; })));
        BY(ADDRESS(({ char *real = realpath(path, NULL); free(real); real; })));
        if (path) {
            struct dirent **list;
            for (int kind = 0; kind < 6; kind++) {
                const char *modes[] = {"r", "r+", "w", "a+", "wx", "q"};
                CHANGE(ADDRESS(({ FILE *stream = fopen(path, modes[kind]); if (stream) fclose(stream); stream; })), "fopen %s %s", p->name, modes[kind]);
            }
            BY(scandir(path, &list, NULL, alphasort) >= 0 ? 0 : -1);
            BY(ftw(path, visit_plainly, 3));
            for (int flags = 0; flags < 32; flags = flags < 4 ? flags + 1 : flags * 2) CASE(nftw(path, visit, 3, flags), "nftw %s %#x", p->name, flags);
            CHANGE(OPENED(mkstemp(template(p, "XXXXXX"))), "mkstemp %s", p->name);
            CHANGE(OPENED(mkstemp(template(p, "/XXXXXX"))), "mkstemp %s/", p->name);
            CHANGE(OPENED(mkstemp(template(p, "XXXXX"))), "mkstemp %s short", p->name);
            CHANGE(OPENED(mkostemp(template(p, "XXXXXX"), O_APPEND | O_SYNC)), "mkostemp %s", p->name);
            CHANGE(OPENED(mkstemps(template(p, "XXXXXX.x"), 2)), "mkstemps %s", p->name);
            CHANGE(OPENED(mkstemps(template(p, "XXXXXX.x"), 3)), "mkstemps %s wrong", p->name);
            CHANGE(ADDRESS(mkdtemp(template(p, "XXXXXX"))), "mkdtemp %s", p->name);
            CHANGE(ADDRESS(mkdtemp(template(p, "/XXXXXX"))), "mkdtemp %s/", p->name);
            CASE(*mktemp(template(p, "/XXXXXX")) ? 0 : -1, "mktemp %s", p->name);
            CASE(*mktemp(template(p, "XXXXX")) ? 0 : -1, "mktemp %s short", p->name);
            CASE(ADDRESS(({ char *name = tempnam(p->text, "x"); int is_there = name && p->text[0] && !strncmp(name, p->text, strlen(p->text)); free(name); is_there; })) ? 1 : 0, "tempnam %s", p->name);
            CASE(ftok(path, 1) == -1 ? -1 : 0, "ftok %s", p->name);
        }
    }
    for (int name = -1; name < 25; name++) {
        CASE(pathconf("f", name), "pathconf f %d", name);
        CASE(pathconf("dir", name), "pathconf dir %d", name);
        EACH_DESCRIPTOR CASE(fpathconf(d->fd, name), "fpathconf %s %d", d->name, name);
    }
    EACH_BIT(flags) {
        CHANGE(setxattr("f", "user.a", "1", 1, flags), "setxattr user.a %#lx", flags);
        CHANGE(setxattr("f", "user.b", "1", 1, flags), "setxattr user.b %#lx", flags);
    }
    static const char *const names[] = {"", "a", "user", "user.", "user.a", "none.a", "trusted.a", "security.a", "system.a", NULL};
    for (int at = 0; at < 10; at++) {
        CASE(getxattr("f", names[at], text_room, 10), "getxattr f %s", names[at]);
        CASE(getxattr("link", names[at], text_room, 10), "getxattr link %s", names[at]);
        CHANGE(setxattr("f", names[at], "1", 1, 0), "setxattr f %s", names[at]);
        CHANGE(lsetxattr("link", names[at], "1", 1, 0), "lsetxattr link %s", names[at]);
        CHANGE(removexattr("f", names[at]), "removexattr f %s", names[at]);
    }
}

static void two_paths(void) {
    for (const struct path *from = paths; from < paths + PATHS; from++) EACH_PATH {
        CHANGE(rename(from->text, p->text), "rename %s %s", from->name, p->name);
        CHANGE(link(from->text, p->text), "link %s %s", from->name, p->name);
    }
}

static int control(int fd, int command, long argument) {
    int result = fcntl(fd, command, argument);
    return result < 0 ? -1 : command == F_DUPFD || command == F_DUPFD_CLOEXEC ? (close(result), 0) : result;
}

static void by_descriptor(void) {
    struct iovec pieces[1] = {{text_room, 4}}, none[1] = {{NULL, 0}}, wrong[1] = {{NULL, -1}};
    struct statfs space;
    struct statvfs volume;
    static const long offsets[] = {0, 5, 4096, 20000, -1, LONG_MAX, LONG_MIN};
    EACH_DESCRIPTOR {
        int fd = d->fd;
#undef BY
#undef CHANGES
#define BY(call) CASE(call, "%s: %s", #call, d->name)
#define CHANGES(call) CHANGE(call, "%s: %s", #call, d->name)
#define MOVES(call) LIGHT(call, "%s: %s", #call, d->name)
        CHANGES(read(fd, text_room, 0));
        CHANGES(read(fd, text_room, 4));
        CHANGES(read(fd, nothing, 4));
        CHANGES(write(fd, text_room, 0));
        CHANGES(write(fd, text_room, 4));
        CHANGES(readv(fd, pieces, 0));
        CHANGES(readv(fd, pieces, 1));
        CHANGES(readv(fd, none, 1));
        CHANGES(readv(fd, wrong, 1));
        CHANGES(readv(fd, pieces, minus));
        CHANGES(readv(fd, pieces, too_many));
        CHANGES(writev(fd, pieces, 0));
        CHANGES(writev(fd, pieces, 1));
        CHANGES(writev(fd, none, 1));
        CHANGES(writev(fd, wrong, 1));
        CHANGES(writev(fd, pieces, minus));
        for (int at = 0; at < 7; at++) {
            long offset = offsets[at];
            LIGHT(pread(fd, text_room, 4, offset), "pread %s %ld", d->name, offset);
            LIGHT(pread(fd, text_room, 0, offset), "pread %s %ld none", d->name, offset);
            if (offset < 100000) CHANGE(pwrite(fd, text_room, 4, offset), "pwrite %s %ld", d->name, offset);
            LIGHT(preadv(fd, pieces, 1, offset), "preadv %s %ld", d->name, offset);
            if (offset < 100000) CHANGE(pwritev(fd, pieces, 1, offset), "pwritev %s %ld", d->name, offset);
            for (int whence = -1; whence < 8; whence++) LIGHT(lseek(fd, offset, whence), "lseek %s %ld %d", d->name, offset, whence);
            if (offset < 100000) CHANGE(ftruncate(fd, offset), "ftruncate %s %ld", d->name, offset);
            LIGHT(readahead(fd, offset, 10), "readahead %s %ld", d->name, offset);
            CHANGE(posix_fallocate(fd, offset, 10) != 0 ? (errno = posix_fallocate(fd, offset, 10), -1) : 0, "posix_fallocate %s %ld", d->name, offset);
            CHANGE(posix_fallocate(fd, 0, offset) != 0 ? (errno = posix_fallocate(fd, 0, offset), -1) : 0, "posix_fallocate %s 0 %ld", d->name, offset);
            for (int advice = -1; advice < 8; advice++) {
                CASE((errno = posix_fadvise(fd, 0, offset, advice)) ? -1 : 0, "posix_fadvise %s 0 %ld %d", d->name, offset, advice);
                CASE((errno = posix_fadvise(fd, offset, 0, advice)) ? -1 : 0, "posix_fadvise %s %ld 0 %d", d->name, offset, advice);
            }
            LIGHT(sync_file_range(fd, offset, 10, SYNC_FILE_RANGE_WRITE), "sync_file_range %s %ld", d->name, offset);
            LIGHT(sync_file_range(fd, 0, offset, SYNC_FILE_RANGE_WRITE), "sync_file_range %s 0 %ld", d->name, offset);
            CHANGE(fallocate(fd, 0, offset, 10), "fallocate %s %ld", d->name, offset);
            if (offset < 100000) CHANGE(fallocate(fd, 0, 0, offset), "fallocate %s 0 %ld", d->name, offset);
            for (int command = -1; command < 5; command++) LIGHT(lockf(fd, command, offset), "lockf %s %d %ld", d->name, command, offset);
        }
        EACH_BIT(flags) {
            if (flags & 0x180) continue; /* new ones */
            LIGHT(preadv2(fd, pieces, 1, 0, flags), "preadv2 %s %#lx", d->name, flags);
            CHANGE(pwritev2(fd, pieces, 1, 0, flags), "pwritev2 %s %#lx", d->name, flags);
            CHANGE(pwritev2(fd, pieces, 1, -1, flags), "pwritev2 %s -1 %#lx", d->name, flags);
            LIGHT(sync_file_range(fd, 0, 10, flags), "sync_file_range %s %#lx", d->name, flags);
            CHANGE(fallocate(fd, flags, 0, 4096), "fallocate %s mode %#lx", d->name, flags);
            CHANGE(fallocate(fd, flags | FALLOC_FL_KEEP_SIZE, 0, 4096), "fallocate %s mode %#lx", d->name, flags | FALLOC_FL_KEEP_SIZE);
            LIGHT(flock(fd, flags | LOCK_NB), "flock %s %#lx", d->name, flags | LOCK_NB);
            CASE(OPENED(dup3(fd, 90, flags)), "dup3 %s %#lx", d->name, flags);
        }
        MOVES(flock(fd, LOCK_SH));
        MOVES(flock(fd, LOCK_EX));
        MOVES(flock(fd, LOCK_UN));
        MOVES(flock(fd, LOCK_SH | LOCK_EX));
        MOVES(flock(fd, LOCK_MAND | LOCK_READ));
        BY(fsync(fd));
        BY(fdatasync(fd));
        BY(syncfs(fd));
        BY(fstat(fd, &stat_room));
        BY(fstatfs(fd, &space));
        BY(fstatvfs(fd, &volume));
        BY(fchmod(fd, 0644));
        BY(fchown(fd, 0, 0));
        BY(futimens(fd, two_times));
        BY(futimens(fd, NULL));
        BY(futimes(fd, two_short));
        BY(fgetxattr(fd, "user.a", text_room, 100));
        BY(flistxattr(fd, text_room, 100) >= 0 ? 0 : -1);
        CHANGES(fsetxattr(fd, "user.b", "1", 1, 0));
        CHANGES(fremovexattr(fd, "user.a"));
        CHANGES(fchdir(fd));
        BY(isatty(fd) ? 1 : -1);
        BY(ADDRESS(ttyname(fd)));
        BY(tcgetpgrp(fd));
        MOVES(OPENED(dup(fd)));
        MOVES(OPENED(dup2(fd, 90)));
        MOVES(dup2(fd, fd) == fd ? 0 : -1);
        CHANGES(close(fd));
        CHANGES(ADDRESS(fdopendir(fd)));
        CHANGES(getdents64(fd, text_room, sizeof text_room) >= 0 ? 0 : -1);
        CHANGES(getdents64(fd, text_room, 1));
        for (int kind = 0; kind < 7; kind++) {
            const char *modes[] = {"r", "w", "a", "r+", "w+", "a+", "q"};
            CHANGE(ADDRESS(fdopen(fd, modes[kind])), "fdopen %s %s", d->name, modes[kind]);
        }
        for (int command = -1; command < 45; command++) {
            if (command >= F_GETLK && command <= F_SETLKW) continue;
            if (command >= F_OFD_GETLK && command <= F_OFD_SETLKW) continue;
            CHANGE(control(fd, command, 0), "fcntl %s %d", d->name, command);
        }
        /* 1027 and 1028 are new. */
        for (int command = 1024; command < 1042; command++) if (command < 1027 || command > 1028) CHANGE(control(fd, command, 0), "fcntl %s %d", d->name, command);
        static const int lock_commands[] = {F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW};
        for (int at = 0; at < 6; at++) {
            for (int type = -1; type < 5; type++) {
                /* A new one: any lock. */
                if (lock_commands[at] == F_OFD_GETLK && type == F_UNLCK) continue;
                struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
                LIGHT(fcntl(fd, lock_commands[at], &lock), "fcntl %s %d type %d", d->name, lock_commands[at], type);
                struct flock of_process = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10, .l_pid = 7};
                LIGHT(fcntl(fd, lock_commands[at], &of_process), "fcntl %s %d type %d pid 7", d->name, lock_commands[at], type);
            }
            for (int whence = -1; whence < 5; whence++) for (int place = 0; place < 7; place++) {
                struct flock lock = {.l_type = F_RDLCK, .l_whence = whence, .l_start = offsets[place], .l_len = 10};
                LIGHT(fcntl(fd, lock_commands[at], &lock), "fcntl %s %d whence %d start %ld", d->name, lock_commands[at], whence, offsets[place]);
                struct flock len = {.l_type = F_RDLCK, .l_whence = whence, .l_start = 20, .l_len = offsets[place]};
                LIGHT(fcntl(fd, lock_commands[at], &len), "fcntl %s %d whence %d len %ld", d->name, lock_commands[at], whence, offsets[place]);
            }
        }
        static const struct { const char *name; unsigned long request; } requests[] = {
            {"FIOCLEX", FIOCLEX}, {"FIONCLEX", FIONCLEX}, {"FIONREAD", FIONREAD}, {"FIONBIO", FIONBIO}, {"FIOASYNC", FIOASYNC},
            {"TCGETS", TCGETS}, {"TIOCGWINSZ", TIOCGWINSZ}, {"FIGETBSZ", FIGETBSZ}, {"FIOQSIZE", 0x5460},
            {"unknown", 0x12345678}, {"0", 0},
        };
        for (size_t at = 0; at < sizeof requests / sizeof *requests; at++) {
            int value[20] = {0};
            CHANGE(ioctl(fd, requests[at].request, value), "ioctl %s %s", d->name, requests[at].name);
        }
        struct pollfd polled = {fd, POLLIN | POLLOUT | POLLPRI, 0};
        CHANGE(poll(&polled, 1, 0), "poll %s", d->name);
        printf("poll %s: %#x\n", d->name, polled.revents);
        int epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        for (int operation = 0; operation < 5; operation++) CASE(epoll_ctl(epoll, operation, fd, &event), "epoll_ctl %s %d", d->name, operation);
        NEED(!close(epoll));
    }
}

static void mappings(void) {
    static const int types[] = {0, MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE};
    EACH_DESCRIPTOR {
        for (int type = 0; type < 4; type++) {
            for (int protection = 0; protection < 4; protection++) {
                long length = 8192;
                void *memory;
                CASE((memory = mmap(NULL, length, protection, types[type], d->fd, 0)) == MAP_FAILED ? -1 : munmap(memory, length), "mmap %s %d %d", d->name, types[type], protection);
            }
            static const long wrong[][2] = {{0, 0}, {4096, 1}, {4096, -4096}, {4096, 1 << 20}, {LONG_MAX, 0}};
            for (int at = 0; at < 5; at++) {
                void *memory;
                CASE((memory = mmap(NULL, wrong[at][0], PROT_READ, types[type], d->fd, wrong[at][1])) == MAP_FAILED ? -1 : munmap(memory, wrong[at][0]), "mmap %s %d length %ld at %ld", d->name, types[type], wrong[at][0], wrong[at][1]);
            }
            for (int bit = 4; bit < 32; bit++) {
                int flags = 1 << bit;
                void *memory;
                if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED | MAP_32BIT)) continue;
                CASE((memory = mmap(NULL, 4096, PROT_READ, types[type] | flags, d->fd, 0)) == MAP_FAILED ? -1 : munmap(memory, 4096), "mmap %s %#x", d->name, types[type] | flags);
            }
        }
    }
}

static void between(void) {
    EACH_DESCRIPTOR for (const struct descriptor *to = descriptors; to < descriptors + DESCRIPTORS; to++) {
        long at = 0, wrong = -1, other = 8192;
        CHANGE(copy_file_range(d->fd, &at, to->fd, &other, 100, 0), "copy_file_range %s %s", d->name, to->name);
        CHANGE(copy_file_range(d->fd, NULL, to->fd, NULL, 100, 0), "copy_file_range %s %s positions", d->name, to->name);
        CHANGE(copy_file_range(d->fd, &wrong, to->fd, NULL, 100, 0), "copy_file_range %s %s wrong", d->name, to->name);
        CHANGE(copy_file_range(d->fd, NULL, to->fd, NULL, 100, 1), "copy_file_range %s %s flags", d->name, to->name);
        CHANGE(copy_file_range(d->fd, NULL, to->fd, NULL, 0, 0), "copy_file_range %s %s none", d->name, to->name);
        at = 0;
        CHANGE(sendfile(to->fd, d->fd, &at, 100), "sendfile %s %s", d->name, to->name);
        CHANGE(sendfile(to->fd, d->fd, NULL, 100), "sendfile %s %s position", d->name, to->name);
        CHANGE(sendfile(to->fd, d->fd, &wrong, 100), "sendfile %s %s wrong", d->name, to->name);
        CHANGE(sendfile(to->fd, d->fd, NULL, 0), "sendfile %s %s none", d->name, to->name);
        at = 0;
        CHANGE((write(PIPE_END, "piped", 5), errno = 0, splice(d->fd, NULL, to->fd, NULL, 100, SPLICE_F_NONBLOCK)), "splice %s %s", d->name, to->name);
        CHANGE((write(PIPE_END, "piped", 5), errno = 0, splice(d->fd, &at, to->fd, NULL, 100, SPLICE_F_NONBLOCK)), "splice %s %s from 0", d->name, to->name);
        at = 0;
        CHANGE((write(PIPE_END, "piped", 5), errno = 0, splice(d->fd, NULL, to->fd, &at, 100, SPLICE_F_NONBLOCK)), "splice %s %s to 0", d->name, to->name);
        CHANGE(splice(d->fd, NULL, to->fd, NULL, 0, 0), "splice %s %s none", d->name, to->name);
        CHANGE(splice(d->fd, NULL, to->fd, NULL, 100, 0x100 | SPLICE_F_NONBLOCK), "splice %s %s flags", d->name, to->name);
    }
}

int main(int count, char **arguments) {
    NEED(count == 3);
    root = arguments[1];
    foreign = arguments[2];
    memset(long_name, 'n', 256);
    for (int at = 0; at < 4094; at += 2) memcpy(longest + at, "./", 2);
    longest[4094] = 'f';
    for (int at = 0; at < 4200; at += 2) memcpy(beyond + at, "./", 2);
    beyond[4200] = 'f';
    snprintf(foreign_file, PATH_MAX, "%s/file", foreign);
    snprintf(foreign_missing, PATH_MAX, "%s/missing", foreign);
    snprintf(absolute, PATH_MAX, "%s/f", root);
    snprintf(absolute_missing, PATH_MAX, "%s/missing", root);
    snprintf(absolute_up, PATH_MAX, "%s/dir/../f", root);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    umask(022);
    if (getenv("MATRIX_UNBUFFERED")) setvbuf(stdout, NULL, _IONBF, 0);
    fresh();
    paths_at();
    by_path();
    two_paths();
    by_descriptor();
    mappings();
    between();
    fprintf(stderr, "%d times anew\n", made);
    return 0;
}
