// rocksdb::FileSystem on one Adit volume.
//
// Loading this library registers it: FileSystem::CreateFromString(..., "adit://ADDRESS", &fs), and
// whatever is built on that (db_bench --fs_uri, ldb --fs_uri, Env::CreateFromUri), then opens the
// volume at ADDRESS. A program that links the library can call NewAditFileSystem instead.
//
// Invariants: every path is inside the volume, and nothing is written outside it (LOG, LOCK and
// OPTIONS included); no function throws. A logger is RocksDB's own, which writes through
// NewWritableFile below; Adit's messages go there, too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rocksdb/file_system.h"
#include "volumes.h"

namespace adit_rocksdb {

class AditFileSystem final : public rocksdb::FileSystem {
 public:
  explicit AditFileSystem(std::shared_ptr<Volume> volume) : volume_(std::move(volume)) {}

  static const char* kClassName() { return "AditFileSystem"; }
  const char* Name() const override { return kClassName(); }
  std::string GetId() const override { return "adit://" + volume_->address(); }

  using IODebugContext = rocksdb::IODebugContext;
  using IOOptions = rocksdb::IOOptions;
  using IOStatus = rocksdb::IOStatus;
  using FileOptions = rocksdb::FileOptions;

  // Files: open and create.
  IOStatus NewSequentialFile(const std::string& path, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext*) override;
  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override;
  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override;
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                              IODebugContext*) override;
  IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                             const FileOptions& options,
                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                             IODebugContext*) override;
  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                           IODebugContext*) override;
  IOStatus NewDirectory(const std::string& path, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override;

  // Names.
  IOStatus FileExists(const std::string& path, const IOOptions&, IODebugContext*) override;
  IOStatus GetChildren(const std::string& path, const IOOptions& options,
                       std::vector<std::string>* result, IODebugContext*) override;
  IOStatus GetChildrenFileAttributes(const std::string& path, const IOOptions& options,
                                     std::vector<rocksdb::FileAttributes>* result,
                                     IODebugContext*) override;
  IOStatus DeleteFile(const std::string& path, const IOOptions&, IODebugContext*) override;
  IOStatus Truncate(const std::string& path, size_t size, const IOOptions&,
                    IODebugContext*) override;
  IOStatus CreateDir(const std::string& path, const IOOptions&, IODebugContext*) override;
  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions&, IODebugContext*) override;
  IOStatus DeleteDir(const std::string& path, const IOOptions&, IODebugContext*) override;
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override;
  IOStatus LinkFile(const std::string& existing, const std::string& path, const IOOptions&,
                    IODebugContext*) override;

  // Attributes.
  IOStatus GetFileSize(const std::string& path, const IOOptions&, uint64_t* size,
                       IODebugContext*) override;
  IOStatus GetFileModificationTime(const std::string& path, const IOOptions&, uint64_t* seconds,
                                   IODebugContext*) override;
  IOStatus NumFileLinks(const std::string& path, const IOOptions&, uint64_t* count,
                        IODebugContext*) override;
  IOStatus AreFilesSame(const std::string& first, const std::string& second, const IOOptions&,
                        bool* same, IODebugContext*) override;
  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override;
  IOStatus GetFreeSpace(const std::string& path, const IOOptions&, uint64_t* bytes,
                        IODebugContext*) override;

  // Asynchronous reads. AbortIO waits too: the memory of a read can't be had back before it is
  // done.
  IOStatus Poll(std::vector<void*>& io_handles, size_t min_completions) override;
  IOStatus AbortIO(std::vector<void*>& io_handles) override;

  // The rest.
  IOStatus LockFile(const std::string& path, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override;
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override;
  IOStatus NewLogger(const std::string& path, const IOOptions& options,
                     std::shared_ptr<rocksdb::Logger>* result, IODebugContext* debug) override;
  IOStatus GetTestDirectory(const IOOptions& options, std::string* path,
                            IODebugContext* debug) override;
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* absolute,
                           IODebugContext*) override;
  FileOptions OptimizeForLogWrite(const FileOptions& options,
                                  const rocksdb::DBOptions& db_options) const override;
  FileOptions OptimizeForManifestWrite(const FileOptions& options) const override;

 private:
  adit_volume* volume() const { return volume_->handle(); }
  // A file that is there. `arguments`: the rest of File's constructor.
  template <typename File, typename Result, typename... Arguments>
  IOStatus Open(const std::string& path, unsigned flags, std::unique_ptr<Result>* result,
                Arguments... arguments);
  IOStatus OpenWritable(const std::string& path, const FileOptions& options, unsigned flags,
                        bool at_end, std::unique_ptr<rocksdb::FSWritableFile>* result);

  const std::shared_ptr<Volume> volume_;
};

// The file system on the volume at `address`; null on failure, with the reason in *error.
std::unique_ptr<rocksdb::FileSystem> NewAditFileSystem(const std::string& address,
                                                       std::string* error);

}  // namespace adit_rocksdb
