// leveldb::Env on one Adit volume: see env.h.
#include "env.h"

#include <unistd.h>

#include <cerrno>

#include "files.h"
#include "logger.h"
#include "status.h"

namespace adit_leveldb {

namespace {

constexpr unsigned kFileMode = 0644;
constexpr unsigned kDirectoryMode = 0755;

class Lock final : public leveldb::FileLock {
 public:
  Lock(adit_file* file, std::string path) : file(file), path(std::move(path)) {}
  adit_file* const file;
  const std::string path;
};

}  // namespace

using leveldb::Status;

// ------------------------------------------------------------------------------------------- files

Status Env::Open(const std::string& path, unsigned flags, adit_file** file) {
  return ToStatus(adit_open(volume_->handle(), path.c_str(), flags, kFileMode, file), path);
}

template <typename File, typename Result, typename... Arguments>
Status Env::New(const std::string& path, unsigned flags, Result** result, Arguments... arguments) {
  *result = nullptr;
  adit_file* file = nullptr;
  const Status status = Open(path, flags, &file);
  if (status.ok()) *result = new File(file, path, arguments...);
  return status;
}

Status Env::NewSequentialFile(const std::string& path, leveldb::SequentialFile** result) {
  return New<SequentialFile>(path, ADIT_O_RDONLY, result);
}

Status Env::NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** result) {
  return New<RandomAccessFile>(path, ADIT_O_RDONLY, result, copies_);
}

Status Env::NewWritableFile(const std::string& path, leveldb::WritableFile** result) {
  const Status status = New<WritableFile>(path, ADIT_O_WRONLY | ADIT_O_CREAT | ADIT_O_TRUNC, result);
  if (status.ok() && IsTable(path)) copies_->Written(path);
  return status;
}

Status Env::NewAppendableFile(const std::string& path, leveldb::WritableFile** result) {
  return New<WritableFile>(path, ADIT_O_WRONLY | ADIT_O_CREAT, result);
}

Status Env::NewLogger(const std::string& path, leveldb::Logger** result) {
  *result = nullptr;
  adit_file* file = nullptr;
  const Status status = Open(path, ADIT_O_WRONLY | ADIT_O_CREAT | ADIT_O_APPEND, &file);
  if (status.ok()) *result = new Logger(file);
  return status;
}

// ------------------------------------------------------------------------------------------- names

bool Env::FileExists(const std::string& path) {
  adit_stat stat = ADIT_STAT_INIT;
  return adit_stat_path(volume_->handle(), path.c_str(), &stat) >= 0;
}

Status Env::GetChildren(const std::string& path, std::vector<std::string>* result) {
  result->clear();
  adit_dir* dir = nullptr;
  int read = adit_opendir(volume_->handle(), path.c_str(), &dir);
  if (read < 0) return Failure(read, path);
  adit_dirent entry;
  while ((read = adit_readdir(dir, &entry)) > 0) result->emplace_back(entry.name, entry.name_len);
  const Status status = ToStatus(read, path);
  adit_closedir(dir);
  return status;
}

Status Env::RemoveFile(const std::string& path) {
  copies_->Forget(path);
  return ToStatus(adit_unlink(volume_->handle(), path.c_str()), path);
}

Status Env::CreateDir(const std::string& path) {
  return ToStatus(adit_mkdir(volume_->handle(), path.c_str(), kDirectoryMode), path);
}

Status Env::RemoveDir(const std::string& path) {
  return ToStatus(adit_rmdir(volume_->handle(), path.c_str()), path);
}

Status Env::GetFileSize(const std::string& path, uint64_t* size_bytes) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume_->handle(), path.c_str(), &stat);
  *size_bytes = result < 0 ? 0 : stat.size_bytes;
  return ToStatus(result, path);
}

Status Env::RenameFile(const std::string& from, const std::string& to) {
  copies_->Forget(from);
  return ToStatus(adit_rename(volume_->handle(), from.c_str(), to.c_str(), 0), from);
}

// ------------------------------------------------------------------------------ locks and the rest

Status Env::LockFile(const std::string& path, leveldb::FileLock** lock) {
  *lock = nullptr;
  adit_file* file = nullptr;
  const Status opened = Open(path, ADIT_O_RDWR | ADIT_O_CREAT, &file);
  if (!opened.ok()) return opened;
  const int locked = adit_flock(file, ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_NONBLOCKING);
  if (locked < 0) {
    const Status status = locked == -EWOULDBLOCK
                              ? Status::IOError("lock " + path, "already held")
                              : Failure(locked, path);
    adit_close(file);
    return status;
  }
  *lock = new Lock(file, path);
  return Status::OK();
}

Status Env::UnlockFile(leveldb::FileLock* lock) {
  const std::unique_ptr<Lock> held(static_cast<Lock*>(lock));
  return ToStatus(adit_close(held->file), held->path);
}

Status Env::GetTestDirectory(std::string* path) {
  *path = "/leveldbtest-" + std::to_string(geteuid());
  const int made = adit_mkdir(volume_->handle(), path->c_str(), kDirectoryMode);
  return made == -EEXIST ? Status::OK() : ToStatus(made, *path);
}

}  // namespace adit_leveldb

namespace adit {

leveldb::Status NewLevelDbEnv(const std::string& volume, const LevelDbEnvOptions& options,
                              leveldb::Env** env) {
  *env = nullptr;
  std::unique_ptr<adit_leveldb::Volume> opened;
  leveldb::Status status = adit_leveldb::Volume::Open(volume, options, &opened);
  if (status.ok()) *env = new adit_leveldb::Env(std::move(opened), options.table_copies_bytes);
  return status;
}

}  // namespace adit
