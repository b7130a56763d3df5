// Open files of RocksDB on open files of Adit.
//
// Invariants: each call of RocksDB that does IO is one call of adit.h, without a copy or an
// allocation in between; positions are kept here, so files can be preallocated beyond their size. A
// file belongs to its volume's AditFileSystem, which RocksDB keeps alive for longer.
//
// Not here: buffering, which RocksDB's WritableFileWriter does above; hints (Hint,
// InvalidateCache), which Adit's cache does without; Prefetch, whose default answer, NotSupported,
// makes RocksDB read ahead into its own memory.
#pragma once

#include <string>

#include "adit.h"
#include "rocksdb/file_system.h"

namespace adit_rocksdb {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Offsets, lengths and memory of direct IO are multiples of this.
constexpr size_t kDirectAlignment = 4096;

// What ReadAsync calls back: its argument became non-const in later versions of RocksDB.
template <typename Method>
struct CallbackOf;
template <typename Callback, typename Deleter>
struct CallbackOf<IOStatus (rocksdb::FSRandomAccessFile::*)(rocksdb::FSReadRequest&, const IOOptions&,
                                                            Callback, void*, void**, Deleter*,
                                                            IODebugContext*)> {
  using type = Callback;
};
using ReadCallback = CallbackOf<decltype(&rocksdb::FSRandomAccessFile::ReadAsync)>::type;

// A read under way: what RocksDB holds as an io_handle, and gives to Poll or AbortIO.
class AsyncRead {
 public:
  AsyncRead(const rocksdb::FSReadRequest& request, ReadCallback callback, void* argument,
            const std::string& path);
  ~AsyncRead();

  int Submit(adit_file* file);
  // Waits for the read and calls back; nothing if that was done already.
  void Finish();

 private:
  rocksdb::FSReadRequest request_;
  ReadCallback callback_;
  void* const argument_;
  const std::string& path_;  // of the file, which RocksDB keeps open until this is deleted
  adit_op* op_ = nullptr;
};

// What all kinds of files are made of: an adit_file, and its path for messages.
class Handle {
 public:
  Handle(adit_file* file, std::string path, bool direct)
      : file_(file), path_(std::move(path)), direct_(direct) {}
  ~Handle() {
    if (file_ != nullptr) adit_close(file_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  adit_file* get() const { return file_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }

  IOStatus Read(uint64_t offset, size_t len, Slice* result, char* scratch) const;
  IOStatus Close();

  // ino, generation and volume, each as a varint: what RocksDB takes for an id that is never used
  // twice.
  size_t UniqueId(uint64_t volume_id, char* id, size_t max_size) const;

 private:
  adit_file* file_;
  const std::string path_;
  const bool direct_;
};

class SequentialFile final : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(adit_file* file, const std::string& path, bool direct)
      : handle_(file, path, direct) {}

  IOStatus Read(size_t len, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override;
  IOStatus PositionedRead(uint64_t offset, size_t len, const IOOptions&, Slice* result,
                          char* scratch, IODebugContext*) override;
  IOStatus Skip(uint64_t len) override;
  bool use_direct_io() const override { return handle_.direct(); }
  size_t GetRequiredBufferAlignment() const override { return kDirectAlignment; }

 private:
  Handle handle_;
  uint64_t offset_ = 0;
};

class RandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(adit_file* file, const std::string& path, bool direct, uint64_t volume_id)
      : handle_(file, path, direct), volume_id_(volume_id) {}

  IOStatus Read(uint64_t offset, size_t len, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override;
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions&,
                     IODebugContext*) override;
  IOStatus ReadAsync(rocksdb::FSReadRequest& request, const IOOptions&, ReadCallback callback,
                     void* argument, void** io_handle, rocksdb::IOHandleDeleter* deleter,
                     IODebugContext*) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;
  bool use_direct_io() const override { return handle_.direct(); }
  size_t GetRequiredBufferAlignment() const override { return kDirectAlignment; }

 private:
  Handle handle_;
  const uint64_t volume_id_;
};

class WritableFile final : public rocksdb::FSWritableFile {
 public:
  // Appends from `size` on, whatever the file holds beyond. `ends_there`: nothing, and the volume is
  // in a server, to which appends can go without a message.
  WritableFile(adit_file* file, const std::string& path, const FileOptions& options, uint64_t size,
               bool ends_there, uint64_t volume_id);
  ~WritableFile() override;

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override;
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&,
                            IODebugContext*) override;
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo&, IODebugContext* debug) override {
    return PositionedAppend(data, offset, options, debug);
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override;
  IOStatus Close(const IOOptions&, IODebugContext*) override;
  // Nothing is buffered here.
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override;
  IOStatus Fsync(const IOOptions&, IODebugContext*) override;
  IOStatus RangeSync(uint64_t offset, uint64_t len, const IOOptions&, IODebugContext*) override;
  IOStatus Allocate(uint64_t offset, uint64_t len, const IOOptions&, IODebugContext*) override;
  size_t GetUniqueId(char* id, size_t max_size) const override;
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }
  bool IsSyncThreadSafe() const override { return true; }
  bool use_direct_io() const override { return handle_.direct(); }
  size_t GetRequiredBufferAlignment() const override { return kDirectAlignment; }

 private:
  Handle handle_;
  uint64_t size_;
  // The file ends at size_.
  bool ends_there_;
  const uint64_t volume_id_;
  const bool allocate_;
  const bool allocation_keeps_size_;
};

class RandomRWFile final : public rocksdb::FSRandomRWFile {
 public:
  RandomRWFile(adit_file* file, const std::string& path, bool direct) : handle_(file, path, direct) {}

  IOStatus Write(uint64_t offset, const Slice& data, const IOOptions&, IODebugContext*) override;
  IOStatus Read(uint64_t offset, size_t len, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override;
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override;
  IOStatus Fsync(const IOOptions&, IODebugContext*) override;
  IOStatus Close(const IOOptions&, IODebugContext*) override { return handle_.Close(); }
  bool use_direct_io() const override { return handle_.direct(); }
  size_t GetRequiredBufferAlignment() const override { return kDirectAlignment; }

 private:
  Handle handle_;
};

class Directory final : public rocksdb::FSDirectory {
 public:
  Directory(adit_file* file, const std::string& path, uint64_t volume_id)
      : handle_(file, path, false), volume_id_(volume_id) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override;
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions& reason) override;
  IOStatus Close(const IOOptions&, IODebugContext*) override { return handle_.Close(); }
  size_t GetUniqueId(char* id, size_t max_size) const override;

 private:
  Handle handle_;
  const uint64_t volume_id_;
};

}  // namespace adit_rocksdb
