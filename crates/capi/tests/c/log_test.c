/*
 * Messages, on a device that does not write the journal, which tests/c_api.rs sees to.
 *
 *   log_test ADDRESS ADDRESS ADDRESS      prints "N claims hold", and nothing on standard error
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <string.h>

/* What the callback was called with. */
struct heard {
    const char *address;
    adit_volume *volume;
    atomic_int errors, others;
};

static void hear(void *user_data, int level, const char *message)
{
    struct heard *heard = user_data;
    if (level != ADIT_LOG_ERROR) {
        ++heard->others;
        return;
    }
    ++heard->errors;
    HOLDS(strncmp(message, heard->address, strlen(heard->address)) == 0);
    HOLDS(strstr(message, ": the volume becomes read-only") != NULL && strstr(message, "EIO") != NULL);
    HOLDS(strchr(message, '\n') == NULL);
    /* What it must not do is refused, and hangs nowhere. */
    IS(adit_set_log(NULL, NULL, 0), -EDEADLK);
    IS(adit_syncfs(heard->volume), -EDEADLK);
}

/* A volume that becomes read-only: the caller who meets it is told, and nobody else was. */
static void becomes_read_only(const char *address, struct heard *heard)
{
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    adit_statfs space = ADIT_STATFS_INIT;
    adit_volume *volume = NULL;
    adit_file *file = NULL;
    int i;
    options.flags = ADIT_VOLUME_SYNC;
    IS(adit_open_volume(address, &options, &volume), 0);
    IS(adit_volume_statfs(volume, &space), 0);
    HOLDS(space.available_bytes > 0 && space.available_bytes <= space.free_bytes);
    heard->address = address;
    heard->volume = volume;
    IS(adit_open(volume, "/log", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_append(file, "entry", 5, NULL), 5);
    IS(adit_fsync(file), -EIO);
    for (i = 0; i < 3; ++i) {
        IS(adit_append(file, "entry", 5, NULL), -EROFS);
        HOLDS(adit_fsync(file) < 0);
    }
    IS(adit_volume_statfs(volume, &space), 0);
    HOLDS(space.available_bytes == 0 && space.free_bytes > 0);
    IS(adit_close(file), 0);
    HOLDS(adit_close_volume(volume) < 0);
}

int main(int argc, char **argv)
{
    struct heard heard = {0};
    HOLDS(argc == 4);
    becomes_read_only(argv[1], &heard);
    IS(heard.errors, 0);

    IS(adit_set_log(hear, &heard, ADIT_LOG_ERROR), 0);
    becomes_read_only(argv[2], &heard);
    IS(heard.errors, 1);
    IS(heard.others, 0);

    IS(adit_set_log(NULL, NULL, 0), 0);
    becomes_read_only(argv[3], &heard);
    IS(heard.errors, 1);
    printf("%d claims hold\n", claims);
    return 0;
}
