// Errors of Adit as errors of LevelDB.
//
// One rule: what adit.h returns is >= 0 or a negative errno; the words come from
// adit_error_message(), which is asked only after a failure, in the same thread.
#pragma once

#include <cstdint>
#include <string>

#include "leveldb/status.h"

namespace adit_leveldb {

// The Status of a failed call: `result` is negative, `path` is what the caller worked on. NotFound
// for ENOENT, NotSupported for what Adit doesn't do, IOError for all else.
leveldb::Status Failure(int64_t result, const std::string& path);

// As Failure, with the caller's words behind Adit's.
leveldb::Status Failure(int64_t result, const std::string& path, const std::string& advice);

inline leveldb::Status ToStatus(int64_t result, const std::string& path) {
  if (__builtin_expect(result >= 0, 1)) return leveldb::Status::OK();
  return Failure(result, path);
}

}  // namespace adit_leveldb
