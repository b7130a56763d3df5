// Open files of LevelDB on open files of Adit: see files.h.
#include "files.h"

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "status.h"

namespace adit_leveldb {

using leveldb::Slice;
using leveldb::Status;

namespace {

Status ReadAt(adit_file* file, const std::string& path, uint64_t offset, size_t len, Slice* result,
              char* scratch) {
  const int64_t got = adit_pread(file, scratch, len, offset);
  *result = Slice(scratch, got > 0 ? static_cast<size_t>(got) : 0);
  return ToStatus(got, path);
}

}  // namespace

// ----------------------------------------------------------------------------------------- reading

Status SequentialFile::Read(size_t len, Slice* result, char* scratch) {
  const Status status = ReadAt(file_, path_, offset_, len, result, scratch);
  offset_ += result->size();
  return status;
}

Status SequentialFile::Skip(uint64_t len) {
  const int64_t size = adit_file_size(file_);
  if (size < 0) return Failure(size, path_);
  // The file may be shorter by now than what was read of it.
  const uint64_t left = std::max(static_cast<uint64_t>(size), offset_) - offset_;
  offset_ += std::min(len, left);
  return Status::OK();
}

Status RandomAccessFile::Read(uint64_t offset, size_t len, Slice* result, char* scratch) const {
  return ReadAt(file_, path_, offset, len, result, scratch);
}

// ----------------------------------------------------------------------------------------- writing

WritableFile::~WritableFile() { Close(); }

Status WritableFile::WriteOut(const Slice& data) {
  assert(buffered_bytes_ <= kBufferBytes);
  iovec pieces[2];
  int count = 0;
  if (buffered_bytes_ > 0) pieces[count++] = {buffer_, buffered_bytes_};
  if (!data.empty()) pieces[count++] = {const_cast<char*>(data.data()), data.size()};
  if (count == 0) return failed_;
  const int64_t written = adit_appendv(file_, pieces, count, 0, nullptr);
  if (__builtin_expect(written < 0, 0)) return failed_ = Failure(written, path_);
  assert(static_cast<size_t>(written) == buffered_bytes_ + data.size());
  buffered_bytes_ = 0;
  return Status::OK();
}

Status WritableFile::Append(const Slice& data) {
  if (__builtin_expect(!failed_.ok(), 0)) return failed_;
  if (data.size() > kCopiedBytesMax) return WriteOut(data);
  if (data.size() > kBufferBytes - buffered_bytes_) {
    const Status status = WriteOut(Slice());
    if (!status.ok()) return status;
  }
  memcpy(buffer_ + buffered_bytes_, data.data(), data.size());
  buffered_bytes_ += data.size();
  return Status::OK();
}

Status WritableFile::Flush() {
  if (__builtin_expect(!failed_.ok(), 0)) return failed_;
  return WriteOut(Slice());
}

Status WritableFile::Sync() {
  const Status flushed = Flush();
  if (!flushed.ok()) return flushed;
  const int synced = adit_fdatasync(file_);
  if (__builtin_expect(synced < 0, 0)) return failed_ = Failure(synced, path_);
  return Status::OK();
}

Status WritableFile::Close() {
  if (file_ == nullptr) return failed_;
  Flush();  // a failure is in failed_
  const int closed = adit_close(file_);
  file_ = nullptr;
  if (closed < 0 && failed_.ok()) failed_ = Failure(closed, path_);
  return failed_;
}

}  // namespace adit_leveldb
