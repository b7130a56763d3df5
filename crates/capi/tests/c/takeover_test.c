/*
 * What a killed process left in shared memory, and what the next one decides about it.
 *
 *   takeover_test ADDRESS leave              writes a file, and kills itself
 *   takeover_test ADDRESS FLAGS              opens it with these flags of adit_open_options
 *   takeover_test ADDRESS environment        opens it as the environment says
 *
 * Prints what came of an opening: an error, "without", or "with the file".
 * Compiled as C11 by tests/c_api.rs.
 */
#define _POSIX_C_SOURCE 200809L

#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    adit_volume *volume;
    adit_file *file;
    int opened;
    HOLDS(argc == 3);
    if (strcmp(argv[2], "environment") == 0)
        IS(adit_options_from_environment(&options), 0);
    else if (strcmp(argv[2], "leave") != 0)
        options.flags = (uint32_t)strtoul(argv[2], NULL, 0);
    opened = adit_open_volume(argv[1], &options, &volume);
    if (opened < 0) {
        printf("%s\n", adit_error_message());
        return 0;
    }
    IS(adit_volume_survives(volume), 1);
    if (strcmp(argv[2], "leave") == 0) {
        IS(adit_open(volume, "/f", ADIT_O_WRONLY | ADIT_O_CREAT, 0600, &file), 0);
        IS(adit_pwrite(file, "unsaved", 7, 0), 7);
        raise(SIGKILL);
    }
    opened = adit_open(volume, "/f", ADIT_O_RDONLY, 0, &file);
    if (opened == 0)
        IS(adit_close(file), 0);
    else
        IS(opened, -ENOENT);
    puts(opened == 0 ? "with the file" : "without");
    IS(adit_close_volume(volume), 0);
    return 0;
}
