// Errors of Adit as errors of RocksDB: see status.h.
#include "status.h"

#include <cerrno>
#include <cstring>

#include "adit.h"

namespace adit_rocksdb {

using rocksdb::IOStatus;

namespace {

std::string Message(int error) {
  const char* message = adit_error_message();
  return *message != '\0' ? std::string(message) : std::string(strerror(error));
}

IOStatus Failure(int64_t result, const std::string& path, const std::string& message) {
  switch (-result) {
    case ENOENT:
      return IOStatus::PathNotFound(path, message);
    case ENOSPC:
    case EDQUOT: {
      // RocksDB waits for space to come back, and resumes by itself.
      IOStatus status = IOStatus::NoSpace(path, message);
      status.SetRetryable(true);
      return status;
    }
    case EBUSY:
    case EAGAIN:
      return IOStatus::Busy(path, message);
    case EOPNOTSUPP:
    case ENOSYS:
    case EXDEV:
      return IOStatus::NotSupported(path, message);
    default:
      return IOStatus::IOError(path, message);
  }
}

}  // namespace

IOStatus Failure(int64_t result, const std::string& path) {
  return Failure(result, path, Message(static_cast<int>(-result)));
}

IOStatus PartToStatus(int64_t result, const std::string& path) {
  if (result >= 0) return IOStatus::OK();
  return Failure(result, path, strerror(static_cast<int>(-result)));
}

IOStatus LookupFailure(int64_t result, const std::string& path) {
  switch (-result) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ELOOP:
    case ENAMETOOLONG:
      return IOStatus::NotFound();
    default:
      return Failure(result, path);
  }
}

}  // namespace adit_rocksdb
