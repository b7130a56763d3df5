/*
 * Data for a write that is not there: a mapping of a file that was truncated meanwhile. The process
 * dies of SIGBUS.
 *
 *   fault_test ADDRESS SCRATCH      formats a volume there, writes /old, dies while it writes /new
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#define _POSIX_C_SOURCE 200809L
#include "adit.h"
#include "claims.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define LEN (1 << 20)

int main(int argc, char **argv)
{
    static char old[LEN];
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_volume *volume = NULL;
    adit_file *file = NULL;
    const char *gone;
    int scratch;
    HOLDS(argc == 3);
    format.size_bytes = 64u << 20;
    IS(adit_mkfs(argv[1], &format), 0);
    IS(adit_open_volume(argv[1], NULL, &volume), 0);
    memset(old, 'o', LEN);
    IS(adit_open(volume, "/old", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_pwrite(file, old, LEN, 0), LEN);
    IS(adit_close(file), 0);

    scratch = open(argv[2], O_RDWR | O_CREAT, 0644);
    HOLDS(scratch >= 0);
    IS(ftruncate(scratch, LEN), 0);
    gone = mmap(NULL, LEN, PROT_READ, MAP_SHARED, scratch, 0);
    HOLDS(gone != MAP_FAILED);
    IS(ftruncate(scratch, LEN / 2), 0);
    IS(adit_open(volume, "/new", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    puts("ready");
    fflush(stdout);
    adit_pwrite(file, gone, LEN, 0);
    puts("not reached");
    return 1;
}
