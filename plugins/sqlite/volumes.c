/* The volumes that this process has open, and the databases in them: see vfs.h. */
#include "vfs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Guards both lists, and what their members say about who uses them. Volumes are opened and closed under it, so that who
 * opens one finds it open or closed, and never on the way. */
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct volume *volumes;
static struct database *databases;
static unsigned fork_count;

/* Perhaps gone: only to be compared. */
static _Thread_local const struct volume *last_used;

void volume_used(struct volume *volume)
{
    last_used = volume;
}

/* A forked child has none of its parent's volumes: what it opens it opens anew, and is told who has it. Another thread of
 * the parent may have held any of our locks. */
static void forget(void)
{
    struct database *database;
    ++fork_count;
    pthread_mutex_init(&registry, NULL);
    for (database = databases; database != NULL; database = database->next)
        shm_forget(database);
    volumes = NULL;
    databases = NULL;
}

static void forget_in_children(void)
{
    pthread_atfork(NULL, NULL, forget);
}

static void enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, forget_in_children);
    pthread_mutex_lock(&registry);
}

static void leave(void)
{
    pthread_mutex_unlock(&registry);
}

unsigned forks(void)
{
    return fork_count;
}

/* The words of an error go to SQLite's log and, since SQLite itself has none for what goes wrong with a volume, to
 * standard error. */
int tell(int code, const char *format, ...)
{
    char words[WORDS_BYTES_MAX];
    va_list arguments;
    va_start(arguments, format);
    sqlite3_vsnprintf(sizeof(words), words, format, arguments);
    va_end(arguments);
    sqlite3_log(code, "adit: %s", words);
    fprintf(stderr, "adit: %s\n", words);
    return code;
}

/* May be called by any thread, so by one that is inside of SQLite, which sqlite3_log allows. */
void sqlite3_adit_log(void *unused, int level, const char *message)
{
    (void)unused;
    if (level == ADIT_LOG_ERROR)
        tell(SQLITE_IOERR, "%s", message);
    else
        sqlite3_log(level == ADIT_LOG_WARNING ? SQLITE_WARNING : SQLITE_NOTICE, "adit: %s", message);
}

static struct volume *find(const char *address)
{
    struct volume *volume = volumes;
    while (volume != NULL && strcmp(volume->address, address) != 0)
        volume = volume->next;
    return volume;
}

static struct volume *add(const char *address, adit_volume *handle, int lent)
{
    struct volume *volume = sqlite3_malloc64(sizeof(*volume));
    char *copy = sqlite3_mprintf("%s", address);
    if (volume == NULL || copy == NULL) {
        sqlite3_free(volume);
        sqlite3_free(copy);
        return NULL;
    }
    *volume = (struct volume){volumes, copy, handle, 0, lent};
    volumes = volume;
    return volume;
}

static void take_out(struct volume *volume)
{
    struct volume **link = &volumes;
    while (*link != volume)
        link = &(*link)->next;
    *link = volume->next;
    sqlite3_free(volume->address);
    sqlite3_free(volume);
}

static struct volume *open_volume(const char *address, int *code)
{
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    adit_volume *handle;
    struct volume *volume;
    int result;
    if (adit_options_from_environment(&options) < 0) {
        *code = tell(SQLITE_CANTOPEN, "%s", adit_error_message());
        return NULL;
    }
    result = adit_open_volume(address, &options, &handle);
    if (result == -EACCES || result == -EROFS || result == -EPERM) {
        options.flags |= ADIT_VOLUME_READ_ONLY;
        result = adit_open_volume(address, &options, &handle);
    }
    if (result < 0) {
        *code = tell(result == -EBUSY ? SQLITE_BUSY : SQLITE_CANTOPEN, "%s", adit_error_message());
        return NULL;
    }
    volume = add(address, handle, 0);
    if (volume == NULL) {
        adit_close_volume(handle);
        *code = SQLITE_NOMEM;
    }
    return volume;
}

struct volume *volume_acquire(const char *address, int *code)
{
    struct volume *volume;
    enter();
    volume = find(address);
    if (volume == NULL)
        volume = open_volume(address, code);
    if (volume != NULL)
        ++volume->files;
    leave();
    return volume;
}

/* The volume that this thread used last, if it is still open. */
static struct volume *find_last_used(void)
{
    struct volume *volume = volumes;
    while (volume != NULL && volume != last_used)
        volume = volume->next;
    return volume;
}

struct volume *volume_acquire_last_used(const char *not_at)
{
    struct volume *volume;
    enter();
    volume = find_last_used();
    if (volume != NULL && strcmp(volume->address, not_at) == 0)
        volume = NULL;
    if (volume != NULL)
        ++volume->files;
    leave();
    return volume;
}

struct volume *volume_acquire_any(int *code)
{
    const char *address = getenv("ADIT_VOLUME");
    struct volume *volume;
    enter();
    volume = find_last_used();
    if (volume == NULL)
        volume = volumes;
    if (volume != NULL)
        ++volume->files;
    leave();
    if (volume == NULL && address != NULL && *address != '\0')
        return volume_acquire(address, code);
    if (volume == NULL)
        *code = SQLITE_CANTOPEN;
    return volume;
}

void volume_release(struct volume *volume)
{
    enter();
    if (--volume->files == 0 && !volume->lent) {
        if (adit_close_volume(volume->handle) < 0)
            tell(SQLITE_IOERR_CLOSE, "%s", adit_error_message());
        take_out(volume);
    }
    leave();
}

/* How long an exit waits for the registry. */
#define EXIT_SECONDS 2

/* Connections that are never closed keep their volume open until the process ends. Their commits without a sync are
 * made durable then, since nobody writes them back later. (A server does.) What the program has for SQLite's log may be
 * gone by then. */
__attribute__((destructor)) static void sync_at_exit(void)
{
    const struct volume *volume;
    struct timespec until;
    /* Whoever exits may do so in a callback of ours, and another thread may wait for a device or a server. */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_SECONDS;
    if (pthread_mutex_timedlock(&registry, &until) != 0) {
        fprintf(stderr, "adit: commits without a sync may not be durable: a volume is being opened or closed at exit\n");
        return;
    }
    for (volume = volumes; volume != NULL; volume = volume->next) {
        if (!volume->lent && adit_volume_is_connected(volume->handle) == 0 && adit_syncfs(volume->handle) < 0)
            fprintf(stderr, "adit: syncing %s at exit: %s\n", volume->address, adit_error_message());
    }
    leave();
}

int sqlite3_adit_lend_volume(const char *address, adit_volume *handle)
{
    struct volume *volume;
    int code = SQLITE_OK;
    enter();
    volume = find(address);
    if (handle != NULL) {
        if (volume != NULL)
            code = SQLITE_MISUSE;
        else if (add(address, handle, 1) == NULL)
            code = SQLITE_NOMEM;
    } else if (volume == NULL || !volume->lent) {
        code = SQLITE_MISUSE;
    } else if (volume->files > 0) {
        code = SQLITE_BUSY;
    } else {
        take_out(volume);
    }
    leave();
    return code;
}

struct database *database_acquire(struct volume *volume, const adit_stat *stat)
{
    struct database *database;
    enter();
    for (database = databases; database != NULL; database = database->next) {
        if (database->volume == volume && database->ino == stat->ino && database->generation == stat->generation)
            break;
    }
    if (database == NULL && (database = sqlite3_malloc64(sizeof(*database))) != NULL) {
        memset(database, 0, sizeof(*database));
        database->next = databases;
        database->volume = volume;
        database->ino = stat->ino;
        database->generation = stat->generation;
        pthread_mutex_init(&database->mutex, NULL);
        databases = database;
    }
    if (database != NULL)
        ++database->connections;
    leave();
    return database;
}

void database_release(struct database *database)
{
    struct database **link = &databases;
    enter();
    if (--database->connections == 0) {
        while (*link != database)
            link = &(*link)->next;
        *link = database->next;
        pthread_mutex_destroy(&database->mutex);
        sqlite3_free(database);
    }
    leave();
}
