/* Names, opening, deleting, registration: see vfs.h. */
#define ADIT_SQLITE_MAIN
#include "vfs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifndef SQLITE_CORE
SQLITE_EXTENSION_INIT1
#endif

/* ------------------------------------------------------------------------------------------------ names */

/* Divides ADDRESS//PATH: copies the address, returns the path. NULL if it isn't such a name. */
static const char *divide(const char *name, char address[NAME_BYTES_MAX])
{
    const char *path = *name != '\0' ? strstr(name + 1, "//") : NULL;
    if (path == NULL || path - name >= NAME_BYTES_MAX)
        return NULL;
    memcpy(address, name, (size_t)(path - name));
    address[path - name] = '\0';
    return path + 1;
}

/* Two spellings of one path are one volume; mem:SIZE, lent ones and what doesn't exist stay as they are. */
static char *canonical(const char *address)
{
    char resolved[PATH_MAX];
    return sqlite3_mprintf("%s", realpath(address, resolved) != NULL ? resolved : address);
}

/* One spelling of a path in a volume. */
static char *squeeze(const char *path)
{
    char *result = sqlite3_mprintf("/%s", path);
    char *to = result, *from = result;
    while (result != NULL && *from != '\0') {
        if (from[0] == '/' && from[1] == '/')
            ++from;
        else if (from[0] == '/' && from[1] == '.' && (from[2] == '/' || from[2] == '\0'))
            from += 2;
        else
            *to++ = *from++;
    }
    if (result != NULL)
        *to = '\0';
    return result;
}

static int full_pathname(sqlite3_vfs *vfs, const char *name, int room, char *result)
{
    char given[NAME_BYTES_MAX];
    const char *address = given;
    const char *path = divide(name, given);
    char *volume, *inside;
    int code = SQLITE_OK;
    (void)vfs;
    if (path == NULL) {
        path = name;
        address = sqlite3_uri_parameter(name, "volume");
        if (address == NULL)
            address = getenv("ADIT_VOLUME");
        if (address == NULL || *address == '\0')
            return tell(SQLITE_CANTOPEN,
                        "in which volume? file:/PATH?vfs=adit&volume=ADDRESS says it, or ADIT_VOLUME");
    }
    volume = canonical(address);
    inside = squeeze(path);
    if (volume == NULL || inside == NULL)
        code = SQLITE_NOMEM;
    else if (strstr(volume, "//") != NULL)
        code = tell(SQLITE_CANTOPEN, "a volume's address can't contain //");
    else if (strlen(volume) + 1 + strlen(inside) >= (size_t)room)
        code = tell(SQLITE_CANTOPEN, "the names of volume and database are too long");
    else
        sqlite3_snprintf(room, result, "%s/%s", volume, inside);
    sqlite3_free(volume);
    sqlite3_free(inside);
    return code;
}

/* ------------------------------------------------------------------------------------------------ files */

/* The database that a journal or log belongs to: its name without the suffix. */
static int stat_database(const struct file *file, adit_stat *result)
{
    const char *suffix = strrchr(file->path, '-');
    char *path;
    int found = -ENOMEM;
    if (suffix == NULL)
        return -ENOENT;
    path = sqlite3_mprintf("%.*s", (int)(suffix - file->path), file->path);
    if (path != NULL)
        found = adit_stat_path(file->volume->handle, path, result);
    sqlite3_free(path);
    return found;
}

/* A journal or log has the permissions and the owner of its database, as with SQLite's unix VFS:
 * otherwise others could read in it what they can't in the database, or a database that root has
 * used would be its owner's no more.
 * No symbolic links: a journal lies beside the name by which its database was opened. A connection
 * behind a link would miss the journal of a killed writer, and read a torn database; and a user who can
 * make names beside a database would choose the file that its journal overwrites. */
static int open_handle(struct file *file, int *flags)
{
    const int is_journal = *flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL) && *flags & SQLITE_OPEN_CREATE;
    adit_stat database = ADIT_STAT_INIT, own = ADIT_STAT_INIT;
    uint32_t mode = *flags & SQLITE_OPEN_DELETEONCLOSE ? 0600 : 0644;
    unsigned wanted = *flags & SQLITE_OPEN_READWRITE ? ADIT_O_RDWR : ADIT_O_RDONLY;
    int result;
    if (is_journal) {
        result = stat_database(file, &database);
        if (result < 0)
            return file_failed(file, result, SQLITE_IOERR_FSTAT);
        mode = database.mode & 0777;
    }
    wanted |= ADIT_O_NOFOLLOW;
    if (*flags & SQLITE_OPEN_CREATE)
        wanted |= ADIT_O_CREAT;
    if (*flags & SQLITE_OPEN_EXCLUSIVE)
        wanted |= ADIT_O_EXCL;
    result = adit_open(file->volume->handle, file->path, wanted, mode, &file->handle);
    if ((result == -EROFS || result == -EACCES) && (wanted & ADIT_O_RDWR) && !(wanted & ADIT_O_EXCL)) {
        result = adit_open(file->volume->handle, file->path, ADIT_O_RDONLY | ADIT_O_NOFOLLOW, 0, &file->handle);
        *flags = (*flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
    }
    if (result < 0) {
        /* A temporary file is the other VFS's then, and a journal may have gone since SQLite has seen it. */
        if (!(*flags & SQLITE_OPEN_DELETEONCLOSE) && !(result == -ENOENT && (*flags & SQLITE_OPEN_MAIN_JOURNAL)))
            file_failed(file, result, SQLITE_CANTOPEN);
        if (result == -ELOOP)
            tell(SQLITE_CANTOPEN, "a database and its journal are opened by their own names, not by symbolic links");
        return result == -ENOSPC ? SQLITE_FULL : SQLITE_CANTOPEN;
    }
    if (is_journal && adit_fstat(file->handle, &own) == 0 && (own.uid != database.uid || own.gid != database.gid))
        (void)adit_fchown(file->handle, database.uid, database.gid); /* as far as we may */
    /* It lives on until it is closed. */
    if (*flags & SQLITE_OPEN_DELETEONCLOSE && adit_unlink(file->volume->handle, file->path) < 0)
        sqlite3_log(SQLITE_WARNING, "adit: the temporary file %s stays: %s", file->path, adit_error_message());
    return SQLITE_OK;
}

/* A name that nobody has; the file loses it at once. */
static char *temporary_name(void)
{
    uint64_t random[2];
    sqlite3_randomness(sizeof(random), random);
    return sqlite3_mprintf("/.sqlite-temporary-%016llx%016llx", random[0], random[1]);
}

static int open_named(struct file *file, const char *name, int *flags)
{
    char address[NAME_BYTES_MAX];
    const char *path;
    int code = SQLITE_CANTOPEN;
    if (name == NULL) {
        file->volume = volume_acquire_any(&code);
        file->path = temporary_name();
        *flags |= SQLITE_OPEN_DELETEONCLOSE | SQLITE_OPEN_EXCLUSIVE | SQLITE_OPEN_CREATE;
    } else {
        path = divide(name, address);
        if (path == NULL)
            return tell(SQLITE_CANTOPEN, "a name without its volume");
        file->volume = volume_acquire(address, &code);
        file->path = sqlite3_mprintf("%s", path);
        volume_used(file->volume);
    }
    if (file->volume == NULL)
        return code;
    return file->path != NULL ? open_handle(file, flags) : SQLITE_NOMEM;
}

static sqlite3_vfs *other(sqlite3_vfs *vfs)
{
    return vfs->pAppData;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags, int *flags_out)
{
    struct file *file = (struct file *)base;
    adit_stat stat = ADIT_STAT_INIT;
    const int given = flags;
    int code;
    memset(file, 0, sizeof(*file));
    file->forks = forks();
    file->kind = flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL);
    code = open_named(file, name, &flags);
    file->powersafe_overwrite = 1;
    if (code == SQLITE_OK && (flags & SQLITE_OPEN_MAIN_DB)) {
        file->powersafe_overwrite = sqlite3_uri_boolean(name, "psow", 1) != 0;
        file->batches = sqlite3_uri_boolean(name, "batch", 1) != 0;
        file->readonly_shm = sqlite3_uri_boolean(name, "readonly_shm", 0) != 0;
        const int found = adit_fstat(file->handle, &stat);
        if (found < 0)
            code = file_failed(file, found, SQLITE_IOERR_FSTAT);
        else if ((file->database = database_acquire(file->volume, &stat)) == NULL)
            code = SQLITE_NOMEM;
    }
    if (code != SQLITE_OK) {
        if (file->handle != NULL)
            adit_close(file->handle);
        if (file->volume != NULL)
            volume_release(file->volume);
        sqlite3_free(file->path);
        memset(file, 0, sizeof(*file)); /* without methods: SQLite doesn't close it */
        /* A temporary file for which the volume has no place (it is read-only, or the user has no rights in its root)
         * is the other VFS's. */
        if (name == NULL && code == SQLITE_CANTOPEN)
            code = other(vfs)->xOpen(other(vfs), name, base, given, flags_out);
        return code;
    }
    file->base.pMethods = &adit_io_methods;
    if (flags_out != NULL)
        *flags_out = flags;
    return SQLITE_OK;
}

/* The fsync of a directory makes all its names durable. A user who may change it need not be allowed to read it: then
 * everything is synced. */
static int sync_directory(struct volume *volume, const char *path)
{
    const char *end = strrchr(path, '/');
    char *directory = sqlite3_mprintf("%.*s/", (int)(end - path), path);
    int result = -ENOMEM;
    if (directory != NULL)
        result = adit_fsync_path(volume->handle, directory);
    if (result == -EACCES)
        result = adit_syncfs(volume->handle);
    sqlite3_free(directory);
    return result;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int and_sync)
{
    char address[NAME_BYTES_MAX];
    const char *path = divide(name, address);
    int code = SQLITE_IOERR_DELETE;
    struct volume *volume = path != NULL ? volume_acquire(address, &code) : NULL;
    int result;
    (void)vfs;
    if (volume == NULL)
        return code;
    result = adit_unlink(volume->handle, path);
    if (result == -ENOENT)
        code = SQLITE_IOERR_DELETE_NOENT;
    else if (result >= 0)
        code = and_sync && sync_directory(volume, path) < 0 ? SQLITE_IOERR_DIR_FSYNC : SQLITE_OK;
    if (code != SQLITE_OK && code != SQLITE_IOERR_DELETE_NOENT)
        sqlite3_log(code, "adit: %s", adit_error_message());
    volume_release(volume);
    return code;
}

/* The name of a super-journal contains the address that its volume had then. If it lies in the volume at hand, which
 * has another address now, a volume at the old one can't answer for it: there is none there, and SQLite would take the
 * transaction for committed, of which perhaps one database has its part. */
static int check_super_journal(const char *address, const char *path)
{
    const size_t len = strlen(path), suffix = strlen("-mjXXXXXX9XX");
    struct volume *here = NULL;
    adit_stat stat = ADIT_STAT_INIT;
    int found;
    if (len > suffix && strncmp(path + len - suffix, "-mj", 3) == 0)
        here = volume_acquire_last_used(address);
    if (here == NULL)
        return SQLITE_OK;
    found = adit_stat_path(here->handle, path, &stat);
    volume_release(here);
    if (found == -ENOENT || found == -ENOTDIR)
        return SQLITE_OK;
    return tell(SQLITE_CANTOPEN,
                "%s is of a transaction over several databases in %s, which was at another address then: open them there "
                "once, for it to be undone or completed", path, address);
}

/* Only a super-journal can have a name without a volume. Whether it is there this VFS can't tell: of a name that isn't
 * there SQLite takes the transaction for committed. */
static int refuse_super_journal(const char *name)
{
    return tell(SQLITE_CANTOPEN,
                "%s is of a transaction over several databases, by a program under adit run or with a database that is in "
                "no volume: open them there once, for it to be undone or completed", name);
}

/* A file that is empty doesn't exist for SQLite. */
static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *result)
{
    char address[NAME_BYTES_MAX];
    const char *path = divide(name, address);
    int code = path != NULL ? check_super_journal(address, path) : refuse_super_journal(name);
    struct volume *volume = code == SQLITE_OK ? volume_acquire(address, &code) : NULL;
    adit_stat stat = ADIT_STAT_INIT;
    int found;
    (void)vfs;
    *result = 0;
    if (volume == NULL)
        return code;
    found = adit_stat_path(volume->handle, path, &stat);
    if (found == 0)
        *result = flags != SQLITE_ACCESS_EXISTS || (stat.mode & 0170000) != 0100000 || stat.size_bytes > 0;
    volume_release(volume);
    if (found == 0 || found == -ENOENT || found == -ENOTDIR)
        return SQLITE_OK;
    sqlite3_log(SQLITE_IOERR_ACCESS, "adit: %s", adit_error_message());
    return SQLITE_IOERR_ACCESS;
}

/* ------------------------------------------------------------------------------------------------ what the system does */

static void *dl_open(sqlite3_vfs *vfs, const char *name)
{
    return other(vfs)->xDlOpen(other(vfs), name);
}

static void dl_error(sqlite3_vfs *vfs, int room, char *message)
{
    other(vfs)->xDlError(other(vfs), room, message);
}

static void (*dl_sym(sqlite3_vfs *vfs, void *library, const char *symbol))(void)
{
    return other(vfs)->xDlSym(other(vfs), library, symbol);
}

static void dl_close(sqlite3_vfs *vfs, void *library)
{
    other(vfs)->xDlClose(other(vfs), library);
}

static int randomness(sqlite3_vfs *vfs, int room, char *bytes)
{
    return other(vfs)->xRandomness(other(vfs), room, bytes);
}

static int sleep_for(sqlite3_vfs *vfs, int microseconds)
{
    return other(vfs)->xSleep(other(vfs), microseconds);
}

static int current_time(sqlite3_vfs *vfs, double *days)
{
    return other(vfs)->xCurrentTime(other(vfs), days);
}

static int current_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *milliseconds)
{
    return other(vfs)->xCurrentTimeInt64(other(vfs), milliseconds);
}

static int last_error(sqlite3_vfs *vfs, int room, char *message)
{
    (void)vfs;
    if (room > 0)
        sqlite3_snprintf(room, message, "%s", adit_error_message());
    return 0;
}

/* ------------------------------------------------------------------------------------------------ registration */

static sqlite3_vfs adit_vfs = {
    .iVersion = 3,
    .szOsFile = sizeof(struct file),
    .mxPathname = NAME_BYTES_MAX,
    .zName = "adit",
    .xOpen = vfs_open,
    .xDelete = vfs_delete,
    .xAccess = vfs_access,
    .xFullPathname = full_pathname,
    .xDlOpen = dl_open,
    .xDlError = dl_error,
    .xDlSym = dl_sym,
    .xDlClose = dl_close,
    .xRandomness = randomness,
    .xSleep = sleep_for,
    .xCurrentTime = current_time,
    .xGetLastError = last_error,
    .xCurrentTimeInt64 = current_time_int64,
    /* There are no system calls to replace. */
};

int sqlite3_adit_register(int make_default)
{
    if (adit_vfs.pAppData == NULL)
        adit_vfs.pAppData = sqlite3_vfs_find(NULL);
    if (adit_vfs.pAppData == NULL)
        return SQLITE_ERROR;
    if (adit_vfs.szOsFile < other(&adit_vfs)->szOsFile)
        adit_vfs.szOsFile = other(&adit_vfs)->szOsFile;
    return sqlite3_vfs_register(&adit_vfs, make_default);
}

#ifndef SQLITE_CORE
int sqlite3_aditsqlite_init(sqlite3 *db, char **error, const sqlite3_api_routines *api);

/* What SQLite calls when it loads libadit_sqlite.so. */
int sqlite3_aditsqlite_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
    SQLITE_EXTENSION_INIT2(api);
    int code = sqlite3_adit_register(0);
    (void)db;
    /* The library has a libadit.a of its own. */
    adit_set_log(sqlite3_adit_log, NULL, ADIT_LOG_WARNING);
    if (code != SQLITE_OK && error != NULL)
        *error = sqlite3_mprintf("adit: there is no VFS to stand beside");
    /* A VFS can't go while connections use it. */
    return code == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : code;
}
#endif
