/*
 * adit_sqlite.h: SQLite databases in Adit volumes, through a VFS named "adit".
 *
 * As an extension, libadit_sqlite.so registers itself when it is loaded. A program that links
 * libadit_sqlite.a calls sqlite3_adit_register once. README.md and docs/using/sqlite.md say how
 * databases are named.
 */
#ifndef ADIT_SQLITE_H
#define ADIT_SQLITE_H

#include "adit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the VFS; as SQLite's default one if make_default isn't 0. Again and again if asked. SQLITE_OK or an error. */
int sqlite3_adit_register(int make_default);

/* Lends the VFS a volume that the program has open itself: databases at that address are in it. The program gets it back
 * with volume NULL, and closes it then. SQLITE_BUSY: databases are open in it; SQLITE_MISUSE: the address is in use. */
int sqlite3_adit_lend_volume(const char *address, adit_volume *volume);

/* Hands messages of Adit to SQLite's log (SQLITE_CONFIG_LOG), and errors to standard error, too. The extension sees to that
 * itself; a program that links statically has one place for messages, and decides:
 *
 *     adit_set_log(sqlite3_adit_log, NULL, ADIT_LOG_WARNING);
 */
void sqlite3_adit_log(void *unused, int level, const char *message);

#ifdef __cplusplus
}
#endif

#endif
