/* An open file: see vfs.h. */
#include "vfs.h"

#include <errno.h>
#include <string.h>

int file_failed(struct file *file, int64_t result, int code)
{
    file->last_errno = (int)-result;
    if (result == -ENOSPC || result == -EDQUOT)
        code = SQLITE_FULL;
    else if (result == -ENOMEM)
        code = SQLITE_IOERR_NOMEM;
#ifdef SQLITE_IOERR_CORRUPTFS
    else if (result == -EUCLEAN)
        code = SQLITE_IOERR_CORRUPTFS;
#endif
    /* SQLite's own words for these two say enough, and a batch that fails is done again by a journal. */
    if (code == SQLITE_FULL || code == SQLITE_IOERR_NOMEM || code == SQLITE_IOERR_COMMIT_ATOMIC)
        sqlite3_log(code, "adit: %s: %s", file->path, adit_error_message());
    else
        tell(code, "%s: %s", file->path, adit_error_message());
    return code;
}

static int file_close(sqlite3_file *base)
{
    struct file *file = (struct file *)base;
    file_shm_unmap(base, 0);
    batch_drop(file);
    adit_close(file->handle); /* nothing to lose: SQLite has synced what it needs */
    if (file->forks == forks()) {
        if (file->database != NULL)
            database_release(file->database);
        volume_release(file->volume);
    }
    sqlite3_free(file->path);
    memset(file, 0, sizeof(*file));
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *data, int len, sqlite3_int64 offset)
{
    struct file *file = (struct file *)base;
    const int64_t got = adit_pread(file->handle, data, (size_t)len, (uint64_t)offset);
    if (got < 0)
        return file_failed(file, got, SQLITE_IOERR_READ);
    if (got < len)
        memset((char *)data + got, 0, (size_t)(len - got));
    batch_overlay(file, data, len, offset);
    return got < len ? SQLITE_IOERR_SHORT_READ : SQLITE_OK;
}

/*
 * Is this the name of a journal or super-journal outside of volumes, which SQLite is about to write
 * into a super-journal or a journal in a volume? After a crash SQLite asks the VFS of each database
 * for all these names. The VFS of a database outside of volumes finds no super-journal in them, and
 * SQLite would take the transaction for committed.
 */
static int leads_outside(const struct file *file, const char *data, int len)
{
    const int suffix = (int)strlen("-mjXXXXXX9XX");
    if (file->kind & SQLITE_OPEN_SUPER_JOURNAL)
        return len > 0 && memmem(data, (size_t)len, "//", 2) == NULL;
    return (file->kind & SQLITE_OPEN_MAIN_JOURNAL) && len > suffix && len < NAME_BYTES_MAX && data[len - 3] == '9' &&
           memcmp(data + len - suffix, "-mj", 3) == 0 && memchr(data, '\0', (size_t)len) == NULL &&
           memmem(data, (size_t)len, "//", 2) == NULL;
}

static int file_write(sqlite3_file *base, const void *data, int len, sqlite3_int64 offset)
{
    struct file *file = (struct file *)base;
    int64_t written;
    int code;
    if (leads_outside(file, data, len))
        return tell(SQLITE_IOERR_WRITE, "a transaction over databases in a volume and outside, with rollback journals, "
                                        "could not be undone after a crash: commit to them one after another");
    if (file->batch.open)
        return batch_write(file, data, len, offset);
    code = batch_sync_journal(file);
    if (code != SQLITE_OK)
        return code;
    written = adit_pwrite(file->handle, data, (size_t)len, (uint64_t)offset);
    return written < 0 ? file_failed(file, written, SQLITE_IOERR_WRITE) : SQLITE_OK;
}

/* The size that a file gets which is to have `size`. */
static sqlite3_int64 in_chunks(const struct file *file, sqlite3_int64 size)
{
    const sqlite3_int64 chunk = file->chunk_bytes;
    return chunk > 0 ? (size + chunk - 1) / chunk * chunk : size;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct file *file = (struct file *)base;
    int result = batch_sync_journal(file);
    if (result != SQLITE_OK)
        return result;
    result = adit_ftruncate(file->handle, (uint64_t)in_chunks(file, size));
    return result < 0 ? file_failed(file, result, SQLITE_IOERR_TRUNCATE) : SQLITE_OK;
}

/* One kind of sync for all of SQLite's: an fdatasync of Adit makes data, size and names durable. */
static int file_sync(sqlite3_file *base, int flags)
{
    struct file *file = (struct file *)base;
    const int result = adit_fdatasync(file->handle);
    (void)flags;
    return result < 0 ? file_failed(file, result, SQLITE_IOERR_FSYNC) : SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size)
{
    struct file *file = (struct file *)base;
    const int64_t result = adit_file_size(file->handle);
    if (result < 0)
        return file_failed(file, result, SQLITE_IOERR_FSTAT);
    *size = result;
    return SQLITE_OK;
}

/* With a chunk size: allocates what SQLite is going to write. */
static int size_hint(struct file *file, sqlite3_int64 hint)
{
    const int64_t size = adit_file_size(file->handle);
    const sqlite3_int64 wanted = in_chunks(file, hint);
    int result = 0;
    if (file->chunk_bytes > 0 && size >= 0 && wanted > size)
        result = adit_fallocate(file->handle, 0, (uint64_t)size, (uint64_t)(wanted - size));
    return result < 0 ? file_failed(file, result, SQLITE_IOERR_WRITE) : SQLITE_OK;
}

static int has_moved(const struct file *file)
{
    adit_stat here = ADIT_STAT_INIT, there = ADIT_STAT_INIT;
    return adit_fstat(file->handle, &here) < 0 ||
           adit_stat_path(file->volume->handle, file->path, &there) < 0 || here.ino != there.ino ||
           here.generation != there.generation;
}

/* PRAGMA adit_volume, PRAGMA adit_path: where a database lies. */
static int pragma(const struct file *file, char **words)
{
    const char *answer = NULL;
    if (sqlite3_stricmp(words[1], "adit_volume") == 0)
        answer = file->volume->address;
    else if (sqlite3_stricmp(words[1], "adit_path") == 0)
        answer = file->path;
    if (answer == NULL)
        return SQLITE_NOTFOUND;
    words[0] = sqlite3_mprintf("%s", answer);
    return words[0] != NULL ? SQLITE_OK : SQLITE_NOMEM;
}

static int file_control(sqlite3_file *base, int operation, void *argument)
{
    struct file *file = (struct file *)base;
    int *number = argument;
    switch (operation) {
    case SQLITE_FCNTL_LOCKSTATE:
        *number = file->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_LAST_ERRNO:
        *number = file->last_errno;
        return SQLITE_OK;
    case SQLITE_FCNTL_CHUNK_SIZE:
        file->chunk_bytes = *number;
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT:
        return size_hint(file, *(sqlite3_int64 *)argument);
    case SQLITE_FCNTL_PERSIST_WAL:
        if (*number >= 0)
            file->persist_wal = *number != 0;
        *number = file->persist_wal;
        return SQLITE_OK;
    case SQLITE_FCNTL_POWERSAFE_OVERWRITE:
        if (*number >= 0)
            file->powersafe_overwrite = *number != 0;
        *number = file->powersafe_overwrite;
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *number = has_moved(file);
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)argument = sqlite3_mprintf("adit");
        return SQLITE_OK;
    case SQLITE_FCNTL_PRAGMA:
        return pragma(file, argument);
    case SQLITE_FCNTL_BEGIN_ATOMIC_WRITE:
        return batch_begin(file);
    case SQLITE_FCNTL_COMMIT_ATOMIC_WRITE:
        return batch_commit(file);
    case SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE:
        batch_roll_back(file);
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

/* What is journaled together: a page of Adit. */
static int file_sector_size(sqlite3_file *base)
{
    (void)base;
    return 4096;
}

/*
 * What Adit's durability contract makes true, and no more:
 *   POWERSAFE_OVERWRITE  a page is written whole, and its sectors don't tear: bytes beside those written stay
 *   BATCH_ATOMIC         adit_pwrite_atomic
 *   SUBPAGE_READ         any part of a page can be read
 * Not SAFE_APPEND: after a power cut without a sync a file may be longer than what was written to
 * it is durable, with zeros between. Not SEQUENTIAL, and not ATOMIC: unsynced pages become durable
 * in any order, and a page may tear. Not UNDELETABLE_WHEN_OPEN: an open file can lose its name.
 */
static int file_device_characteristics(sqlite3_file *base)
{
    const struct file *file = (const struct file *)base;
    int characteristics = file->powersafe_overwrite ? SQLITE_IOCAP_POWERSAFE_OVERWRITE : 0;
    if (file->batches)
        characteristics |= SQLITE_IOCAP_BATCH_ATOMIC;
#ifdef SQLITE_IOCAP_SUBPAGE_READ
    characteristics |= SQLITE_IOCAP_SUBPAGE_READ;
#endif
    return characteristics;
}

static int file_fetch(sqlite3_file *base, sqlite3_int64 offset, int len, void **memory)
{
    (void)base, (void)offset, (void)len;
    *memory = NULL; /* SQLite reads instead */
    return SQLITE_OK;
}

static int file_unfetch(sqlite3_file *base, sqlite3_int64 offset, void *memory)
{
    (void)base, (void)offset, (void)memory;
    return SQLITE_OK;
}

const sqlite3_io_methods adit_io_methods = {
    .iVersion = 3,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_reserved_lock,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_device_characteristics,
    .xShmMap = file_shm_map,
    .xShmLock = file_shm_lock,
    .xShmBarrier = file_shm_barrier,
    .xShmUnmap = file_shm_unmap,
    .xFetch = file_fetch,
    .xUnfetch = file_unfetch,
};
