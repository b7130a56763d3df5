/* Relies on the lowest free number, as shells do, while other programs come to its volume.
 * numbers DIRECTORY: a directory of the host. Goes on until there is the file `enough` in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(const char *call, long round, int number, int expected) {
    if (number != expected) {
        fprintf(stderr, "round %ld: %s: %d, not %d: %s\n", round, call, number, expected,
                number < 0 ? strerror(errno) : "another one has that number");
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1]) != 0)
        return 2;
    close_range(3, ~0U, 0); /* what the tests were started with */
    const char *names[] = {"/adit/own", "of-host"};
    int first = open(names[0], O_RDWR | O_CREAT, 0600);
    expect("the first file", 0, first, 3);
    /* From here on the volume is shared. */
    if (write(1, "=on\n", 4) != 4)
        return 2;
    long round = 0;
    for (; access("enough", F_OK) != 0; round++) {
        const char *name = names[round % 2];
        int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        expect("open", round, file, 4);
        /* echo >file */
        int saved = fcntl(1, F_DUPFD, 10);
        expect("fcntl", round, saved, 10);
        expect("close", round, close(1), 0);
        expect("dup2", round, dup2(file, 1), 1);
        expect("close", round, close(file), 0);
        expect("write", round, write(1, "x", 1), 1);
        expect("close", round, close(1), 0);
        expect("dup", round, dup(saved), 1);
        expect("close", round, close(saved), 0);
        /* exec 5>file, of which nothing is left */
        file = open(name, O_RDONLY);
        expect("open", round, file, 4);
        expect("dup2", round, dup2(file, 5), 5);
        char byte = 0;
        expect("read", round, read(5, &byte, 1), 1);
        expect("the byte", round, byte, 'x');
        expect("close", round, close(5), 0);
        expect("close", round, close(file), 0);
        /* As daemons do. The server's are not theirs to close. */
        expect("close", round, close(0), 0);
        expect("open", round, open("/dev/null", O_RDONLY), 0);
        for (int number = 4; number < 400; number++)
            if (close(number) == 0)
                expect("close", round, number, -1);
    }
    printf("%ld rounds\n", round);
    return 0;
}
