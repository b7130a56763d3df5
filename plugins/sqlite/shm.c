/*
 * The index of WAL mode, and its locks, for the connections of this process and of others.
 *
 * In a volume that other processes can use, too, the index is the database's -shm file, mapped as
 * memory that all of them share (adit_map_shared). File, format and locks are those of SQLite's unix
 * VFS, so that SQLite under `adit run` uses the same index. In a volume of this process alone the
 * index is plain memory, and the -shm file only has the lock that keeps others away.
 *
 *   byte       lock of the -shm file, in handles of the process's own: the process's connections are counted beside it
 *   120..127   SQLite's eight locks
 *   128        the dead man's switch, shared as long as a process uses the file. The first process has it alone, and
 *              empties the file: what it finds there is an index that no living process has kept
 *   128..129   alone: the process has the index in its memory
 *
 * Invariant: each lock that a connection takes is asked of the server, also one that this process
 * shares already. So a session that has lost its locks, since it came back too late to the next
 * server, is told before it believes the memory, which is its own now.
 */
#include "vfs.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { LOCKS = 120, SWITCH = LOCKS + SQLITE_SHM_NLOCK };

/* ------------------------------------------------------------------------------------------------ the -shm file */

static int set(struct database *database, int operation, uint64_t first, uint64_t count)
{
    const adit_range_lock lock = {first, count, 0, 0, operation | ADIT_LOCK_NONBLOCKING};
    return adit_lock_range(database->shm, &lock);
}

/* Opens it with the database's permissions and owner. */
static int open_shm(struct file *file)
{
    struct database *database = file->database;
    adit_volume *volume = file->volume->handle;
    adit_stat stat = ADIT_STAT_INIT, own = ADIT_STAT_INIT;
    int result = adit_fstat(file->handle, &stat);
    database->shm_path = sqlite3_mprintf("%s-shm", file->path);
    if (database->shm_path == NULL)
        return -ENOMEM;
    if (result == 0 && file->readonly_shm && !database->in_memory)
        result = -EROFS;
    if (result == 0)
        result = adit_open(volume, database->shm_path, ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_NOFOLLOW, stat.mode & 0777,
                           &database->shm);
    if (result == 0 && adit_fstat(database->shm, &own) == 0 && (own.uid != stat.uid || own.gid != stat.gid))
        (void)adit_fchown(database->shm, stat.uid, stat.gid); /* as far as we may */
    if (result == -EROFS || result == -EACCES) {
        database->readonly = 1;
        result = adit_open(volume, database->shm_path, ADIT_O_RDONLY | ADIT_O_NOFOLLOW, 0, &database->shm);
    }
    return result;
}

/* The last connection of the process uses it no more. */
static void close_index(struct database *database, int delete_it)
{
    while (database->region_count > 0) {
        void *region = database->regions[--database->region_count];
        if (database->in_memory)
            sqlite3_free(region);
    }
    sqlite3_free(database->regions);
    database->regions = NULL;
    if (database->shm != NULL) {
        /* No other process has it: SQLite has the database alone when it says so. */
        if (delete_it && !database->readonly)
            (void)adit_unlink(database->volume->handle, database->shm_path);
        adit_close(database->shm); /* and with it go mappings and locks */
        database->shm = NULL;
    }
    sqlite3_free(database->shm_path);
    database->shm_path = NULL;
    database->in_memory = database->readonly = database->unlocked = 0;
}

/* Takes the dead man's switch: the index is one that living processes keep, or an empty one. */
static int take_switch(struct file *file)
{
    struct database *database = file->database;
    const adit_range_lock alone = {SWITCH, 1, 0, 0, ADIT_LOCK_EXCLUSIVE};
    adit_range_lock other;
    int result = adit_test_lock(database->shm, &alone, &other);
    if (result == 1 && (other.operation & ADIT_LOCK_EXCLUSIVE) && other.len == 1)
        return SQLITE_BUSY; /* it is emptied: a matter of microseconds, as which SQLite takes it */
    if (result == 1 && ((other.operation & ADIT_LOCK_EXCLUSIVE) || database->in_memory))
        return SQLITE_BUSY_RECOVERY; /* until a process has closed the database */
    if (result == 0 && database->in_memory && database->readonly)
        return SQLITE_OK; /* nobody can write to the volume */
    if (result == 0 && database->in_memory)
        result = set(database, ADIT_LOCK_EXCLUSIVE, SWITCH, 2);
    else if (result == 0 && database->readonly) {
        database->unlocked = 1;
        return SQLITE_READONLY_CANTINIT;
    } else if (result == 0) {
        result = set(database, ADIT_LOCK_EXCLUSIVE, SWITCH, 1);
        if (result == 0)
            result = adit_ftruncate(database->shm, 0);
    }
    if (result >= 0 && !database->in_memory)
        result = set(database, ADIT_LOCK_SHARED, SWITCH, 1);
    if (result == -EAGAIN)
        return SQLITE_BUSY;
    if (result < 0)
        return file_failed(file, result, SQLITE_IOERR_SHMLOCK);
    database->unlocked = 0;
    return SQLITE_OK;
}

static int open_index(struct file *file)
{
    struct database *database = file->database;
    adit_info info = ADIT_INFO_INIT;
    int result = adit_volume_info(file->volume->handle, &info);
    if (result < 0)
        return file_failed(file, result, SQLITE_IOERR_SHMOPEN);
    database->in_memory = !(info.flags & ADIT_INFO_SHARED);
    result = open_shm(file);
    if (result < 0 && database->in_memory && database->readonly)
        return SQLITE_OK; /* there is none, and there can't be one */
    if (result < 0)
        return file_failed(file, result, SQLITE_CANTOPEN);
    return take_switch(file);
}

/* ------------------------------------------------------------------------------------------------ the index */

/* One more region, all of zeroes unless the -shm file has it; SQLITE_OK without one if it isn't there, nor to be made. */
static int add_region(struct file *file, int bytes, int extend)
{
    struct database *database = file->database;
    const uint64_t begin = (uint64_t)database->region_count * (uint64_t)bytes;
    void **more, **before = database->regions;
    void *region = NULL;
    if (database->in_memory) {
        if (!extend)
            return SQLITE_OK;
        region = sqlite3_malloc64((size_t)bytes);
        if (region == NULL)
            return SQLITE_IOERR_NOMEM;
        memset(region, 0, (size_t)bytes);
    } else {
        const uint64_t end = begin + (uint64_t)bytes;
        const int64_t size = adit_file_size(database->shm);
        int result = size < 0 ? (int)size : 0;
        if (result == 0 && (uint64_t)size < end) {
            if (!extend)
                return SQLITE_OK;
            result = adit_fallocate(database->shm, 0, (uint64_t)size, end - (uint64_t)size);
        }
        if (result == 0)
            result = adit_map_shared(database->shm, begin, (size_t)bytes, &region);
        if (result < 0)
            return file_failed(file, result, SQLITE_IOERR_SHMMAP);
    }
    /* A child that is forked meanwhile finds the old ones or the new ones: see shm_forget. */
    more = sqlite3_malloc64(((size_t)database->region_count + 1) * sizeof(*more));
    if (more == NULL) {
        if (database->in_memory)
            sqlite3_free(region);
        return SQLITE_IOERR_NOMEM;
    }
    if (before != NULL)
        memcpy(more, before, (size_t)database->region_count * sizeof(*more));
    more[database->region_count] = region;
    database->region_bytes = bytes;
    database->regions = more;
    atomic_signal_fence(memory_order_seq_cst);
    ++database->region_count;
    sqlite3_free(before);
    return SQLITE_OK;
}

/* A connection uses the index for the first time. */
static int use_index(struct file *file)
{
    struct database *database = file->database;
    const int code = database->mapped == 0 ? open_index(file) : SQLITE_OK;
    if (code == SQLITE_OK || code == SQLITE_READONLY_CANTINIT) {
        file->shm_mapped = 1;
        ++database->mapped;
    } else {
        close_index(database, 0);
    }
    return code;
}

int file_shm_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **memory)
{
    struct file *file = (struct file *)base;
    struct database *database = file->database;
    int count, code = SQLITE_OK;
    *memory = NULL;
    if (database == NULL || file->forks != forks())
        return SQLITE_IOERR_SHMMAP;
    pthread_mutex_lock(&database->mutex);
    if (!file->shm_mapped)
        code = use_index(file);
    if (code == SQLITE_OK && database->unlocked)
        code = take_switch(file);
    do {
        count = database->region_count;
        if (code == SQLITE_OK && count <= region)
            code = add_region(file, bytes, extend);
    } while (database->region_count > count);
    if (code == SQLITE_OK && region < database->region_count) {
        if (bytes > database->region_bytes)
            code = SQLITE_IOERR_SHMSIZE;
        else
            *memory = database->regions[region];
    }
    if (code == SQLITE_OK && database->readonly && !database->in_memory)
        code = SQLITE_READONLY;
    pthread_mutex_unlock(&database->mutex);
    return code;
}

void shm_forget(struct database *database)
{
    const size_t bytes = (size_t)database->region_bytes;
    int region;
    /* SQLite, in the child, may still write what its connections had to. Never to its parent's index. */
    for (region = 0; !database->in_memory && region < database->region_count; ++region)
        (void)mmap(database->regions[region], bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                   0);
}

/* ------------------------------------------------------------------------------------------------ its locks */

/* Takes locks of the -shm file. */
static int ask_for(struct file *file, int operation, int first, int count)
{
    int result;
    if (file->database->in_memory)
        return SQLITE_OK;
    result = set(file->database, operation, LOCKS + (uint64_t)first, (uint64_t)count);
    if (result == -EAGAIN)
        return SQLITE_BUSY;
    return result < 0 ? file_failed(file, result, SQLITE_IOERR_SHMLOCK) : SQLITE_OK;
}

static int share(struct file *file, int *locks, int lock, uint16_t bit)
{
    int code;
    if (file->shm_shared & bit)
        return SQLITE_OK;
    if (locks[lock] < 0)
        return SQLITE_BUSY;
    code = ask_for(file, ADIT_LOCK_SHARED, lock, 1);
    if (code == SQLITE_OK) {
        ++locks[lock];
        file->shm_shared |= bit;
    }
    return code;
}

static int take_alone(struct file *file, int *locks, int first, int count, uint16_t bits)
{
    int lock, code;
    for (lock = first; lock < first + count; ++lock) {
        if (locks[lock] != 0)
            return SQLITE_BUSY;
    }
    code = ask_for(file, ADIT_LOCK_EXCLUSIVE, first, count);
    if (code != SQLITE_OK)
        return code;
    for (lock = first; lock < first + count; ++lock)
        locks[lock] = -1;
    file->shm_exclusive |= bits;
    return SQLITE_OK;
}

/* What the connection has of them; those that no other one of this process shares go back to the server. */
static void give_back(struct file *file, int *locks, int first, int count)
{
    int lock, freed = 0;
    for (lock = first; lock <= first + count; ++lock) {
        const uint16_t bit = (uint16_t)(1u << lock);
        int is_free = 0;
        if (lock < first + count && (file->shm_exclusive & bit)) {
            locks[lock] = 0;
            is_free = 1;
        } else if (lock < first + count && (file->shm_shared & bit)) {
            is_free = --locks[lock] == 0;
        }
        if (is_free) {
            ++freed;
        } else if (freed > 0) {
            /* If it fails, the server has taken them. */
            (void)ask_for(file, ADIT_LOCK_UNLOCK, lock - freed, freed);
            freed = 0;
        }
        if (lock < first + count) {
            file->shm_exclusive &= (uint16_t)~bit;
            file->shm_shared &= (uint16_t)~bit;
        }
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

int file_shm_unmap(sqlite3_file *base, int delete_it)
{
    struct file *file = (struct file *)base;
    struct database *database = file->database;
    if (!file->shm_mapped || file->forks != forks())
        return SQLITE_OK;
    pthread_mutex_lock(&database->mutex);
    give_back(file, database->locks, 0, SQLITE_SHM_NLOCK);
    file->shm_mapped = 0;
    if (--database->mapped == 0)
        close_index(database, delete_it);
    pthread_mutex_unlock(&database->mutex);
    return SQLITE_OK;
}
