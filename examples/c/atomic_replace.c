/* Lesson 3: to replace a file so that every reader, and every crash, finds the old or the new content and nothing
 * between: write a new file, fsync it, rename it over the old one.
 *
 *   cargo build --release --package libadit
 *   gcc examples/c/atomic_replace.c -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o replace
 *   ./replace replace.adit
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

static int replace(adit_volume *volume, const char *content)
{
    adit_file *file;
    CHECK(adit_open(volume, "/config.new", ADIT_O_WRONLY | ADIT_O_CREAT | ADIT_O_TRUNC, 0644, &file));
    CHECK(adit_pwrite(file, content, strlen(content), 0));
    CHECK(adit_fsync(file));
    CHECK(adit_close(file));
    CHECK(adit_rename(volume, "/config.new", "/config", 0)); /* atomic */
    return adit_fsync_path(volume, "/");                      /* and durable from here on */
}

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "replace.adit";
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_volume *volume;
    adit_file *reader;
    char back[32] = "";

    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE;
    CHECK(adit_mkfs(address, &format));
    CHECK(adit_open_volume(address, NULL, &volume));

    CHECK(replace(volume, "color = red\n"));
    CHECK(adit_open(volume, "/config", ADIT_O_RDONLY, 0, &reader));
    CHECK(replace(volume, "color = green\n"));

    CHECK(adit_pread(reader, back, sizeof(back) - 1, 0));
    printf("who opened it before still reads: %s", back);
    CHECK(adit_close(reader)); /* only now is the old file's space given back */

    memset(back, 0, sizeof(back));
    CHECK(adit_open(volume, "/config", ADIT_O_RDONLY, 0, &reader));
    CHECK(adit_pread(reader, back, sizeof(back) - 1, 0));
    printf("who opens it now reads: %s", back);
    CHECK(adit_close(reader));
    CHECK(adit_close_volume(volume));
    return 0;
}
