/*
 * Every function of adit.h, called from C as its comments promise.
 *
 *   api_test ADDRESS      formats a volume there (unless unix:...) and uses it; prints "N claims hold"
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#define _POSIX_C_SOURCE 200809L
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static adit_file *must_open(adit_volume *volume, const char *path, unsigned flags)
{
    adit_file *file = NULL;
    IS(adit_open(volume, path, flags, 0644, &file), 0);
    HOLDS(file != NULL);
    return file;
}

static void the_library_says_what_it_is(void)
{
    HOLDS(strchr(adit_version(), '.') != NULL);
    IS(adit_api_version(), ADIT_API_MAJOR * 1000 + ADIT_API_MINOR);
    HOLDS(strcmp(adit_error_message(), "") == 0);
}

static void hear(void *user_data, int level, const char *message)
{
    (void)level;
    (void)message;
    ++*(atomic_int *)user_data;
}

/* What comes through it is in log_test.c. */
static void messages_are_asked_for(void)
{
    atomic_int heard = 0;
    IS(adit_set_log(hear, &heard, 0), -EINVAL);
    IS(adit_set_log(hear, &heard, ADIT_LOG_DEBUG + 1), -EINVAL);
    HOLDS(strstr(adit_error_message(), "level") != NULL);
    IS(adit_set_log(NULL, NULL, 0), 0);
    IS(adit_set_log(hear, &heard, ADIT_LOG_ERROR), 0);
    IS(adit_set_log(NULL, NULL, 0), 0);
    IS(heard, 0);
}

static adit_volume *volumes_are_made_and_opened(const char *address)
{
    adit_volume *volume = NULL;
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_open_options open = ADIT_OPEN_OPTIONS_INIT;
    adit_statfs statfs = ADIT_STATFS_INIT;

    IS(adit_open_volume("/no/such/place", NULL, &volume), -ENOENT);
    HOLDS(volume == NULL && strstr(adit_error_message(), "/no/such/place") != NULL);
    IS(adit_open_volume(NULL, NULL, &volume), -EINVAL);
    IS(adit_open_volume(address, NULL, NULL), -EINVAL);
    IS(adit_mkfs(NULL, NULL), -EINVAL);
    format.flags = 0x80000000u;
    IS(adit_mkfs(address, &format), -EINVAL);
    format.flags = 0;
    format.struct_bytes = 0;
    IS(adit_mkfs(address, &format), -EINVAL);
    format.struct_bytes = sizeof(format);
    format.size_bytes = 256u << 20;
    IS(adit_mkfs(address, &format), is_served(address) ? -EOPNOTSUPP : 0);
    if (!is_served(address)) {
        IS(adit_mkfs(address, &format), -EEXIST);
        format.flags = ADIT_MKFS_FORCE;
        IS(adit_mkfs(address, &format), 0);
    }

    open.flags = ADIT_VOLUME_SYNC | ADIT_VOLUME_IO_URING;
    IS(adit_open_volume(address, &open, &volume), -EINVAL);
    open.flags = ADIT_VOLUME_SYNC;
    open.cache_bytes = 64u << 20;
    IS(adit_open_volume(address, &open, &volume), 0);
    IS(adit_volume_is_connected(volume), is_served(address) ? 1 : 0);

    IS(adit_volume_statfs(volume, &statfs), 0);
    HOLDS(statfs.total_bytes > 200u << 20 && statfs.total_bytes <= 256u << 20);
    HOLDS(statfs.free_bytes <= statfs.total_bytes && statfs.available_bytes <= statfs.free_bytes);
    HOLDS(statfs.page_bytes == 4096 && statfs.name_max_bytes == 255);
    HOLDS(statfs.volume_id[0] != 0 || statfs.volume_id[1] != 0);
    IS(adit_volume_statfs(NULL, &statfs), -EINVAL);
    IS(adit_volume_statfs(volume, NULL), -EINVAL);
    IS(adit_syncfs(volume), 0);
    IS(adit_syncfs(NULL), -EINVAL);
    return volume;
}

static void a_volume_is_open_once(adit_volume *volume, const char *address)
{
    adit_volume *second = NULL;
    adit_file *file = must_open(volume, "/keeps-it-open", ADIT_O_RDWR | ADIT_O_CREAT);
    if (!is_served(address))
        IS(adit_open_volume(address, NULL, &second), -EBUSY);
    IS(adit_close_volume(volume), -EBUSY);
    HOLDS(strstr(adit_error_message(), "1 handle is still open") != NULL);
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/keeps-it-open"), 0);
}

/* These were 8 MiB and 4 TiB in silence. */
static void an_absurd_page_cache_is_refused_with_what_is_allowed(const char *address)
{
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    adit_volume *volume = NULL;
    options.cache_bytes = 4096;
    IS(adit_open_volume(address, &options, &volume), -EINVAL);
    HOLDS(strstr(adit_error_message(), "page cache of 4 KiB: it has 8 MiB to ") != NULL);
    options.cache_bytes = UINT64_MAX;
    IS(adit_open_volume(address, &options, &volume), -EINVAL);
    HOLDS(volume == NULL);
}

static int all_are(const void *from, const void *end, unsigned char byte)
{
    const unsigned char *at = from;
    while (at != end && *at == byte) at++;
    return at == end;
}

/* A program that was compiled against another version of adit.h. */
static void smaller_and_larger_structures_get_what_they_have_room_for(adit_volume *volume)
{
    adit_file *root = must_open(volume, "/", ADIT_O_RDONLY);
    for (int way = 0; way < 3; way++) {
        struct {
            adit_stat now;
            uint64_t later[4];
        } newer;
        adit_stat older, *stats[2] = { &newer.now, &older };
        memset(&newer, 0xaa, sizeof(newer));
        newer.now.struct_bytes = sizeof(newer);
        memset(&older, 0xaa, sizeof(older));
        older.struct_bytes = offsetof(adit_stat, atime);
        for (int i = 0; i < 2; i++)
            switch (way) {
            case 0: IS(adit_fstat(root, stats[i]), 0); break;
            case 1: IS(adit_stat_path(volume, "/", stats[i]), 0); break;
            default: IS(adit_lstat_path(volume, "/", stats[i]), 0);
            }
        HOLDS(S_ISDIR(newer.now.mode) && newer.now.nlink >= 2 && newer.now.btime.seconds > 0);
        HOLDS(newer.now.struct_bytes == sizeof(newer));
        HOLDS(all_are(newer.later, newer.later + 4, 0));
        HOLDS(S_ISDIR(older.mode) && older.ino == newer.now.ino && older.nlink == newer.now.nlink);
        HOLDS(older.struct_bytes == offsetof(adit_stat, atime));
        HOLDS(all_are(&older.atime, &older + 1, 0xaa));
    }
    {
        struct {
            adit_statfs now;
            uint64_t later[4];
        } newer;
        adit_statfs older;
        memset(&newer, 0xaa, sizeof(newer));
        newer.now.struct_bytes = sizeof(newer);
        IS(adit_volume_statfs(volume, &newer.now), 0);
        HOLDS(newer.now.page_bytes == 4096 && newer.now.name_max_bytes == 255);
        HOLDS(newer.now.struct_bytes == sizeof(newer));
        HOLDS(all_are(newer.later, newer.later + 4, 0));
        memset(&older, 0xaa, sizeof(older));
        older.struct_bytes = offsetof(adit_statfs, volume_id);
        IS(adit_volume_statfs(volume, &older), 0);
        HOLDS(older.page_bytes == 4096 && older.total_bytes == newer.now.total_bytes);
        HOLDS(all_are(&older.volume_id, &older + 1, 0xaa));
    }
    {
        struct {
            adit_open_options now;
            uint64_t later;
        } newer = { ADIT_OPEN_OPTIONS_INIT, 0 };
        adit_open_options older = ADIT_OPEN_OPTIONS_INIT;
        adit_volume *memory = NULL;
        newer.now.struct_bytes = sizeof(newer);
        newer.now.flags = older.flags = ADIT_VOLUME_NO_SURVIVAL;
        newer.now.cache_bytes = older.cache_bytes = 8 << 20;
        IS(adit_open_volume("mem:16M", &newer.now, &memory), 0);
        IS(adit_close_volume(memory), 0);
        newer.now.workers = 3;
        IS(adit_open_volume("mem:64M", &newer.now, &memory), 0);
        {
            adit_info info = ADIT_INFO_INIT;
            IS(adit_volume_info(memory, &info), 0);
            IS(info.workers, 3);
        }
        IS(adit_close_volume(memory), 0);
        newer.now.workers = 17;
        IS(adit_open_volume("mem:64M", &newer.now, &memory), -EINVAL);
        newer.now.workers = 0;
        newer.now.reserved = 1;
        IS(adit_open_volume("mem:16M", &newer.now, &memory), -EINVAL);
        newer.now.reserved = 0;
        newer.later = 1;
        IS(adit_open_volume("mem:16M", &newer.now, &memory), -E2BIG);
        /* What is behind is not read. */
        older.struct_bytes = offsetof(adit_open_options, queue_depth);
        older.queue_depth = UINT32_MAX;
        older.survive_in = (const char *)(intptr_t)-1;
        IS(adit_open_volume("mem:16M", &older, &memory), 0);
        IS(adit_close_volume(memory), 0);
    }
    /* A size that nobody set. */
    for (int i = 0; i < 3; i++) {
        static const uint32_t sizes[] = { 0, 3, 4097 };
        adit_stat stat = ADIT_STAT_INIT;
        adit_statfs statfs = ADIT_STATFS_INIT;
        stat.struct_bytes = statfs.struct_bytes = sizes[i];
        IS(adit_fstat(root, &stat), -EINVAL);
        IS(adit_stat_path(volume, "/", &stat), -EINVAL);
        IS(adit_lstat_path(volume, "/", &stat), -EINVAL);
        IS(adit_volume_statfs(volume, &statfs), -EINVAL);
        HOLDS(stat.ino == 0 && statfs.total_bytes == 0);
    }
    IS(adit_close(root), 0);
}

static void a_file_is_created_with_its_content(adit_volume *volume)
{
    adit_file *file = NULL;
    const unsigned fresh = ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_EXCL;
    const unsigned again = ADIT_O_WRONLY | ADIT_O_TRUNC;
    char bytes[8] = {0};
    IS(adit_create_and_sync(volume, "/made", ADIT_O_RDWR | ADIT_O_CREAT, 0644, "x", 1, &file), -EINVAL);
    IS(adit_create_and_sync(volume, "/made", ADIT_O_CREAT | ADIT_O_EXCL, 0644, "x", 1, &file), -EINVAL);
    IS(adit_create_and_sync(volume, "/made", again, 0644, "x", 1, &file), -ENOENT);
    IS(adit_create_and_sync(volume, "/made", fresh, 0644, NULL, 1, &file), -EINVAL);
    IS(adit_create_and_sync(volume, NULL, fresh, 0644, "x", 1, &file), -EINVAL);
    IS(adit_create_and_sync(NULL, "/made", fresh, 0644, "x", 1, &file), -EINVAL);
    HOLDS(file == NULL);
    IS(adit_create_and_sync(volume, "/made", fresh, 0600, "content", 7, &file), 0);
    IS(adit_pread(file, bytes, 8, 0), 7);
    HOLDS(memcmp(bytes, "content", 8) == 0);
    IS(adit_close(file), 0);
    IS(adit_create_and_sync(volume, "/made", fresh, 0600, "x", 1, NULL), -EEXIST);
    IS(adit_create_and_sync(volume, "/made", again, 0, "new", 3, NULL), 0);
    file = must_open(volume, "/made", ADIT_O_RDONLY);
    IS(adit_file_size(file), 3);
    IS(adit_close(file), 0);
    IS(adit_create_and_sync(volume, "/made", again, 0, NULL, 0, NULL), 0);
    IS(adit_unlink(volume, "/made"), 0);
}

static void open_flags_mean_what_they_say(adit_volume *volume)
{
    adit_file *file = NULL;
    char byte = 'x';
    IS(adit_open(volume, "/flags", ADIT_O_RDONLY, 0, &file), -ENOENT);
    IS(adit_open(volume, NULL, ADIT_O_RDONLY, 0, &file), -EINVAL);
    IS(adit_open(NULL, "/flags", ADIT_O_RDONLY, 0, &file), -EINVAL);
    IS(adit_open(volume, "/flags", ADIT_O_RDONLY, 0, NULL), -EINVAL);
    IS(adit_open(volume, "/flags", ADIT_O_WRONLY | ADIT_O_RDWR, 0, &file), -EINVAL);
    IS(adit_open(volume, "/flags", 0x40000000u, 0, &file), -EINVAL);
    HOLDS(file == NULL);
    file = must_open(volume, "flags", ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_EXCL); /* the leading / may be left out */
    IS(adit_pwrite(file, "hello", 5, 0), 5);
    IS(adit_close(file), 0);
    IS(adit_open(volume, "/flags", ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_EXCL, 0644, &file), -EEXIST);
    IS(adit_open(volume, "/flags", ADIT_O_RDONLY | ADIT_O_DIRECTORY, 0, &file), -ENOTDIR);

    file = must_open(volume, "/flags", ADIT_O_RDONLY);
    IS(adit_pwrite(file, "x", 1, 0), -EBADF);
    IS(adit_close(file), 0);
    file = must_open(volume, "/flags", ADIT_O_WRONLY);
    IS(adit_pread(file, &byte, 1, 0), -EBADF);
    IS(adit_close(file), 0);
    file = must_open(volume, "/flags", ADIT_O_RDWR | ADIT_O_APPEND);
    IS(adit_pwrite(file, "!", 1, 0), 1);
    IS(adit_file_size(file), 6);
    IS(adit_close(file), 0);
    file = must_open(volume, "/flags", ADIT_O_RDWR | ADIT_O_TRUNC | ADIT_O_DSYNC);
    IS(adit_file_size(file), 0);
    IS(adit_pwrite(file, "y", 1, 0), 1);
    IS(adit_close(file), 0);
    file = must_open(volume, "/flags", ADIT_O_RDWR | ADIT_O_SYNC);
    IS(adit_pwrite(file, "z", 1, 0), 1);
    IS(adit_close(file), 0);
    IS(adit_close(NULL), -EINVAL);
    IS(adit_unlink(volume, "/flags"), 0);
}

static void an_atomic_write_changes_all_of_its_ranges_or_none(adit_volume *volume)
{
    static char large[8192];
    char back[4];
    adit_write_range ranges[3] = { { 0, "one", 3 }, { 100000, "two", 3 }, { 100001, "o", 1 } };
    adit_file *file = must_open(volume, "/atomic", ADIT_O_RDWR | ADIT_O_CREAT);
    const int64_t max = adit_atomic_write_max(file);
    char *most = calloc(1, (size_t)max);

    HOLDS(max >= 200000 && max % 4096 == 0 && most != NULL);
    IS(adit_pwrite_atomic(file, ranges, 3, ADIT_WRITE_DSYNC), 0);
    IS(adit_file_size(file), 100003);
    IS(adit_pread(file, back, 4, 0), 4);
    HOLDS(memcmp(back, "one", 4) == 0);
    IS(adit_pread(file, back, 4, 100000), 3);
    HOLDS(memcmp(back, "too", 3) == 0);
    IS(adit_fdatasync(file), 0);

    /* The first one's page is one too many. */
    ranges[0].data = "old";
    ranges[1].offset = 1 << 20;
    ranges[1].data = most;
    ranges[1].len = (size_t)max;
    IS(adit_pwrite_atomic(file, ranges, 2, 0), -E2BIG);
    IS(adit_file_size(file), 100003);
    IS(adit_pread(file, back, 3, 0), 3);
    HOLDS(memcmp(back, "one", 3) == 0);
    IS(adit_pwrite_atomic(file, ranges + 1, 1, 0), 0);
    IS(adit_file_size(file), (1 << 20) + max);
    free(most);

    ranges[1].data = large;
    ranges[1].len = sizeof(large);
    ranges[2].data = NULL;
    IS(adit_pwrite_atomic(file, ranges, 3, 0), -EINVAL);
    ranges[2].len = 0;
    IS(adit_pwrite_atomic(file, ranges, 3, 0), 0);
    IS(adit_pwrite_atomic(file, ranges, 3, 0x80), -EINVAL);
    IS(adit_pwrite_atomic(file, NULL, 0, 0), 0);
    IS(adit_pwrite_atomic(file, NULL, 1, 0), -EINVAL);
    IS(adit_pwrite_atomic(file, ranges, (size_t)-1, 0), -EINVAL);
    IS(adit_pwrite_atomic(NULL, ranges, 3, 0), -EINVAL);
    IS(adit_atomic_write_max(NULL), -EINVAL);
    IS(adit_close(file), 0);
    file = must_open(volume, "/atomic", ADIT_O_RDWR | ADIT_O_APPEND);
    IS(adit_pwrite_atomic(file, ranges, 2, 0), -EINVAL);
    IS(adit_close(file), 0);
    file = must_open(volume, "/atomic", ADIT_O_RDONLY);
    IS(adit_pwrite_atomic(file, ranges, 2, 0), -EBADF);
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/atomic"), 0);
}

static void data_is_read_as_it_was_written(adit_volume *volume)
{
    char data[10000];
    char back[10000];
    uint64_t offset = 0;
    size_t i;
    struct iovec out[3], in[2];
    adit_read_request requests[3];
    adit_file *file = must_open(volume, "/data", ADIT_O_RDWR | ADIT_O_CREAT);

    for (i = 0; i < sizeof(data); ++i)
        data[i] = (char)(i * 7);
    IS(adit_pwrite(file, data, sizeof(data), 100), sizeof(data));
    IS(adit_file_size(file), 10100);
    IS(adit_pread(file, back, sizeof(back), 100), sizeof(back));
    HOLDS(memcmp(data, back, sizeof(data)) == 0);
    IS(adit_pread(file, back, 100, 0), 100);
    for (i = 0; i < 100; ++i)
        HOLDS(back[i] == 0);
    IS(adit_pread(file, back, 100, 10050), 50);
    IS(adit_pread(file, back, 100, 1 << 20), 0);
    IS(adit_pread(file, NULL, 0, 0), 0);
    IS(adit_pread(file, NULL, 1, 0), -EINVAL);
    IS(adit_pwrite(file, NULL, 1, 0), -EINVAL);
    IS(adit_pread(file, back, (size_t)-1, 0), -EINVAL);
    IS(adit_pread(NULL, back, 1, 0), -EINVAL);
    IS(adit_pwrite(NULL, data, 1, 0), -EINVAL);

    out[0].iov_base = data;
    out[0].iov_len = 10;
    out[1].iov_base = NULL;
    out[1].iov_len = 0;
    out[2].iov_base = data + 10;
    out[2].iov_len = 20;
    IS(adit_pwritev(file, out, 3, 0, ADIT_WRITE_DSYNC), 30);
    IS(adit_pwritev(file, out, 3, 0, 0x80), -EINVAL);
    IS(adit_pwritev(file, out, -1, 0, 0), -EINVAL);
    IS(adit_pwritev(file, NULL, 1, 0, 0), -EINVAL);
    IS(adit_pwritev(file, NULL, 0, 0, 0), 0);
    in[0].iov_base = back;
    in[0].iov_len = 7;
    in[1].iov_base = back + 7;
    in[1].iov_len = 23;
    IS(adit_preadv(file, in, 2, 0), 30);
    HOLDS(memcmp(data, back, 30) == 0);
    IS(adit_preadv(file, in, 1025, 0), -EINVAL);

    IS(adit_append(file, "tail", 4, &offset), 4);
    HOLDS(offset == 10100);
    IS(adit_append(file, "more", 4, NULL), 4);
    IS(adit_appendv(file, out, 3, ADIT_WRITE_DSYNC, &offset), 30);
    HOLDS(offset == 10108);
    IS(adit_append(NULL, "x", 1, NULL), -EINVAL);
    IS(adit_file_size(file), 10138);

    for (i = 0; i < 3; ++i) {
        requests[i].offset = i * 10134;
        requests[i].data = back + i * 100;
        requests[i].len = 10;
        requests[i].result = -1;
    }
    IS(adit_pread_many(file, requests, 3), 0);
    HOLDS(requests[0].result == 10 && memcmp(back, data, 10) == 0);
    HOLDS(requests[1].result == 4 && memcmp(back + 100, data + 26, 4) == 0);
    HOLDS(requests[2].result == 0);
    IS(adit_pread_many(file, NULL, 1), -EINVAL);
    IS(adit_pread_many(file, NULL, 0), 0);

    IS(adit_fsync(file), 0);
    IS(adit_fdatasync(file), 0);
    IS(adit_fsync(NULL), -EINVAL);
    IS(adit_start_write_back(file), 0);
    IS(adit_close(file), 0);
    IS(adit_fsync_path(volume, "/data"), 0);
    IS(adit_fsync_path(volume, "/"), 0);
    IS(adit_fsync_path(volume, "/none"), -ENOENT);
    IS(adit_unlink(volume, "/data"), 0);
}

static void space_is_given_and_taken(adit_volume *volume)
{
    char back[8192];
    adit_stat stat = ADIT_STAT_INIT;
    adit_file *file = must_open(volume, "/space", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_fallocate(file, ADIT_FALLOC_KEEP_SIZE, 0, 1 << 20), 0);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.size_bytes == 0 && stat.allocated_bytes >= 1 << 20);
    IS(adit_fallocate(file, 0, 0, 65536), 0);
    IS(adit_file_size(file), 65536);
    IS(adit_pwrite(file, "0123456789", 10, 4090), 10);
    IS(adit_fallocate(file, ADIT_FALLOC_PUNCH_HOLE, 4096, 4096), 0);
    IS(adit_pread(file, back, 12, 4088), 12);
    HOLDS(memcmp(back, "\0\0" "012345" "\0\0\0\0", 12) == 0);
    IS(adit_pwrite(file, "abcdefgh", 8, 8192), 8);
    IS(adit_fallocate(file, ADIT_FALLOC_ZERO_RANGE, 8194, 2), 0);
    IS(adit_pread(file, back, 8, 8192), 8);
    HOLDS(memcmp(back, "ab\0\0efgh", 8) == 0);
    IS(adit_fallocate(file, 0x100, 0, 1), -EINVAL);
    IS(adit_fallocate(file, 0, 0, 0), -EINVAL);
    IS(adit_fallocate(file, ADIT_FALLOC_KEEP_SIZE, 0, (uint64_t)1 << 40), -ENOSPC);
    IS(adit_ftruncate(file, 5000), 0);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.size_bytes == 5000 && stat.allocated_bytes <= 2 * 65536);
    IS(adit_truncate(volume, "/space", 20000), 0);
    IS(adit_file_size(file), 20000);
    IS(adit_truncate(volume, "/none", 0), -ENOENT);
    IS(adit_fstat(file, NULL), -EINVAL);
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/space"), 0);
}

static void direct_files_pass_the_cache_coherently(adit_volume *volume)
{
    adit_buffer buffer;
    char back[4096];
    adit_file *cached = must_open(volume, "/direct", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *direct = must_open(volume, "/direct", ADIT_O_RDWR | ADIT_O_DIRECT);
    IS(adit_buffer_allocate(volume, 8192, &buffer), 0);
    HOLDS(buffer.len == 8192 && (uintptr_t)buffer.data % 4096 == 0);
    memset(buffer.data, 'd', buffer.len);
    IS(adit_pwrite(direct, buffer.data, 8192, 0), 8192);
    IS(adit_pread(cached, back, 4096, 4096), 4096);
    HOLDS(back[0] == 'd' && back[4095] == 'd');
    IS(adit_pwrite(cached, "c", 1, 5000), 1);
    IS(adit_pread(direct, buffer.data, 8192, 0), 8192);
    HOLDS(((char *)buffer.data)[5000] == 'c');
    IS(adit_pwrite(direct, "unaligned", 9, 4090), 9); /* works, with a copy */
    IS(adit_pread(cached, back, 9, 4090), 9);
    HOLDS(memcmp(back, "unaligned", 9) == 0);
    IS(adit_pread(direct, back + 1, 9, 4090), 9);
    HOLDS(memcmp(back + 1, "unaligned", 9) == 0);
    adit_buffer_release(&buffer);
    HOLDS(buffer.data == NULL && buffer.len == 0);
    adit_buffer_release(&buffer);
    adit_buffer_release(NULL);
    IS(adit_buffer_allocate(volume, 0, &buffer), 0);
    adit_buffer_release(&buffer);
    IS(adit_buffer_allocate(NULL, 1, &buffer), -EINVAL);
    IS(adit_close(direct), 0);
    IS(adit_close(cached), 0);
    IS(adit_unlink(volume, "/direct"), 0);
}

static void borrowed_pages_keep_their_content(adit_volume *volume)
{
    adit_buffer buffer, none;
    char back[4];
    int64_t len;
    adit_file *file = must_open(volume, "/borrow", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_pwrite(file, "old content", 11, 0), 11);
    len = adit_pread_borrow(file, 1000, 4, &buffer);
    HOLDS(len == 7 && buffer.len == 7 && memcmp(buffer.data, "content", 7) == 0);
    IS(adit_pwrite(file, "XXXXXXXXXXX", 11, 0), 11);
    HOLDS(memcmp(buffer.data, "content", 7) == 0);
    IS(adit_pread(file, back, 4, 4), 4);
    HOLDS(memcmp(back, "XXXX", 4) == 0);
    IS(adit_pread_borrow(file, 10, 11, &none), 0);
    HOLDS(none.data == NULL && none.len == 0);
    adit_buffer_release(&none);
    IS(adit_pread_borrow(file, 10, 0, NULL), -EINVAL);
    IS(adit_close(file), 0);
    HOLDS(memcmp(buffer.data, "content", 7) == 0);
    adit_buffer_release(&buffer);
    IS(adit_unlink(volume, "/borrow"), 0);
}

struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t done;
    int calls;
    int64_t sum;
};

static void note(void *context, int64_t result)
{
    struct waiter *waiter = context;
    pthread_mutex_lock(&waiter->mutex);
    ++waiter->calls;
    waiter->sum += result;
    pthread_cond_signal(&waiter->done);
    pthread_mutex_unlock(&waiter->mutex);
}

static void submitted_operations_complete(adit_volume *volume)
{
    static struct waiter waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    static char one[4096], two[4096];
    int64_t result = -1;
    int polled;
    adit_op *op = NULL, *ops[16];
    int i;
    adit_file *file = must_open(volume, "/async", ADIT_O_RDWR | ADIT_O_CREAT);

    memset(one, 'o', sizeof(one));
    IS(adit_pwrite_submit(file, one, sizeof(one), 0, NULL, NULL, &op), 0);
    IS(adit_op_wait(op), 4096);
    IS(adit_op_wait(op), 4096);
    IS(adit_op_poll(op, &result), 1);
    HOLDS(result == 4096);
    adit_op_release(op);

    IS(adit_append_submit(file, "tail", 4, NULL, NULL, &op), 0);
    IS(adit_op_wait(op), 4096);
    adit_op_release(op);
    IS(adit_file_size(file), 4100);

    IS(adit_pread_submit(file, two, sizeof(two), 4, NULL, NULL, &op), 0);
    while ((polled = adit_op_poll(op, &result)) == 0)
        continue;
    HOLDS(polled == 1 && result == 4096 && two[0] == 'o' && memcmp(two + 4092, "tail", 4) == 0);
    adit_op_release(op);

    IS(adit_fsync_submit(file, NULL, NULL, &op), 0);
    IS(adit_op_wait(op), 0);
    adit_op_release(op);
    IS(adit_fdatasync_submit(file, NULL, NULL, &op), 0);
    adit_op_release(op); /* it goes on */

    for (i = 0; i < 16; ++i)
        IS(adit_pwrite_submit(file, one, sizeof(one), 4096u * (unsigned)i, NULL, NULL, &ops[i]), 0);
    for (i = 15; i >= 0; --i) {
        IS(adit_op_wait(ops[i]), 4096);
        adit_op_release(ops[i]);
    }

    for (i = 0; i < 8; ++i)
        IS(adit_pread_submit(file, two, 512, 512u * (unsigned)i, note, &waiter, NULL), 0);
    IS(adit_fdatasync_submit(file, note, &waiter, NULL), 0);
    pthread_mutex_lock(&waiter.mutex);
    while (waiter.calls < 9)
        pthread_cond_wait(&waiter.done, &waiter.mutex);
    HOLDS(waiter.sum == 8 * 512);
    pthread_mutex_unlock(&waiter.mutex);

    IS(adit_pread_submit(file, one, 1, 0, NULL, NULL, NULL), -EINVAL);
    IS(adit_pread_submit(file, one, 1, 0, note, NULL, &op), -EINVAL);
    IS(adit_pread_submit(NULL, one, 1, 0, NULL, NULL, &op), -EINVAL);
    IS(adit_op_wait(NULL), -EINVAL);
    IS(adit_op_poll(NULL, &result), -EINVAL);
    adit_op_release(NULL);
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/async"), 0);
}

static void names_behave(adit_volume *volume)
{
    adit_stat stat = ADIT_STAT_INIT, other = ADIT_STAT_INIT;
    adit_dir *dir = NULL;
    adit_dirent entry;
    adit_file *file;
    char name[300];
    char byte;
    uint64_t cookie = 0;
    int count = 0, files = 0;

    IS(adit_mkdir(volume, "/d", 0750), 0);
    IS(adit_mkdir(volume, "/d", 0750), -EEXIST);
    IS(adit_mkdir(volume, "/none/d", 0750), -ENOENT);
    IS(adit_stat_path(volume, "/d", &stat), 0);
    HOLDS(S_ISDIR(stat.mode) && (stat.mode & 0777) == 0750);
    file = must_open(volume, "/d/a", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_pwrite(file, "A", 1, 0), 1);
    IS(adit_link(volume, "/d/a", "/d/b"), 0);
    IS(adit_link(volume, "/d/a", "/d/b"), -EEXIST);
    IS(adit_fstat(file, &stat), 0);
    IS(adit_stat_path(volume, "/d/b", &other), 0);
    HOLDS(stat.nlink == 2 && stat.ino == other.ino && stat.generation == other.generation);
    HOLDS(S_ISREG(stat.mode) && (stat.mode & 0777) == 0644 && stat.size_bytes == 1);
    HOLDS(stat.btime.seconds > 1600000000 && stat.mtime.nanoseconds < 1000000000);

    IS(adit_rename(volume, "/d/a", "/d/b", ADIT_RENAME_NOREPLACE), -EEXIST);
    IS(adit_rename(volume, "/d/b", "/c", 0), 0);
    IS(adit_close(must_open(volume, "/d/x", ADIT_O_RDWR | ADIT_O_CREAT)), 0);
    IS(adit_rename(volume, "/d/x", "/c", ADIT_RENAME_EXCHANGE), 0);
    IS(adit_stat_path(volume, "/c", &other), 0);
    HOLDS(other.ino != stat.ino && other.size_bytes == 0);
    IS(adit_rename(volume, "/d/x", "/c", 0), 0); /* over */
    IS(adit_stat_path(volume, "/c", &other), 0);
    HOLDS(other.ino == stat.ino);
    IS(adit_rename(volume, "/d", "/d/below", 0), -EINVAL);
    IS(adit_rename(volume, "/d", "/e", 0x80), -EINVAL);
    IS(adit_rename(volume, "/none", "/e", 0), -ENOENT);

    IS(adit_unlink(volume, "/c"), 0);
    IS(adit_unlink(volume, "/c"), -ENOENT);
    IS(adit_unlink(volume, "/d"), -EISDIR);
    IS(adit_unlink(volume, "/d/a"), 0);
    IS(adit_pread(file, &byte, 1, 0), 1); /* lives on */
    HOLDS(byte == 'A');
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.nlink == 0);
    IS(adit_close(file), 0);
    memset(name, 'n', sizeof(name));
    name[0] = '/';
    name[299] = 0;
    IS(adit_mkdir(volume, name, 0755), -ENAMETOOLONG);
    name[256] = 0;
    IS(adit_mkdir(volume, name, 0755), 0);
    IS(adit_rmdir(volume, name), 0);

    for (count = 0; count < 500; ++count) {
        snprintf(name, sizeof(name), "/d/file%d", count);
        IS(adit_close(must_open(volume, name, ADIT_O_WRONLY | ADIT_O_CREAT)), 0);
    }
    IS(adit_mkdir(volume, "/d/sub", 0755), 0);
    IS(adit_rmdir(volume, "/d"), -ENOTEMPTY);
    IS(adit_opendir(volume, "/none", &dir), -ENOENT);
    IS(adit_opendir(volume, "/d/file1", &dir), -ENOTDIR);
    IS(adit_opendir(volume, "/d", &dir), 0);
    for (count = 0; adit_readdir(dir, &entry) == 1; ++count) {
        HOLDS(strlen(entry.name) == entry.name_len && entry.ino != 0);
        files += entry.type == ADIT_TYPE_FILE;
        if (count == 249)
            cookie = entry.cookie;
    }
    HOLDS(count == 501 && files == 500);
    IS(adit_seekdir(dir, cookie), 0);
    for (count = 0; adit_readdir(dir, &entry) == 1; ++count)
        continue;
    HOLDS(count == 251);
    IS(adit_seekdir(dir, 0), 0);
    IS(adit_readdir(dir, &entry), 1);
    IS(adit_readdir(dir, NULL), -EINVAL);
    IS(adit_readdir(NULL, &entry), -EINVAL);
    IS(adit_closedir(dir), 0);
    IS(adit_closedir(NULL), -EINVAL);
    for (count = 0; count < 500; ++count) {
        snprintf(name, sizeof(name), "/d/file%d", count);
        IS(adit_unlink(volume, name), 0);
    }
    IS(adit_rmdir(volume, "/d/sub"), 0);
    IS(adit_rmdir(volume, "/d/sub"), -ENOENT);
    file = must_open(volume, "/d", ADIT_O_RDONLY | ADIT_O_DIRECTORY);
    IS(adit_fsync(file), 0);
    IS(adit_close(file), 0);
    IS(adit_rmdir(volume, "/d"), 0);
    IS(adit_stat_path(volume, "/d", &stat), -ENOENT);
    HOLDS(strstr(adit_error_message(), "/d") != NULL);
}

static void locks_keep_handles_apart(adit_volume *volume)
{
    adit_file *one = must_open(volume, "/lock", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *two = must_open(volume, "/lock", ADIT_O_RDWR);
    IS(adit_flock(one, ADIT_LOCK_SHARED), 0);
    IS(adit_flock(two, ADIT_LOCK_SHARED | ADIT_LOCK_NONBLOCKING), 0);
    IS(adit_flock(two, ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_NONBLOCKING), -EWOULDBLOCK);
    IS(adit_flock(one, ADIT_LOCK_UNLOCK), 0);
    IS(adit_flock(two, ADIT_LOCK_EXCLUSIVE), 0);
    IS(adit_flock(one, ADIT_LOCK_SHARED | ADIT_LOCK_NONBLOCKING), -EWOULDBLOCK);
    IS(adit_flock(one, 77), -EINVAL);
    IS(adit_close(two), 0);
    IS(adit_flock(one, ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_NONBLOCKING), 0);
    IS(adit_close(one), 0);
    IS(adit_unlink(volume, "/lock"), 0);
}

static void range_locks_keep_owners_apart(adit_volume *volume)
{
    adit_file *one = must_open(volume, "/lock", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *two = must_open(volume, "/lock", ADIT_O_RDONLY);
    const int now = ADIT_LOCK_NONBLOCKING;
    const adit_range_lock head = {0, 10, 0, 0, ADIT_LOCK_EXCLUSIVE | now};
    const adit_range_lock rest = {10, 0, 7, 77, ADIT_LOCK_SHARED | ADIT_LOCK_POSIX};
    adit_range_lock all = {0, 0, 0, 0, ADIT_LOCK_SHARED | now}, blocker;
    IS(adit_lock_range(one, &head), 0);
    IS(adit_lock_range(one, &rest), 0);
    IS(adit_lock_range(two, &all), -EAGAIN);
    IS(adit_test_lock(two, &all, &blocker), 1);
    HOLDS(blocker.offset == 0 && blocker.len == 10 && blocker.pid == -1);
    HOLDS(blocker.operation == ADIT_LOCK_EXCLUSIVE);
    all.operation = ADIT_LOCK_UNLOCK;
    IS(adit_lock_range(one, &all), 0);
    all.operation = ADIT_LOCK_EXCLUSIVE | now;
    IS(adit_lock_range(two, &all), -EBADF);
    IS(adit_test_lock(two, &all, &blocker), 1);
    HOLDS(blocker.offset == 10 && blocker.len == 0 && blocker.owner == 7 && blocker.pid == 77);
    HOLDS(blocker.operation == (ADIT_LOCK_SHARED | ADIT_LOCK_POSIX));
    IS(adit_release_locks(two, 7), 0);
    IS(adit_test_lock(two, &all, &blocker), 0);
    IS(adit_lock_range(one, &all), 0);
    IS(adit_close(one), 0);
    IS(adit_test_lock(two, &all, &blocker), 0);
    all.operation = 3;
    IS(adit_lock_range(two, &all), -EINVAL);
    all.operation = ADIT_LOCK_UNLOCK;
    IS(adit_test_lock(two, &all, &blocker), -EINVAL);
    all.offset = UINT64_MAX;
    IS(adit_lock_range(two, &all), -EINVAL);
    IS(adit_lock_range(two, NULL), -EINVAL);
    IS(adit_test_lock(two, NULL, &blocker), -EINVAL);
    IS(adit_release_locks(NULL, 7), -EINVAL);
    IS(adit_close(two), 0);
    IS(adit_unlink(volume, "/lock"), 0);
}

/* In a server a range of a file is memory that its handles share; a volume of one process needs none. */
static void a_mapping_is_memory_of_all_handles(adit_volume *volume)
{
    adit_file *one = must_open(volume, "/mapped", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *two = must_open(volume, "/mapped", ADIT_O_RDONLY);
    adit_info info = ADIT_INFO_INIT;
    void *stored = NULL, *loaded = NULL;
    char read[6] = "";
    IS(adit_volume_info(volume, &info), 0);
    if (!(info.flags & ADIT_INFO_SHARED)) {
        IS(adit_map_shared(one, 0, 4096, &stored), -EOPNOTSUPP);
        HOLDS(stored == NULL && strstr(adit_error_message(), "no other process") != NULL);
    } else {
        IS(adit_map_shared(one, 0, 0, &stored), -EINVAL);
        IS(adit_map_shared(one, 1, 4096, &stored), -EINVAL);
        IS(adit_map_shared(one, 0, 4096, NULL), -EINVAL);
        IS(adit_fallocate(one, 0, 0, 3 * 4096), 0);
        IS(adit_map_shared(one, 4096, 8192, &stored), 0);
        IS(adit_map_shared(two, 8192, 4096, &loaded), 0);
        memcpy((char *)stored + 4096, "store", 5);
        HOLDS(memcmp(loaded, "store", 5) == 0);
        IS(adit_pread(two, read, 5, 8192), 5);
        HOLDS(strcmp(read, "store") == 0);
        IS(adit_pwrite(one, "write", 5, 8192), 5);
        HOLDS(memcmp(loaded, "write", 5) == 0);
        memcpy(stored, "kept", 4);
    }
    IS(adit_map_shared(NULL, 0, 4096, &stored), -EINVAL);
    IS(adit_close(one), 0);
    if (loaded != NULL) {
        HOLDS(memcmp(loaded, "write", 5) == 0);
        IS(adit_pread(two, read, 4, 4096), 4);
        HOLDS(memcmp(read, "kept", 4) == 0);
    }
    IS(adit_close(two), 0);
    IS(adit_unlink(volume, "/mapped"), 0);
}

static void blobs_behave(adit_volume *volume)
{
    adit_blob_id a, b, found = {0, 0};
    adit_blob *blob = NULL;
    char back[100];
    int count = 0, seen_a = 0, seen_b = 0;
    IS(adit_blob_create(volume, &a), 0);
    IS(adit_blob_create(volume, &b), 0);
    HOLDS(a.slot != 0 && (a.slot != b.slot || a.generation != b.generation));
    while (adit_blob_next(volume, &found) == 1) {
        ++count;
        seen_a += found.slot == a.slot && found.generation == a.generation;
        seen_b += found.slot == b.slot && found.generation == b.generation;
    }
    HOLDS(count == 2 && seen_a == 1 && seen_b == 1);
    IS(adit_blob_open(volume, &a, &blob), 0);
    IS(adit_blob_size(blob), 0);
    IS(adit_blob_write(blob, "blob", 4, 10), 4);
    IS(adit_blob_size(blob), 14);
    IS(adit_blob_read(blob, back, sizeof(back), 8), 6);
    HOLDS(memcmp(back, "\0\0blob", 6) == 0);
    IS(adit_blob_resize(blob, 12), 0);
    IS(adit_blob_resize(blob, 16), 0);
    IS(adit_blob_read(blob, back, sizeof(back), 8), 8);
    HOLDS(memcmp(back, "\0\0bl\0\0\0\0", 8) == 0);
    IS(adit_blob_set_xattr(blob, "color", "green", 5), 0);
    IS(adit_blob_set_xattr(blob, "", "x", 1), -EINVAL);
    IS(adit_blob_get_xattr(blob, "color", NULL, 0), 5);
    IS(adit_blob_get_xattr(blob, "color", back, 4), -ERANGE);
    IS(adit_blob_get_xattr(blob, "color", back, sizeof(back)), 5);
    HOLDS(memcmp(back, "green", 5) == 0);
    IS(adit_blob_get_xattr(blob, "shape", back, sizeof(back)), -ENODATA);
    IS(adit_blob_list_xattrs(blob, back, sizeof(back)), 6);
    HOLDS(memcmp(back, "color", 6) == 0);
    IS(adit_blob_remove_xattr(blob, "color"), 0);
    IS(adit_blob_remove_xattr(blob, "color"), -ENODATA);
    IS(adit_blob_list_xattrs(blob, NULL, 0), 0);
    IS(adit_blob_sync(blob), 0);
    IS(adit_blob_delete(volume, &a), -EBUSY);
    IS(adit_blob_close(blob), 0);
    IS(adit_blob_close(NULL), -EINVAL);
    IS(adit_blob_delete(volume, &a), 0);
    IS(adit_blob_open(volume, &a, &blob), -ENOENT);
    IS(adit_blob_delete(volume, &b), 0);
    found.slot = found.generation = 0;
    IS(adit_blob_next(volume, &found), 0);
    IS(adit_blob_size(NULL), -EINVAL);
}

#define THREADS 4
#define ROUNDS 500

static adit_file *shared_file;

static void *append_lines(void *argument)
{
    const char *line = argument;
    int i;
    for (i = 0; i < ROUNDS; ++i)
        if (adit_append(shared_file, line, 8, NULL) != 8)
            return "an append failed";
    return NULL;
}

static void threads_share_a_handle(adit_volume *volume)
{
    static char lines[THREADS][9] = {"aaaaaaa\n", "bbbbbbb\n", "ccccccc\n", "ddddddd\n"};
    static char back[THREADS * ROUNDS * 8];
    pthread_t threads[THREADS];
    int i, counts[THREADS] = {0};
    shared_file = must_open(volume, "/threads", ADIT_O_RDWR | ADIT_O_CREAT);
    for (i = 0; i < THREADS; ++i)
        HOLDS(pthread_create(&threads[i], NULL, append_lines, lines[i]) == 0);
    for (i = 0; i < THREADS; ++i) {
        void *complaint = NULL;
        HOLDS(pthread_join(threads[i], &complaint) == 0 && complaint == NULL);
    }
    IS(adit_pread(shared_file, back, sizeof(back), 0), sizeof(back));
    for (i = 0; i < THREADS * ROUNDS; ++i) {
        const int which = back[i * 8] - 'a';
        HOLDS(which >= 0 && which < THREADS && memcmp(back + i * 8, lines[which], 8) == 0);
        ++counts[which];
    }
    for (i = 0; i < THREADS; ++i)
        HOLDS(counts[i] == ROUNDS);
    IS(adit_close(shared_file), 0);
    IS(adit_unlink(volume, "/threads"), 0);
}

static void a_forked_child_has_no_volume(adit_volume *volume)
{
    adit_file *file = must_open(volume, "/fork", ADIT_O_RDWR | ADIT_O_CREAT);
    int status = -1;
    pid_t child;
    IS(adit_pwrite(file, "parent", 6, 0), 6);
    fflush(NULL);
    child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        char byte;
        adit_stat stat = ADIT_STAT_INIT;
        IS(adit_pread(file, &byte, 1, 0), -EBADF);
        IS(adit_pwrite(file, "c", 1, 0), -EBADF);
        IS(adit_stat_path(volume, "/", &stat), -EBADF);
        IS(adit_syncfs(volume), -EBADF);
        IS(adit_file_size(file), -EBADF);
        adit_close(file);
        IS(adit_close_volume(volume), -EBADF);
        _exit(7);
    }
    HOLDS(waitpid(child, &status, 0) == child);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    IS(adit_pwrite(file, "still", 5, 0), 5); /* nothing happened to the parent's */
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/fork"), 0);
}

static void what_was_synced_is_there_after_reopening(adit_volume *volume, const char *address)
{
    char back[10] = "";
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    adit_file *file = must_open(volume, "/kept", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_pwrite(file, "kept", 4, 0), 4);
    IS(adit_close(file), 0);
    IS(adit_close_volume(volume), 0);
    options.flags = ADIT_VOLUME_READ_ONLY;
    IS(adit_open_volume(address, &options, &volume), 0);
    file = must_open(volume, "/kept", ADIT_O_RDONLY);
    IS(adit_pread(file, back, sizeof(back), 0), 4);
    HOLDS(memcmp(back, "kept", 4) == 0);
    IS(adit_close(file), 0);
    IS(adit_unlink(volume, "/kept"), -EROFS);
    IS(adit_close_volume(volume), 0);
    IS(adit_close_volume(NULL), -EINVAL);
}

static void memory_volumes_need_no_mkfs(void)
{
    adit_volume *volume = NULL;
    IS(adit_open_volume("mem:64M", NULL, &volume), 0);
    IS(adit_close(must_open(volume, "/x", ADIT_O_RDWR | ADIT_O_CREAT)), 0);
    IS(adit_close_volume(volume), 0);
}

int main(int argc, char **argv)
{
    adit_volume *volume;
    if (argc != 2) {
        fprintf(stderr, "usage: api_test ADDRESS\n");
        return 2;
    }
    the_library_says_what_it_is();
    messages_are_asked_for();
    volume = volumes_are_made_and_opened(argv[1]);
    a_volume_is_open_once(volume, argv[1]);
    an_absurd_page_cache_is_refused_with_what_is_allowed(argv[1]);
    smaller_and_larger_structures_get_what_they_have_room_for(volume);
    a_file_is_created_with_its_content(volume);
    open_flags_mean_what_they_say(volume);
    an_atomic_write_changes_all_of_its_ranges_or_none(volume);
    data_is_read_as_it_was_written(volume);
    space_is_given_and_taken(volume);
    direct_files_pass_the_cache_coherently(volume);
    borrowed_pages_keep_their_content(volume);
    submitted_operations_complete(volume);
    names_behave(volume);
    locks_keep_handles_apart(volume);
    range_locks_keep_owners_apart(volume);
    a_mapping_is_memory_of_all_handles(volume);
    blobs_behave(volume);
    threads_share_a_handle(volume);
    a_forked_child_has_no_volume(volume);
    what_was_synced_is_there_after_reopening(volume, argv[1]);
    memory_volumes_need_no_mkfs();
    printf("%d claims hold\n", claims);
    return 0;
}
