/*
 * RocksDB's C interface on a volume, by adit_rocksdb_create_env: what bindings of other languages
 * do. The plugin is linked, not preloaded.
 *
 *   c_test IMAGE      an image that is formatted; prints "N claims hold"
 */
#include "adit_rocksdb.h"

#include "adit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int claims;

#define HOLDS(condition)                                                            \
    do {                                                                            \
        ++claims;                                                                   \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#define KEYS 2000

static void write_and_read(rocksdb_env_t* env, int round)
{
    char *error = NULL;
    rocksdb_options_t* options = rocksdb_options_create();
    rocksdb_writeoptions_t* synced = rocksdb_writeoptions_create();
    rocksdb_readoptions_t* read = rocksdb_readoptions_create();
    rocksdb_t* db;
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_write_buffer_size(options, 64 << 10);
    rocksdb_options_set_env(options, env);
    rocksdb_writeoptions_set_sync(synced, 1);
    db = rocksdb_open(options, "/db", &error);
    if (error != NULL)
        fprintf(stderr, "%s\n", error);
    HOLDS(db != NULL && error == NULL);
    for (int i = 0; i < KEYS; ++i) {
        char key[32], expected[64];
        size_t len = 0;
        const int key_len = snprintf(key, sizeof(key), "key %06d", i);
        const int value_len = snprintf(expected, sizeof(expected), "value %d of round %d", i, round);
        if (round > 0) {
            char before[64];
            const int before_len =
                snprintf(before, sizeof(before), "value %d of round %d", i, round - 1);
            char* value = rocksdb_get(db, read, key, (size_t)key_len, &len, &error);
            HOLDS(error == NULL && value != NULL && len == (size_t)before_len);
            HOLDS(memcmp(value, before, len) == 0);
            rocksdb_free(value);
        }
        rocksdb_put(db, synced, key, (size_t)key_len, expected, (size_t)value_len, &error);
        HOLDS(error == NULL);
    }
    rocksdb_compact_range(db, NULL, 0, NULL, 0);
    rocksdb_close(db);
    rocksdb_readoptions_destroy(read);
    rocksdb_writeoptions_destroy(synced);
    rocksdb_options_destroy(options);
}

static rocksdb_env_t* refused(const char* address, const adit_open_options* options,
                              const char* word)
{
    char* error = NULL;
    rocksdb_env_t* env = adit_rocksdb_create_env(address, options, &error);
    HOLDS(env == NULL && error != NULL);
    printf("%s\n", error);
    HOLDS(strstr(error, word) != NULL);
    /* The next error takes its place, as in RocksDB. */
    env = adit_rocksdb_create_env(NULL, NULL, &error);
    HOLDS(env == NULL && strstr(error, "NULL") != NULL);
    free(error);
    HOLDS(adit_rocksdb_create_env(address, options, NULL) == NULL);
    return env;
}

int main(int argc, char** argv)
{
    char* error = NULL;
    char address[4096];
    rocksdb_env_t *env, *same;
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    const char* image = argc > 1 ? argv[1] : "";

    refused("/no/such/volume.adit", NULL, "No such file");
    refused("/dev/null", NULL, "/dev/null");
    options.cache_bytes = 4096;
    refused(image, &options, "cache");
    options.cache_bytes = 32 << 20;
    options.struct_bytes = 1;
    refused(image, &options, "struct_bytes");
    options.struct_bytes = sizeof(options);

    env = adit_rocksdb_create_env(image, &options, &error);
    HOLDS(env != NULL && error == NULL);
    write_and_read(env, 0);
    write_and_read(env, 1); /* closed and opened again */
    snprintf(address, sizeof(address), "adit://%s", image);
    same = adit_rocksdb_create_env(address, NULL, &error);
    HOLDS(same != NULL && error == NULL);
    rocksdb_env_destroy(env);
    write_and_read(same, 2); /* the volume is still open */
    rocksdb_env_destroy(same);
    env = adit_rocksdb_create_env(image, NULL, &error); /* and now it was not */
    HOLDS(env != NULL && error == NULL);
    write_and_read(env, 3);
    rocksdb_env_destroy(env);
    printf("%d claims hold\n", claims);
    return 0;
}
