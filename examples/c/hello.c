/* Lesson 1: a volume, a file, some bytes.
 *
 *   cargo build --release --package libadit
 *   gcc examples/c/hello.c -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o hello
 *   ./hello hello.adit
 */
#include "adit.h"

#include <stdio.h>
#include <string.h>

/* Every call returns something negative when it failed, and adit_error_message() then says what. */
#define CHECK(call)                                         \
    do {                                                    \
        if ((call) < 0) {                                   \
            fprintf(stderr, "%s\n", adit_error_message()); \
            return 1;                                       \
        }                                                   \
    } while (0)

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "hello.adit";
    const char text[] = "Hello from inside an image file.\n";
    char back[sizeof(text)];
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_volume *volume;
    adit_file *file;

    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE; /* a lesson may be repeated */
    CHECK(adit_mkfs(address, &format));
    CHECK(adit_open_volume(address, NULL, &volume));

    CHECK(adit_mkdir(volume, "/greetings", 0755));
    CHECK(adit_open(volume, "/greetings/english", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file));
    CHECK(adit_pwrite(file, text, strlen(text), 0)); /* all of it, or an error */
    CHECK(adit_fsync(file));                         /* now it survives a power cut, name included */

    memset(back, 0, sizeof(back));
    CHECK(adit_pread(file, back, sizeof(back), 0)); /* fewer bytes only at the end of the file */
    fputs(back, stdout);

    CHECK(adit_close(file));
    CHECK(adit_close_volume(volume));
    return 0;
}
