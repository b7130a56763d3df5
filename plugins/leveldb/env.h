// leveldb::Env on one Adit volume.
//
// Invariants: every path is inside the volume, and nothing is written outside it (LOG and LOCK
// included). Threads, their queue and the clock are those of Env::Default(): compactions of all
// databases of a process, on whatever Env, run one after the other in its one background thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "leveldb/env.h"
#include "volume.h"

namespace adit_leveldb {

class Env final : public leveldb::EnvWrapper {
 public:
  Env(std::unique_ptr<Volume> volume, uint64_t table_copies_bytes)
      : EnvWrapper(leveldb::Env::Default()),
        volume_(std::move(volume)),
        copies_(std::make_shared<TableCopies>(table_copies_bytes)) {}

  using Status = leveldb::Status;

  Status NewSequentialFile(const std::string& path, leveldb::SequentialFile** result) override;
  Status NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** result) override;
  Status NewWritableFile(const std::string& path, leveldb::WritableFile** result) override;
  Status NewAppendableFile(const std::string& path, leveldb::WritableFile** result) override;
  Status NewLogger(const std::string& path, leveldb::Logger** result) override;

  bool FileExists(const std::string& path) override;
  // Without "." and "..".
  Status GetChildren(const std::string& path, std::vector<std::string>* result) override;
  Status RemoveFile(const std::string& path) override;
  Status CreateDir(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Status GetFileSize(const std::string& path, uint64_t* size_bytes) override;
  Status RenameFile(const std::string& from, const std::string& to) override;

  // A lock belongs to its FileLock, so it keeps databases of one process apart; another process
  // can't open the volume.
  Status LockFile(const std::string& path, leveldb::FileLock** lock) override;
  Status UnlockFile(leveldb::FileLock* lock) override;

  // A directory of the volume.
  Status GetTestDirectory(std::string* path) override;

 private:
  Status Open(const std::string& path, unsigned flags, adit_file** file);
  template <typename File, typename Result, typename... Arguments>
  Status New(const std::string& path, unsigned flags, Result** result, Arguments... arguments);

  const std::unique_ptr<Volume> volume_;
  const std::shared_ptr<TableCopies> copies_;  // files may outlive the Env
};

}  // namespace adit_leveldb
