/*
 * The conventions of adit.h where they are easily forgotten: words of errors that are not a call's
 * own, closing in a forked child, lengths that no memory has.
 *
 *   conventions_test      uses volumes in memory; prints "N claims hold"
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#define _POSIX_C_SOURCE 200809L
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Fails with words that nothing else has. */
static void fail_otherwise(adit_volume *volume)
{
    adit_stat stat = ADIT_STAT_INIT;
    IS(adit_stat_path(volume, "/nowhere", &stat), -ENOENT);
    HOLDS(strstr(adit_error_message(), "/nowhere") != NULL);
}

static int the_words_are_those_of(const char *name)
{
    const char *message = adit_error_message();
    return strstr(message, name) != NULL && strstr(message, "nowhere") == NULL;
}

/* Results of operations and of single reads left the words of an earlier failure in their place. */
static void failed_operations_have_words(adit_volume *volume)
{
    adit_file *file = NULL;
    adit_op *op = NULL;
    adit_read_request requests[2];
    char data[100];
    int64_t result = 0;
    int done;
    IS(adit_open(volume, "/write-only", ADIT_O_WRONLY | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_pwrite(file, "content", 7, 0), 7);

    IS(adit_pread_submit(file, data, sizeof(data), 0, NULL, NULL, &op), 0);
    fail_otherwise(volume);
    IS(adit_op_wait(op), -EBADF);
    HOLDS(the_words_are_those_of("EBADF"));
    fail_otherwise(volume);
    IS(adit_op_wait(op), -EBADF); /* asked again */
    HOLDS(the_words_are_those_of("EBADF"));
    adit_op_release(op);

    IS(adit_pread_submit(file, data, sizeof(data), 0, NULL, NULL, &op), 0);
    fail_otherwise(volume);
    while ((done = adit_op_poll(op, &result)) == 0) {
    }
    IS(done, 1);
    IS(result, -EBADF);
    HOLDS(the_words_are_those_of("EBADF"));
    adit_op_release(op);

    fail_otherwise(volume);
    memset(requests, 0, sizeof(requests));
    requests[0].data = data;
    requests[0].len = 10;
    requests[1].data = data + 50;
    requests[1].len = 10;
    IS(adit_pread_many(file, requests, 2), 0);
    IS(requests[0].result, -EBADF);
    IS(requests[1].result, -EBADF);
    HOLDS(the_words_are_those_of("EBADF"));
    IS(adit_close(file), 0);
}

/* In a forked child adit_close, adit_blob_close and adit_closedir returned 0, adit_close_volume -EBUSY. */
static void closing_in_a_forked_child_says_that_it_was_not_open_there(adit_volume *volume)
{
    adit_file *file = NULL;
    adit_blob *blob = NULL;
    adit_dir *dir = NULL;
    adit_blob_id id;
    adit_dirent entry;
    adit_buffer buffer;
    adit_buffer other;
    int status = -1;
    pid_t child;
    IS(adit_open(volume, "/f", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0); /* and never closed */
    IS(adit_open(volume, "/g", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_blob_create(volume, &id), 0);
    IS(adit_blob_open(volume, &id, &blob), 0);
    IS(adit_opendir(volume, "/", &dir), 0);
    IS(adit_readdir(dir, &entry), 1);
    IS(adit_buffer_allocate(volume, 8192, &buffer), 0);
    fflush(NULL);
    child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        IS(adit_readdir(dir, &entry), -EBADF);
        IS(adit_seekdir(dir, 0), -EBADF);
        IS(adit_closedir(dir), -EBADF);
        IS(adit_blob_close(blob), -EBADF);
        IS(adit_close(file), -EBADF);
        IS(adit_buffer_allocate(volume, 8192, &other), -EBADF);
        IS(adit_buffer_allocate(volume, 8 << 20, &other), -EBADF);
        adit_buffer_release(&buffer);
        IS(adit_close_volume(volume), -EBADF);
        _exit(7);
    }
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    IS(adit_pwrite(file, "still", 5, 0), 5); /* nothing happened to the parent's */
    IS(adit_blob_close(blob), 0);
    IS(adit_closedir(dir), 0);
    IS(adit_close(file), 0);
    adit_buffer_release(&buffer);
}

/* Behind the last id that there can be, adit_blob_next began again. */
static void iterating_over_blobs_ends(adit_volume *volume)
{
    adit_blob_id id = {UINT64_MAX, 1};
    adit_blob_id made;
    int count = 0;
    IS(adit_blob_create(volume, &made), 0);
    IS(adit_blob_next(volume, &id), 0);
    id.slot = 0;
    id.generation = 0;
    while (adit_blob_next(volume, &id) == 1) ++count;
    HOLDS(count >= 1);
}

/* A length of 4 GiB or more panicked, one for which there is no memory aborted the program. */
static void memory_that_is_not_there_is_an_error(adit_volume *volume)
{
    const struct rlimit little = {1u << 30, 1u << 30};
    adit_buffer buffer;
    adit_op *op = NULL;
    adit_file *file = NULL;
    char byte = 'x';
    IS(adit_open(volume, "/h", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_pwrite_submit(file, &byte, (size_t)1 << 32, 0, NULL, NULL, &op), -EINVAL);
    IS(adit_append_submit(file, &byte, (size_t)1 << 32, NULL, NULL, &op), -EINVAL);
    IS(adit_close(file), 0);

    IS(adit_buffer_allocate(volume, (size_t)1 << 32, &buffer), -EINVAL);
    HOLDS(strstr(adit_error_message(), "4294967296 bytes") != NULL);
    IS(adit_buffer_allocate(volume, SIZE_MAX, &buffer), -EINVAL);
    IS(adit_buffer_allocate(volume, 8 << 20, &buffer), 0);
    HOLDS(buffer.len == 8 << 20 && ((char *)buffer.data)[8 * 1024 * 1024 - 1] == 0);
    adit_buffer_release(&buffer);
    IS(setrlimit(RLIMIT_AS, &little), 0); /* from here on */
    IS(adit_buffer_allocate(volume, (size_t)3 << 30, &buffer), -ENOMEM);
    IS(adit_buffer_allocate(volume, 8192, &buffer), 0);
    adit_buffer_release(&buffer);
}

int main(int argc, char **argv)
{
    adit_volume *volume = NULL;
    IS(adit_open_volume(argc > 1 ? argv[1] : "mem:64M", NULL, &volume), 0);
    failed_operations_have_words(volume);
    iterating_over_blobs_ends(volume);
    closing_in_a_forked_child_says_that_it_was_not_open_there(volume);
    memory_that_is_not_there_is_an_error(volume);
    printf("%d claims hold\n", claims);
    return 0;
}
