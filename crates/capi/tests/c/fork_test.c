/*
 * A process that forks while it has a volume open, as database servers do: with threads at work,
 * with children that misuse what they inherit, that exit instead of _exit, that exec, and by
 * popen() and system().
 *
 *   fork_test ADDRESS     formats a volume there and uses it; prints "N claims hold"
 *   fork_test --execed IMAGE   what exec starts: says whether it inherited a descriptor of the image
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#define _GNU_SOURCE
#include "adit.h"
#include "claims.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *self, *address;
static adit_volume *volume;
static adit_file *file;

/* Descriptors of this process that lead to the image, or to a server (of sockets, this program has no others);
   also those of rings and of caches in shared memory. */
static int descriptors_of(const char *image, int shared_too)
{
    char path[64], target[4096], real[4096];
    int found = 0;
    struct dirent *entry;
    DIR *dir = opendir("/proc/self/fd");
    HOLDS(dir != NULL && (is_served(image) || realpath(image, real) != NULL));
    if (is_served(image))
        real[0] = 0;
    while ((entry = readdir(dir)) != NULL) {
        ssize_t len;
        snprintf(path, sizeof(path), "/proc/self/fd/%.20s", entry->d_name);
        len = readlink(path, target, sizeof(target) - 1);
        if (len < 0)
            continue;
        target[len] = 0;
        found += strcmp(target, real) == 0 || strstr(target, "io_uring") != NULL
                 || (is_served(image) && atoi(entry->d_name) > 2 && strncmp(target, "socket:", 7) == 0)
                 || (shared_too && strstr(target, "/dev/shm") != NULL);
    }
    closedir(dir);
    return found;
}

static int status_of(pid_t child)
{
    int status = -1;
    HOLDS(child > 0);
    HOLDS(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Every kind of call answers EBADF, at once: whoever held a lock in the parent isn't here to release it. */
static void misuse_everything(void)
{
    char bytes[8];
    const adit_write_range range = { 0, "child!", 6 };
    adit_stat stat = ADIT_STAT_INIT;
    adit_statfs statfs = ADIT_STATFS_INIT;
    adit_file *other = NULL;
    adit_op *op = NULL;
    adit_dir *dir = NULL;
    adit_blob_id id;
    alarm(580); /* no machine is so busy: it hangs */
    IS(adit_pread(file, bytes, 6, 0), -EBADF);
    IS(adit_pwrite(file, "child!", 6, 0), -EBADF);
    IS(adit_append(file, "child!", 6, NULL), -EBADF);
    IS(adit_pwrite_atomic(file, &range, 1, 0), -EBADF);
    IS(adit_atomic_write_max(file), -EBADF);
    IS(adit_fsync(file), -EBADF);
    IS(adit_ftruncate(file, 0), -EBADF);
    IS(adit_fstat(file, &stat), -EBADF);
    IS(adit_flock(file, ADIT_LOCK_EXCLUSIVE), -EBADF);
    IS(adit_open(volume, "/child", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &other), -EBADF);
    IS(adit_unlink(volume, "/f"), -EBADF);
    IS(adit_mkdir(volume, "/child", 0755), -EBADF);
    IS(adit_rename(volume, "/f", "/g", 0), -EBADF);
    IS(adit_opendir(volume, "/", &dir), -EBADF);
    IS(adit_blob_create(volume, &id), -EBADF);
    IS(adit_volume_statfs(volume, &statfs), -EBADF);
    IS(adit_syncfs(volume), -EBADF);
    if (adit_pwrite_submit(file, "child!", 6, 0, NULL, NULL, &op) == 0) {
        IS(adit_op_wait(op), -EBADF);
        adit_op_release(op);
    }
    HOLDS(strstr(adit_error_message(), "EBADF") != NULL);
    HOLDS(descriptors_of(address, 0) == 0);
    adit_close(file);
    IS(adit_close_volume(volume), -EBADF);
}

static atomic_int ending;
static atomic_long appended;

static void *append_and_sync(void *log)
{
    while (!ending) {
        IS(adit_append(log, "12345678", 8, NULL), 8);
        if (++appended % 16 == 0)
            IS(adit_fdatasync(log), 0);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    enum { THREADS = 3, ROUNDS = 10 };
    pthread_t threads[THREADS];
    adit_file *log = NULL;
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    char bytes[8], command[8192];
    FILE *pipe;
    int i;
    if (argc == 3 && strcmp(argv[1], "--execed") == 0)
        return descriptors_of(argv[2], 1);
    if (argc != 2)
        return 2;
    self = argv[0];
    address = argv[1];
    format.size_bytes = 64u << 20;
    if (!is_served(address))
        IS(adit_mkfs(address, &format), 0);
    IS(adit_open_volume(address, NULL, &volume), 0);
    IS(adit_open(volume, "/f", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_open(volume, "/log", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &log), 0);
    IS(adit_pwrite(file, "parent", 6, 0), 6);
    for (i = 0; i < THREADS; ++i)
        HOLDS(pthread_create(&threads[i], NULL, append_and_sync, log) == 0);

    for (i = 0; i < ROUNDS; ++i) {
        pid_t child = fork();
        if (child == 0) {
            misuse_everything();
            if (i % 2)
                exit(7); /* with atexit handlers and destructors */
            _exit(7);
        }
        IS(status_of(child), 7);
    }
    for (i = 0; i < ROUNDS; ++i) {
        pid_t child = i % 2 ? fork() : vfork();
        if (child == 0) {
            execl(self, self, "--execed", address, (char *)NULL);
            _exit(99);
        }
        IS(status_of(child), 0);
        snprintf(command, sizeof(command), "'%s' --execed '%s'", self, address);
        IS(system(command), 0);
        pipe = popen("echo hello", "r");
        HOLDS(pipe != NULL && fgets(bytes, sizeof(bytes), pipe) != NULL && strcmp(bytes, "hello\n") == 0);
        IS(pclose(pipe), 0);
    }

    /* A child that lives on doesn't keep the volume from being opened again, nor does it disturb that. */
    {
        int hold[2];
        pid_t child;
        long written;
        HOLDS(pipe2(hold, O_CLOEXEC) == 0);
        child = fork();
        if (child == 0) {
            close(hold[1]);
            HOLDS(read(hold[0], bytes, 1) == 0);
            misuse_everything();
            _exit(7);
        }
        close(hold[0]);
        ending = 1;
        for (i = 0; i < THREADS; ++i)
            HOLDS(pthread_join(threads[i], NULL) == 0);
        written = appended * 8;
        IS(adit_file_size(log), written);
        IS(adit_close(log), 0);
        IS(adit_close(file), 0);
        IS(adit_close_volume(volume), 0);
        {
            adit_volume *again = NULL;
            adit_file *reopened = NULL;
            adit_stat stat = ADIT_STAT_INIT;
            IS(adit_open_volume(address, NULL, &again), 0);
            IS(adit_open(again, "/f", ADIT_O_RDWR, 0, &reopened), 0);
            IS(adit_pread(reopened, bytes, 8, 0), 6);
            HOLDS(memcmp(bytes, "parent", 6) == 0);
            IS(adit_stat_path(again, "/log", &stat), 0);
            IS(stat.size_bytes, written);
            IS(adit_stat_path(again, "/child", &stat), -ENOENT);
            close(hold[1]);
            IS(status_of(child), 7);
            IS(adit_pwrite(reopened, "again!", 6, 0), 6);
            IS(adit_close(reopened), 0);
            IS(adit_close_volume(again), 0);
        }
    }
    printf("%d claims hold\n", claims);
    return 0;
}
