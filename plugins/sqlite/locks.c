/*
 * Locks between connections: the same bytes in the same order as SQLite's unix VFS, each connection
 * with locks of its own.
 *
 *   SHARED     the range of readers, shared; taken while the pending byte is held shared, so that nobody comes in
 *              once a writer waits there
 *   RESERVED   the reserved byte alone: will write, others may still read
 *   PENDING    the pending byte alone: no new readers
 *   EXCLUSIVE  the range of readers alone
 */
#include "vfs.h"

#include <errno.h>

enum { PENDING = 0x40000000, RESERVED = PENDING + 1, READERS = PENDING + 2, READERS_BYTES = 510 };

static int set(struct file *file, int operation, uint64_t offset, uint64_t len)
{
    const adit_range_lock lock = {offset, len, 0, 0, operation | ADIT_LOCK_NONBLOCKING};
    const int result = adit_lock_range(file->handle, &lock);
    if (result == 0)
        return SQLITE_OK;
    if (result == -EAGAIN)
        return SQLITE_BUSY;
    return file_failed(file, result, operation == ADIT_LOCK_UNLOCK ? SQLITE_IOERR_UNLOCK : SQLITE_IOERR_LOCK);
}

static int lock_shared(struct file *file)
{
    int unlocked, code = set(file, ADIT_LOCK_SHARED, PENDING, 1);
    if (code != SQLITE_OK)
        return code;
    code = set(file, ADIT_LOCK_SHARED, READERS, READERS_BYTES);
    unlocked = set(file, ADIT_LOCK_UNLOCK, PENDING, 1);
    return code != SQLITE_OK ? code : unlocked;
}

int file_lock(sqlite3_file *base, int level)
{
    struct file *file = (struct file *)base;
    int code = SQLITE_OK;
    if (file->level >= level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        volume_used(file->volume);
        code = lock_shared(file);
    }
    if (level == SQLITE_LOCK_RESERVED)
        code = set(file, ADIT_LOCK_EXCLUSIVE, RESERVED, 1);
    if (level == SQLITE_LOCK_EXCLUSIVE) {
        if (file->level < SQLITE_LOCK_PENDING)
            code = set(file, ADIT_LOCK_EXCLUSIVE, PENDING, 1);
        if (code == SQLITE_OK) {
            file->level = SQLITE_LOCK_PENDING; /* kept although readers are in the way: they become fewer */
            code = set(file, ADIT_LOCK_EXCLUSIVE, READERS, READERS_BYTES);
        }
    }
    if (code == SQLITE_OK)
        file->level = level;
    return code;
}

int file_unlock(sqlite3_file *base, int level)
{
    struct file *file = (struct file *)base;
    int code = SQLITE_OK;
    if (file->level <= level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (file->level == SQLITE_LOCK_EXCLUSIVE)
            code = set(file, ADIT_LOCK_SHARED, READERS, READERS_BYTES);
        if (code == SQLITE_OK)
            code = set(file, ADIT_LOCK_UNLOCK, PENDING, 2);
    } else {
        code = set(file, ADIT_LOCK_UNLOCK, PENDING, 2 + READERS_BYTES);
    }
    if (code == SQLITE_OK)
        file->level = level;
    return code;
}

int file_check_reserved_lock(sqlite3_file *base, int *reserved)
{
    struct file *file = (struct file *)base;
    const adit_range_lock wanted = {RESERVED, 1, 0, 0, ADIT_LOCK_EXCLUSIVE};
    adit_range_lock blocker;
    int result = 1;
    if (file->level < SQLITE_LOCK_RESERVED)
        result = adit_test_lock(file->handle, &wanted, &blocker);
    if (result < 0)
        return file_failed(file, result, SQLITE_IOERR_CHECKRESERVEDLOCK);
    *reserved = result;
    return SQLITE_OK;
}
