/*
 * The VFS linked into a program: its sources or libadit_sqlite.a, libadit.a and the system's
 * SQLite. Then: what a child of fork() may do, and a second process, which this program is when it
 * is started with "again". The volume is an image, which one process has, or in a server.
 */
#define _GNU_SOURCE
#include "adit_sqlite.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int claims;

#define HOLDS(condition)                                                                   \
    do {                                                                                   \
        ++claims;                                                                          \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                      \
        }                                                                                  \
    } while (0)

static int open_database(const char *image, sqlite3 **db)
{
    char *name = sqlite3_mprintf("file:/app.db?vfs=adit&volume=%s", image);
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
    const int code = sqlite3_open_v2(name, db, flags, NULL);
    sqlite3_free(name);
    return code;
}

static int does(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* How the child ended, if by itself. */
static int ending(pid_t child)
{
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int count, char **words)
{
    sqlite3 *db = NULL, *other = NULL;
    HOLDS(count >= 2);
    const int is_served = strncmp(words[1], "unix:", 5) == 0;
    HOLDS(sqlite3_adit_register(0) == SQLITE_OK);
    HOLDS(sqlite3_adit_register(0) == SQLITE_OK);
    HOLDS(sqlite3_vfs_find("adit") != NULL && sqlite3_vfs_find(NULL) != sqlite3_vfs_find("adit"));
    if (count > 2 && is_served)
        return open_database(words[1], &db) == SQLITE_OK && does(db, "INSERT INTO t VALUES (5)") ? 0 : 1;
    if (count > 2)
        return open_database(words[1], &db) == SQLITE_BUSY ? 0 : 1;
    HOLDS(open_database(words[1], &db) == SQLITE_OK);
    HOLDS(does(db, "PRAGMA journal_mode=WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)"));
    /* Pages of an open transaction in the log, of which a rollback cleans the index. */
    HOLDS(does(db, "PRAGMA cache_size=1; PRAGMA cache_spill=1; BEGIN; CREATE TABLE u (a)"));
    HOLDS(does(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
                   "INSERT INTO u SELECT randomblob(3000) FROM n"));
    const pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        /* Not the parent's connection, and one of its own through a server only. */
        (void)does(db, "ROLLBACK");
        HOLDS(!does(db, "INSERT INTO t VALUES (2)"));
        HOLDS(open_database(words[1], &other) == (is_served ? SQLITE_OK : SQLITE_BUSY));
        HOLDS(does(other, "SELECT * FROM t") == is_served);
        sqlite3_close(other);
        sqlite3_close(db);
        _exit(0);
    }
    HOLDS(ending(child) == 0);
    HOLDS(does(db, "INSERT INTO t VALUES (3); COMMIT; PRAGMA integrity_check"));
    HOLDS(does(db, "SELECT CASE WHEN (SELECT count(*) FROM u) = 100 THEN 1 ELSE abs(-9223372036854775808) END"));
    HOLDS(open_database(words[1], &other) == SQLITE_OK);
    HOLDS(does(other, "INSERT INTO t VALUES (4)"));
    const pid_t second = fork();
    HOLDS(second >= 0);
    if (second == 0) {
        execl(words[0], words[0], words[1], "again", (char *)NULL);
        _exit(2);
    }
    HOLDS(ending(second) == 0);
    HOLDS(sqlite3_close(other) == SQLITE_OK);
    HOLDS(sqlite3_close(db) == SQLITE_OK);
    HOLDS(sqlite3_adit_register(1) == SQLITE_OK);
    HOLDS(sqlite3_vfs_find(NULL) == sqlite3_vfs_find("adit"));
    printf("%d claims hold\n", claims);
    return 0;
}
