/* Becomes other users, for a while and for good, and says what it may do then.
 *
 * `users all DIRECTORY`            in every way; the output is the kernel's on a file system of its own
 * `users drop DIRECTORY`           gives up root while a thread of its own works, then looks for a
 *                                  secret that it never read in all of its memory and descriptors
 * `users race DIRECTORY`           children that give up root while a thread of theirs uses the volume for
 *                                  the first time; says what they may do then
 * `users refused DIRECTORY`        gives up root, which is refused; it stays root with its files
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *directory;

static const char *in(const char *name) {
    static char path[2][4096];
    static int which;
    which = !which;
    snprintf(path[which], sizeof path[0], "%s/%s", directory, name);
    return path[which];
}

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result >= 0 ? "ok" : strerror(errno));
    fflush(stdout);
}

static int opens(const char *name, int flags) {
    int fd = open(in(name), flags);
    if (fd < 0)
        return -1;
    return close(fd);
}

/* What the user of now may do, and whose is what it makes. */
static void look(const char *who) {
    char name[100];
    struct stat made;
    printf("-- %s\n", who);
    say("opens a file of root's", opens("secret", O_RDONLY));
    say("opens a file of its group's", opens("group", O_RDONLY));
    say("writes to a file of its group's", opens("group", O_WRONLY));
    say("changes the mode of root's", chmod(in("secret"), 0600));
    say("may read root's, by its real user", access(in("secret"), R_OK));
    say("may read root's", faccessat(AT_FDCWD, in("secret"), R_OK, AT_EACCESS));
    snprintf(name, sizeof name, "open/file of %s", who);
    int fd = open(in(name), O_RDWR | O_CREAT, 0640);
    say("makes a file", fd);
    if (fd >= 0 && fstat(fd, &made) == 0)
        printf("which is %d:%d's, %o\n", made.st_uid, made.st_gid, made.st_mode & 07777);
    if (fd >= 0)
        close(fd);
    snprintf(name, sizeof name, "open/directory of %s", who);
    say("makes a directory", mkdir(in(name), 0755));
    if (stat(in(name), &made) == 0)
        printf("which is %d:%d's\n", made.st_uid, made.st_gid);
    snprintf(name, sizeof name, "open/link of %s", who);
    say("makes a link", symlink("x", in(name)));
    if (lstat(in(name), &made) == 0)
        printf("which is %d:%d's\n", made.st_uid, made.st_gid);
    say("removes root's", unlink(in("open/root's")));
}

static int lock(int fd, int command, int type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    if (fcntl(fd, command, &lock))
        return -1;
    return command == F_GETLK && lock.l_type != F_UNLCK;
}

static void in_child(void (*work)(void *), void *with) {
    pid_t child = fork();
    if (child == 0) {
        work(with);
        exit(0);
    }
    waitpid(child, NULL, 0);
}

struct files {
    int secret, locked, flocked;
};

static void use(struct files *files) {
    char bytes[7] = "";
    printf("reads %zd bytes of what is open: %s\n", pread(files->secret, bytes, 6, 0), bytes);
    say("writes to it", pwrite(files->secret, "secret", 6, 0));
    say("syncs it", fsync(files->secret));
    say("changes its mode", fchmod(files->secret, 0600));
}

static void worker(void *files) {
    say("setgid", setgid(65534));
    say("setuid", setuid(65534));
    look("worker");
    use(files);
    say("root again", setuid(0));
}

static void worker_that_was_root(void *files) {
    gid_t group = 77;
    say("opens as root", opens("secret", O_RDWR));
    say("setgroups", setgroups(1, &group));
    say("setresgid", setresgid(1001, 1001, 1001));
    say("setresuid", setresuid(1001, 1001, 1001));
    look("worker that was root");
    use(files);
    say("root again", seteuid(0));
}

static void worker_that_may_return(void *files) {
    say("setreuid", setreuid(1003, 0));
    look("real user 1003");
    say("seteuid", seteuid(1003));
    look("effective user 1003");
    say("root again", seteuid(0));
    look("root once more");
    say("for good", setreuid(1003, 1003));
    look("user 1003");
    say("root again", seteuid(0));
}

static void looks_for_locks(void *with) {
    int fd = open(in("locked"), O_RDWR), other = open(in("flocked"), O_RDWR);
    say("opens", fd);
    printf("the range is %s\n", lock(fd, F_GETLK, F_WRLCK) == 1 ? "locked" : "free");
    say("its own lock", lock(fd, F_OFD_SETLK, F_WRLCK));
    (void)with, (void)other;
}

static void *in_thread(void *with) {
    (void)with;
    setfsuid(1000);
    say("a thread opens a file of root's", opens("secret", O_RDONLY));
    return NULL;
}

static int all(void) {
    gid_t group = 77;
    umask(022);
    mkdir(in("open"), 0777);
    chmod(in("open"), 01777);
    close(open(in("open/root's"), O_RDWR | O_CREAT, 0666));
    struct files files = {.secret = open(in("secret"), O_RDWR | O_CREAT, 0600)};
    write(files.secret, "secret", 6);
    int fd = open(in("group"), O_RDWR | O_CREAT, 0640);
    fchown(fd, 0, group);
    close(fd);
    fd = open(in("locked"), O_RDWR | O_CREAT, 0666);
    fchmod(fd, 0666);
    say("locks", lock(fd, F_SETLK, F_WRLCK));
    look("root without a change");
    close(open(in("open/root's"), O_RDWR | O_CREAT, 0666));
    setegid(1000), seteuid(1000);
    look("effective user");
    seteuid(0), setegid(0);
    look("root again");
    close(open(in("open/root's"), O_RDWR | O_CREAT, 0666));
    setgroups(1, &group), seteuid(1000);
    look("with a group");
    seteuid(0), setgroups(0, NULL);
    setfsuid(1000);
    look("user of the file system");
    setfsuid(0);
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    say("the others still do", opens("secret", O_RDONLY));
    in_child(worker, &files);
    in_child(worker_that_was_root, &files);
    in_child(worker_that_may_return, &files);
    say("setgid", setgid(1002));
    say("setuid", setuid(1002));
    look("for good");
    use(&files);
    in_child(looks_for_locks, NULL);
    say("unlocks", lock(fd, F_SETLK, F_UNLCK));
    in_child(looks_for_locks, NULL);
    say("root again", setuid(0));
    say("another user", setuid(1004));
    return 0;
}

/* Not in this program's own bytes as it is in the file: each letter is another one there. */
static void secret(char *into) {
    const char shifted[] = "UIF!TFDSFU!UIBU!POMZ!SPPU!IBT!SFBE";
    for (size_t at = 0; shifted[at]; at++)
        into[at] = shifted[at] - 1;
    into[sizeof shifted - 1] = 0;
}

/* How often the secret is in readable memory, but for the stack of the search. */
static int times_in_memory(void) {
    char wanted[64], line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    int memory = open("/proc/self/mem", O_RDONLY), found = 0;
    size_t room = 1 << 20;
    char *bytes = malloc(room + 64);
    secret(wanted);
    size_t len = strlen(wanted);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[5];
        sscanf(line, "%lx-%lx %4s", &from, &to, rights);
        if (rights[0] != 'r' || strstr(line, "[v") || strstr(line, "[stack]"))
            continue;
        for (unsigned long at = from; at < to; at += room) {
            ssize_t got = pread(memory, bytes, room + 64, at);
            unsigned long own = (unsigned long)bytes;
            if (got <= 0 || (at < own + room + 64 && own < at + room + 64))
                continue;
            for (char *hit = bytes; (hit = memmem(hit, bytes + got - hit, wanted, len)); hit++)
                found++;
        }
    }
    free(bytes);
    fclose(maps);
    close(memory);
    return found;
}

static volatile int goes_on = 1;

static void *works(void *with) {
    struct stat found;
    long *failed = with;
    while (goes_on)
        *failed += stat(in("open"), &found) != 0;
    return NULL;
}

static int drop(void) {
    char before[64];
    long failed = 0;
    pthread_t thread;
    secret(before);
    int fd = open(in("own"), O_RDWR | O_CREAT, 0600);
    pwrite(fd, "mine", 4, 0);
    struct stat found;
    for (int round = 0; round < 100; round++)
        stat(in("secret"), &found);
    memset(before, 0, sizeof before);
    printf("before: %s\n", times_in_memory() ? "in memory" : "nowhere");
    pthread_create(&thread, NULL, works, &failed);
    usleep(20000);
    say("setgid", setgid(1000));
    say("setuid", setuid(1000));
    usleep(20000);
    goes_on = 0;
    pthread_join(thread, NULL);
    printf("the thread failed: %s\n", failed ? "yes" : "no");
    printf("after: %s\n", times_in_memory() ? "in memory" : "nowhere");
    say("opens the secret", opens("secret", O_RDONLY));
    for (int number = 3; number < 4096; number++) {
        char path[64], bytes[4096], wanted[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        int again = open(path, O_RDONLY | O_NONBLOCK);
        secret(wanted);
        for (ssize_t got; again >= 0 && (got = read(again, bytes, sizeof bytes)) > 0;)
            if (memmem(bytes, got, wanted, strlen(wanted)))
                printf("descriptor %d has the secret\n", number);
        memset(wanted, 0, sizeof wanted);
        if (again >= 0)
            close(again);
    }
    char mine[5] = "";
    printf("its own file: %zd bytes, %s\n", pread(fd, mine, 4, 0), mine);
    say("writes to it", pwrite(fd, "more", 4, 0));
    return 0;
}

static void *looks_once(void *with) {
    struct stat found;
    stat(in("own"), &found);
    return with;
}

static int race(void) {
    int fd = open(in("own"), O_RDWR | O_CREAT, 0644);
    int opened = 0, failed = 0;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            pthread_create(&thread, NULL, looks_once, NULL);
            usleep(round % 20 * 200);
            int drops = setgroups(0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000);
            pthread_join(thread, NULL);
            _exit(drops ? 2 : opens("secret", O_RDONLY) == 0 || pread(fd, &drops, 1, 0) < 0);
        }
        int status;
        waitpid(child, &status, 0);
        opened += status == 1 << 8;
        failed += status != 0 && status != 1 << 8;
    }
    printf("%d opened the secret, %d failed\n", opened, failed);
    return 0;
}

static int refused(void) {
    int fd = open(in("secret"), O_RDWR | O_CREAT, 0600);
    say("opens", fd);
    int result = setuid(1000);
    printf("setuid: %d, %s; user %d\n", result, strerror(errno), getuid());
    say("writes", pwrite(fd, "secret", 6, 0));
    say("opens once more", opens("secret", O_RDWR));
    say("for a while", seteuid(1000));
    say("opens root's", opens("secret", O_RDWR));
    say("root again", seteuid(0));
    say("opens root's", opens("secret", O_RDWR));
    return 0;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    directory = words[2];
    if (!strcmp(words[1], "all"))
        return all();
    if (!strcmp(words[1], "race"))
        return race();
    return strcmp(words[1], "drop") ? refused() : drop();
}
