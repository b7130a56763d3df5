// Makes RocksDB's object registry know adit://ADDRESS as soon as this library is loaded.
//
// Loaded how: linked, dlopen'ed, or LD_PRELOAD'ed into a program that knows nothing of it.
// librocksdb is a dependency of this library, so its statics are ready before this initializer
// runs.
#include <cstring>

#include "adit_file_system.h"
#include "rocksdb/utilities/object_registry.h"

namespace adit_rocksdb {

namespace {

constexpr char kScheme[] = "adit";
constexpr char kSeparator[] = "://";

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard,
                          std::string* error) {
  *guard = NewAditFileSystem(uri.substr(strlen(kScheme) + strlen(kSeparator)), error);
  return guard->get();
}

[[maybe_unused]] const bool registered = [] {
  rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
      rocksdb::ObjectLibrary::PatternEntry(kScheme, false).AddSeparator(kSeparator), Make);
  return true;
}();

}  // namespace

}  // namespace adit_rocksdb
