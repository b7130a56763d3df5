/* Calls what programs call, on a volume that it sees as the directory argv[1]. The first thing that is
 * not as on Linux ends it with exit code 1 and a line that says what. `argv[2]`: "append": appends
 * lines for ever and tells each when it is written. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 2
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
            exit(1); \
        } \
    } while (0)
#define FAILS(call, code) CHECK((errno = 0, (call) == -1 && errno == (code)))

/* Names that programs of before glibc 2.33 were linked to. */
int __xstat(int version, const char *path, struct stat *buffer);
int __lxstat(int version, const char *path, struct stat *buffer);
int __fxstat(int version, int fd, struct stat *buffer);

/* A stream goes on with another file. */
static void reopened(void) {
    char line[32];
    FILE *file = fopen("first", "w");
    CHECK(file != NULL && fputs("one\n", file) >= 0);
    CHECK(freopen("second", "w", file) == file && ftell(file) == 0 && fputs("two\n", file) >= 0);
    CHECK(freopen("first", "a", file) == file && ftell(file) == 4 && fputs("more\n", file) >= 0);
    CHECK(fclose(file) == 0 && (file = fopen("first", "r")) != NULL);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "one\n") == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "more\n") == 0 && fgetc(file) == EOF && feof(file));
    CHECK(freopen("second", "r", file) == file && !feof(file) && ftell(file) == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "two\n") == 0 && ftell(file) == 4);
    CHECK(freopen("/dev/null", "r", file) == file && fgetc(file) == EOF && fclose(file) == 0);
    int input = dup(0), output = dup(1);
    CHECK(freopen("first", "r", stdin) != NULL && fgets(line, sizeof line, stdin) && strcmp(line, "one\n") == 0);
    CHECK(freopen("second", "r", stdin) != NULL && fgets(line, sizeof line, stdin) && strcmp(line, "two\n") == 0);
    CHECK(freopen("printed", "w", stdout) != NULL && puts("to the file") >= 0 && fflush(stdout) == 0);
    CHECK(dup2(input, 0) == 0 && dup2(output, 1) == 1 && close(input) == 0 && close(output) == 0);
    CHECK((file = fopen("printed", "r")) != NULL && fgets(line, sizeof line, file) && strcmp(line, "to the file\n") == 0);
    CHECK(fclose(file) == 0);
}

static void streams(void) {
    FILE *file = fopen("stream", "w+");
    CHECK(file != NULL);
    CHECK(fprintf(file, "%d %s\n", 17, "words") == 9);
    CHECK(fseek(file, 3, SEEK_SET) == 0 && fgetc(file) == 'w');
    CHECK(fileno(file) > 2 && fsync(fileno(file)) == 0);
    struct stat stat;
    CHECK(fstat(fileno(file), &stat) == 0 && stat.st_size == 9 && S_ISREG(stat.st_mode));
    CHECK(fclose(file) == 0);
    CHECK((file = fopen("stream", "a")) != NULL && ftell(file) == 9 && fputs("more\n", file) >= 0 && ftell(file) == 14);
    CHECK(fclose(file) == 0 && (file = fdopen(open("stream", O_WRONLY), "a")) != NULL && ftell(file) == 14 && fclose(file) == 0);
    char line[32];
    CHECK((file = fopen("stream", "r")) != NULL);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "17 words\n") == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "more\n") == 0);
    CHECK(!fgets(line, sizeof line, file) && feof(file) && fclose(file) == 0);
    CHECK(fopen("stream", "wx") == NULL && errno == EEXIST);
    CHECK(fopen("missing", "r") == NULL && errno == ENOENT);
    int fd = open("stream", O_RDONLY);
    CHECK(fd >= 0 && fdopen(fd, "w") == NULL && errno == EINVAL);
    CHECK((file = fdopen(fd, "r")) != NULL && fileno(file) == fd && fclose(file) == 0);
    FAILS(lseek(fd, 0, SEEK_CUR), EBADF);
}

extern int __dprintf_chk(int fd, int flag, const char *format, ...);

/* Text of arguments in registers of both kinds and on the stack. */
static void printing(void) {
    int fd = open("printed", O_RDWR | O_CREAT | O_TRUNC, 0666);
    char text[200] = "";
    CHECK(fd >= 0 && dprintf(fd, "plain\n") == 6 && dprintf(fd, "%s", "") == 0);
    CHECK(dprintf(fd, "%d %s %c %ld %d %d %d\n", 1, "two", '3', 4L, 5, 6, 7) == 16);
    CHECK(__dprintf_chk(fd, 1, "%d %g %d %d %d %g %d %g %g %g %g %g %g %g\n", 1, .5, 2, 3, 4, 1.5, 5, 2.5, 3.5, 4.5,
                        5.5, 6.5, 7.5, 8.5) == 46);
    CHECK(pread(fd, text, sizeof text - 1, 0) == 68);
    CHECK(strcmp(text, "plain\n1 two 3 4 5 6 7\n1 0.5 2 3 4 1.5 5 2.5 3.5 4.5 5.5 6.5 7.5 8.5\n") == 0);
    CHECK(close(fd) == 0 && (fd = open("printed", O_RDONLY)) >= 0);
    FAILS(dprintf(fd, "%d", 1), EBADF);
    int ends[2];
    CHECK(pipe(ends) == 0 && dprintf(ends[1], "%s %g", "pipe", .5) == 8);
    CHECK(read(ends[0], text, 8) == 8 && memcmp(text, "pipe 0.5", 8) == 0);
    close(ends[0]), close(ends[1]), close(fd);
}

static void numbers(void) {
    int fd = open("numbers", O_RDWR | O_CREAT | O_EXCL, 0666);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == 0);
    char byte = 'x';
    /* By number. What the library has no function for is the kernel's, which has no file there. */
    struct iovec piece = {&byte, 1};
    CHECK(syscall(SYS_pwritev, fd, &piece, 1, 0L, 0L) == 1);
    CHECK(syscall(SYS_preadv, fd, &piece, 1, 0L, 0L) == 1);
    FAILS(syscall(SYS_tee, fd, fd, 1L, 0), EBADF);
    CHECK(write(fd, "0123456789", 10) == 10);
    int same = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 300);
    CHECK(same >= 0 && high >= 300 && fcntl(high, F_GETFD) == FD_CLOEXEC);
    CHECK(lseek(same, 4, SEEK_SET) == 4 && read(high, &byte, 1) == 1 && byte == '4');
    CHECK(dup3(fd, 400, O_CLOEXEC) == 400 && close(fd) == 0 && read(400, &byte, 1) == 1 && byte == '5');
    /* A number that is the host's afterwards. */
    int host = open("/dev/null", O_WRONLY);
    CHECK(dup2(host, 400) == 400 && write(400, "gone", 4) == 4);
    CHECK(dup2(same, host) == host && read(host, &byte, 1) == 1 && byte == '6');
    CHECK(fcntl(same, F_SETFL, O_APPEND) == 0 && (fcntl(high, F_GETFL) & O_APPEND));
    int is_set = 1;
    CHECK(ioctl(same, FIONBIO, &is_set) == 0 && (fcntl(high, F_GETFL) & (O_NONBLOCK | O_APPEND)) == (O_NONBLOCK | O_APPEND));
    is_set = 0;
    CHECK(ioctl(same, FIONBIO, &is_set) == 0 && !(fcntl(high, F_GETFL) & O_NONBLOCK));
    CHECK(pwrite(same, "end", 3, 0) == 3 && pread(high, &byte, 1, 12) == 1 && byte == 'd');
    CHECK(close_range(same, 500, 0) == 0);
    FAILS(read(high, &byte, 1), EBADF);
    FAILS(close(high), EBADF);
    /* Closing everything doesn't close the volume. */
    closefrom(3);
    CHECK((fd = open("numbers", O_RDONLY)) == 3 && read(fd, &byte, 1) == 1 && byte == '0' && close(fd) == 0);
    FAILS(openat(AT_FDCWD, "numbers", O_RDWR | O_CREAT | O_EXCL, 0666), EEXIST);
    FAILS(open("numbers", O_RDONLY | O_DIRECTORY), ENOTDIR);
}

/* A file can be read and written at any time. */
static void readiness(void) {
    int ends[2], fd = open("numbers", O_RDWR), epoll = epoll_create1(0);
    CHECK(fd >= 0 && epoll >= 0 && pipe(ends) == 0);
    struct pollfd polled[] = {{fd, POLLIN | POLLOUT | POLLPRI, 0}, {ends[0], POLLIN, 0}, {-1, POLLIN, 7}};
    CHECK(poll(polled, 3, -1) == 1 && polled[0].revents == (POLLIN | POLLOUT));
    CHECK(polled[1].revents == 0 && polled[2].revents == 0);
    CHECK(write(ends[1], "x", 1) == 1 && ppoll(polled, 3, NULL, NULL) == 2 && polled[1].revents == POLLIN);
    polled[0].events = POLLPRI;
    CHECK(poll(polled, 1, 0) == 0 && polled[0].revents == 0);
    fd_set read, write, except;
    for (int i = 0; i < 2; i++) {
        FD_ZERO(&read);
        FD_ZERO(&write);
        FD_ZERO(&except);
        FD_SET(fd, &read);
        FD_SET(fd, &write);
        FD_SET(fd, &except);
        FD_SET(ends[0], &read);
        FD_SET(ends[1], &write);
        int count = i == 0 ? select(FD_SETSIZE, &read, &write, &except, NULL)
                           : pselect(FD_SETSIZE, &read, &write, &except, NULL, NULL);
        CHECK(count == 4 && FD_ISSET(fd, &read) && FD_ISSET(fd, &write) && !FD_ISSET(fd, &except));
        CHECK(FD_ISSET(ends[0], &read) && FD_ISSET(ends[1], &write) && !FD_ISSET(ends[1], &read));
    }
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), EPERM);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(epoll) == 0 && close(fd) == 0);
}

static void vectors(void) {
    int fd = open("vectors", O_RDWR | O_CREAT, 0600);
    struct iovec out[] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    CHECK(writev(fd, out, 3) == 6 && pwritev(fd, out, 1, 4) == 2);
    CHECK(pwritev2(fd, out, 3, -1, RWF_DSYNC) == 6 && pwritev2(fd, out, 1, 0, 0x40) == 2);
    FAILS(pwritev2(fd, out, 1, 0, 0x1000), EOPNOTSUPP);
    char first[3], second[20];
    struct iovec in[] = {{first, 3}, {second, 20}};
    CHECK(preadv2(fd, in, 2, 0, 0) == 12 && !memcmp(first, "abc", 3) && !memcmp(second, "dababcdef", 9));
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
    CHECK(pread(fd, first, 3, 0) == 3 && !memcmp(first, "\0\0\0", 3));
    FAILS(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
    CHECK(posix_fallocate(fd, 0, 10000) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    CHECK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0 && syncfs(fd) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == 10000);
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(lseek(fd, 10000, SEEK_DATA), ENXIO);
    CHECK(ftruncate(fd, 3) == 0 && truncate("vectors", 2) == 0);
    CHECK(close(fd) == 0 && (fd = open("vectors", O_RDONLY)) >= 0);
    FAILS(write(fd, "x", 1), EBADF);
    FAILS(ftruncate(fd, 0), EINVAL);
    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(mapped != MAP_FAILED && mapped[0] == 0 && mapped[4095] == 0 && munmap(mapped, 4096) == 0);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    close(fd);
}

static void mappings(void) {
    int fd = open("mapped", O_RDWR | O_CREAT, 0600), other = open("mapped", O_RDWR);
    char back[8];
    CHECK(write(fd, "0123456789", 10) == 10 && ftruncate(fd, 10000) == 0);
    char *one = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *two = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 4096);
    CHECK(one != MAP_FAILED && two != MAP_FAILED && memcmp(one, "0123456789", 11) == 0);
    /* All mappings of a file, and calls, show the same bytes. */
    memcpy(one + 4096, "map", 3);
    CHECK(memcmp(two, "map", 4) == 0 && pread(other, back, 4, 4096) == 4 && memcmp(back, "map", 4) == 0);
    CHECK(pwrite(other, "call", 4, 4094) == 4 && memcmp(one + 4094, "callp", 5) == 0 && two[0] == 'l');
    struct iovec in[] = {{back, 2}, {back + 2, 3}};
    CHECK(preadv(fd, in, 2, 4094) == 5 && memcmp(back, "callp", 5) == 0);
    CHECK(ftruncate(fd, 4095) == 0 && ftruncate(fd, 10000) == 0 && one[4094] == 'c' && one[4095] == 0 && two[0] == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 && one[0] == 0);
    memcpy(one + 9990, "end", 3);
    CHECK(msync(one, 10000, MS_SYNC) == 0 && munmap(two, 4096) == 0 && close(fd) == 0);
    one[0] = 'x';
    CHECK(munmap(one, 10000) == 0 && pread(other, back, 4, 9990) == 4 && memcmp(back, "end", 4) == 0);
    CHECK(pread(other, back, 1, 0) == 1 && back[0] == 'x');
    /* What is mapped at the end of the process is in the file afterwards. */
    one = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    CHECK(one != MAP_FAILED && memcpy(one, "mapped at the end", 17));
    CHECK(ftruncate(other, 17) == 0 && close(other) == 0);
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int visited[7], depth_sum, stop_after;
static int visit(const char *path, const struct stat *stat, int kind, struct FTW *at) {
    CHECK(kind >= 0 && kind < 7 && (kind == FTW_SLN || S_ISDIR(stat->st_mode) == (kind == FTW_D || kind == FTW_DP)));
    CHECK(strchr(path + at->base, '/') == NULL && (at->base == 0 || path[at->base - 1] == '/'));
    visited[kind]++, depth_sum += at->level;
    return stop_after && --stop_after == 0 ? 17 : 0;
}
static int visit_plainly(const char *path, const struct stat *stat, int kind) {
    struct FTW at = {strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0, 0};
    return visit(path, stat, kind, &at);
}
/* In the directory there is what its name says. */
static int visit_from_within(const char *path, const struct stat *expected, int kind, struct FTW *at) {
    struct stat stat;
    CHECK(lstat(path + at->base, &stat) == 0 && stat.st_ino == expected->st_ino && kind != FTW_NS);
    return 0;
}

static void trees(void) {
    char before[512], after[512];
    CHECK(mkdir("walk", 0755) == 0 && mkdir("walk/below", 0755) == 0 && mkdir("walk/below/deep", 0755) == 0);
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "walk/below/%d", i);
        CHECK(close(open(name, O_CREAT | O_WRONLY, 0600)) == 0);
    }
    CHECK(symlink("below", "walk/link") == 0 && symlink("nothing", "walk/dangling") == 0);
    CHECK(nftw("walk", visit, 4, FTW_PHYS) == 0);
    CHECK(visited[FTW_D] == 3 && visited[FTW_F] == 5 && visited[FTW_SL] == 2 && depth_sum == 15);
    memset(visited, 0, sizeof visited);
    CHECK(nftw("walk", visit, 4, FTW_PHYS | FTW_DEPTH) == 0 && visited[FTW_DP] == 3 && visited[FTW_D] == 0);
    memset(visited, 0, sizeof visited);
    CHECK(nftw("walk/", visit, 4, 0) == 0 && visited[FTW_SLN] == 1 && visited[FTW_F] == 5 && visited[FTW_D] == 3);
    memset(visited, 0, sizeof visited);
    CHECK(ftw("walk", visit_plainly, 4) == 0 && visited[FTW_NS] == 1 && visited[FTW_F] == 5 && visited[FTW_D] == 3);
    stop_after = 3;
    CHECK(nftw("walk", visit, 4, FTW_PHYS) == 17);
    CHECK(getcwd(before, sizeof before) && nftw("walk", visit_from_within, 4, FTW_PHYS | FTW_CHDIR) == 0);
    CHECK(getcwd(after, sizeof after) && strcmp(before, after) == 0);
    FAILS(nftw("missing", visit, 4, 0), ENOENT);
}

static void directories(const char *root) {
    char name[64], path[256];
    CHECK(mkdir("many", 0777) == 0);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "many/%03d", i);
        CHECK(mknod(name, S_IFREG | 0644, 0) == 0);
    }
    DIR *stream = opendir("many");
    CHECK(stream != NULL && dirfd(stream) > 2);
    int count = 0;
    long middle = 0;
    char expected[256] = "";
    struct dirent *entry;
    while ((errno = 0, entry = readdir(stream)) != NULL) {
        count++;
        if (count == 250) middle = telldir(stream);
        if (count == 251) strcpy(expected, entry->d_name);
    }
    CHECK(errno == 0 && count == 502);
    seekdir(stream, middle);
    CHECK((entry = readdir(stream)) != NULL && strcmp(entry->d_name, expected) == 0);
    rewinddir(stream);
    CHECK((entry = readdir(stream)) != NULL && strcmp(entry->d_name, ".") == 0 && entry->d_type == DT_DIR);
    struct stat stat;
    CHECK(fstatat(dirfd(stream), "007", &stat, AT_SYMLINK_NOFOLLOW) == 0 && stat.st_nlink == 1);
    CHECK(closedir(stream) == 0);
    struct dirent **list;
    CHECK(scandir("many", &list, visible, alphasort) == 500 && strcmp(list[499]->d_name, "499") == 0);
    for (int i = 0; i < 500; i++) free(list[i]);
    free(list);
    glob_t found;
    snprintf(path, sizeof path, "%s/many/00*", root);
    CHECK(glob(path, 0, NULL, &found) == 0 && found.gl_pathc == 10);
    globfree(&found);
    CHECK(glob("/dev/nul*", 0, NULL, &found) == 0 && found.gl_pathc == 1);
    globfree(&found);
    int fd = open("many", O_RDONLY | O_DIRECTORY);
    char buffer[4096];
    ssize_t bytes;
    count = 0;
    while ((bytes = getdents64(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t at = 0; at < bytes; at += ((struct dirent64 *)(buffer + at))->d_reclen) count++;
    CHECK(bytes == 0 && count == 502);
    FAILS(read(fd, buffer, 1), EISDIR);
    FAILS(unlink("many"), EISDIR);
    FAILS(rmdir("many"), ENOTEMPTY);
    /* The working directory goes along when its directory is renamed. */
    CHECK(fchdir(fd) == 0 && getcwd(path, sizeof path) != NULL);
    snprintf(buffer, sizeof buffer, "%s/many", root);
    CHECK(strcmp(path, buffer) == 0 && access("007", R_OK) == 0 && access("../many", F_OK) == 0);
    CHECK(chdir("..") == 0 && rename("many", "moved") == 0);
    CHECK(faccessat(fd, "499", F_OK, 0) == 0 && unlinkat(fd, "499", 0) == 0 && close(fd) == 0);
    CHECK(realpath("moved/../moved/./001", path) != NULL);
    snprintf(buffer, sizeof buffer, "%s/moved/001", root);
    CHECK(strcmp(path, buffer) == 0);
    snprintf(path, sizeof path, "%s/../dev/null", root);
    CHECK(access(path, W_OK) == 0 && realpath(path, buffer) && strcmp(buffer, "/dev/null") == 0);
}

static void names(void) {
    CHECK(symlink("target", "link") == 0 && mknod("target", S_IFREG | 0600, 0) == 0);
    struct stat link_stat, target_stat;
    CHECK(__lxstat(1, "link", &link_stat) == 0 && S_ISLNK(link_stat.st_mode) && link_stat.st_size == 6);
    CHECK(__xstat(1, "link", &target_stat) == 0 && S_ISREG(target_stat.st_mode));
    FAILS(open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
    int fd = open("link", O_RDWR);
    struct stat stat;
    CHECK(__fxstat(1, fd, &stat) == 0 && stat.st_ino == target_stat.st_ino);
    struct statx more;
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more) == 0 && more.stx_ino == stat.st_ino);
    CHECK(close(fd) == 0);
    CHECK(link("target", "second") == 0 && renameat2(AT_FDCWD, "second", AT_FDCWD, "link", RENAME_EXCHANGE) == 0);
    FAILS(renameat2(AT_FDCWD, "second", AT_FDCWD, "link", RENAME_NOREPLACE), EEXIST);
    CHECK(lstat("second", &stat) == 0 && S_ISLNK(stat.st_mode));
    FAILS(rename("link", "/tmp/adit-elsewhere"), EXDEV);
    FAILS(link("/dev/null", "null"), EXDEV);
    FAILS(execl("target", "target", NULL), EACCES);
    char template[] = "temporary-XXXXXX", directory[] = "directory-XXXXXX", wrong[] = "wrong-XXXXX";
    CHECK((fd = mkstemp(template)) >= 0 && fstat(fd, &stat) == 0 && (stat.st_mode & 0777) == 0600);
    CHECK(close(fd) == 0 && unlink(template) == 0 && mkdtemp(directory) == directory && rmdir(directory) == 0);
    FAILS(mkstemp(wrong), EINVAL);
    CHECK((fd = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0 && write(fd, "x", 1) == 1);
    CHECK(fstat(fd, &stat) == 0 && stat.st_nlink == 0 && close(fd) == 0);
    mode_t mask = umask(077);
    CHECK((fd = open("masked", O_WRONLY | O_CREAT, 0666)) >= 0 && fstat(fd, &stat) == 0);
    CHECK((stat.st_mode & 0777) == 0600 && close(fd) == 0);
    umask(mask);
    CHECK(setxattr("masked", "user.a", "1", 1, XATTR_CREATE) == 0 && getxattr("masked", "user.a", NULL, 0) == 1);
    FAILS(setxattr("masked", "user.a", "1", 1, XATTR_CREATE), EEXIST);
    FAILS(getxattr("masked", "user.b", NULL, 0), ENODATA);
    struct statvfs space;
    CHECK(statvfs(".", &space) == 0 && space.f_namemax == 255 && space.f_bavail > 0);
    FAILS(access("missing", F_OK), ENOENT);
}

static void locks(void) {
    int first = open("locked", O_RDWR | O_CREAT, 0600), second = open("locked", O_RDWR);
    CHECK(flock(first, LOCK_EX | LOCK_NB) == 0);
    FAILS(flock(second, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    CHECK(close(first) == 0 && flock(second, LOCK_SH | LOCK_NB) == 0);
    first = open("locked", O_RDWR);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    CHECK(fcntl(first, F_OFD_SETLK, &range) == 0);
    FAILS(fcntl(second, F_OFD_SETLK, &range), EAGAIN);
    struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(second, F_OFD_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_start == 10);
    CHECK(close(first) == 0 && fcntl(second, F_OFD_SETLK, &range) == 0 && close(second) == 0);
}

static void children(void) {
    int fd = open("numbers", O_RDONLY), status;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        int good = pread(fd, &byte, 1, 0) == 1 && byte == '0' && open("numbers", O_RDONLY) >= 0;
        _exit(good && access("/dev/null", W_OK) == 0 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A child of vfork has our memory, but numbers of its own. */
    child = vfork();
    if (child == 0) {
        close(fd);
        dup2(1, fd);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    char byte;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(fd, &byte, 1) == 1 && byte == '0' && close(fd) == 0);
    CHECK(system("test -w /dev/null") == 0);
}

#define THREADS 6
static void *churn(void *argument) {
    char name[32], text[512], back[512];
    snprintf(name, sizeof name, "thread-%d", (int)(intptr_t)argument);
    for (int i = 0; i < 400; i++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        memset(text, 'a' + i % 26, sizeof text);
        int copy = dup(fd);
        CHECK(fd >= 0 && copy >= 0 && write(fd, text, sizeof text) == sizeof text && close(fd) == 0);
        CHECK(pread(copy, back, sizeof back, 0) == sizeof back && !memcmp(text, back, sizeof text));
        /* The same numbers are the host's in between. */
        int host = open("/dev/zero", O_RDONLY);
        CHECK(read(host, back, 8) == 8 && !memcmp(back, "\0\0\0\0\0\0\0\0", 8) && close(host) == 0);
        CHECK(close(copy) == 0);
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, churn, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void append(void) {
    int fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    for (int i = 0;; i++) {
        char line[16];
        int len = snprintf(line, sizeof line, "%d\n", i);
        CHECK(write(fd, line, len) == len && write(1, line, len) == len);
    }
}

static void at_the_end(void) {
    /* After main, the volume is still there. */
    int fd = open("at-exit", O_WRONLY | O_CREAT, 0600);
    CHECK(write(fd, "written", 7) == 7);
}

int main(int count, char **arguments) {
    const char *root = arguments[1];
    CHECK(chdir(root) == 0);
    if (count > 2 && strcmp(arguments[2], "append") == 0) append();
    streams();
    printing();
    numbers();
    readiness();
    vectors();
    directories(root);
    trees();
    names();
    locks();
    children();
    threads();
    mappings();
    reopened();
    /* What lies in a buffer at the end of the process is written. */
    FILE *left = fopen("left", "w");
    CHECK(left != NULL && fputs("in the buffer", left) >= 0);
    atexit(at_the_end);
    puts("as on Linux");
    return 0;
}
