/* Lesson 2: a database's log: append, then fdatasync. This is what Adit is fastest at: a small
 * append and its sync are one write to the device.
 *
 *   cargo build --release --package libadit
 *   gcc examples/c/log.c -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o log
 *   ./log log.adit
 */
#include "adit.h"

#include <stdio.h>
#include <string.h>

#define CHECK(call)                                         \
    do {                                                    \
        if ((call) < 0) {                                   \
            fprintf(stderr, "%s\n", adit_error_message()); \
            return 1;                                       \
        }                                                   \
    } while (0)

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "log.adit";
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_volume *volume;
    adit_file *file;
    char record[100];
    struct iovec parts[2];
    uint64_t offset = 0;
    int i;

    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE;
    CHECK(adit_mkfs(address, &format));
    CHECK(adit_open_volume(address, NULL, &volume));
    CHECK(adit_open(volume, "/log", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file));

    /* Room for all of it beforehand: the appends then change nothing but data and size. */
    CHECK(adit_fallocate(file, ADIT_FALLOC_KEEP_SIZE, 0, 1 << 20));

    for (i = 0; i < 1000; ++i) {
        memset(record, 'a' + i % 26, sizeof(record));
        CHECK(adit_append(file, record, sizeof(record), NULL));
        CHECK(adit_fdatasync(file)); /* committed */
    }

    /* Both in one call, header and body from two places; it also tells where the record is. */
    parts[0].iov_base = "header: ";
    parts[0].iov_len = 8;
    parts[1].iov_base = record;
    parts[1].iov_len = sizeof(record);
    CHECK(adit_appendv(file, parts, 2, ADIT_WRITE_DSYNC, &offset));
    printf("%d records; the last at %llu\n", i + 1, (unsigned long long)offset);

    CHECK(adit_close(file));
    CHECK(adit_close_volume(volume));
    return 0;
}
