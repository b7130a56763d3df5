/*
 * A process that has a volume and a file of it open, for others to look at, until its standard
 * input ends.
 *
 *   held_test ADDRESS FLAGS   FLAGS: as in adit_open_options
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_open_options open = ADIT_OPEN_OPTIONS_INIT;
    adit_volume *volume;
    adit_file *file;
    HOLDS(argc == 3);
    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE;
    IS(adit_mkfs(argv[1], &format), 0);
    open.flags = (uint32_t)strtoul(argv[2], NULL, 0);
    IS(adit_open_volume(argv[1], &open, &volume), 0);
    IS(adit_open(volume, "/log", ADIT_O_WRONLY | ADIT_O_CREAT | ADIT_O_APPEND, 0600, &file), 0);
    IS(adit_append(file, "entry", 5, NULL), 5);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    IS(adit_close(file), 0);
    IS(adit_close_volume(volume), 0);
    return 0;
}
