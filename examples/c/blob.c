/* Lesson 4: blobs: storage without names, for programs that keep their own index.
 *
 *   cargo build --release --package libadit
 *   gcc examples/c/blob.c -Icrates/capi/include -Ltarget/release -ladit -Wl,-rpath,$PWD/target/release -o blob
 *   ./blob blob.adit
 */
#include "adit.h"

#include <stdio.h>

#define CHECK(call)                                         \
    do {                                                    \
        if ((call) < 0) {                                   \
            fprintf(stderr, "%s\n", adit_error_message()); \
            return 1;                                       \
        }                                                   \
    } while (0)

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "blob.adit";
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_volume *volume;
    adit_blob *blob;
    adit_blob_id id, next = {0, 0};
    char color[16] = "";
    int count = 0;

    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE;
    CHECK(adit_mkfs(address, &format));
    CHECK(adit_open_volume(address, NULL, &volume));

    CHECK(adit_blob_create(volume, &id)); /* keep the id: it is the only way back */
    CHECK(adit_blob_open(volume, &id, &blob));
    CHECK(adit_blob_resize(blob, (uint64_t)1 << 40)); /* sparse: a tebibyte that takes no space */
    CHECK(adit_blob_write(blob, "far away", 8, (uint64_t)1 << 39));
    CHECK(adit_blob_set_xattr(blob, "color", "green", 5));
    CHECK(adit_blob_sync(blob)); /* data, size and attributes */
    CHECK(adit_blob_get_xattr(blob, "color", color, sizeof(color) - 1));
    printf("a %s blob of %lld bytes\n", color, (long long)adit_blob_size(blob));
    CHECK(adit_blob_close(blob));

    while (adit_blob_next(volume, &next) == 1)
        ++count;
    printf("%d blob in the volume\n", count);
    CHECK(adit_blob_delete(volume, &id));
    CHECK(adit_close_volume(volume));
    return 0;
}
