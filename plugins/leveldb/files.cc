// Open files of LevelDB on open files of Adit: see files.h.
#include "files.h"

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

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

bool EndsWith(const std::string& text, const char* end) {
  const size_t len = strlen(end);
  return text.size() >= len && text.compare(text.size() - len, len, end) == 0;
}

// The size of a table; of any other file 0: LevelDB may still write it.
uint64_t TableBytes(adit_file* file, const std::string& path) {
  if (!IsTable(path)) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(adit_file_size(file), 0));
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

bool TableCopies::Take(uint64_t bytes) {
  uint64_t left = left_bytes_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (left_bytes_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

void TableCopies::Written(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  written_.insert(path);
}

bool TableCopies::Forget(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  return written_.erase(path) > 0;
}

bool IsTable(const std::string& path) { return EndsWith(path, ".ldb") || EndsWith(path, ".sst"); }

RandomAccessFile::RandomAccessFile(adit_file* file, std::string path,
                                   std::shared_ptr<TableCopies> copies)
    : file_(file),
      path_(std::move(path)),
      copies_(std::move(copies)),
      size_bytes_(TableBytes(file_, path_)) {
  if (size_bytes_ > 0 && copies_->Forget(path_)) Copy();
}

RandomAccessFile::~RandomAccessFile() {
  adit_close(file_);
  char* const copy = copy_.load(std::memory_order_relaxed);
  if (copy == nullptr) return;
  delete[] copy;
  copies_->Return(size_bytes_);
}

Status RandomAccessFile::Read(uint64_t offset, size_t len, Slice* result, char* scratch) const {
  const char* const copy = copy_.load(std::memory_order_acquire);
  if (copy != nullptr) {
    const uint64_t begin = std::min(offset, size_bytes_);
    *result = Slice(copy + begin, std::min<uint64_t>(len, size_bytes_ - begin));
    return Status::OK();
  }
  const Status status = ReadAt(file_, path_, offset, len, result, scratch);
  if (size_bytes_ > 0) Count(offset, result->size());
  return status;
}

void RandomAccessFile::Count(uint64_t offset, uint64_t read_bytes) const {
  const uint64_t next = next_offset_.exchange(offset + read_bytes, std::memory_order_relaxed);
  if (offset == next) return;
  const uint64_t enough_bytes = size_bytes_ / 2;
  const uint64_t before = read_bytes_.fetch_add(read_bytes, std::memory_order_relaxed);
  // One thread alone crosses the mark.
  if (before >= enough_bytes || before + read_bytes < enough_bytes) return;
  if (!Copy()) read_bytes_.store(0, std::memory_order_relaxed);  // another time
}

bool RandomAccessFile::Copy() const {
  if (!copies_->Take(size_bytes_)) return false;
  char* const copy = new (std::nothrow) char[size_bytes_];
  const int64_t got = copy != nullptr ? adit_pread(file_, copy, size_bytes_, 0) : -1;
  if (got == static_cast<int64_t>(size_bytes_)) {
    copy_.store(copy, std::memory_order_release);
    return true;
  }
  delete[] copy;
  copies_->Return(size_bytes_);
  return false;
}

// ----------------------------------------------------------------------------------------- writing

WritableFile::WritableFile(adit_file* file, std::string path)
    : file_(file),
      path_(std::move(path)),
      is_table_(IsTable(path_)),
      buffer_bytes_(is_table_ ? kTableBufferBytes : kBufferBytes),
      buffer_(new char[buffer_bytes_]) {}

WritableFile::~WritableFile() { Close(); }

Status WritableFile::WriteOut(Slice data) {
  assert(buffered_bytes_ <= buffer_bytes_);
  while (buffered_bytes_ > 0 || !data.empty()) {
    const size_t len = std::min(data.size(), kAppendedBytesMax);
    iovec pieces[2];
    int count = 0;
    if (buffered_bytes_ > 0) pieces[count++] = {buffer_.get(), buffered_bytes_};
    if (len > 0) pieces[count++] = {const_cast<char*>(data.data()), len};
    const int64_t written = adit_appendv(file_, pieces, count, 0, nullptr);
    if (__builtin_expect(written < 0, 0)) return failed_ = Failure(written, path_);
    assert(static_cast<size_t>(written) == buffered_bytes_ + len);
    buffered_bytes_ = 0;
    data.remove_prefix(len);
  }
  return failed_;
}

Status WritableFile::Append(const Slice& data) {
  if (__builtin_expect(!failed_.ok(), 0)) return failed_;
  if (data.size() > kCopiedBytesMax) return WriteOut(data);
  if (data.size() > buffer_bytes_ - buffered_bytes_) {
    const Status status = WriteOut(Slice());
    if (!status.ok()) return status;
  }
  memcpy(buffer_.get() + buffered_bytes_, data.data(), data.size());
  buffered_bytes_ += data.size();
  return Status::OK();
}

Status WritableFile::Flush() {
  if (is_table_ || __builtin_expect(!failed_.ok(), 0)) return failed_;
  return WriteOut(Slice());
}

Status WritableFile::Sync() {
  if (__builtin_expect(!failed_.ok(), 0)) return failed_;
  const Status written = WriteOut(Slice());
  if (!written.ok()) return written;
  const int synced = adit_fdatasync(file_);
  if (__builtin_expect(synced < 0, 0)) return failed_ = Failure(synced, path_);
  return Status::OK();
}

Status WritableFile::Close() {
  if (file_ == nullptr) return failed_;
  if (failed_.ok()) WriteOut(Slice());  // a failure is in failed_
  const int closed = adit_close(file_);
  file_ = nullptr;
  if (closed < 0 && failed_.ok()) failed_ = Failure(closed, path_);
  return failed_;
}

}  // namespace adit_leveldb
