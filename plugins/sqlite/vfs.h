/*
 * What the files of the VFS share.
 *
 *   vfs.c       names, opening, deleting, registration
 *   volumes.c   the volumes that this process has open, and the databases in them
 *   file.c      an open file: reading, writing, syncing, controls
 *   batch.c     writes that happen together
 *   locks.c     locks between connections
 *   shm.c       the index of WAL mode, and its locks
 *
 * A database's full name is ADDRESS//PATH: the address of its volume and its path in there, which
 * begins with the second slash. So every name that SQLite makes of it (a journal's, a
 * super-journal's) says by itself in which volume it is.
 */
#ifndef ADIT_SQLITE_VFS_H
#define ADIT_SQLITE_VFS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#ifdef SQLITE_CORE
#include <sqlite3.h>
#else
#include <sqlite3ext.h>
#ifndef ADIT_SQLITE_MAIN
SQLITE_EXTENSION_INIT3
#endif
#endif

#ifndef SQLITE_OPEN_SUPER_JOURNAL
#define SQLITE_OPEN_SUPER_JOURNAL SQLITE_OPEN_MASTER_JOURNAL /* its name until SQLite 3.33 */
#endif

#include "adit_sqlite.h"

#include <pthread.h>
#include <stdint.h>

#define NAME_BYTES_MAX 4096
#define WORDS_BYTES_MAX (2 * NAME_BYTES_MAX) /* of a message */

/* ------------------------------------------------------------------------------------------------ volumes.c */

/* A volume of this process. */
struct volume {
    struct volume *next;
    char *address;
    adit_volume *handle;
    unsigned files; /* open in it */
    int lent;       /* the program's own */
};

/* What all connections of this process to one database share: the index of its WAL. See shm.c. */
struct database {
    struct database *next;
    struct volume *volume;
    uint64_t ino, generation;
    unsigned connections;
    pthread_mutex_t mutex; /* guards the rest */
    unsigned mapped;       /* connections that use the index */
    adit_file *shm;        /* the -shm file; NULL: no connection uses the index, or there can't be one */
    char *shm_path;
    unsigned in_memory : 1; /* the index is memory of this process, which has the database alone */
    unsigned readonly : 1;  /* the -shm file can't be written */
    unsigned unlocked : 1;  /* it isn't known whether others use the -shm file */
    int region_bytes;
    int region_count;
    void **regions;
    int locks[SQLITE_SHM_NLOCK]; /* connections that share it; -1: one has it alone */
};

/* The volume at an address, opened if it isn't; volume_release gives it back. NULL after telling why. */
struct volume *volume_acquire(const char *address, int *code);

/* For a file without a name, of which SQLite doesn't say for which database it is: the volume that this thread used
 * last, or any that is open, or the one of ADIT_VOLUME. NULL: there is none, which isn't told. */
struct volume *volume_acquire_any(int *code);

/* The volume that this thread used last, unless it is at that address. NULL: there is none. */
struct volume *volume_acquire_last_used(const char *not_at);

/* This thread uses it. */
void volume_used(struct volume *volume);
void volume_release(struct volume *volume);

/* Says what went wrong; returns the code. */
int tell(int code, const char *format, ...);

/* How often this process and its ancestors forked since the VFS was there: what was opened before is not ours. */
unsigned forks(void);

/* The database that an open file is. NULL without memory. */
struct database *database_acquire(struct volume *volume, const adit_stat *stat);
void database_release(struct database *database);

/* ------------------------------------------------------------------------------------------------ file.c */

/* Writes that are to happen together: see batch.c. */
struct batch {
    adit_write_range *ranges; /* each with memory of its own */
    size_t count, room;
    size_t bytes, bytes_max;
    int open;
};

/* An open file; SQLite provides the memory. */
struct file {
    sqlite3_file base;
    adit_file *handle;
    struct volume *volume;
    struct database *database; /* of a main database only */
    char *path;                /* in the volume */
    int kind;                  /* SQLITE_OPEN_MAIN_DB and its like */
    unsigned forks;            /* when it was opened */
    int level;                 /* SQLITE_LOCK_... */
    int last_errno;
    int chunk_bytes;
    unsigned persist_wal : 1;
    unsigned powersafe_overwrite : 1;
    unsigned batches : 1; /* offers batch atomic writes */
    unsigned journal_not_synced : 1; /* see batch.c */
    unsigned readonly_shm : 1;       /* "readonly_shm" of the URI */
    uint8_t shm_mapped;
    uint16_t shm_shared, shm_exclusive; /* locks held, a bit each */
    struct batch batch;
};

extern const sqlite3_io_methods adit_io_methods;

/* Says the last error of Adit, remembers its number, and returns the SQLite code for it: `code` unless space or memory
 * are the reason. */
int file_failed(struct file *file, int64_t result, int code);

/* ------------------------------------------------------------------------------------------------ locks.c, shm.c */

int file_lock(sqlite3_file *base, int level);
int file_unlock(sqlite3_file *base, int level);
int file_check_reserved_lock(sqlite3_file *base, int *reserved);

int file_shm_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **memory);
int file_shm_lock(sqlite3_file *base, int first, int count, int flags);
void file_shm_barrier(sqlite3_file *base);
int file_shm_unmap(sqlite3_file *base, int delete_it);

/* In a forked child: the index of its parent's connections is no memory of its own. */
void shm_forget(struct database *database);

/* ------------------------------------------------------------------------------------------------ batch.c */

int batch_begin(struct file *file);
int batch_write(struct file *file, const void *data, int len, int64_t offset);
int batch_commit(struct file *file);

/* Lays what the batch holds over what was read. */
void batch_overlay(const struct file *file, void *data, int len, int64_t offset);
void batch_drop(struct file *file);
void batch_roll_back(struct file *file);

/* Before a database is written without a batch. */
int batch_sync_journal(struct file *file);

#endif
