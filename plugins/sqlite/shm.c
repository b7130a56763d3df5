/*
 * The shared memory of WAL mode: plain memory that the connections of the process share, and its
 * locks are counters. It is gone with the last connection: the next one rebuilds it from the WAL.
 *
 * A volume in a server can have several processes. A lock of the database says which of them has
 * its index: one whose connections may write has it alone.
 */
#include "vfs.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* Behind the bytes that SQLite's unix VFS locks. */
enum { INDEX_BYTE = 0x40000000 + 512 };

static int lock_index(struct file *file, int operation)
{
    const adit_range_lock lock = {INDEX_BYTE, 1, (uintptr_t)file->database, 0, operation | ADIT_LOCK_POSIX};
    return adit_lock_range(file->handle, &lock);
}

/* The index is to be this process's, before a connection uses it. */
static int own_index(struct file *file)
{
    struct database *database = file->database;
    int alone = 1, result;
    if (database->index_alone)
        return SQLITE_OK;
    result = lock_index(file, ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_NONBLOCKING);
    if (result == -EBADF && database->mapped > 0)
        return SQLITE_OK;
    if (result == -EBADF) {
        alone = 0; /* it can only read */
        result = lock_index(file, ADIT_LOCK_SHARED | ADIT_LOCK_NONBLOCKING);
    }
    /* Not SQLITE_BUSY, which SQLite takes for a matter of microseconds. */
    if (result == -EAGAIN)
        return SQLITE_BUSY_RECOVERY;
    if (result < 0)
        return file_failed(file, result, SQLITE_IOERR_SHMMAP);
    database->index_alone = alone;
    return SQLITE_OK;
}

int file_shm_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **memory)
{
    struct file *file = (struct file *)base;
    struct database *database = file->database;
    int code = SQLITE_OK;
    *memory = NULL;
    if (database == NULL || file->forks != forks())
        return SQLITE_IOERR_SHMMAP;
    pthread_mutex_lock(&database->mutex);
    if (!file->shm_mapped) {
        code = own_index(file);
        if (code == SQLITE_OK) {
            file->shm_mapped = 1;
            ++database->mapped;
        }
    }
    if (code == SQLITE_OK && region >= database->region_count && extend) {
        void **regions = sqlite3_realloc64(database->regions, ((size_t)region + 1) * sizeof(*regions));
        if (regions == NULL)
            code = SQLITE_IOERR_NOMEM;
        else
            database->regions = regions;
        while (code == SQLITE_OK && database->region_count <= region) {
            void *fresh = sqlite3_malloc64((size_t)bytes);
            if (fresh == NULL) {
                code = SQLITE_IOERR_NOMEM;
                break;
            }
            memset(fresh, 0, (size_t)bytes);
            database->regions[database->region_count++] = fresh;
            database->region_bytes = bytes;
        }
    }
    if (code == SQLITE_OK && region < database->region_count) {
        if (bytes > database->region_bytes)
            code = SQLITE_IOERR_SHMSIZE;
        else
            *memory = database->regions[region];
    }
    pthread_mutex_unlock(&database->mutex);
    return code;
}

static int share(struct file *file, int *locks, int lock, uint16_t bit)
{
    if (file->shm_shared & bit)
        return SQLITE_OK;
    if (locks[lock] < 0)
        return SQLITE_BUSY;
    ++locks[lock];
    file->shm_shared |= bit;
    return SQLITE_OK;
}

static int take_alone(struct file *file, int *locks, int first, int count, uint16_t bits)
{
    int lock;
    for (lock = first; lock < first + count; ++lock) {
        if (locks[lock] != 0)
            return SQLITE_BUSY;
    }
    for (lock = first; lock < first + count; ++lock)
        locks[lock] = -1;
    file->shm_exclusive |= bits;
    return SQLITE_OK;
}

static void give_back(struct file *file, int *locks, int first, int count)
{
    int lock;
    for (lock = first; lock < first + count; ++lock) {
        const uint16_t bit = (uint16_t)(1u << lock);
        if (file->shm_exclusive & bit)
            locks[lock] = 0;
        else if (file->shm_shared & bit)
            --locks[lock];
        file->shm_exclusive &= (uint16_t)~bit;
        file->shm_shared &= (uint16_t)~bit;
    }
}

int file_shm_lock(sqlite3_file *base, int first, int count, int flags)
{
    struct file *file = (struct file *)base;
    const uint16_t bits = (uint16_t)((1u << (first + count)) - (1u << first));
    int code = SQLITE_OK;
    if (!file->shm_mapped || file->forks != forks())
        return SQLITE_IOERR_SHMLOCK;
    volume_used(file->volume);
    pthread_mutex_lock(&file->database->mutex);
    if (flags & SQLITE_SHM_UNLOCK)
        give_back(file, file->database->locks, first, count);
    else if (flags & SQLITE_SHM_SHARED)
        code = share(file, file->database->locks, first, bits);
    else
        code = take_alone(file, file->database->locks, first, count, bits);
    pthread_mutex_unlock(&file->database->mutex);
    return code;
}

void file_shm_barrier(sqlite3_file *base)
{
    struct file *file = (struct file *)base;
    atomic_thread_fence(memory_order_seq_cst);
    if (file->database != NULL && file->forks == forks()) {
        pthread_mutex_lock(&file->database->mutex);
        pthread_mutex_unlock(&file->database->mutex);
    }
}

/* There is no file to delete. */
int file_shm_unmap(sqlite3_file *base, int delete_it)
{
    struct file *file = (struct file *)base;
    struct database *database = file->database;
    (void)delete_it;
    if (!file->shm_mapped || file->forks != forks())
        return SQLITE_OK;
    pthread_mutex_lock(&database->mutex);
    give_back(file, database->locks, 0, SQLITE_SHM_NLOCK);
    file->shm_mapped = 0;
    if (--database->mapped == 0) {
        while (database->region_count > 0)
            sqlite3_free(database->regions[--database->region_count]);
        sqlite3_free(database->regions);
        database->regions = NULL;
        database->index_alone = 0;
        (void)lock_index(file, ADIT_LOCK_UNLOCK);
    }
    pthread_mutex_unlock(&database->mutex);
    return SQLITE_OK;
}
