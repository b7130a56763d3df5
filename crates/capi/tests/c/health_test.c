/*
 * Figures and health of a volume: info, texts, grow, check, scrub with findings.
 *
 *   health_test IMAGE     formats it; prints "N claims hold"
 *
 * Compiled as C11 by tests/c_api.rs.
 */
#define _GNU_SOURCE
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES (1u << 20)
#define MARK "a page that the device loses"

struct told {
    adit_volume *volume;
    int findings;
    atomic_int progress;
    adit_finding last;
    char what[200], path[200];
};

static void finding(void *user_data, const adit_finding *finding)
{
    struct told *told = user_data;
    adit_stat stat = ADIT_STAT_INIT;
    ++told->findings;
    told->last = *finding;
    snprintf(told->what, sizeof(told->what), "%s", finding->what);
    snprintf(told->path, sizeof(told->path), "%s", finding->path == NULL ? "" : finding->path);
    IS(adit_stat_path(told->volume, "/", &stat), 0); /* it may call */
}

static void progress(void *user_data, uint64_t done, uint64_t total)
{
    struct told *told = user_data;
    (void)total;
    (void)done;
    ++told->progress;
}

/* Where in the image the marked page is. */
static long long place_of_mark(const char *image)
{
    static char page[4096];
    const int descriptor = open(image, O_RDONLY);
    HOLDS(descriptor >= 0);
    for (long long at = 0; pread(descriptor, page, sizeof(page), at) == (ssize_t)sizeof(page);
         at += (long long)sizeof(page)) {
        if (memcmp(page, MARK, sizeof(MARK)) == 0) {
            close(descriptor);
            return at;
        }
    }
    close(descriptor);
    return -1;
}

int main(int argc, char **argv)
{
    static char data[FILE_BYTES];
    static struct told told;
    const char *image = argc > 1 ? argv[1] : "health_test.adit";
    adit_volume *volume = NULL;
    adit_file *file = NULL;
    adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
    adit_health_options options = ADIT_HEALTH_OPTIONS_INIT;
    adit_check_result checked = ADIT_CHECK_RESULT_INIT;
    adit_scrub_result scrubbed = ADIT_SCRUB_RESULT_INIT;
    adit_info info = ADIT_INFO_INIT, small = ADIT_INFO_INIT;
    char text[4200];
    long long place;
    int descriptor;

    format.size_bytes = 64u << 20;
    format.flags = ADIT_MKFS_FORCE | ADIT_MKFS_DATA_CHECKSUMS;
    IS(adit_mkfs(image, &format), 0);
    IS(adit_open_volume(image, NULL, &volume), 0);
    told.volume = volume;

    IS(adit_volume_info(volume, &info), 0);
    HOLDS(info.struct_bytes == sizeof(info) && info.volume_bytes == 64u << 20);
    HOLDS((info.flags & ADIT_INFO_DATA_CHECKSUMS) != 0 && (info.flags & ADIT_INFO_FAILED) == 0);
    HOLDS(info.free_bytes > info.usable_bytes / 2 && info.cluster_bytes >= 4096);
    HOLDS(info.journal_bytes > 0 && info.journal_bytes >= info.journal_live_bytes);
    /* An older program's structure ends earlier. */
    memset(&small, 0x55, sizeof(small));
    small.struct_bytes = 32;
    IS(adit_volume_info(volume, &small), 0);
    HOLDS(small.struct_bytes == 32 && small.volume_bytes == 64u << 20);
    HOLDS(small.free_bytes == UINT64_C(0x5555555555555555));
    IS(adit_volume_info(volume, NULL), -EINVAL);
    IS(adit_volume_info(NULL, &info), -EINVAL);

    {
        const int64_t len = adit_volume_text(volume, ADIT_TEXT_ADDRESS, NULL, 0);
        HOLDS(len == (int64_t)strlen(image));
        IS(adit_volume_text(volume, ADIT_TEXT_ADDRESS, text, sizeof(text)), len);
        HOLDS(memcmp(text, image, (size_t)len) == 0);
        IS(adit_volume_text(volume, ADIT_TEXT_ADDRESS, text, 1), -ERANGE);
        IS(adit_volume_text(volume, ADIT_TEXT_LABEL, text, sizeof(text)), 0);
        IS(adit_volume_text(volume, ADIT_TEXT_FAILURE, text, sizeof(text)), 0);
        IS(adit_volume_text(volume, 0, text, sizeof(text)), -EINVAL);
    }

    IS(adit_grow(volume, 32u << 20), -EINVAL);
    IS(adit_grow(NULL, 96u << 20), -EINVAL);
    IS(adit_grow(volume, 96u << 20), 0);
    IS(adit_volume_info(volume, &info), 0);
    HOLDS(info.volume_bytes == 96u << 20);

    memset(data, 'd', sizeof(data));
    memcpy(data + 5 * 4096, MARK, sizeof(MARK));
    IS(adit_mkdir(volume, "/folder", 0755), 0);
    IS(adit_open(volume, "/folder/file", ADIT_O_RDWR | ADIT_O_CREAT, 0644, &file), 0);
    IS(adit_pwrite(file, data, sizeof(data), 0), sizeof(data));
    IS(adit_fsync(file), 0);
    IS(adit_close(file), 0);

    options.finding = finding;
    options.progress = progress;
    options.user_data = &told;
    IS(adit_check(volume, &options, &checked), 0);
    HOLDS(checked.findings == 0 && checked.directories == 2 && checked.files == 1);
    HOLDS(told.findings == 0 && told.progress > 0);
    IS(adit_scrub(volume, &options, &scrubbed), 0);
    HOLDS(scrubbed.findings == 0 && scrubbed.bytes >= sizeof(data));
    IS(adit_check(volume, NULL, NULL), 0);
    IS(adit_scrub(volume, NULL, NULL), 0);

    /* The device loses a page. */
    IS(adit_close_volume(volume), 0);
    place = place_of_mark(image);
    HOLDS(place > 0);
    descriptor = open(image, O_WRONLY);
    IS(pwrite(descriptor, "b", 1, place + 100), 1);
    IS(close(descriptor), 0);
    IS(adit_open_volume(image, NULL, &volume), 0);
    told.volume = volume;
    IS(adit_scrub(volume, &options, &scrubbed), 0);
    HOLDS(scrubbed.findings == 1 && told.findings == 1);
    HOLDS(told.last.kind == ADIT_FINDING_DATA && told.last.struct_bytes == sizeof(told.last));
    HOLDS(strcmp(told.path, "/folder/file") == 0 && told.what[0] != 0);
    HOLDS(told.last.offset <= 5 * 4096 && told.last.offset + told.last.len >= 6 * 4096);
    HOLDS((long long)told.last.device_offset <= place);
    HOLDS((long long)(told.last.device_offset + told.last.len) > place);
    IS(adit_check(volume, &options, &checked), 0);
    IS(checked.findings, 0);

    options.bytes_per_second = 1u << 20;
    IS(adit_check(volume, &options, &checked), -EINVAL);
    options.bytes_per_second = 0;
    options.flags = 1;
    IS(adit_check(volume, &options, &checked), -EINVAL);
    IS(adit_scrub(volume, &options, &scrubbed), -EINVAL);
    IS(adit_check(NULL, NULL, NULL), -EINVAL);
    IS(adit_scrub(NULL, NULL, NULL), -EINVAL);
    IS(adit_close_volume(volume), 0);
    printf("%d claims hold\n", claims);
    return 0;
}
