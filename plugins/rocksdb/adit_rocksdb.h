/*
 * An Env of RocksDB on an Adit volume, for programs that use RocksDB's C interface (rocksdb/c.h), and
 * for the bindings of other languages, which are built on it.
 */
#ifndef ADIT_ROCKSDB_H
#define ADIT_ROCKSDB_H

#include "rocksdb/c.h"

#ifdef __cplusplus
extern "C" {
#endif

struct adit_open_options; /* of adit.h */

/* Returns an Env whose files are in the volume at address, a PATH or adit://PATH, and opens the
 * volume. Pass it to rocksdb_options_set_env, and to rocksdb_env_destroy after all DBs that use it
 * are closed; the volume is closed with the last Env on it.
 *
 * options decide how the volume is opened. NULL: as the environment says (ADIT_CACHE and others). A
 * volume that this process has open through RocksDB is shared as it is, and options are ignored.
 *
 * NULL and a text in *errptr if the volume can't be opened; the caller frees it with free() (or
 * rocksdb_free). As in rocksdb/c.h, *errptr must be NULL or such a text before, and stays as it is
 * after success. */
rocksdb_env_t* adit_rocksdb_create_env(const char* address, const struct adit_open_options* options,
                                       char** errptr);

#ifdef __cplusplus
}
#endif

#endif /* ADIT_ROCKSDB_H */
