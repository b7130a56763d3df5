// Open files of RocksDB on open files of Adit: see files.h.
#include "files.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "status.h"

namespace adit_rocksdb {

namespace {

// A server refuses appends of more than 64 MiB, which a value may have. Writes by offset have no
// such bound.
constexpr size_t kAppendedBytesMax = 32 << 20;

}  // namespace

// --------------------------------------------------------------------------------------- all files

IOStatus Handle::Read(uint64_t offset, size_t len, Slice* result, char* scratch) const {
  const int64_t got = adit_pread(file_, scratch, len, offset);
  *result = Slice(scratch, got > 0 ? static_cast<size_t>(got) : 0);
  return ToStatus(got, path_);
}

IOStatus Handle::Close() {
  if (file_ == nullptr) return IOStatus::OK();
  const int result = adit_close(file_);
  file_ = nullptr;
  return ToStatus(result, path_);
}

size_t Handle::UniqueId(uint64_t volume_id, char* id, size_t max_size) const {
  constexpr size_t kVarintBytesMax = 10;
  adit_stat stat = ADIT_STAT_INIT;
  if (max_size < 3 * kVarintBytesMax || adit_fstat(file_, &stat) < 0) return 0;
  char* end = id;
  for (uint64_t value : {stat.ino, stat.generation, volume_id}) {
    for (; value >= 0x80; value >>= 7) *end++ = static_cast<char>(value | 0x80);
    *end++ = static_cast<char>(value);
  }
  return static_cast<size_t>(end - id);
}

// -------------------------------------------------------------------------------------- sequential

IOStatus SequentialFile::Read(size_t len, const IOOptions&, Slice* result, char* scratch,
                              IODebugContext*) {
  IOStatus status = handle_.Read(offset_, len, result, scratch);
  offset_ += result->size();
  return status;
}

IOStatus SequentialFile::PositionedRead(uint64_t offset, size_t len, const IOOptions&, Slice* result,
                                        char* scratch, IODebugContext*) {
  return handle_.Read(offset, len, result, scratch);
}

IOStatus SequentialFile::Skip(uint64_t len) {
  offset_ += len;
  return IOStatus::OK();
}

// ----------------------------------------------------------------------------------- random access

IOStatus RandomAccessFile::Read(uint64_t offset, size_t len, const IOOptions&, Slice* result,
                                char* scratch, IODebugContext*) const {
  return handle_.Read(offset, len, result, scratch);
}

IOStatus RandomAccessFile::MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                                     const IOOptions&, IODebugContext*) {
  constexpr size_t kBatch = 32;  // RocksDB asks for at most as many blocks as its MultiGet batch has keys
  adit_read_request batch[kBatch];
  for (size_t begin = 0; begin < count; begin += kBatch) {
    const size_t len = std::min(kBatch, count - begin);
    for (size_t i = 0; i < len; ++i) {
      const rocksdb::FSReadRequest& request = requests[begin + i];
      batch[i] = {request.offset, request.scratch, request.len, 0};
    }
    const int result = adit_pread_many(handle_.get(), batch, len);
    if (result < 0) return Failure(result, handle_.path());
    for (size_t i = 0; i < len; ++i) {
      rocksdb::FSReadRequest& request = requests[begin + i];
      const int64_t got = batch[i].result;
      request.result = Slice(request.scratch, got > 0 ? static_cast<size_t>(got) : 0);
      request.status = PartToStatus(got, handle_.path());
    }
  }
  return IOStatus::OK();
}

AsyncRead::AsyncRead(const rocksdb::FSReadRequest& request, ReadCallback callback, void* argument,
                     const std::string& path)
    : callback_(std::move(callback)), argument_(argument), path_(path) {
  request_.offset = request.offset;
  request_.len = request.len;
  request_.scratch = request.scratch;
}

AsyncRead::~AsyncRead() {
  // RocksDB polls or aborts before it deletes. Should it not, its memory must still outlast the
  // read.
  if (op_ != nullptr) adit_op_wait(op_);
  adit_op_release(op_);
}

int AsyncRead::Submit(adit_file* file) {
  return adit_pread_submit(file, request_.scratch, request_.len, request_.offset, nullptr, nullptr, &op_);
}

void AsyncRead::Finish() {
  if (op_ == nullptr) return;
  const int64_t got = adit_op_wait(op_);
  adit_op_release(op_);
  op_ = nullptr;
  request_.result = Slice(request_.scratch, got > 0 ? static_cast<size_t>(got) : 0);
  request_.status = ToStatus(got, path_);
  callback_(request_, argument_);
}

IOStatus RandomAccessFile::ReadAsync(rocksdb::FSReadRequest& request, const IOOptions&,
                                     ReadCallback callback, void* argument, void** io_handle,
                                     rocksdb::IOHandleDeleter* deleter, IODebugContext*) {
  auto read = std::make_unique<AsyncRead>(request, std::move(callback), argument, handle_.path());
  const int submitted = read->Submit(handle_.get());
  if (submitted < 0) return Failure(submitted, handle_.path());
  *io_handle = read.release();
  *deleter = [](void* handle) { delete static_cast<AsyncRead*>(handle); };
  return IOStatus::OK();
}

size_t RandomAccessFile::GetUniqueId(char* id, size_t max_size) const {
  return handle_.UniqueId(volume_id_, id, max_size);
}

// ---------------------------------------------------------------------------------------- writable

WritableFile::WritableFile(adit_file* file, const std::string& path, const FileOptions& options,
                           uint64_t size, bool ends_there, uint64_t volume_id)
    : FSWritableFile(options),
      handle_(file, path, options.use_direct_writes),
      size_(size),
      ends_there_(ends_there && !options.use_direct_writes),
      volume_id_(volume_id),
      allocate_(options.allow_fallocate),
      allocation_keeps_size_(options.fallocate_with_keep_size) {}

WritableFile::~WritableFile() { Close(IOOptions(), nullptr).PermitUncheckedError(); }

IOStatus WritableFile::Append(const Slice& data, const IOOptions&, IODebugContext*) {
  // Preallocation without keep_size, or reuse of an old log, puts the end elsewhere.
  if (ends_there_ && data.size() <= kAppendedBytesMax) {
    uint64_t at = 0;
    const int64_t appended = adit_append(handle_.get(), data.data(), data.size(), &at);
    if (__builtin_expect(appended < 0, 0)) return Failure(appended, handle_.path());
    if (__builtin_expect(at != size_, 0)) {
      return IOStatus::IOError(handle_.path(), "another process writes to the file");
    }
    size_ += data.size();
    return IOStatus::OK();
  }
  const int64_t written = adit_pwrite(handle_.get(), data.data(), data.size(), size_);
  if (__builtin_expect(written < 0, 0)) return Failure(written, handle_.path());
  size_ += data.size();
  return IOStatus::OK();
}

IOStatus WritableFile::PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&,
                                        IODebugContext*) {
  const int64_t written = adit_pwrite(handle_.get(), data.data(), data.size(), offset);
  if (written < 0) return Failure(written, handle_.path());
  ends_there_ = ends_there_ && offset <= size_ && offset + data.size() >= size_;
  size_ = offset + data.size();
  return IOStatus::OK();
}

IOStatus WritableFile::Truncate(uint64_t size, const IOOptions&, IODebugContext*) {
  const int result = adit_ftruncate(handle_.get(), size);
  if (result < 0) return Failure(result, handle_.path());
  size_ = size;
  return IOStatus::OK();
}

IOStatus WritableFile::Close(const IOOptions&, IODebugContext*) {
  if (handle_.get() == nullptr) return IOStatus::OK();
  IOStatus trimmed;
  size_t block_size = 0;
  size_t last_block = 0;
  GetPreallocationStatus(&block_size, &last_block);
  // Gives back what was preallocated in vain.
  if (last_block > 0) trimmed = ToStatus(adit_ftruncate(handle_.get(), size_), handle_.path());
  IOStatus closed = handle_.Close();
  return trimmed.ok() ? closed : trimmed;
}

IOStatus WritableFile::Sync(const IOOptions&, IODebugContext*) {
  return ToStatus(adit_fdatasync(handle_.get()), handle_.path());
}

IOStatus WritableFile::Fsync(const IOOptions&, IODebugContext*) {
  return ToStatus(adit_fsync(handle_.get()), handle_.path());
}

IOStatus WritableFile::RangeSync(uint64_t, uint64_t, const IOOptions& options,
                                 IODebugContext* debug) {
  if (strict_bytes_per_sync_) return Sync(options, debug);
  // The dirty range is what was appended since the last call: nearly all that the file has.
  return ToStatus(adit_start_write_back(handle_.get()), handle_.path());
}

IOStatus WritableFile::Allocate(uint64_t offset, uint64_t len, const IOOptions&, IODebugContext*) {
  if (!allocate_) return IOStatus::OK();
  const unsigned mode = allocation_keeps_size_ ? ADIT_FALLOC_KEEP_SIZE : 0;
  ends_there_ = ends_there_ && allocation_keeps_size_;
  return ToStatus(adit_fallocate(handle_.get(), mode, offset, len), handle_.path());
}

size_t WritableFile::GetUniqueId(char* id, size_t max_size) const {
  return handle_.UniqueId(volume_id_, id, max_size);
}

// ------------------------------------------------------------------------------- random read-write

IOStatus RandomRWFile::Write(uint64_t offset, const Slice& data, const IOOptions&, IODebugContext*) {
  return ToStatus(adit_pwrite(handle_.get(), data.data(), data.size(), offset), handle_.path());
}

IOStatus RandomRWFile::Read(uint64_t offset, size_t len, const IOOptions&, Slice* result,
                            char* scratch, IODebugContext*) const {
  return handle_.Read(offset, len, result, scratch);
}

IOStatus RandomRWFile::Sync(const IOOptions&, IODebugContext*) {
  return ToStatus(adit_fdatasync(handle_.get()), handle_.path());
}

IOStatus RandomRWFile::Fsync(const IOOptions&, IODebugContext*) {
  return ToStatus(adit_fsync(handle_.get()), handle_.path());
}

// ------------------------------------------------------------------------------------- directories

IOStatus Directory::Fsync(const IOOptions&, IODebugContext*) {
  return ToStatus(adit_fsync(handle_.get()), handle_.path());
}

IOStatus Directory::FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                                        const rocksdb::DirFsyncOptions& reason) {
  // An fsync of a file makes its names durable too: there is nothing left to do for a new one.
  if (reason.reason == rocksdb::DirFsyncOptions::kNewFileSynced && !options.force_dir_fsync) {
    return IOStatus::OK();
  }
  return Fsync(options, debug);
}

size_t Directory::GetUniqueId(char* id, size_t max_size) const {
  return handle_.UniqueId(volume_id_, id, max_size);
}

}  // namespace adit_rocksdb
