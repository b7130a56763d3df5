// rocksdb::FileSystem on one Adit volume: see adit_file_system.h.
#include "adit_file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "files.h"
#include "messages.h"
#include "rocksdb/options.h"
#include "status.h"

namespace adit_rocksdb {

namespace {

constexpr unsigned kFileMode = 0644;
constexpr unsigned kDirectoryMode = 0755;

unsigned DirectFlag(bool direct) { return direct ? ADIT_O_DIRECT : 0; }

class Lock final : public rocksdb::FileLock {
 public:
  explicit Lock(adit_file* file) : file(file) {}
  adit_file* const file;
};

}  // namespace

// ------------------------------------------------------------------------------------------- files

template <typename File, typename Result, typename... Arguments>
IOStatus AditFileSystem::Open(const std::string& path, unsigned flags,
                              std::unique_ptr<Result>* result, Arguments... arguments) {
  result->reset();
  adit_file* file = nullptr;
  const int opened = adit_open(volume(), path.c_str(), flags, 0, &file);
  if (opened < 0) return Failure(opened, path);
  result->reset(new File(file, path, arguments...));
  return IOStatus::OK();
}

IOStatus AditFileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                           IODebugContext*) {
  const bool direct = options.use_direct_reads;
  return Open<SequentialFile>(path, ADIT_O_RDONLY | DirectFlag(direct), result, direct);
}

IOStatus AditFileSystem::NewRandomAccessFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                             IODebugContext*) {
  const bool direct = options.use_direct_reads;
  return Open<RandomAccessFile>(path, ADIT_O_RDONLY | DirectFlag(direct), result, direct,
                                volume_->id());
}

IOStatus AditFileSystem::OpenWritable(const std::string& path, const FileOptions& options,
                                      unsigned flags, bool at_end,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result) {
  result->reset();
  adit_file* file = nullptr;
  const int opened =
      adit_open(volume(), path.c_str(), ADIT_O_RDWR | flags | DirectFlag(options.use_direct_writes),
                kFileMode, &file);
  if (opened < 0) return Failure(opened, path);
  const int64_t size = at_end ? adit_file_size(file) : 0;
  if (size < 0) {
    IOStatus status = Failure(size, path);
    adit_close(file);
    return status;
  }
  const bool ends_there = at_end || (flags & ADIT_O_TRUNC) != 0;
  const bool is_served = adit_volume_is_connected(volume()) == 1;
  result->reset(new WritableFile(file, path, options, static_cast<uint64_t>(size),
                                 ends_there && is_served, volume_->id()));
  return IOStatus::OK();
}

IOStatus AditFileSystem::NewWritableFile(const std::string& path, const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSWritableFile>* result,
                                         IODebugContext*) {
  return OpenWritable(path, options, ADIT_O_CREAT | ADIT_O_TRUNC, false, result);
}

IOStatus AditFileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                            std::unique_ptr<rocksdb::FSWritableFile>* result,
                                            IODebugContext*) {
  return OpenWritable(path, options, ADIT_O_CREAT, true, result);
}

IOStatus AditFileSystem::ReuseWritableFile(const std::string& path, const std::string& old_path,
                                           const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                                           IODebugContext*) {
  result->reset();
  const int renamed = adit_rename(volume(), old_path.c_str(), path.c_str(), 0);
  if (renamed < 0) return Failure(renamed, old_path);
  // Keeps the old content: overwriting mapped pages is what reuse is for.
  return OpenWritable(path, options, 0, false, result);
}

IOStatus AditFileSystem::NewRandomRWFile(const std::string& path, const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                         IODebugContext*) {
  // As RocksDB's own file systems do, and against the comment in its header: a file that isn't
  // there is an error.
  const bool direct = options.use_direct_reads && options.use_direct_writes;
  return Open<RandomRWFile>(path, ADIT_O_RDWR | DirectFlag(direct), result, direct);
}

IOStatus AditFileSystem::NewDirectory(const std::string& path, const IOOptions&,
                                      std::unique_ptr<rocksdb::FSDirectory>* result,
                                      IODebugContext*) {
  return Open<Directory>(path, ADIT_O_RDONLY | ADIT_O_DIRECTORY, result, volume_->id());
}

// ------------------------------------------------------------------------------------------- names

IOStatus AditFileSystem::FileExists(const std::string& path, const IOOptions&, IODebugContext*) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume(), path.c_str(), &stat);
  return result < 0 ? LookupFailure(result, path) : IOStatus::OK();
}

namespace {

// Calls visit(entry) for each entry of a directory. Errors are those of GetChildren.
template <typename Visit>
IOStatus ForEachChild(adit_volume* volume, const std::string& path, const IOOptions& options,
                      Visit visit) {
  adit_dir* dir = nullptr;
  int result = adit_opendir(volume, path.c_str(), &dir);
  if (result < 0) return LookupFailure(result, path);
  adit_dirent entry;
  while ((result = adit_readdir(dir, &entry)) > 0) {
    if (options.do_not_recurse && entry.type == ADIT_TYPE_DIRECTORY) continue;
    visit(entry);
  }
  IOStatus status = ToStatus(result, path);
  adit_closedir(dir);
  return status;
}

}  // namespace

IOStatus AditFileSystem::GetChildren(const std::string& path, const IOOptions& options,
                                     std::vector<std::string>* result, IODebugContext*) {
  result->clear();
  return ForEachChild(volume(), path, options, [&](const adit_dirent& entry) {
    result->emplace_back(entry.name, entry.name_len);
  });
}

IOStatus AditFileSystem::GetChildrenFileAttributes(const std::string& path,
                                                   const IOOptions& options,
                                                   std::vector<rocksdb::FileAttributes>* result,
                                                   IODebugContext*) {
  result->clear();
  std::string child = path + "/";
  const size_t prefix_len = child.size();
  int failed = 0;
  IOStatus status = ForEachChild(volume(), path, options, [&](const adit_dirent& entry) {
    child.resize(prefix_len);
    child.append(entry.name, entry.name_len);
    adit_stat stat = ADIT_STAT_INIT;
    const int stated = adit_stat_path(volume(), child.c_str(), &stat);
    if (stated == 0) {
      result->push_back({std::string(entry.name, entry.name_len), stat.size_bytes});
    } else if (stated != -ENOENT && failed == 0) {  // removed meanwhile: left out
      failed = stated;
    }
  });
  return status.ok() ? ToStatus(failed, path) : status;
}

IOStatus AditFileSystem::DeleteFile(const std::string& path, const IOOptions&, IODebugContext*) {
  return ToStatus(adit_unlink(volume(), path.c_str()), path);
}

IOStatus AditFileSystem::Truncate(const std::string& path, size_t size, const IOOptions&,
                                  IODebugContext*) {
  return ToStatus(adit_truncate(volume(), path.c_str(), size), path);
}

IOStatus AditFileSystem::CreateDir(const std::string& path, const IOOptions&, IODebugContext*) {
  return ToStatus(adit_mkdir(volume(), path.c_str(), kDirectoryMode), path);
}

IOStatus AditFileSystem::CreateDirIfMissing(const std::string& path, const IOOptions& options,
                                            IODebugContext* debug) {
  const int made = adit_mkdir(volume(), path.c_str(), kDirectoryMode);
  if (made != -EEXIST) return ToStatus(made, path);
  bool is_directory = false;
  IOStatus status = IsDirectory(path, options, &is_directory, debug);
  if (status.ok() && !is_directory) status = IOStatus::IOError(path, "exists and is not a directory");
  return status;
}

IOStatus AditFileSystem::DeleteDir(const std::string& path, const IOOptions&, IODebugContext*) {
  return ToStatus(adit_rmdir(volume(), path.c_str()), path);
}

IOStatus AditFileSystem::RenameFile(const std::string& from, const std::string& to,
                                    const IOOptions&, IODebugContext*) {
  return ToStatus(adit_rename(volume(), from.c_str(), to.c_str(), 0), from);
}

IOStatus AditFileSystem::LinkFile(const std::string& existing, const std::string& path,
                                  const IOOptions&, IODebugContext*) {
  return ToStatus(adit_link(volume(), existing.c_str(), path.c_str()), path);
}

// -------------------------------------------------------------------------------------- attributes

IOStatus AditFileSystem::GetFileSize(const std::string& path, const IOOptions&, uint64_t* size,
                                     IODebugContext*) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume(), path.c_str(), &stat);
  *size = result < 0 ? 0 : stat.size_bytes;
  return ToStatus(result, path);
}

IOStatus AditFileSystem::GetFileModificationTime(const std::string& path, const IOOptions&,
                                                 uint64_t* seconds, IODebugContext*) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume(), path.c_str(), &stat);
  if (result >= 0) *seconds = static_cast<uint64_t>(stat.mtime.seconds);
  return ToStatus(result, path);
}

IOStatus AditFileSystem::NumFileLinks(const std::string& path, const IOOptions&, uint64_t* count,
                                      IODebugContext*) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume(), path.c_str(), &stat);
  if (result >= 0) *count = stat.nlink;
  return ToStatus(result, path);
}

IOStatus AditFileSystem::AreFilesSame(const std::string& first, const std::string& second,
                                      const IOOptions&, bool* same, IODebugContext*) {
  adit_stat a = ADIT_STAT_INIT;
  adit_stat b = ADIT_STAT_INIT;
  int result = adit_stat_path(volume(), first.c_str(), &a);
  if (result < 0) return Failure(result, first);
  result = adit_stat_path(volume(), second.c_str(), &b);
  if (result < 0) return Failure(result, second);
  *same = a.ino == b.ino && a.generation == b.generation;
  return IOStatus::OK();
}

IOStatus AditFileSystem::IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                                     IODebugContext*) {
  adit_stat stat = ADIT_STAT_INIT;
  const int result = adit_stat_path(volume(), path.c_str(), &stat);
  if (result >= 0) *is_directory = S_ISDIR(stat.mode);
  return ToStatus(result, path);
}

IOStatus AditFileSystem::GetFreeSpace(const std::string& path, const IOOptions&, uint64_t* bytes,
                                      IODebugContext*) {
  adit_statfs statfs = ADIT_STATFS_INIT;
  const int result = adit_volume_statfs(volume(), &statfs);
  if (result >= 0) *bytes = statfs.available_bytes;
  return ToStatus(result, path);
}

// ------------------------------------------------------------------------------------ asynchronous

IOStatus AditFileSystem::Poll(std::vector<void*>& io_handles, size_t) {
  for (void* handle : io_handles) static_cast<AsyncRead*>(handle)->Finish();
  return IOStatus::OK();
}

IOStatus AditFileSystem::AbortIO(std::vector<void*>& io_handles) {
  return Poll(io_handles, io_handles.size());
}

// ------------------------------------------------------------------------------ locks and the rest

IOStatus AditFileSystem::LockFile(const std::string& path, const IOOptions&,
                                  rocksdb::FileLock** lock, IODebugContext*) {
  *lock = nullptr;
  adit_file* file = nullptr;
  int result = adit_open(volume(), path.c_str(), ADIT_O_RDWR | ADIT_O_CREAT, kFileMode, &file);
  if (result < 0) return Failure(result, path);
  // The lock belongs to this handle, not to the process: so it also keeps two DBs of one process
  // apart.
  result = adit_flock(file, ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_NONBLOCKING);
  if (result < 0) {
    IOStatus status = result == -EWOULDBLOCK
                          ? IOStatus::Busy(path, "is locked: a DB in this volume is already open")
                          : Failure(result, path);
    adit_close(file);
    return status;
  }
  *lock = new Lock(file);
  return IOStatus::OK();
}

IOStatus AditFileSystem::UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) {
  messages->Drain();  // a DB that closes does this before it closes its LOG
  std::unique_ptr<Lock> held(static_cast<Lock*>(lock));
  return ToStatus(adit_close(held->file), "LOCK");
}

IOStatus AditFileSystem::NewLogger(const std::string& path, const IOOptions& options,
                                   std::shared_ptr<rocksdb::Logger>* result, IODebugContext* debug) {
  IOStatus status = FileSystem::NewLogger(path, options, result, debug);
  if (status.ok()) messages->SetLogger(*result, volume());
  return status;
}

IOStatus AditFileSystem::GetTestDirectory(const IOOptions& options, std::string* path,
                                          IODebugContext* debug) {
  *path = "/rocksdbtest-" + std::to_string(geteuid());
  return CreateDirIfMissing(*path, options, debug);
}

IOStatus AditFileSystem::GetAbsolutePath(const std::string& path, const IOOptions&,
                                         std::string* absolute, IODebugContext*) {
  *absolute = !path.empty() && path[0] == '/' ? path : "/" + path;
  return IOStatus::OK();
}

FileOptions AditFileSystem::OptimizeForLogWrite(const FileOptions& options,
                                                const rocksdb::DBOptions& db_options) const {
  // Small appends, each perhaps synced: what Adit's journal is for, and direct IO is not.
  FileOptions optimized = FileSystem::OptimizeForLogWrite(options, db_options);
  optimized.use_direct_writes = false;
  optimized.fallocate_with_keep_size = true;
  return optimized;
}

FileOptions AditFileSystem::OptimizeForManifestWrite(const FileOptions& options) const {
  FileOptions optimized = FileSystem::OptimizeForManifestWrite(options);
  optimized.use_direct_writes = false;
  optimized.fallocate_with_keep_size = true;
  return optimized;
}

std::unique_ptr<rocksdb::FileSystem> NewAditFileSystem(const std::string& address,
                                                       std::string* error) {
  std::shared_ptr<Volume> volume = OpenVolume(address, nullptr, error);
  if (volume == nullptr) return nullptr;
  return std::make_unique<AditFileSystem>(std::move(volume));
}

}  // namespace adit_rocksdb
