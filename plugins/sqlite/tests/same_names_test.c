/*
 * A program with functions of its own that have the names of the extension's: `batch_overlay` of a
 * program was called instead of ours at every read, since the extension showed all its functions
 * and the dynamic linker takes the program's first.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

/* What vfs.h declares, for other purposes. */
#define OURS(name)                                                       \
    void name(void);                                                     \
    void name(void)                                                      \
    {                                                                    \
        fprintf(stderr, "the extension called the program's " #name "\n"); \
        exit(3);                                                         \
    }

OURS(batch_overlay)
OURS(batch_sync_journal)
OURS(database_acquire)
OURS(file_lock)
OURS(forks)
OURS(volume_acquire)
OURS(volume_used)
OURS(adit_pread)
OURS(sqlite3_adit_register)

static void must(int code, sqlite3 *db)
{
    if (code == SQLITE_OK)
        return;
    fprintf(stderr, "%s\n", sqlite3_errmsg(db));
    exit(1);
}

int main(int count, char **words)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
    sqlite3 *loader = NULL, *db = NULL;
    char *name;
    if (count != 3)
        return 2;
    must(sqlite3_open(":memory:", &loader), loader);
    must(sqlite3_enable_load_extension(loader, 1), loader);
    must(sqlite3_load_extension(loader, words[1], NULL, NULL), loader);
    name = sqlite3_mprintf("file:/app.db?vfs=adit&volume=%s", words[2]);
    must(sqlite3_open_v2(name, &db, flags, NULL), db);
    sqlite3_free(name);
    must(sqlite3_exec(db, "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)", NULL, NULL, NULL), db);
    must(sqlite3_exec(db, "PRAGMA journal_mode=WAL; UPDATE t SET a = a + 1", NULL, NULL, NULL), db);
    must(sqlite3_close(db), db);
    must(sqlite3_close(loader), loader);
    puts("each kept to its own");
    return 0;
}
