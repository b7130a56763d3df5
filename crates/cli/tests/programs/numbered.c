/* System calls by number on a directory, each with what it answers: as the kernel's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result >= 0 ? "ok" : strerror(errno));
}
#define CALL(name, ...) say(#name, syscall(SYS_##name, ##__VA_ARGS__))

int main(int count, char **words) {
    struct stat found;
    struct statfs space;
    char text[100] = "";
    struct iovec piece = {"text", 4};
    struct timespec times[2] = {{1, 0}, {2, 0}};
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0600};
    struct open_how inside = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
    if (count != 2 || chdir(words[1]))
        return 2;
    long fd = syscall(SYS_openat2, AT_FDCWD, "a", &how, sizeof how);
    say("openat2", fd);
    long other = syscall(SYS_openat2, AT_FDCWD, "a", &inside, sizeof inside);
    printf("openat2 beneath: %s\n", other >= 0 || errno == ENOSYS ? "ok, or not known" : strerror(errno));
    CALL(writev, fd, &piece, 1);
    CALL(lseek, fd, 0L, SEEK_SET);
    say("read", syscall(SYS_read, fd, text, 4L));
    printf("%s\n", text);
    CALL(ftruncate, fd, 10L);
    CALL(fsync, fd);
    CALL(fdatasync, fd);
    CALL(fstat, fd, &found);
    printf("%ld bytes, %o\n", (long)found.st_size, found.st_mode);
    CALL(fchmod, fd, 0640);
    CALL(fchown, fd, getuid(), -1);
    CALL(flock, fd, 2);
    CALL(fallocate, fd, 0, 0L, 100L);
    CALL(utimensat, fd, NULL, times, 0);
    CALL(utimensat, AT_FDCWD, "a", times, 0);
    CALL(newfstatat, AT_FDCWD, "a", &found, 0);
    printf("%ld bytes, of %ld\n", (long)found.st_size, (long)found.st_mtime);
    CALL(mkdirat, AT_FDCWD, "d", 0755);
    CALL(mkdirat, AT_FDCWD, "d", 0755);
    CALL(linkat, AT_FDCWD, "a", AT_FDCWD, "d/b", 0);
    CALL(linkat, AT_FDCWD, "a", AT_FDCWD, "d/c", 1 << 20);
    CALL(symlinkat, "a", AT_FDCWD, "s");
    CALL(readlinkat, AT_FDCWD, "s", text, sizeof text);
    CALL(renameat2, AT_FDCWD, "s", AT_FDCWD, "d/s", 1);
    CALL(faccessat2, AT_FDCWD, "a", R_OK, AT_EACCESS);
    CALL(faccessat2, AT_FDCWD, "none", R_OK, 0);
    CALL(mknodat, AT_FDCWD, "fifo", S_IFIFO | 0600, 0L);
    CALL(setxattr, "a", "user.a", "1", 1L, 0);
    CALL(getxattr, "a", "user.a", text, sizeof text);
    CALL(removexattr, "a", "user.a");
    CALL(statfs, ".", &space);
    CALL(truncate, "a", 5L);
    CALL(chdir, "d");
    CALL(unlinkat, AT_FDCWD, "b", 0);
    CALL(unlinkat, AT_FDCWD, "s", 0);
    CALL(chdir, "..");
    CALL(unlinkat, AT_FDCWD, "d", AT_REMOVEDIR);
    CALL(unlinkat, AT_FDCWD, "fifo", 0);
#ifdef SYS_open
    CALL(open, "b", O_RDWR | O_CREAT, 0600);
    CALL(stat, "b", &found);
    CALL(lstat, "b", &found);
    CALL(access, "b", W_OK);
    CALL(chmod, "b", 0600);
    CALL(link, "b", "c");
    CALL(rename, "c", "e");
    CALL(symlink, "b", "s");
    CALL(readlink, "s", text, sizeof text);
    CALL(mkdir, "d", 0700);
    CALL(rmdir, "d");
    CALL(unlink, "none");
    CALL(unlink, "b");
    CALL(unlink, "e");
    CALL(unlink, "s");
#endif
    CALL(unlinkat, AT_FDCWD, "a", 0);
    CALL(close, fd);
    return 0;
}
