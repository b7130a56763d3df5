// DB::Open for every RocksDB since 7.8: from 11 on it knows std::unique_ptr only, before 9 only
// pointers.
#pragma once

#include <memory>
#include <string>

#include "rocksdb/db.h"
#include "rocksdb/version.h"

inline rocksdb::Status OpenDb(const rocksdb::Options& options, const std::string& path,
                              std::unique_ptr<rocksdb::DB>* db) {
#if ROCKSDB_MAJOR >= 11
  return rocksdb::DB::Open(options, path, db);
#else
  rocksdb::DB* opened = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(options, path, &opened);
  db->reset(opened);
  return status;
#endif
}
