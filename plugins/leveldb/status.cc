// Errors of Adit as errors of LevelDB: see status.h.
#include "status.h"

#include <cerrno>
#include <cstring>

#include "adit.h"

namespace adit_leveldb {

using leveldb::Status;

Status Failure(int64_t result, const std::string& path, const std::string& advice) {
  const int error = static_cast<int>(-result);
  const char* words = adit_error_message();
  std::string message = *words != '\0' ? words : strerror(error);
  if (!advice.empty()) message += "; " + advice;
  switch (error) {
    case ENOENT:
      return Status::NotFound(path, message);
    case EOPNOTSUPP:
    case ENOSYS:
      return Status::NotSupported(path, message);
    default:
      return Status::IOError(path, message);
  }
}

Status Failure(int64_t result, const std::string& path) { return Failure(result, path, ""); }

}  // namespace adit_leveldb
