// The Env of adit_rocksdb.h, for RocksDB's C interface.
//
// The C interface has no way to make a rocksdb_env_t from an Env, so this file knows its layout. It
// is that of db/c.cc in RocksDB 7.8 to 11.8; rocksdb_env_destroy deletes both.
#include "adit_rocksdb.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "adit_file_system.h"
#include "rocksdb/env.h"

extern "C" {

struct rocksdb_env_t {
  rocksdb::Env* rep;
  bool is_default;
};
}

namespace adit_rocksdb {

namespace {

constexpr char kPrefix[] = "adit://";

void SaveError(const std::string& message, char** errptr) {
  if (errptr == nullptr) return;
  free(*errptr);
  *errptr = strdup(message.c_str());
}

rocksdb_env_t* CreateEnv(const char* address, const adit_open_options* options, char** errptr) {
  if (address == nullptr) {
    SaveError("Invalid argument: adit_rocksdb_create_env: the address is NULL", errptr);
    return nullptr;
  }
  const size_t prefix = strncmp(address, kPrefix, strlen(kPrefix)) == 0 ? strlen(kPrefix) : 0;
  std::string error;
  std::shared_ptr<Volume> volume = OpenVolume(address + prefix, options, &error);
  if (volume == nullptr) {
    SaveError("IO error: " + error, errptr);
    return nullptr;
  }
  std::unique_ptr<rocksdb::Env> env =
      rocksdb::NewCompositeEnv(std::make_shared<AditFileSystem>(std::move(volume)));
  auto* result = new rocksdb_env_t{env.get(), false};
  env.release();
  return result;
}

}  // namespace

}  // namespace adit_rocksdb

extern "C" rocksdb_env_t* adit_rocksdb_create_env(const char* address,
                                                  const adit_open_options* options,
                                                  char** errptr) {
  try {
    return adit_rocksdb::CreateEnv(address, options, errptr);
  } catch (const std::bad_alloc&) {
    if (errptr != nullptr) {
      free(*errptr);
      *errptr = strdup("Memory limit reached: adit_rocksdb_create_env");
    }
    return nullptr;
  }
}
