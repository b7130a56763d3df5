// Errors of Adit as errors of RocksDB.
//
// One rule: what adit.h returns is >= 0 or a negative errno; the words come from
// adit_error_message(), which is only asked after a failure, so that a success costs one
// comparison.
#pragma once

#include <cstdint>
#include <string>

#include "rocksdb/io_status.h"

namespace adit_rocksdb {

// The IOStatus of a failed call: `result` is negative, `path` is what the caller worked on.
rocksdb::IOStatus Failure(int64_t result, const std::string& path);

// The IOStatus of one of the requests of a call: there may be several failures, so that the words
// are strerror's.
rocksdb::IOStatus PartToStatus(int64_t result, const std::string& path);

// As Failure, where RocksDB's contract is to say NotFound for whatever cannot be there
// (FileExists, GetChildren), rather than an IOError with the sub-code kPathNotFound.
rocksdb::IOStatus LookupFailure(int64_t result, const std::string& path);

inline rocksdb::IOStatus ToStatus(int64_t result, const std::string& path) {
  if (__builtin_expect(result >= 0, 1)) return rocksdb::IOStatus::OK();
  return Failure(result, path);
}

}  // namespace adit_rocksdb
