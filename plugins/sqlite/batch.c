/*
 * Batch atomic writes: between BEGIN and COMMIT what SQLite writes is kept here, and then written
 * with one call that does all of it or nothing, durably. SQLite uses it instead of a rollback
 * journal if it was compiled with SQLITE_ENABLE_BATCH_ATOMIC_WRITE.
 *
 * When a batch fails (it may be too large), SQLite creates the journal that it has kept in memory,
 * and writes the pages one by one; but it has synced that journal before, when there was no file
 * yet, and not after. A power cut would then find pages that are half written and a journal that
 * may be gone. So we sync it, before the first page.
 */
#include "vfs.h"

#include <errno.h>
#include <string.h>

int batch_begin(struct file *file)
{
    const int64_t most = adit_atomic_write_max(file->handle);
    batch_drop(file);
    file->batch.open = 1;
    file->batch.bytes_max = most > 0 ? (size_t)most : 0;
    return SQLITE_OK;
}

int batch_write(struct file *file, const void *data, int len, int64_t offset)
{
    struct batch *batch = &file->batch;
    void *copy;
    if (batch->bytes + (size_t)len > batch->bytes_max)
        return SQLITE_IOERR_WRITE; /* it will be written with a journal */
    if (batch->count == batch->room) {
        const size_t room = batch->room == 0 ? 16 : 2 * batch->room;
        adit_write_range *ranges = sqlite3_realloc64(batch->ranges, room * sizeof(*ranges));
        if (ranges == NULL)
            return SQLITE_IOERR_NOMEM;
        batch->ranges = ranges;
        batch->room = room;
    }
    copy = sqlite3_malloc64((uint64_t)len);
    if (copy == NULL)
        return SQLITE_IOERR_NOMEM;
    memcpy(copy, data, (size_t)len);
    batch->ranges[batch->count++] = (adit_write_range){(uint64_t)offset, copy, (size_t)len};
    batch->bytes += (size_t)len;
    return SQLITE_OK;
}

int batch_commit(struct file *file)
{
    struct batch *batch = &file->batch;
    int result = 0;
    if (!batch->open)
        return SQLITE_MISUSE;
    if (batch->count > 0)
        result = adit_pwrite_atomic(file->handle, batch->ranges, batch->count, ADIT_WRITE_DSYNC);
    if (result == 0) {
        batch_drop(file);
        return SQLITE_OK;
    }
    /* Also when there is no space: with the journal SQLite finds out in a way that it can undo. */
    file_failed(file, result, SQLITE_IOERR_COMMIT_ATOMIC);
    batch_roll_back(file);
    return SQLITE_IOERR_COMMIT_ATOMIC;
}

void batch_overlay(const struct file *file, void *data, int len, int64_t offset)
{
    const int64_t end = offset + len;
    size_t i;
    for (i = 0; i < file->batch.count; ++i) {
        const adit_write_range *range = &file->batch.ranges[i];
        const int64_t first = (int64_t)range->offset > offset ? (int64_t)range->offset : offset;
        const int64_t range_end = (int64_t)(range->offset + range->len);
        const int64_t last = range_end < end ? range_end : end;
        if (first < last)
            memcpy((char *)data + (first - offset), (const char *)range->data + (first - (int64_t)range->offset),
                   (size_t)(last - first));
    }
}

void batch_drop(struct file *file)
{
    struct batch *batch = &file->batch;
    while (batch->count > 0)
        sqlite3_free((void *)batch->ranges[--batch->count].data);
    sqlite3_free(batch->ranges);
    memset(batch, 0, sizeof(*batch));
}

void batch_roll_back(struct file *file)
{
    file->journal_not_synced = 1;
    batch_drop(file);
}

int batch_sync_journal(struct file *file)
{
    char *journal;
    int result;
    if (!file->journal_not_synced)
        return SQLITE_OK;
    journal = sqlite3_mprintf("%s-journal", file->path);
    if (journal == NULL)
        return SQLITE_IOERR_NOMEM;
    result = adit_fsync_path(file->volume->handle, journal);
    sqlite3_free(journal);
    if (result < 0 && result != -ENOENT)
        return file_failed(file, result, SQLITE_IOERR_FSYNC);
    file->journal_not_synced = 0;
    return SQLITE_OK;
}
