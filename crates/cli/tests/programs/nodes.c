// Pipes and sockets with names, below a directory: what a program sees of them. It prints the same on
// the host's file system and in a volume. With "alone" behind the directory it has no children.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *say(long result) {
    static char text[64];
    if (result >= 0) return "ok";
    snprintf(text, sizeof text, "%s", strerrorname_np(errno));
    return text;
}
#define TRY(call) printf("%s: %s\n", #call, say(call))
#define NEED(condition) \
    do { if (!(condition)) { printf("line %d: %s: %m\n", __LINE__, #condition); exit(1); } } while (0)

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    strncpy(un.sun_path, path, sizeof un.sun_path - 1);
    return un;
}
static socklen_t length(const struct sockaddr_un *un) {
    return offsetof(struct sockaddr_un, sun_path) + strlen(un->sun_path) + 1;
}
static int do_bind(int fd, const char *path) {
    struct sockaddr_un un = at(path);
    return bind(fd, (void *)&un, length(&un));
}
static int do_connect(int fd, const char *path) {
    struct sockaddr_un un = at(path);
    return connect(fd, (void *)&un, length(&un));
}
static void tell(const char *what, const struct sockaddr_un *un, socklen_t len) {
    int is_path = len > offsetof(struct sockaddr_un, sun_path) && un->sun_path[0];
    printf("%s: %u bytes, %s\n", what, len, is_path ? un->sun_path : "no path");
}
static void names(const char *what, int fd) {
    struct sockaddr_un un = {0};
    socklen_t len = sizeof un;
    char text[100];
    NEED(getsockname(fd, (void *)&un, &len) == 0);
    snprintf(text, sizeof text, "%s's own", what);
    tell(text, &un, len);
    memset(&un, 0, len = sizeof un);
    if (getpeername(fd, (void *)&un, &len) == 0) {
        snprintf(text, sizeof text, "%s's peer", what);
        tell(text, &un, len);
    }
}
static void look(const char *path) {
    struct stat st;
    NEED(lstat(path, &st) == 0);
    printf("%s: mode %o, mine %d, links %d, size %d\n", path, st.st_mode, st.st_uid == geteuid(),
           (int)st.st_nlink, (int)st.st_size);
}
static int stream(void) { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

static int is_alone;

static void talk(int server, const char *path) {
    int client = stream(), peer;
    TRY(do_connect(client, path));
    struct sockaddr_un un = {0};
    socklen_t len = sizeof un;
    NEED((peer = accept(server, (void *)&un, &len)) >= 0);
    tell("accepted from", &un, len);
    names("client", client);
    names("accepted", peer);
    char text[6] = {0};
    NEED(write(client, "hello", 5) == 5 && read(peer, text, 5) == 5);
    struct ucred who;
    len = sizeof who;
    NEED(getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0);
    printf("%s; the peer is %s\n", text, who.pid == getpid() ? "this process" : "another");
    close(client), close(peer);
}

static void sockets(void) {
    int server = stream(), other = stream(), copy = dup(server), one = 1;
    NEED(setsockopt(server, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == 0);
    NEED(fcntl(server, F_SETFL, O_NONBLOCK) == 0);
    umask(027);
    TRY(do_bind(server, "s"));
    look("s");
    names("server", server);
    names("its copy", copy);
    int value = 0;
    socklen_t len = sizeof value;
    NEED(getsockopt(server, SOL_SOCKET, SO_PASSCRED, &value, &len) == 0);
    printf("options: %d, flags %o, %o\n", value, fcntl(copy, F_GETFL), fcntl(server, F_GETFD));
    fcntl(server, F_SETFL, 0);
    TRY(do_connect(other, "s"));
    TRY(listen(server, 5));
    TRY(do_bind(other, "s"));
    TRY(do_bind(server, "again"));
    TRY(access("again", F_OK));
    TRY(do_bind(other, "missing/s"));
    TRY(do_bind(other, "s/s"));
    TRY(do_bind(other, "slash/"));
    TRY(do_bind(-1, "t"));
    TRY(do_bind(open("/dev/null", O_RDONLY), "t"));
    TRY(do_bind(socket(AF_INET, SOCK_STREAM, 0), "t"));
    talk(server, "s");
    NEED(symlink("s", "link") == 0);
    talk(server, "link");
    TRY(do_bind(other, "link"));
    NEED(mkdir("dir", 0755) == 0 && close(open("file", O_CREAT | O_WRONLY, 0644)) == 0);
    TRY(do_connect(other, "dir"));
    TRY(do_connect(other, "file"));
    TRY(do_connect(other, "none"));
    TRY(do_connect(other, "file/none"));
    TRY(do_connect(socket(AF_UNIX, SOCK_DGRAM, 0), "s"));
    TRY(open("s", O_RDWR));
    TRY(open("s", O_PATH));
    NEED(rename("s", "dir/moved") == 0);
    talk(server, "dir/moved");
    char here[4096], path[5000];
    NEED(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/dir/moved", here);
    if (strlen(path) < 100) NEED(do_connect(other, path) == 0 && close(accept(server, 0, 0)) == 0);
    pid_t child = is_alone ? -1 : fork();
    if (child == 0) {
        int fd = stream();
        _exit(do_connect(fd, "dir/moved") || write(fd, "child", 5) != 5);
    }
    if (!is_alone) {
        int status, peer = accept(server, NULL, NULL);
        char text[6] = {0};
        NEED(peer >= 0 && read(peer, text, 5) == 5 && waitpid(child, &status, 0) == child);
        printf("a child: %s, %d\n", text, status);
    }
    close(server);
    int still = stream();
    TRY(do_connect(still, "dir/moved"));
    close(still), still = stream();
    close(copy);
    TRY(do_connect(still, "dir/moved"));
    look("dir/moved");
    server = stream();
    TRY(do_bind(server, "dir/moved"));
    TRY(unlink("dir/moved"));
    TRY(do_bind(server, "dir/moved"));
    NEED(listen(server, 1) == 0);
    TRY(unlink("dir/moved"));
    TRY(do_connect(still, "dir/moved"));
    NEED(mknod("made", S_IFSOCK | 0666, 0) == 0);
    TRY(do_connect(still, "made"));
    TRY(do_bind(still, "made"));
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    TRY(bind(pair[0], (void *)&(struct sockaddr_un){.sun_family = AF_UNIX}, 2));
    names("a pair", pair[0]);
}

static void datagrams(void) {
    int server = socket(AF_UNIX, SOCK_DGRAM, 0), client = socket(AF_UNIX, SOCK_DGRAM, 0);
    TRY(do_bind(server, "d"));
    TRY(do_bind(client, "c"));
    struct sockaddr_un to = at("d"), from = {0};
    socklen_t len = sizeof from;
    char text[10] = {0};
    TRY(sendto(client, "one", 3, 0, (void *)&to, length(&to)));
    NEED(recvfrom(server, text, 9, 0, (void *)&from, &len) == 3);
    tell(text, &from, len);
    TRY(sendto(server, "back", 4, 0, (void *)&from, len));
    struct iovec piece = {text, 9};
    struct msghdr message = {&from, sizeof from, &piece, 1, NULL, 0, 0};
    NEED(recvmsg(client, &message, 0) == 4);
    tell(text, &from, message.msg_namelen);
    struct mmsghdr many[2] = {0};
    for (int i = 0; i < 2; i++) {
        many[i].msg_hdr = (struct msghdr){&to, length(&to), &piece, 1, NULL, 0, 0};
    }
    piece.iov_len = 4;
    int sent = sendmmsg(client, many, 2, 0);
    printf("sendmmsg: %d, %u %u\n", sent, many[0].msg_len, many[1].msg_len);
    many[0].msg_hdr.msg_name = &from, many[0].msg_hdr.msg_namelen = sizeof from;
    struct sockaddr_un second;
    many[1].msg_hdr.msg_name = &second, many[1].msg_hdr.msg_namelen = sizeof second;
    printf("recvmmsg: %d\n", recvmmsg(server, many, 2, 0, NULL));
    tell("the second", &second, many[1].msg_hdr.msg_namelen);
    char small[10];
    len = sizeof small;
    NEED(sendto(client, "one", 3, 0, (void *)&to, length(&to)) == 3);
    NEED(recvfrom(server, text, 9, 0, (void *)small, &len) == 3);
    printf("a small buffer: %s\n", len > sizeof small ? "cut" : "whole");
    struct sockaddr_un none = at("nowhere");
    TRY(sendto(client, "x", 1, 0, (void *)&none, length(&none)));
    TRY(do_connect(client, "d"));
    names("connected", client);
    NEED(unlink("d") == 0);
    TRY(send(client, "x", 1, 0));
    TRY(sendto(client, "x", 1, 0, (void *)&to, length(&to)));
}

static void *opens(void *mode) {
    long fd = open("p", (int)(long)mode);
    return (void *)fd;
}
static void handler(int signal) { (void)signal; }

static void pipes(void) {
    umask(022);
    TRY(mkfifo("p", 0660));
    TRY(mkfifo("p", 0660));
    look("p");
    TRY(open("p", O_WRONLY | O_NONBLOCK));
    TRY(open("p", O_RDWR | O_CREAT | O_EXCL, 0600));
    TRY(open("p", O_RDONLY | O_DIRECTORY));
    TRY(open("p/below", O_RDONLY));
    TRY(open("p", O_PATH));
    int reader, writer;
    NEED((reader = open("p", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) >= 0);
    NEED((writer = open("p", O_WRONLY | O_NONBLOCK | O_CREAT | O_TRUNC, 0600)) >= 0);
    struct stat one, two;
    NEED(stat("p", &one) == 0 && fstat(reader, &two) == 0);
    printf("fstat: %d %d %o, flags %o, %d\n", one.st_ino == two.st_ino, one.st_dev == two.st_dev,
           two.st_mode, fcntl(reader, F_GETFL), fcntl(reader, F_GETFD));
    char text[20] = {0};
    TRY(read(reader, text, 1));
    NEED(write(writer, "through", 7) == 7);
    struct pollfd waits = {reader, POLLIN, 0};
    int ready = poll(&waits, 1, 0);
    printf("poll: %d %x\n", ready, waits.revents);
    NEED(read(reader, text, 19) == 7);
    puts(text);
    TRY(lseek(reader, 0, SEEK_SET));
    TRY(pread(reader, text, 1, 0));
    close(writer);
    printf("at the end: %zd\n", read(reader, text, 1));
    close(reader);
    NEED((writer = open("p", O_RDWR)) >= 0 && write(writer, "x", 1) == 1);
    close(writer);
    for (int first = 0; first < 2; first++) {
        pthread_t thread;
        void *fd;
        NEED(pthread_create(&thread, NULL, opens, (void *)(long)(first ? O_RDONLY : O_WRONLY)) == 0);
        int other = open("p", first ? O_WRONLY : O_RDONLY);
        NEED(pthread_join(thread, &fd) == 0);
        printf("both wait for each other: %d\n", other >= 0 && (long)fd >= 0);
        close(other), close((long)fd);
    }
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    ualarm(200000, 0);
    TRY(open("p", O_RDONLY));
    pid_t child = is_alone ? -1 : fork();
    if (child == 0) {
        FILE *file = fopen("p", "w");
        _exit(!file || fprintf(file, "a child\n") != 8 || fclose(file) != 0);
    }
    if (!is_alone) {
        FILE *file = fopen("p", "r");
        int status;
        NEED(file && fgets(text, sizeof text, file) && waitpid(child, &status, 0) == child);
        printf("%d %s", status, text);
        fclose(file);
    }
    signal(SIGPIPE, SIG_IGN);
    NEED((reader = open("p", O_RDONLY | O_NONBLOCK)) >= 0);
    NEED((writer = open("p", O_WRONLY)) >= 0);
    TRY(unlink("p"));
    NEED(write(writer, "gone", 4) == 4 && read(reader, text, 4) == 4);
    close(reader);
    TRY(write(writer, "x", 1));
    TRY(open("p", O_RDONLY));
    NEED(mkfifo("p", 0600) == 0);
    TRY(open("p", O_WRONLY | O_NONBLOCK));
    NEED(chmod("p", 0) == 0);
    look("p");
    NEED(mknod("q", S_IFIFO | 0604, 0) == 0);
    look("q");
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    is_alone = count == 4;
    NEED(count >= 3 && chdir(words[2]) == 0);
    if (!strcmp(words[1], "sockets")) sockets();
    if (!strcmp(words[1], "datagrams")) datagrams();
    if (!strcmp(words[1], "pipes")) pipes();
    // As another user: what may it do with "p" and "s"?
    if (!strcmp(words[1], "other")) {
        int reader = open("p", O_RDONLY | O_NONBLOCK);
        printf("reads: %s\n", say(reader));
        TRY(open("p", O_WRONLY | O_NONBLOCK));
        if (reader >= 0) {
            char name[40];
            snprintf(name, sizeof name, "/proc/self/fd/%d", reader);
            TRY(open(name, O_WRONLY | O_NONBLOCK));
        }
        TRY(do_connect(stream(), "s"));
        TRY(do_bind(stream(), "t"));
    }
    // A server that says when it listens, and answers so many clients.
    if (!strcmp(words[1], "serve")) {
        int server = stream();
        NEED(do_bind(server, "s") == 0 && chmod("s", 0666) == 0 && listen(server, 5) == 0);
        puts("listens");
        for (int peer; (peer = accept(server, NULL, NULL)) >= 0; close(peer)) {
            // It may have gone.
            send(peer, "answer", 6, MSG_NOSIGNAL);
        }
    }
    if (!strcmp(words[1], "ask")) {
        int fd = stream();
        char text[10] = {0};
        if (do_connect(fd, "s") == 0 && read(fd, text, 9) == 6) puts(text);
        else printf("connect: %s\n", say(-1));
    }
}
